// AVX-512 and the matrix unit in plain C++, so that their kernels are tested on every x86 processor: included before
// anything else where these are compiled for the tests (build.py). It knows the instructions that csrc/cpu uses.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/compiler.h"

#undef SHF_HAS_AMX
#define SHF_HAS_AMX 1
#undef SHF_TARGET  // whatever the command line's target is, which need not have the instructions
#define SHF_TARGET(features)
#define SHF_EMULATED 1

namespace emulated {

template <class To, class From>
inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

template <class T, int kBytes>
struct Lanes {
  static constexpr int kCount = kBytes / sizeof(T);
  T x[kCount];
  template <class V>
  static Lanes of(const V& v) {
    return bits<Lanes>(v);
  }
};
using Floats = Lanes<float, 64>;
using Doubles = Lanes<double, 64>;
using Ints = Lanes<int32_t, 64>;
using Longs = Lanes<int64_t, 64>;
using Bytes = Lanes<uint8_t, 64>;

// A vector whose lane i is f(i).
template <class V, class L, class F>
inline V make(const F& f) {
  L lanes;
  for (int i = 0; i < L::kCount; ++i) lanes.x[i] = f(i);
  return bits<V>(lanes);
}

// --- AVX-512 ---------------------------------------------------------------------------------------------------------

template <class V>
inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}
inline void store(void* to, __m512i v) { std::memcpy(to, &v, sizeof(v)); }
inline void mask_store_ps(void* to, __mmask16 mask, __m512 v) {
  const auto x = Floats::of(v);
  for (int i = 0; i < 16; ++i)
    if ((mask >> i & 1) != 0) std::memcpy(static_cast<float*>(to) + i, &x.x[i], 4);
}

inline __m512 set1_ps(float x) {
  return make<__m512, Floats>([&](int) { return x; });
}
inline __m512i set1_epi8(int x) {
  return make<__m512i, Bytes>([&](int) { return static_cast<uint8_t>(x); });
}
inline __m512i set1_epi32(int x) {
  return make<__m512i, Ints>([&](int) { return x; });
}
inline __m512i set1_epi64(int64_t x) {
  return make<__m512i, Longs>([&](int) { return x; });
}

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const auto x = Floats::of(a), y = Floats::of(b), z = Floats::of(c);
  return make<__m512, Floats>([&](int i) { return std::fma(x.x[i], y.x[i], z.x[i]); });
}
inline __m512 max_ps(__m512 a, __m512 b) {  // the second of two where one is NaN
  const auto x = Floats::of(a), y = Floats::of(b);
  return make<__m512, Floats>([&](int i) { return x.x[i] > y.x[i] ? x.x[i] : y.x[i]; });
}
// The larger magnitude, sign cleared; a number rather than NaN.
inline __m512 range_ps(__m512 a, __m512 b, int how) {
  if (how != 0b1011) __builtin_trap();
  const auto x = Floats::of(a), y = Floats::of(b);
  return make<__m512, Floats>([&](int i) { return std::fmax(std::fabs(x.x[i]), std::fabs(y.x[i])); });
}
inline __m512 rcp14_ps(__m512 a) {  // nothing below the fourteenth bit
  const auto x = Floats::of(a);
  return make<__m512, Floats>([&](int i) { return bits<float>(bits<uint32_t>(1 / x.x[i]) & 0xfffffe00u); });
}
inline __m512i add_epi32(__m512i a, __m512i b) {
  const auto x = Ints::of(a), y = Ints::of(b);
  return make<__m512i, Ints>([&](int i) { return static_cast<int32_t>(uint32_t(x.x[i]) + uint32_t(y.x[i])); });
}
inline __m512i add_epi64(__m512i a, __m512i b) {
  const auto x = Longs::of(a), y = Longs::of(b);
  return make<__m512i, Longs>([&](int i) { return static_cast<int64_t>(uint64_t(x.x[i]) + uint64_t(y.x[i])); });
}
inline __m512i srli_epi64(__m512i a, int by) {
  const auto x = Longs::of(a);
  return make<__m512i, Longs>([&](int i) { return static_cast<int64_t>(uint64_t(x.x[i]) >> by); });
}
inline __m512i xor_si512(__m512i a, __m512i b) { return a ^ b; }

