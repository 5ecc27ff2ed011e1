// The surprise formula, defined once for CPU and GPU, scalar and vector. No torch, no state.
//
// A query's column of similarities has mean mu and population standard deviation sigma over the ensemble:
//   z = (psi - mu) / sigma,   score = Phi(z),   log_tail = log(1 - Phi(z)).
// sigma at or below its rounding noise counts as 0; then z is -inf, 0 or +inf. Finite input never gives NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__CUDACC__)
#define SHF_HD __host__ __device__ __forceinline__
#else
#define SHF_HD inline __attribute__((always_inline))
#endif

namespace surprise_hf {

enum class Output : int { kCosine = 0, kZ = 1, kScore = 2, kLogTail = 3 };

// Rounding noise of a similarity of magnitude |mean|: 8 eps max(1, |mean|).
template <class T>
SHF_HD double sigma_floor(double mean) {
  const double eps = sizeof(T) == 8 ? 2.220446049250313e-16 : 1.1920928955078125e-07;
  const double size = mean < 0 ? -mean : mean;
  return 8 * eps * (size > 1 ? size : 1);
}

// What standardising one query's column needs. The mean is kept in two parts so that the float32 gap loses nothing to
// rounding the mean itself.
template <class T>
struct alignas(4 * sizeof(T)) Column {  // one vector load on the GPU
  T mean_hi, mean_lo, inv_std, edge;    // edge: |gap| at or below it counts as 0 (only where sigma = 0)
};

template <class T>
SHF_HD Column<T> make_column(double mean, double std) {
  Column<T> c;
  c.mean_hi = static_cast<T>(mean);
  c.mean_lo = static_cast<T>(mean - static_cast<double>(c.mean_hi));
  const bool dead = !(std > 0) && std == std;  // a NaN sigma stays NaN
  c.inv_std = dead ? static_cast<T>(HUGE_VAL) : static_cast<T>(1.0 / std);
  c.edge = dead ? static_cast<T>(sigma_floor<T>(mean)) : static_cast<T>(0);
  return c;
}

template <class T>
SHF_HD T standardize(T psi, const Column<T>& c) {
  const T gap = (psi - c.mean_hi) - c.mean_lo;
  const T size = gap < 0 ? -gap : gap;
  return size <= c.edge ? static_cast<T>(0) : gap * c.inv_std;
}

// Count, sums of (x - shift) and (x - shift)^2 -> population mean and standard deviation.
struct Moments {
  double mean, std;
};

template <class T>
SHF_HD Moments finish_moments(double count, double shift, double sum, double sum_sq) {
  if (!(count > 0)) return {0.0, 0.0};
  const double off = sum / count;
  const double var = sum_sq / count - off * off;
  const double mean = shift + off;
  const double floor = sigma_floor<T>(mean);
  if (var <= floor * floor) return {mean, 0.0};
  return {mean, sqrt(var)};
}

// --- Phi in float32 --------------------------------------------------------------------------------------------
// Between -2.5 and 5.5, where 159 of 160 normal values lie: 1/2 + z P(z^2) / Q(z^2), error 7e-9 before rounding. Above
// that it is 1. Below, it is small and keeps its digits: exp(-x^2/2) t P(t) with x = -z, t = 1 / (1 + 0.35 x), relative
// error 3.5e-8 before rounding. (P, Q fitted for the largest error to be least.) `V` is float or any vector of floats
// for which `Lane<V>` has the steps that differ; the same code therefore runs scalar on the GPU
// and in 8 or 16 lanes on the CPU. A lane's value never depends on its neighbours: equal z have equal scores.

template <class V>
struct Lane;

template <>
struct Lane<float> {
  SHF_HD static float exp2_int(float n) {  // 2^n, n integral in [-126, 127]
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float r;
    memcpy(&r, &bits, 4);
    return r;
  }
  SHF_HD static float split(float x, float& m) {  // x = m 2^n, sqrt(1/2) <= m < sqrt(2): m and n
    int32_t bits;
    memcpy(&bits, &x, 4);
    bits -= 0x3f3504f3;
    const float n = static_cast<float>(bits >> 23);
    bits = (bits & 0x7fffff) + 0x3f3504f3;
    memcpy(&m, &bits, 4);
    return n;
  }
  SHF_HD static float round(float x) { return rintf(x); }
  SHF_HD static float fma(float a, float b, float c) { return fmaf(a, b, c); }
  SHF_HD static float inverse(float x) { return 1.0f / x; }
  SHF_HD static float select(bool m, float a, float b) { return m ? a : b; }
  SHF_HD static bool any(bool m) { return m; }
};

// exp(-a b) for 0 <= a b <= 87; the product is not rounded before what is a multiple of log 2 has been taken off.
template <class V>
SHF_HD V exp_minus(V a, V b) {
  using L = Lane<V>;
  const V n = L::round(a * b * -1.44269504088896341f);
  V r = L::fma(a, V{} - b, n * -0.693145751953125f);  // 16 bits by 7: exact
  r = L::fma(n, V{} - 1.42860682030941723212e-6f, r);
  V p = V{} + 1.9875691500e-4f;
  p = L::fma(p, r, V{} + 1.3981999507e-3f);
  p = L::fma(p, r, V{} + 8.3334519073e-3f);
  p = L::fma(p, r, V{} + 4.1665795894e-2f);
  p = L::fma(p, r, V{} + 1.6666665459e-1f);
  p = L::fma(p, r, V{} + 5.0000001201e-1f);
  p = L::fma(p, r * r, r + 1.0f);
  return p * L::exp2_int(n);
}

// Phi(-x) for x >= 2.5; 0 from 13.18 on, where exp falls below the smallest normal float.
template <class V>
SHF_HD V lower_tail(V x) {
  using L = Lane<V>;
  const auto far = x > V{} + 13.18f;
  x = L::select(far, V{} + 13.18f, x);
  const V t = L::inverse(L::fma(x, V{} + 0.35f, V{} + 1.0f));
  V p = V{} - 0.0734037533402443f;
  p = L::fma(p, t, V{} + 0.09927482903003693f);
  p = L::fma(p, t, V{} + 0.06676672399044037f);
  p = L::fma(p, t, V{} + 0.12709805369377136f);
  p = L::fma(p, t, V{} + 0.1391199678182602f);
  p = L::fma(p, t, V{} + 0.13965311646461487f);
  return L::select(far, V{}, p * t * exp_minus<V>(x * 0.5f, x));
}

template <class V>
SHF_HD V normal_cdf_fast(V z) {
  using L = Lane<V>;
  const V x = L::select(z > V{} + 5.5f, V{} + 5.5f, z), u = x * x;
  V p = V{} + 2.2749336637e-8f;
  p = L::fma(p, u, V{} + 6.352132459e-6f);
  p = L::fma(p, u, V{} + 1.688270568e-4f);
  p = L::fma(p, u, V{} + 4.677269142e-3f);
  p = L::fma(p, u, V{} + 3.385277465e-2f);
  p = L::fma(p, u, V{} + 0.398942232131958f);
  V q = V{} + 1.1975041616e-6f;
  q = L::fma(q, u, V{} + 7.364797057e-5f);
  q = L::fma(q, u, V{} + 1.8844526494e-3f);
  q = L::fma(q, u, V{} + 2.8645947576e-2f);
  q = L::fma(q, u, V{} + 0.2515222430229187f);
  q = L::fma(q, u, V{} + 1.0f);
  V cdf = L::fma(x * p, L::inverse(q), V{} + 0.5f);
  cdf = L::select(cdf > V{} + 1.0f, V{} + 1.0f, cdf);  // rounding may lift it over
  const auto low = z < V{} - 2.5f;
  if (L::any(low)) cdf = L::select(low, lower_tail<V>(V{} - z), cdf);
  return cdf;
}

SHF_HD float normal_cdf(float z) { return normal_cdf_fast<float>(z); }
SHF_HD double normal_cdf(double z) { return 0.5 * erfc(-z * 0.70710678118654752440); }

// log(1 - Phi(z)). The three forms meet where each is still accurate to the last digits.
SHF_HD double log_tail(double z) {
  if (z < -1) return log1p(-0.5 * erfc(-z * 0.70710678118654752440));
  if (z < 30) return log(0.5 * erfc(z * 0.70710678118654752440));
  if (z > 1e150) return -HUGE_VAL;
  const double i = 1 / (z * z);
  return -0.5 * z * z - log(z) - 0.91893853320467274178 + log1p(i * (-1 + i * (3 + i * (-15 + i * 105))));
}
SHF_HD float log_tail(float z) { return static_cast<float>(log_tail(static_cast<double>(z))); }

template <class T>
SHF_HD T from_z(T psi, T z, Output output) {
  switch (output) {
    case Output::kCosine: return psi;
    case Output::kZ: return z;
    case Output::kScore: return normal_cdf(z);
    default: return log_tail(z);
  }
}

// --- moments merge (Chan, Golub, LeVeque) ------------------------------------------------------------------------

// Merges a group of `nb` values with mean `mb` and centred sum of squares `sb` into (n, mean, m2).
SHF_HD void merge_moments(double& n, double& mean, double& m2, double nb, double mb, double sb) {
  if (!(nb > 0)) return;
  const double total = n + nb, delta = mb - mean;
  mean += delta * (nb / total);
  m2 += sb + delta * delta * (n * nb / total);
  n = total;
}

}  // namespace surprise_hf
