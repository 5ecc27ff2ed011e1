// Row norms, exact cosines and unit rows: the small work around the product. One warp per row.
#pragma once

#include "cuda/element.h"

namespace surprise_hf {

constexpr int kWarpSize = 32;

template <class Block, class T>
SHF_BLOCK T warp_sum(Block& block, T x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += block.shuffle_xor(x, mask);
  return x;
}

template <class Block, class T>
SHF_BLOCK T warp_max(Block& block, T x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const T other = block.shuffle_xor(x, mask);
    x = other > x || other != other ? other : x;  // NaN wins
  }
  return x;
}

// Factor that makes a row a unit row: 1 / |x|, 0 for a zero row. A negative factor marks a row whose squares leave the
// range of float32; its cosines are then recomputed by `exact_cosine`.
SHF_BLOCK float unit_scale(double square_sum) {
  if (square_sum >= 1e-30 && square_sum <= 1e30) return static_cast<float>(1 / sqrt(square_sum));
  if (square_sum == 0) return 0.0f;
  return square_sum < HUGE_VAL ? -1.0f : static_cast<float>(square_sum - square_sum);  // NaN for inf and NaN
}

// The same of a row taken as it is: 1. Negative where it holds an infinity, or a number that may become one when it is
// rounded to tf32.
SHF_BLOCK float plain_scale(double square_sum) {
  if (square_sum <= 1e30) return 1.0f;
  return square_sum == square_sum ? -1.0f : HUGE_VALF - HUGE_VALF;
}

template <class T>
#if defined(__CUDACC__)
__device__ __noinline__
#endif
    float exact_cosine(const T* x, const T* y, int64_t dim, bool normalize) {
  double xy = 0, xx = 0, yy = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const double a = widen(x[i]), b = widen(y[i]);
    xy += a * b, xx += a * a, yy += b * b;
  }
  if (!normalize) return static_cast<float>(xy);
  return xx == 0 || yy == 0 ? 0.0f : static_cast<float>(xy / (sqrt(xx) * sqrt(yy)));
}

// Per query: its unit factor, and its cosine with the first key, the shift of the moment sums.
template <class T>
struct PrepareArgs {
  const T* keys;     // (n, dim); only row 0 is read
  const T* queries;  // (m, dim)
  int64_t n, m, dim;
  bool normalize;
  float* scale;  // (m)
  float* shift;  // (m)
};

template <class Block, class T>
SHF_BLOCK void prepare_body(Block& block, const PrepareArgs<T>& args) {
  const int lane = block.thread() % kWarpSize;
  const int64_t q = block.index() * (block.threads() / kWarpSize) + block.thread() / kWarpSize;
  if (q >= args.m) return;
  const T* query = args.queries + q * args.dim;
  double dot = 0, query_sum = 0, key_sum = 0;
  for (int64_t i = lane; i < args.dim; i += kWarpSize) {
    const double x = widen(query[i]), k = args.n > 0 ? widen(args.keys[i]) : 0.0f;
    dot += x * k, query_sum += x * x, key_sum += k * k;
  }
  dot = warp_sum(block, dot), query_sum = warp_sum(block, query_sum), key_sum = warp_sum(block, key_sum);
  if (lane != 0) return;
  if (args.normalize) {
    args.scale[q] = unit_scale(query_sum);
    args.shift[q] = dot == 0 ? 0.0f : static_cast<float>(dot / (sqrt(query_sum) * sqrt(key_sum)));
  } else {
    args.scale[q] = plain_scale(query_sum);
    args.shift[q] = static_cast<float>(dot);
  }
}

// A row's largest magnitude (1 for a zero row), and the length of the row divided by it (0 for a zero row): neither
// overflows. Asked by a whole warp.
struct RowSize {
  double peak, length;
};

template <class Block, class T>
SHF_BLOCK RowSize row_size(Block& block, const T* row, int64_t dim) {
  const int lane = block.thread() % kWarpSize;
  double peak = 0, square_sum = 0;
  for (int64_t i = lane; i < dim; i += kWarpSize) {
    const double x = fabs(static_cast<double>(widen(row[i])));
    peak = x > peak || x != x ? x : peak;
  }
  peak = warp_max(block, peak);
  if (peak == 0) peak = 1;
  for (int64_t i = lane; i < dim; i += kWarpSize) {
    const double x = widen(row[i]) / peak;
    square_sum += x * x;
  }
  return {peak, sqrt(warp_sum(block, square_sum))};
}

// Rows in the compute type C, of unit length where `normalize`.
template <class T, class C>
struct UnitRowsArgs {
  const T* rows;  // (n, dim)
  C* out;         // (n, dim)
  int64_t n, dim;
  bool normalize;
};

template <class Block, class T, class C>
SHF_BLOCK void unit_rows_body(Block& block, const UnitRowsArgs<T, C>& args) {
  const int lane = block.thread() % kWarpSize;
  const int64_t r = block.index() * (block.threads() / kWarpSize) + block.thread() / kWarpSize;
  if (r >= args.n) return;
  const T* row = args.rows + r * args.dim;
  RowSize size{1, 1};
  if (args.normalize) size = row_size(block, row, args.dim);
  if (size.length == 0) size.length = 1;
  for (int64_t i = lane; i < args.dim; i += kWarpSize)
    args.out[r * args.dim + i] = static_cast<C>(widen(row[i]) / size.peak / size.length);
}

}  // namespace surprise_hf
