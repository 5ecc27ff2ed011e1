// The five ops of surprise_hf on CUDA: shapes and memory here, arithmetic in the bodies. Implementations only; the
// schemas come from _C. Loaded by torch.ops.load_library, so there is no Python in it.
//
// float32, float16 and bfloat16 go through the fused product. float64, which serves gradient checks, takes unit rows,
// the library's product, and the same sweeps.
#include <algorithm>
#include <string>
#include <tuple>

#include "cuda/call.h"
#include "cuda/topk.cuh"

namespace surprise_hf {
namespace {

constexpr int64_t kScratchBytes = 16 << 20;  // of moment sums, and of a top-k tile
constexpr int64_t kMaxGroups = 2048;         // of rows with their own moment sums

// --- plumbing ------------------------------------------------------------------------------------------------------

SHF_BODY(FinishBody, finish_body)
SHF_BODY(ColumnsBody, columns_body)
SHF_BODY(SweepBody, sweep_body)
SHF_BODY(TopkBody, topk_body)
SHF_BODY(MergeScatterBody, merge_scatter_body)
SHF_BODY(MergeMeanBody, merge_mean_body)

Tensor row_sum(const Tensor& x) { return torch::stable::sum(x, std::array<int64_t, 1>{0}, false, ScalarType::Double); }

// One number per query, or a piece of an ensemble's state: float64 of `count` elements.
const Tensor& checked(const Call& c, const Tensor& x, const char* name, int64_t count) {
  check_device(x, name, c.keys);
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Double && x.numel() == count, name, " must be float64 with ", count,
                  " elements");
  return x;
}

// --- moments and scores of a matrix in memory ------------------------------------------------------------------------

template <class T>
void finish(const Call& c, const Sums* partial, int64_t groups, const T* shift, const Tensor& mean, const Tensor& std,
            const Tensor& columns) {
  launch<FinishBody>(ceil_div(c.m, kFinishColumns), kThreads * static_cast<int>(sizeof(Sums)), c.stream,
                     FinishArgs<T>{partial, groups, c.m, static_cast<double>(c.n), shift, data<double>(mean),
                                   data<double>(std), data<Column<T>>(columns)});
}

template <class T>
Tensor columns_of(const Call& c, const Tensor& mean, const Tensor& std) {
  Tensor columns = c.columns<T>();
  launch<ColumnsBody>(ceil_div(c.m, kThreads), 0, c.stream,
                      ColumnsArgs<T>{view<double>(mean), view<double>(std), c.m, data<Column<T>>(columns)});
  return columns;
}

// Rows of a sweep's block: enough for each thread to have a few loads under way, and no more groups than wanted.
int64_t sweep_rows(const Call& c, int64_t max_groups) {
  const int64_t step = std::max<int64_t>(1, kSweepColumns / std::max<int64_t>(c.m, 1));
  return std::max(2 * kSweepBatch * step, ceil_div(c.n, max_groups));
}

template <class T>
void score_in_place(const Call& c, const Tensor& psi, const Tensor& columns, Output output) {
  if (output == Output::kCosine || c.n == 0) return;
  const int64_t rows = sweep_rows(c, INT32_MAX / ceil_div(c.m, kSweepColumns));
  launch<SweepBody>(
      ceil_div(c.n, rows) * ceil_div(c.m, kSweepColumns), 0, c.stream,
      SweepArgs<T>{data<T>(psi), c.n, c.m, static_cast<int>(rows), view<Column<T>>(columns), output, nullptr});
}

// --- moments ---------------------------------------------------------------------------------------------------------

// Moments of every query over the keys; the cosines too where `psi` is a matrix.
template <class T>
void moments(const Call& c, const Tensor* psi, const Tensor& mean, const Tensor& std, const Tensor& columns) {
  const Tensor prepared = prepare<T>(c);
  ProductArgs<T> args = product_args<T>(c);
  args.scale = view<float>(prepared), args.shift = args.scale + c.m;
  const int64_t tiles = ceil_div(c.n, kProductRows);
  const int64_t most = std::clamp<int64_t>(kScratchBytes / static_cast<int64_t>(sizeof(Sums)) / c.m, 1, kMaxGroups);
  args.tiles_per_block = static_cast<int>(std::max<int64_t>(1, ceil_div(tiles, most)));
  const int64_t groups = ceil_div(tiles, args.tiles_per_block);
  const Tensor partial = c.empty({groups, c.m, 2}, ScalarType::Double);
  args.partial = data<Sums>(partial);
  args.out = psi != nullptr ? data<float>(*psi) : nullptr;
  if (c.n > 0) launch_product(args, c.stream);
  finish<float>(c, args.partial, groups, args.shift, mean, std, columns);
}

void moments_f64(const Call& c, const Tensor& psi, const Tensor& mean, const Tensor& std, const Tensor& columns) {
  const int64_t most = std::clamp<int64_t>(kScratchBytes / static_cast<int64_t>(sizeof(Sums)) / c.m, 1, kMaxGroups);
  const int64_t rows = sweep_rows(c, most), groups = ceil_div(c.n, rows);
  const Tensor partial = c.empty({groups, c.m, 2}, ScalarType::Double);
  launch<SweepBody>(groups * ceil_div(c.m, kSweepColumns), kThreads * sizeof(Sums), c.stream,
                    SweepArgs<double>{data<double>(psi), c.n, c.m, static_cast<int>(rows), nullptr, Output::kCosine,
                                      data<Sums>(partial)});
  finish<double>(c, view<Sums>(partial), groups, view<double>(psi), mean, std, columns);
}

// --- the ops
// -----------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> cosine_surprise(const Tensor& keys, const Tensor& queries, bool normalize,
                                                   const std::string& output_name) {
  const Output output = output_of(output_name);
  const Call c(keys, queries, normalize);
  const Tensor mean = c.empty({c.m}, ScalarType::Double), std = c.empty({c.m}, ScalarType::Double);
  if (c.m == 0) return {c.empty({c.n, 0}, result_type(keys)), mean, std};
  return by_type(
      keys.scalar_type(),
      [&](auto element) -> std::tuple<Tensor, Tensor, Tensor> {
        const Tensor psi = c.empty({c.n, c.m}, ScalarType::Float), columns = c.columns<float>();
        moments<decltype(element)>(c, &psi, mean, std, columns);
        score_in_place<float>(c, psi, columns, output);
        return {psi, mean, std};
      },
      [&]() -> std::tuple<Tensor, Tensor, Tensor> {
        const Tensor psi = cosines_f64(c), columns = c.columns<double>();
        moments_f64(c, psi, mean, std, columns);
        score_in_place<double>(c, psi, columns, output);
        return {psi, mean, std};
      });
}

