// The running ensemble statistics: centring a batch, and merging its mean and scatter (Chan, Golub and LeVeque).
#pragma once

#include "cuda/element.h"

namespace surprise_hf {

constexpr int kTransposeTile = 32;

// out[c][r] = rows[r][c] - mean[c] (just turned without `row_sum`), rows padded with zeros to `padded` so that the
// product reads whole chunks.
template <class T>
struct CentreArgs {
  const T* rows;          // (n, dim)
  const double* row_sum;  // (dim), sum of the rows, or null
  int64_t n, dim, padded;
  T* out;  // (dim, padded)
};

template <class Block, class T>
SHF_BLOCK void centre_body(Block& block, const CentreArgs<T>& args) {
  const auto tile = block.template shared<T>();  // kTransposeTile rows of kTransposeTile + 1
  const int64_t across = (args.dim + kTransposeTile - 1) / kTransposeTile;
  const int64_t first_col = block.index() % across * kTransposeTile,
                first_row = block.index() / across * kTransposeTile;
  const int x = block.thread() % kTransposeTile, step = block.threads() / kTransposeTile;
  for (int y = block.thread() / kTransposeTile; y < kTransposeTile; y += step) {
    const int64_t r = first_row + y, c = first_col + x;
    T value = 0;
    if (r < args.n && c < args.dim) {
      value = args.rows[r * args.dim + c];
      if (args.row_sum != nullptr) value = static_cast<T>(value - args.row_sum[c] / static_cast<double>(args.n));
    }
    tile[y * (kTransposeTile + 1) + x] = value;
  }
  block.sync();
  for (int y = block.thread() / kTransposeTile; y < kTransposeTile; y += step) {
    const int64_t c = first_col + y, r = first_row + x;
    if (c < args.dim && r < args.padded) args.out[c * args.padded + r] = tile[x * (kTransposeTile + 1) + y];
  }
}

template <class T>
struct MergeArgs {
  const T* product;       // (dim, dim), scatter of the batch about its own mean
  const double* row_sum;  // (dim), sum of the batch's rows
  double rows;
  int64_t dim;
  double* count;    // ()
  double* mean;     // (dim)
  double* scatter;  // (dim, dim)
};

template <class Block, class T>
SHF_BLOCK void merge_scatter_body(Block& block, const MergeArgs<T>& args) {
  const int64_t at = block.index() * block.threads() + block.thread();
  if (at >= args.dim * args.dim) return;
  const int64_t i = at / args.dim, j = at % args.dim;
  const double old = *args.count, weight = old * args.rows / (old + args.rows);
  const double di = args.row_sum[i] / args.rows - args.mean[i], dj = args.row_sum[j] / args.rows - args.mean[j];
  args.scatter[at] += static_cast<double>(args.product[at]) + weight * di * dj;
}

// After the scatter, which needs the old mean and count. One block.
template <class Block, class T>
SHF_BLOCK void merge_mean_body(Block& block, const MergeArgs<T>& args) {
  const double total = *args.count + args.rows;
  for (int64_t i = block.thread(); i < args.dim; i += block.threads())
    args.mean[i] += (args.row_sum[i] / args.rows - args.mean[i]) * (args.rows / total);
  block.sync();
  if (block.thread() == 0) *args.count = total;
}

}  // namespace surprise_hf
