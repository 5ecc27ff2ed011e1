// The k best queries of each key by z, lower index first among equals, NaN last. One warp per row; the row stays in the
// cache.
#pragma once

#include "cuda/rows.cuh"

namespace surprise_hf {

template <class T>
struct Ranked {
  T z;
  int64_t index;

  // Strict order.
  SHF_BLOCK bool before(const Ranked& other) const { return z > other.z || (z == other.z && index < other.index); }
};

template <class T>
struct TopkArgs {
  const T* psi;  // (rows, m)
  int64_t rows, m, k;
  const Column<T>* columns;  // (m)
  Output output;
  T* values;         // (rows, k)
  int64_t* indices;  // (rows, k)
};

template <class Block, class T>
SHF_BLOCK void topk_body(Block& block, const TopkArgs<T>& args) {
  const int lane = block.thread() % kWarpSize;
  const int64_t row = block.index() * (block.threads() / kWarpSize) + block.thread() / kWarpSize;
  if (row >= args.rows) return;
  const T* psi = args.psi + row * args.m;
  Ranked<T> last{static_cast<T>(HUGE_VAL), -1};
  for (int64_t p = 0; p < args.k; ++p) {
    Ranked<T> best{-static_cast<T>(HUGE_VAL), 2 * args.m};  // after every candidate
    for (int64_t q = lane; q < args.m; q += kWarpSize) {
      const T z = standardize(psi[q], args.columns[q]);
      const Ranked<T> candidate = z == z ? Ranked<T>{z, q} : Ranked<T>{-static_cast<T>(HUGE_VAL), args.m + q};
      if (last.before(candidate) && candidate.before(best)) best = candidate;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const Ranked<T> other{block.shuffle_xor(best.z, mask), block.shuffle_xor(best.index, mask)};
      if (other.before(best)) best = other;
    }
    last = best;
    if (lane == 0) {
      const int64_t index = best.index % args.m;
      const T x = psi[index], z = standardize(x, args.columns[index]);
      args.values[row * args.k + p] = z == z ? from_z(x, z, args.output) : z;
      args.indices[row * args.k + p] = index;
    }
  }
}

}  // namespace surprise_hf
