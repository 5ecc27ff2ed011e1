// The weighted focal loss and its gradient on the CPU.
//
// Forward: the product's cosines, turned into slopes S = dl/dcos where they lie. Backward, with unit rows k^ and q^:
//   g = S q^,  dl/dk = (g - (g . k^) k^) / |k|        and the same for the queries with S' k^
// two more products of the same kernel. Unit rows exist packed only, while a call lasts.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/common.h"

namespace {

using namespace surprise_hf;
using namespace surprise_hf::cpu;

// --- forward ---------------------------------------------------------------------------------------------------------

template <class T>
void loss_pass(const Rows& keys, const Rows& queries, const FocalRows<T>& all, T* loss, T* cross_entropy) {
  const Kernels<T>& k = table<T>();
  const int64_t m = queries.n;
  double total[2] = {0, 0};
  for_query_blocks<T>(queries, [&](int64_t first, int64_t count, const T* packed) {
    Product<T> job{keys, packed, count, Epilogue::kCosines};
    job.out = all.cosines + first;
    job.out_stride = m;
    job.whole_rows = count == m;
    const bool last = first + count == m;  // its rows are whole then
    const Parts parts = parts_of(keys.n, keys.d * count);
    std::vector<double> sums(2 * parts.count, 0.0);
    for_parts(parts, [&](int64_t part, int64_t begin, int64_t end) {
      k.product(job, begin, end);
      if (!last) return;
      FocalRows<T> mine = all;
      mine.rows = end - begin;
      mine.positive += begin * m;
      mine.weight = all.weight == nullptr ? nullptr : all.weight + begin;
      mine.cosines += begin * m;
      mine.loss = &sums[2 * part];
      mine.cross_entropy = mine.loss + 1;
      k.focal(mine);
    });
    for (int64_t part = 0; part < parts.count; ++part) total[0] += sums[2 * part], total[1] += sums[2 * part + 1];
  });
  *loss = static_cast<T>(total[0]), *cross_entropy = static_cast<T>(total[1]);
}

std::tuple<Tensor, Tensor, Tensor> weighted_focal_loss(const Tensor& keys, const Tensor& queries,
                                                       const Tensor& positive, const std::optional<Tensor>& weight,
                                                       double gamma, double epsilon, const std::string& probability,
                                                       double delta, bool balanced) {
  Tensor keep_keys, keep_queries;
  const Rows k = rows_of(keys, "keys", true, keep_keys), q = rows_of(queries, "queries", true, keep_queries);
  STD_TORCH_CHECK(k.d == q.d, "keys have ", k.d, " dimensions but queries have ", q.d);
  const FocalOperands operands(keys, queries, positive, weight, probability);
  const ScalarType type = result_type(keys, queries);
  const Tensor mask = torch::stable::contiguous(positive);
  std::optional<Tensor> weights;
  if (weight.has_value()) weights = torch::stable::contiguous(*weight);
  const Tensor loss = empty_like_rows(keys, {}, type), cross_entropy = empty_like_rows(keys, {}, type);
  const Tensor slope = empty_like_rows(keys, {k.n, q.n}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    FocalRows<T> all{};
    all.focal = focal_of<T>(gamma, epsilon, delta, operands.softplus, operands.coarse);
    all.balanced = balanced;
    all.documents = k.n;
    all.m = q.n;
    all.positive = view<bool>(mask);
    all.weight = weights.has_value() ? view<T>(*weights) : nullptr;
    all.cosines = data<T>(slope);
    loss_pass<T>(k, q, all, data<T>(loss), data<T>(cross_entropy));
  });
  return {loss, cross_entropy, slope};
}

// --- backward --------------------------------------------------------------------------------------------------------

// One side of the gradient: `out` (rows.n, d) from the slopes of each row with every row of the other side.
template <class T>
struct Side {
  Rows rows;
  Product<T> job;  // slopes by the other side's columns
  T* packed;       // where the other side's columns go
  Rows other;

  Side(const Rows& rows, const Rows& other, const T* slope, T* packed, T* out)
      : rows(rows), job{}, packed(packed), other(other) {
    const Dtype dtype = sizeof(T) == 8 ? Dtype::kDouble : Dtype::kFloat;
    job.keys = {slope, dtype, rows.n, other.n, other.n, false};
    job.packed = packed;
    job.m = rows.d;
    job.epilogue = Epilogue::kCosines;
    job.columns_packed = true;
    job.out = out;
    job.out_stride = rows.d;
    job.whole_rows = true;
  }
  void finish(T factor, int64_t begin, int64_t end) const {
    table<T>().product(job, begin, end);
    table<T>().unit_gradient(rows, begin, end, factor, job.out);
  }
};

