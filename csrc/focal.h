// The weighted binary focal loss of one pair (document, label), defined once for CPU and GPU, scalar and vector. No
// torch, no state. Paper: section 3.2 (training).
//
//   p = probability(cos),   i = 1 where the label is right, epsilon where it is not
//   l = - i (1 - p)^gamma log p  -  (1 - i) p^gamma log(1 - p)
//
// p is kept where its logarithms are finite. At its upper end the slope stays, so that a wrong pair leaves.
#pragma once

#include "surprise.h"

namespace surprise_hf {

constexpr double kSharpness = 20;  // of softplus: p = cos above about 0.15, a tail e^(20 cos) / 20 below

template <class T>
struct Focal {
  T gamma, epsilon;
  T delta;      // of ReLU
  T low, high;  // of p; low is a normal number
  bool softplus;
};

// `coarse` is the rounding of the embeddings: a cosine closer than that to 1 (half precision: to 0 too) is not known to
// differ from it.
template <class T>
Focal<T> focal_of(double gamma, double epsilon, double delta, bool softplus, double coarse) {
  const double floor = delta < 1e-10 ? delta : 1e-10, least = softplus ? 0 : coarse > 1e-4 ? coarse : floor;
  const T low = static_cast<T>(least), tiny = std::numeric_limits<T>::min();
  return {T(gamma), T(epsilon), T(delta), low > tiny ? low : tiny, T(1 - coarse), softplus};
}

// Share in the mean of each right and each wrong label of a document. A document's shares add up to 1 / rows.
struct Shares {
  double right, wrong;
};

SHF_HD Shares shares_of(int64_t rows, int64_t labels, int64_t right, bool balanced) {
  if (!balanced) return {1.0 / (rows * labels), 1.0 / (rows * labels)};
  const int64_t wrong = labels - right;
  const double kinds = rows * static_cast<double>((right > 0) + (wrong > 0));
  return {right > 0 ? 1 / (kinds * right) : 0.0, wrong > 0 ? 1 / (kinds * wrong) : 0.0};
}

template <>
struct Lane<double> {
  SHF_HD static double inverse(double x) { return 1 / x; }
  SHF_HD static double select(bool m, double a, double b) { return m ? a : b; }
};

// exp(-y) for 0 <= y <= 87 and log(x) for normal x > 0; float and vectors of floats to a few units in the last place.
SHF_HD double exp_negative(double y) { return exp(-y); }
SHF_HD double log_of(double x) { return log(x); }

template <class V>
SHF_HD V exp_negative(V y) {
  return exp_minus<V>(y, V{} + 1.0f);
}

template <class V>
SHF_HD V log_of(V x) {
  using L = Lane<V>;
  V m;
  const V e = L::split(x, m);
  const V f = m - 1.0f, z = f * f, w = z * z;  // the polynomial in parts that do not wait for each other
  const V a = L::fma(f, V{} - 2.4999993993e-1f, V{} + 3.3333331174e-1f);
  const V b = L::fma(f, V{} - 1.6668057665e-1f, V{} + 2.0000714765e-1f);
  const V c = L::fma(f, V{} - 1.2420140846e-1f, V{} + 1.4249322787e-1f);
  const V d = L::fma(f, V{} - 1.1514610310e-1f, V{} + 1.1676998740e-1f);
  const V p = L::fma(w, L::fma(w, V{} + 7.0376836292e-2f, L::fma(z, d, c)), L::fma(z, b, a));
  V tail = L::fma(e, V{} - 2.12194440e-4f, p * f * z);
  tail = L::fma(z, V{} - 0.5f, tail);
  return L::fma(e, V{} + 0.693359375f, f + tail);
}

// x^power for 0 < x < 1 from log x; what is smaller than e^-87 counts as that.
template <class V, class T>
SHF_HD V power_of(V log_x, T power) {
  const V y = log_x * -power, most = V{} + T(87);
  return exp_negative(Lane<V>::select(y > most, most, y));
}

// p of a cosine, and dp / dcos.
template <class V>
struct Probability {
  V p, slope;
};

template <class V, class T>
SHF_HD Probability<V> probability_of(V cos, const Focal<T>& o) {
  using L = Lane<V>;
  const V zero{}, one = zero + T(1);
  V p, dp;
  if (o.softplus) {
    const V x = cos * T(kSharpness);
    const V e = exp_negative(L::select(x < zero, zero - x, x));
    const V u = one + e, inverse = L::inverse(u);
    const V log1p_e = log_of(u) + (e - (u - one)) * inverse;  // to the last digits of a small e
    p = (L::select(x < zero, zero, x) + log1p_e) * T(1 / kSharpness);
    dp = L::select(x < zero, e * inverse, inverse);
  } else {
    p = cos + o.delta;
    dp = L::select(p > zero, one, zero);
  }
  p = L::select(p < zero + o.low, zero + o.low, p);
  return {L::select(p > zero + o.high, zero + o.high, p), dp};
}

template <class V>
struct FocalPair {
  V loss, cross_entropy, slope;  // slope: dl / dcos
};

// `positive` is a bool, or what a comparison of two V gives.
template <class V, class M, class T>
SHF_HD FocalPair<V> focal_pair(const Probability<V>& of, M positive, const Focal<T>& o) {
  using L = Lane<V>;
  const V zero{}, one = zero + T(1), p = of.p, dp = of.slope;
  const V left = one - p, inverse_left = L::inverse(left), dlog = dp * L::inverse(p);
  const V log_p = log_of(p), log_left = log_of(left) + ((one - left) - p) * inverse_left;
  const V i = L::select(positive, one, zero + o.epsilon);
  const V right = zero - i * log_p, wrong = (i - one) * log_left;
  if (o.gamma == T(1))
    return {left * right + p * wrong, right + wrong,
            (wrong - right + (one - i) * p * inverse_left) * dp - i * left * dlog};
  const V focus_right = power_of(log_left, o.gamma), focus_wrong = power_of(log_p, o.gamma);
  return {focus_right * right + focus_wrong * wrong, right + wrong,
          (o.gamma * wrong * focus_wrong - i * focus_right) * dlog +
              ((one - i) * focus_wrong - o.gamma * right * focus_right) * inverse_left * dp};
}

}  // namespace surprise_hf
