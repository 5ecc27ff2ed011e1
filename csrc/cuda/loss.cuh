// The focal loss around its products: cosines to slopes, the sums over documents, and the way back through the
// normalisation of rows.
#pragma once

#include "cuda/rows.cuh"
#include "focal.h"

namespace surprise_hf {

// Loss and cross-entropy, of one document or of the whole.
struct alignas(16) Losses {
  double loss, cross_entropy;
};

template <class T>
struct FocalArgs {
  Focal<T> focal;
  bool balanced;
  int64_t n, m;
  const bool* positive;  // (n, m)
  const T* weight;       // (n) or null
  T* cosines;            // (n, m); overwritten by the slopes dl/dcos
  Losses* losses;        // (n)
};

// One warp per document.
template <class Block, class T>
SHF_BLOCK void focal_body(Block& block, const FocalArgs<T>& args) {
  const int lane = block.thread() % kWarpSize;
  const int64_t r = block.index() * (block.threads() / kWarpSize) + block.thread() / kWarpSize;
  if (r >= args.n) return;
  const bool* positive = args.positive + r * args.m;
  T* cosines = args.cosines + r * args.m;
  int right = 0;
  for (int64_t q = lane; q < args.m; q += kWarpSize) right += positive[q];
  const Shares shares = shares_of(args.n, args.m, warp_sum(block, right), args.balanced);
  const T weight = args.weight == nullptr ? T(1) : args.weight[r];
  Losses sums{0, 0};
  for (int64_t q = lane; q < args.m; q += kWarpSize) {
    const FocalPair<T> pair =
        focal_pair(probability_of(cosines[q], args.focal), static_cast<bool>(positive[q]), args.focal);
    const T share = static_cast<T>(positive[q] ? shares.right : shares.wrong);
    sums.loss += pair.loss * (share * weight);
    sums.cross_entropy += pair.cross_entropy * share;
    cosines[q] = pair.slope * (share * weight);
  }
  sums.loss = warp_sum(block, sums.loss), sums.cross_entropy = warp_sum(block, sums.cross_entropy);
  if (lane == 0) args.losses[r] = sums;
}

template <class T>
struct LossSumArgs {
  const Losses* losses;  // (n)
  int64_t n;
  T *loss, *cross_entropy;  // ()
};

// One block, in a fixed order. Shared memory: threads Losses.
template <class Block, class T>
SHF_BLOCK void loss_sum_body(Block& block, const LossSumArgs<T>& args) {
  const auto scratch = block.template shared<Losses>();
  Losses sums{0, 0};
  for (int64_t r = block.thread(); r < args.n; r += block.threads()) {
    sums.loss += args.losses[r].loss, sums.cross_entropy += args.losses[r].cross_entropy;
  }
  scratch[block.thread()] = sums;
  block.sync();
  if (block.thread() != 0) return;
  for (int i = 1; i < block.threads(); ++i) {
    const Losses other = scratch[i];
    sums.loss += other.loss, sums.cross_entropy += other.cross_entropy;
  }
  *args.loss = static_cast<T>(sums.loss), *args.cross_entropy = static_cast<T>(sums.cross_entropy);
}

// Gradient g of a unit row u -> that of the row x, times factor: factor / |x| (g - (g . u) u); none for a zero row.
template <class T, class C>
struct UnitGradientArgs {
  const T* rows;    // (n, dim)
  const C* factor;  // ()
  int64_t n, dim;
  C* gradient;  // (n, dim), in place
};

template <class Block, class T, class C>
SHF_BLOCK void unit_gradient_body(Block& block, const UnitGradientArgs<T, C>& args) {
  const int lane = block.thread() % kWarpSize;
  const int64_t r = block.index() * (block.threads() / kWarpSize) + block.thread() / kWarpSize;
  if (r >= args.n) return;
  const T* row = args.rows + r * args.dim;
  C* gradient = args.gradient + r * args.dim;
  const RowSize size = row_size(block, row, args.dim);
  const double inverse = size.length == 0 ? 0 : 1 / size.length;
  double along = 0;
  for (int64_t i = lane; i < args.dim; i += kWarpSize) along += gradient[i] * (widen(row[i]) / size.peak * inverse);
  along = warp_sum(block, along);
  const double scale = *args.factor * inverse / size.peak;
  for (int64_t i = lane; i < args.dim; i += kWarpSize)
    gradient[i] = static_cast<C>(scale * (gradient[i] - along * (widen(row[i]) / size.peak * inverse)));
}

}  // namespace surprise_hf
