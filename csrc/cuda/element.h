// Element types as the kernels see them: bits in 16-byte chunks, widened to float or double. Host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "surprise.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define SHF_BLOCK __device__ __forceinline__
#else
#define SHF_BLOCK inline
#endif

namespace surprise_hf {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

SHF_BLOCK float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
SHF_BLOCK uint32_t float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

SHF_BLOCK float widen(float x) { return x; }
SHF_BLOCK double widen(double x) { return x; }
SHF_BLOCK float widen(BF16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
SHF_BLOCK float widen(F16 x) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(x.bits));
#else
  _Float16 h;
  memcpy(&h, &x.bits, 2);
  return static_cast<float>(h);
#endif
}

// a * b rounded to float32, never fused into a following addition: every kernel then sees the same cosine.
SHF_BLOCK float rounded_product(float a, float b) {
#if defined(__CUDACC__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// 16 bytes of a row: the unit in which rows travel from memory to registers.
struct alignas(16) Chunk {
  uint32_t word[4];

  template <class T>
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));

  template <class T>
  SHF_BLOCK static Chunk of(const T (&x)[16 / sizeof(T)]) {
    Chunk c;
    memcpy(c.word, x, 16);
    return c;
  }
};

// Sum of the squares of a word's elements, added to `sum` in float32.
template <class T>
SHF_BLOCK float add_squares(float sum, uint32_t word) {
  if constexpr (sizeof(T) == 4) {
    return Lane<float>::fma(bits_to_float(word), bits_to_float(word), sum);
  } else {
    const float low = widen(T{static_cast<uint16_t>(word)}), high = widen(T{static_cast<uint16_t>(word >> 16)});
    return Lane<float>::fma(high, high, Lane<float>::fma(low, low, sum));
  }
}

}  // namespace surprise_hf