// Numbers to integers, to the nearest and even one; what does not fit is the most negative one.
template <class I, class F>
inline I nearest(F x) {
  const F limit = std::ldexp(F(1), 8 * sizeof(I) - 1), there = std::nearbyint(x);
  return there >= -limit && there < limit ? static_cast<I>(there) : std::numeric_limits<I>::min();
}
inline __m512i cvtps_epi32(__m512 a) {
  const auto x = Floats::of(a);
  return make<__m512i, Ints>([&](int i) { return nearest<int32_t>(x.x[i]); });
}
inline __m512i cvtpd_epi64(__m512d a) {
  const auto x = Doubles::of(a);
  return make<__m512i, Longs>([&](int i) { return nearest<int64_t>(x.x[i]); });
}
inline __m512 cvtepi32_ps(__m512i a) {
  const auto x = Ints::of(a);
  return make<__m512, Floats>([&](int i) { return static_cast<float>(x.x[i]); });
}
inline __m512d cvtepi32_pd(__m256i a) {
  const auto x = Lanes<int32_t, 32>::of(a);
  return make<__m512d, Doubles>([&](int i) { return static_cast<double>(x.x[i]); });
}
inline __m256i cvtepi64_epi32(__m512i a) {
  const auto x = Longs::of(a);
  return make<__m256i, Lanes<int32_t, 32>>([&](int i) { return static_cast<int32_t>(uint64_t(x.x[i])); });
}
inline __m512i cvtepu16_epi32(__m256i a) {
  const auto x = Lanes<uint16_t, 32>::of(a);
  return make<__m512i, Ints>([&](int i) { return x.x[i]; });
}
inline float half(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 0) return std::copysign(std::ldexp(float(fraction), -24), sign != 0 ? -1.0f : 1.0f);
  return bits<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}
inline __m512 cvtph_ps(__m256i a) {
  const auto x = Lanes<uint16_t, 32>::of(a);
  return make<__m512, Floats>([&](int i) { return half(x.x[i]); });
}
inline __m512i castsi256_si512(__m256i a) {
  const auto x = Lanes<int64_t, 32>::of(a);
  return make<__m512i, Longs>([&](int i) { return i < 4 ? x.x[i] : 0; });
}
inline __m512i inserti64x4(__m512i a, __m256i b, int half) {
  const auto x = Longs::of(a);
  const auto y = Lanes<int64_t, 32>::of(b);
  return make<__m512i, Longs>([&](int i) { return i / 4 == half ? y.x[i % 4] : x.x[i]; });
}
inline __mmask16 movepi32_mask(__m512i a) {
  const auto x = Ints::of(a);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= unsigned(x.x[i] < 0) << i;
  return static_cast<__mmask16>(mask);
}
inline __mmask8 movepi64_mask(__m512i a) {
  const auto x = Longs::of(a);
  unsigned mask = 0;
  for (int i = 0; i < 8; ++i) mask |= unsigned(x.x[i] < 0) << i;
  return static_cast<__mmask8>(mask);
}

// Within each run of 16 bytes: alternating units of the lower or upper half.
template <class L>
inline __m512i unpack(__m512i a, __m512i b, bool upper) {
  constexpr int run = 16 / sizeof(L::x[0]);
  const auto x = L::of(a), y = L::of(b);
  return make<__m512i, L>([&](int i) {
    const int from = i / run * run + upper * run / 2 + i % run / 2;
    return i % 2 == 0 ? x.x[from] : y.x[from];
  });
}
inline __m512i shuffle_i32x4(__m512i a, __m512i b, int how) {
  const auto x = Ints::of(a), y = Ints::of(b);
  return make<__m512i, Ints>([&](int i) {
    const int run = how >> i / 4 * 2 & 3;
    return (i < 8 ? x : y).x[4 * run + i % 4];
  });
}
inline __m512i broadcast_i32x4(__m128i a) {
  const auto x = Lanes<int32_t, 16>::of(a);
  return make<__m512i, Ints>([&](int i) { return x.x[i % 4]; });
}
inline __m512i mask_shuffle_epi8(__m512i old, __mmask64 mask, __m512i a, __m512i index) {
  const auto w = Bytes::of(old), x = Bytes::of(a), n = Bytes::of(index);
  return make<__m512i, Bytes>([&](int i) {
    const uint8_t moved = (n.x[i] & 0x80) != 0 ? 0 : x.x[i / 16 * 16 + n.x[i] % 16];
    return (mask >> i & 1) != 0 ? moved : w.x[i];
  });
}

// --- the matrix unit -------------------------------------------------------------------------------------------------

// This thread's eight tiles of 16 rows of 64 bytes; configuring clears them, as does leaving the unit.
struct Tiles {
  uint8_t bytes[8][16][64];
  bool configured = false;
};
inline thread_local Tiles tiles;