// Calls f(side, begin, end) for the parts of all sides in one parallel region. A share of the work holds as much of
// each side, so that threads that take equal numbers of shares have equal work.
template <class F>
void for_sides(const std::vector<Parts>& sides, const F& f) {
  int64_t shares = 1;
  for (const Parts& parts : sides) shares = std::max(shares, parts.count);
  const auto run = [&](int64_t begin, int64_t end) {
    for (size_t side = 0; side < sides.size(); ++side) {
      const Parts parts{sides[side].rows, shares};
      if (parts.begin(begin) < parts.begin(end)) f(side, parts.begin(begin), parts.begin(end));
    }
  };
  if (shares == 1) return run(0, 1);
  torch::stable::parallel_for(0, shares, 1, run);
}

// Rows [begin, end) of the turned matrix.
template <class T>
void turn_matrix(const T* in, int64_t rows, int64_t columns, int64_t begin, int64_t end, T* out) {
  for (int64_t c = begin; c < end; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * rows + r] = in[r * columns + c];
}

template <class T>
void gradient_pass(const Rows& keys, const Rows& queries, const T* slope, T factor, T* grad_keys, T* grad_queries) {
  const Kernels<T>& k = table<T>();
  const int64_t d = keys.d, n = keys.n, m = queries.n;
  if (n == 0 || m == 0 || d == 0) {
    if (grad_keys != nullptr) std::fill(grad_keys, grad_keys + n * d, T(0));
    if (grad_queries != nullptr) std::fill(grad_queries, grad_queries + m * d, T(0));
    return;
  }
  const auto packed_size = [&](int64_t rows) { return std::max(k.padded(d) * rows, d * k.padded(rows)); };
  const int64_t for_keys = grad_keys == nullptr ? 0 : packed_size(m);
  const int64_t for_queries = grad_queries == nullptr ? 0 : packed_size(n);
  AlignedBuffer<T> space(for_keys + for_queries + n * m);
  T* turned = space.get() + for_keys + for_queries;
  std::vector<Side<T>> sides;
  if (grad_keys != nullptr) sides.emplace_back(keys, queries, slope, space.get(), grad_keys);
  if (grad_queries != nullptr) sides.emplace_back(queries, keys, turned, space.get() + for_keys, grad_queries);
  std::vector<Parts> packing, products;
  for (const Side<T>& side : sides) {
    packing.push_back(parts_of(side.other.n, d * 16));
    products.push_back(parts_of(side.rows.n, d * side.other.n));
  }
  if (grad_queries != nullptr) packing.push_back(parts_of(m, n * 16));
  for_sides(packing, [&](size_t side, int64_t begin, int64_t end) {
    if (side == sides.size()) return turn_matrix(slope, n, m, begin, end, turned);
    k.pack_columns(sides[side].other, begin, end, sides[side].packed);
  });
  for_sides(products, [&](size_t side, int64_t begin, int64_t end) { sides[side].finish(factor, begin, end); });
}

std::tuple<Tensor, Tensor> weighted_focal_loss_backward(const Tensor& grad, const Tensor& keys, const Tensor& queries,
                                                        const Tensor& slope, bool need_keys, bool need_queries) {
  Tensor keep_keys, keep_queries;
  const Rows k = rows_of(keys, "keys", true, keep_keys), q = rows_of(queries, "queries", true, keep_queries);
  STD_TORCH_CHECK(k.d == q.d, "keys have ", k.d, " dimensions but queries have ", q.d);
  const ScalarType type = result_type(keys, queries);
  const auto checked = [&](const Tensor& x, const char* name, int64_t count) {
    STD_TORCH_CHECK(x.scalar_type() == type && x.numel() == count, name, " must hold ", count,
                    " values of the type of the loss");
    return torch::stable::contiguous(x);
  };
  const Tensor factor = checked(grad, "grad", 1), s = checked(slope, "slope", k.n * q.n);
  const Tensor grad_keys = empty_like_rows(keys, {need_keys ? k.n : 0, k.d}, type);
  const Tensor grad_queries = empty_like_rows(queries, {need_queries ? q.n : 0, q.d}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    gradient_pass<T>(k, q, view<T>(s), *view<T>(factor), need_keys ? data<T>(grad_keys) : nullptr,
                     need_queries ? data<T>(grad_queries) : nullptr);
  });
  const auto as = [](const Tensor& x, const Tensor& like) {
    return x.scalar_type() == like.scalar_type() ? x : torch::stable::to(x, like.scalar_type());
  };
  return {as(grad_keys, keys), as(grad_queries, queries)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, CPU, m) {
  m.impl("weighted_focal_loss", TORCH_BOX(&weighted_focal_loss));
  m.impl("weighted_focal_loss_backward", TORCH_BOX(&weighted_focal_loss_backward));
}
