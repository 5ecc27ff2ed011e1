// Work on the columns of a tile of similarities: moments, scores, and the ordered reduction of moment sums.
#pragma once

#include "cuda/element.h"

namespace surprise_hf {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a block of up to `width` of the m columns, from `first` on, a thread owns one and every `step`-th row from `row`,
// so that its column's constants stay in registers, memory is touched in order, and every sum has a fixed order. The
// last block, which may have fewer columns than the others, has their step: equal queries get equal moments wherever
// they stand.
struct Strip {
  int cols, col, row, step;
  bool idle;

  SHF_BLOCK Strip(int thread, int threads, int64_t first, int64_t m, int width)
      : cols(m - first < width ? static_cast<int>(m - first) : width),
        col(thread % cols),
        row(thread / cols),
        step(threads / (m < width ? static_cast<int>(m) : width)),
        idle(thread >= step * cols) {}
};

// Sums of (psi - shift) and its square.
struct alignas(16) Sums {
  double sum, sum_sq;

  SHF_BLOCK void add(double x) { sum += x, sum_sq += x * x; }
  SHF_BLOCK void add(const Sums& other) { sum += other.sum, sum_sq += other.sum_sq; }
};

// Adds the sums of a column's strips in strip order. True for the one thread of each column that then holds them.
// Shared memory: threads Sums.
template <class Block>
SHF_BLOCK bool reduce_strips(Block& block, const Strip& strip, Sums& sums) {
  const auto scratch = block.template shared<Sums>();
  if (!strip.idle) scratch[strip.row * strip.cols + strip.col] = sums;
  block.sync();
  if (strip.idle || strip.row != 0) return false;
  for (int s = 1; s < strip.step; ++s) sums.add(scratch[s * strip.cols + strip.col]);
  return true;
}

// --- moment sums of groups of rows -> moments --------------------------------------------------------------------

template <class T>
struct FinishArgs {
  const Sums* partial;  // (groups, m)
  int64_t groups, m;
  double count;        // rows behind the sums
  const T* shift;      // (m)
  double *mean, *std;  // (m)
  Column<T>* columns;  // (m), ready for standardising
};

constexpr int kFinishColumns = 8;

template <class Block, class T>
SHF_BLOCK void finish_body(Block& block, const FinishArgs<T>& args) {
  const int64_t first = block.index() * kFinishColumns;
  const Strip strip(block.thread(), block.threads(), first, args.m, kFinishColumns);
  Sums sums{0, 0};
  if (!strip.idle) {
    const Sums* p = args.partial + first + strip.col;
#pragma unroll 4
    for (int64_t g = strip.row; g < args.groups; g += strip.step) sums.add(p[g * args.m]);
  }
  if (!reduce_strips(block, strip, sums)) return;
  const int64_t q = first + strip.col;
  const double shift = args.count > 0 ? static_cast<double>(args.shift[q]) : 0;  // without rows there is none to read
  const Moments moments = finish_moments<T>(args.count, shift, sums.sum, sums.sum_sq);
  args.mean[q] = moments.mean, args.std[q] = moments.std;
  args.columns[q] = make_column<T>(moments.mean, moments.std);
}

// --- known moments -> columns ready for standardising
// -----------------------------------------------------------------

template <class T>
struct ColumnsArgs {
  const double *mean, *std;  // (m)
  int64_t m;
  Column<T>* columns;  // (m)
};

template <class Block, class T>
SHF_BLOCK void columns_body(Block& block, const ColumnsArgs<T>& args) {
  const int64_t q = block.index() * block.threads() + block.thread();
  if (q < args.m) args.columns[q] = make_column<T>(args.mean[q], args.std[q]);
}

// --- one sweep over a matrix in memory: sums of it, or scores in place -----------------------------------------------

template <class T>
struct SweepArgs {
  T* psi;  // (n, m); overwritten where columns are given
  int64_t n, m;
  int rows_per_block;
  const Column<T>* columns;  // (m): score in place. Null: sum instead
  Output output;
  Sums* partial;  // (row blocks, m), shifted by row 0
};

constexpr int kSweepColumns = 256;  // columns of a block, and its threads
constexpr int kSweepBatch = 4;      // loads under way per thread

template <class Block, class T>
SHF_BLOCK void sweep_body(Block& block, const SweepArgs<T>& args) {
  const int64_t across = (args.m + kSweepColumns - 1) / kSweepColumns;
  const int64_t first_col = block.index() % across * kSweepColumns, group = block.index() / across;
  const int64_t first_row = group * args.rows_per_block;
  const int rows =
      args.n - first_row < args.rows_per_block ? static_cast<int>(args.n - first_row) : args.rows_per_block;
  const Strip strip(block.thread(), block.threads(), first_col, args.m, kSweepColumns);
  const int64_t q = first_col + strip.col;
  T* psi = args.psi + first_row * args.m + q;
  if (args.columns != nullptr) {
    if (strip.idle) return;
    const Column<T> column = args.columns[q];
    for (int r = strip.row; r < rows; r += kSweepBatch * strip.step) {
      T x[kSweepBatch];
#pragma unroll
      for (int i = 0; i < kSweepBatch; ++i)
        if (r + i * strip.step < rows) x[i] = psi[(r + i * strip.step) * args.m];
#pragma unroll
      for (int i = 0; i < kSweepBatch; ++i)
        if (r + i * strip.step < rows)
          psi[(r + i * strip.step) * args.m] = from_z(x[i], standardize(x[i], column), args.output);
    }
    return;
  }
  Sums sums{0, 0};
  if (!strip.idle) {
    const T shift = args.psi[q];
    for (int r = strip.row; r < rows; r += strip.step) sums.add(static_cast<double>(psi[r * args.m]) - shift);
  }
  if (reduce_strips(block, strip, sums)) args.partial[group * args.m + q] = sums;
}

}  // namespace surprise_hf