inline void tile_loadconfig(const void* config) {
  uint8_t have[64];
  std::memcpy(have, config, sizeof(have));
  for (int t = 0; t < 8; ++t)
    if (have[0] != 1 || have[16 + 2 * t] != 64 || have[17 + 2 * t] != 0 || have[48 + t] != 16) __builtin_trap();
  std::memset(tiles.bytes, 0, sizeof(tiles.bytes));
  tiles.configured = true;
}
inline void tile_release() { tiles.configured = false; }
inline uint8_t (*tile(int t))[64] {
  if (!tiles.configured) __builtin_trap();
  return tiles.bytes[t];
}
inline void tile_zero(int t) { std::memset(tile(t), 0, 1024); }
inline void tile_load(int t, const void* from, int64_t apart) {
  for (int r = 0; r < 16; ++r) std::memcpy(tile(t)[r], static_cast<const char*>(from) + r * apart, 64);
}
inline void tile_store(int t, void* to, int64_t apart) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * apart, tile(t)[r], 64);
}
inline void tile_dpbssd(int sums, int a, int b) {  // signed bytes: four of a row of a with four of a column of b
  for (int r = 0; r < 16; ++r) {
    auto sum = load<Ints>(tile(sums)[r]);
    const auto x = load<Lanes<int8_t, 64>>(tile(a)[r]);
    for (int k = 0; k < 16; ++k) {
      const auto y = load<Lanes<int8_t, 64>>(tile(b)[k]);
      for (int i = 0; i < 64; ++i) sum.x[i / 4] += x.x[4 * k + i % 4] * y.x[i];
    }
    std::memcpy(tile(sums)[r], &sum, 64);
  }
}
inline void tile_dpbf16ps(int sums, int a, int b) {
  const auto wide = [](uint16_t x) { return bits<float>(uint32_t(x) << 16); };
  for (int r = 0; r < 16; ++r) {
    auto sum = load<Floats>(tile(sums)[r]);
    const auto x = load<Lanes<uint16_t, 64>>(tile(a)[r]);
    for (int k = 0; k < 16; ++k) {
      const auto y = load<Lanes<uint16_t, 64>>(tile(b)[k]);
      for (int pair = 0; pair < 2; ++pair)
        for (int c = 0; c < 16; ++c) sum.x[c] += wide(x.x[2 * k + pair]) * wide(y.x[2 * c + pair]);
    }
    std::memcpy(tile(sums)[r], &sum, 64);
  }
}

}  // namespace emulated

// --- their names -----------------------------------------------------------------------------------------------------

#define _mm256_loadu_si256(from) emulated::load<__m256i>(from)
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_add_epi64 emulated::add_epi64
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_castsi256_si512 emulated::castsi256_si512
#define _mm512_cvtepi32_pd emulated::cvtepi32_pd
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi64_epi32 emulated::cvtepi64_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtpd_epi64 emulated::cvtpd_epi64
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_load_si512(from) emulated::load<__m512i>(from)
#define _mm512_mask_shuffle_epi8 emulated::mask_shuffle_epi8
#define _mm512_mask_storeu_ps emulated::mask_store_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_movepi32_mask emulated::movepi32_mask
#define _mm512_movepi64_mask emulated::movepi64_mask
#define _mm512_rcp14_ps emulated::rcp14_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_epi64 emulated::set1_epi64
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_store_si512 emulated::store
#define _mm512_storeu_si512 emulated::store
#define _mm512_xor_si512 emulated::xor_si512
#undef _mm512_inserti64x4
#define _mm512_inserti64x4 emulated::inserti64x4
#undef _mm512_range_ps
#define _mm512_range_ps emulated::range_ps
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 emulated::shuffle_i32x4
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 emulated::srli_epi64
#define _mm512_unpackhi_epi32(a, b) emulated::unpack<emulated::Ints>(a, b, true)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack<emulated::Longs>(a, b, true)
#define _mm512_unpacklo_epi32(a, b) emulated::unpack<emulated::Ints>(a, b, false)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack<emulated::Longs>(a, b, false)
#undef _tile_loadconfig
#define _tile_loadconfig emulated::tile_loadconfig
#undef _tile_release
#define _tile_release emulated::tile_release
#undef _tile_zero
#define _tile_zero emulated::tile_zero
#undef _tile_loadd
#define _tile_loadd emulated::tile_load
#undef _tile_stored
#define _tile_stored emulated::tile_store
#undef _tile_dpbssd
#define _tile_dpbssd emulated::tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emulated::tile_dpbf16ps