std::tuple<Tensor, Tensor> cosine_moments(const Tensor& ensemble, const Tensor& queries, bool normalize) {
  const Call c(ensemble, queries, normalize);
  const Tensor mean = c.empty({c.m}, ScalarType::Double), std = c.empty({c.m}, ScalarType::Double);
  if (c.m == 0) return {mean, std};
  by_type(
      ensemble.scalar_type(),
      [&](auto element) { moments<decltype(element)>(c, nullptr, mean, std, c.columns<float>()); },
      [&] { moments_f64(c, cosines_f64(c), mean, std, c.columns<double>()); });
  return {mean, std};
}

Tensor surprise_from_moments(const Tensor& keys, const Tensor& queries, const Tensor& mean_in, const Tensor& std_in,
                             bool normalize, const std::string& output_name) {
  const Output output = output_of(output_name);
  const Call c(keys, queries, normalize);
  if (c.n == 0 || c.m == 0) return c.empty({c.n, c.m}, result_type(keys));
  const Tensor mean = dense(checked(c, mean_in, "mean", c.m)), std = dense(checked(c, std_in, "std", c.m));
  return by_type(
      keys.scalar_type(),
      [&](auto element) {
        using T = decltype(element);
        const Tensor prepared = prepare<T>(c), out = c.empty({c.n, c.m}, ScalarType::Float);
        ProductArgs<T> args = product_args<T>(c);
        args.scale = view<float>(prepared);
        args.mean = view<double>(mean), args.std = view<double>(std), args.output = output;
        args.out = data<float>(out);
        launch_product(args, c.stream);
        return out;
      },
      [&] {
        const Tensor psi = cosines_f64(c);
        score_in_place<double>(c, psi, columns_of<double>(c, mean, std), output);
        return psi;
      });
}

template <class T>
void topk_rows(const Call& c, const Tensor& psi, int64_t rows, const Tensor& columns, Output output,
               const Tensor& values, const Tensor& indices, int64_t first, int64_t k) {
  launch<TopkBody>(ceil_div(rows, kWarps), 0, c.stream,
                   TopkArgs<T>{view<T>(psi), rows, c.m, k, view<Column<T>>(columns), output,
                               data<T>(values) + first * k, data<int64_t>(indices) + first * k});
}

std::tuple<Tensor, Tensor> surprise_topk(const Tensor& keys, const Tensor& queries, const Tensor& mean_in,
                                         const Tensor& std_in, int64_t k, bool normalize,
                                         const std::string& output_name) {
  const Output output = output_of(output_name);
  const Call c(keys, queries, normalize);
  const Tensor values = c.empty({c.n, k}, result_type(keys)), indices = c.empty({c.n, k}, ScalarType::Long);
  if (c.n == 0 || k == 0) return {values, indices};
  STD_TORCH_CHECK(k <= c.m, "k must be at most the number of queries");
  const Tensor mean = dense(checked(c, mean_in, "mean", c.m)), std = dense(checked(c, std_in, "std", c.m));
  by_type(
      keys.scalar_type(),
      [&](auto element) {
        using T = decltype(element);
        const Tensor prepared = prepare<T>(c), columns = columns_of<float>(c, mean, std);
        const int64_t tiles = std::max<int64_t>(1, kScratchBytes / 4 / c.m / kProductRows);
        const int64_t step = std::min(c.n, tiles * kProductRows);
        const Tensor psi = c.empty({step, c.m}, ScalarType::Float);
        for (int64_t first = 0; first < c.n; first += step) {
          ProductArgs<T> args = product_args<T>(c);
          args.keys += first * c.dim, args.n = std::min(step, c.n - first);
          args.scale = view<float>(prepared), args.out = data<float>(psi);
          launch_product(args, c.stream);
          topk_rows<float>(c, psi, args.n, columns, output, values, indices, first, k);
        }
      },
      [&] {
        topk_rows<double>(c, cosines_f64(c), c.n, columns_of<double>(c, mean, std), output, values, indices, 0, k);
      });
  return {values, indices};
}

// --- ensemble_update
// ------------------------------------------------------------------------------------------------------

// Merges one batch that is small enough for float32 sums; `C` is the type it is multiplied in.
template <class T, class C>
void merge_batch(Stream stream, const Tensor& count, const Tensor& mean, const Tensor& scatter, const Tensor& batch,
                 bool normalize) {
  const int64_t rows = batch.size(0), dim = batch.size(1);
  const int64_t padded = ceil_div(rows, 4) * 4;
  const ScalarType type = sizeof(C) == 8 ? ScalarType::Double : ScalarType::Float;
  const Tensor unit = torch::stable::new_empty(batch, std::array<int64_t, 2>{rows, dim}, type);
  unit_rows<T, C>(stream, batch, normalize, unit);
  const Tensor sum = row_sum(unit);
  Tensor centred = torch::stable::new_empty(batch, std::array<int64_t, 2>{dim, padded}, type);
  launch<CentreBody>(ceil_div(dim, kTransposeTile) * ceil_div(padded, kTransposeTile),
                     kTransposeTile * (kTransposeTile + 1) * sizeof(C), stream,
                     CentreArgs<C>{view<C>(unit), view<double>(sum), rows, dim, padded, data<C>(centred)});
  Tensor products;
  if constexpr (sizeof(C) == 8) {
    products = mm(centred, torch::stable::transpose(centred, 0, 1));
  } else {
    // not the library's float32 product: it may be set to tf32, which is too coarse here
    products = product<float>(Call(centred, centred, false));
  }
  const MergeArgs<C> merge{view<C>(products),   view<double>(sum),  static_cast<double>(rows), dim,
                           data<double>(count), data<double>(mean), data<double>(scatter)};
  launch<MergeScatterBody>(ceil_div(dim * dim, kThreads), 0, stream, merge);
  launch<MergeMeanBody>(1, 0, stream, merge);
}

void ensemble_update(const Tensor& count_in, const Tensor& mean_in, const Tensor& scatter_in, const Tensor& batch_in,
                     bool normalize, bool exact) {
  const Call c(batch_in, batch_in, normalize);
  if (c.n == 0) return;
  const Tensor mean = dense(checked(c, mean_in, "mean", c.dim));
  const Tensor scatter = dense(checked(c, scatter_in, "scatter", c.dim * c.dim));
  checked(c, count_in, "count", 1);
  constexpr int64_t kBatch = 4096;  // float32 sums of this many rows stay within 1e-6
  for (int64_t first = 0; first < c.n; first += kBatch) {
    Tensor whole = c.keys;
    const Tensor batch = torch::stable::narrow(whole, 0, first, std::min(kBatch, c.n - first));
    by_type(
        batch.scalar_type(),
        [&](auto element) {
          using T = decltype(element);
          if (exact)
            merge_batch<T, double>(c.stream, count_in, mean, scatter, batch, normalize);
          else
            merge_batch<T, float>(c.stream, count_in, mean, scatter, batch, normalize);
        },
        [&] { merge_batch<double, double>(c.stream, count_in, mean, scatter, batch, normalize); });
  }
  Tensor mean_out = mean_in, scatter_out = scatter_in;
  if (!mean_in.is_contiguous()) torch::stable::copy_(mean_out, mean);
  if (!scatter_in.is_contiguous()) torch::stable::copy_(scatter_out, scatter);
}

}  // namespace
}  // namespace surprise_hf

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, SHF_DISPATCH_KEY, m) {
  m.impl("cosine_surprise", TORCH_BOX(&surprise_hf::cosine_surprise));
  m.impl("cosine_moments", TORCH_BOX(&surprise_hf::cosine_moments));
  m.impl("surprise_from_moments", TORCH_BOX(&surprise_hf::surprise_from_moments));
  m.impl("surprise_topk", TORCH_BOX(&surprise_hf::surprise_topk));
  m.impl("ensemble_update", TORCH_BOX(&surprise_hf::ensemble_update));
}
