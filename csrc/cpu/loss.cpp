// The weighted focal loss and its gradient on the CPU.
//
// Forward: the product's cosines, turned into slopes S = dl/dcos. Backward, with unit rows k^ and q^:
//   g = S q^,  dl/dk = (g - (g . k^) k^) / |k|        and the same for the queries with S' k^
// Unit rows exist a panel of columns at a time.
#include <torch/csrc/stable/library.h>

#include <iterator>
#include <numeric>
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
  const int64_t n = keys.n, m = queries.n, d = keys.d;
  // Packed labels are shared, and half of them come from the other core: where labels are multiplied as they lie, each
  // part packs its documents instead. It has a whole group, as fewer are summed in another order.
  const bool apart = k.in_place && 0 < n && n <= m && direct<T>(queries);
  const Parts parts = parts_of(apart && n > Parts::kGroup ? n / Parts::kGroup * Parts::kGroup : n, d * m);
  std::vector<double> sums(2 * parts.count, 0.0);
  const auto focal = [&](int64_t part, int64_t begin, int64_t end, const T* cosines, int64_t row_step, int64_t step) {
    FocalRows<T> mine = all;
    mine.rows = end - begin;
    mine.positive += begin * m;
    mine.weight = all.weight == nullptr ? nullptr : all.weight + begin;
    mine.cosines = cosines, mine.row_step = row_step, mine.step = step;
    mine.slopes += begin * m;
    mine.loss = &sums[2 * part];
    mine.cross_entropy = mine.loss + 1;
    k.focal(mine);
  };
  if (apart) {
    for_parts(parts, [&](int64_t part, int64_t begin, int64_t end) {
      if (part + 1 == parts.count) end = n;
      const int64_t count = end - begin, size = k.packed_size(count, d);
      AlignedBuffer<T> space(size + m * count);
      k.pack(keys, begin, end, 0, 1, space.get());
      Product<T> job{queries, space.get(), count, Epilogue::kCosines};
      job.out = space.get() + size;
      job.out_stride = count;
      job.whole_rows = true;
      k.product(job, 0, m);
      focal(part, begin, end, job.out, 1, count);
    });
  } else {
    for_query_blocks<T>(queries, [&](int64_t first, int64_t count, const T* packed) {
      Product<T> job{keys, packed, count, Epilogue::kCosines};
      job.out = all.slopes + first;
      job.out_stride = m;
      job.whole_rows = count == m;
      for_parts(parts, [&](int64_t part, int64_t begin, int64_t end) {
        k.product(job, begin, end);
        if (first + count == m) focal(part, begin, end, all.slopes + begin * m, m, 1);  // the rows are whole
      });
    });
  }
  double total[2] = {0, 0};
  for (int64_t part = 0; part < parts.count; ++part) total[0] += sums[2 * part], total[1] += sums[2 * part + 1];
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
  const Tensor loss = empty({}, type), cross_entropy = empty({}, type);
  const Tensor slope = empty({k.n, q.n}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    FocalRows<T> all{};
    all.focal = focal_of<T>(gamma, epsilon, delta, operands.softplus, operands.coarse);
    all.balanced = balanced;
    all.documents = k.n;
    all.m = q.n;
    all.positive = view<bool>(mask);
    all.weight = weights.has_value() ? view<T>(*weights) : nullptr;
    all.slopes = data<T>(slope);
    loss_pass<T>(k, q, all, data<T>(loss), data<T>(cross_entropy));
  });
  return {loss, cross_entropy, slope};
}

// --- backward --------------------------------------------------------------------------------------------------------

template <class T>
void gradient_pass(const Rows& keys, const Rows& queries, const T* slope, T factor, T* grad_keys, T* grad_queries) {
  const Kernels<T>& k = table<T>();
  const int64_t d = keys.d, n = keys.n, m = queries.n;
  if (n == 0 || m == 0 || d == 0) {
    if (grad_keys != nullptr) std::fill(grad_keys, grad_keys + n * d, T(0));
    if (grad_queries != nullptr) std::fill(grad_queries, grad_queries + m * d, T(0));
    return;
  }
  const int64_t sizes[] = {k.slopes_size(n, m), k.slopes_size(m, n), n * d, m * d};
  AlignedBuffer<T> space(std::accumulate(std::begin(sizes), std::end(sizes), int64_t(0)));
  T* at[4] = {space.get()};
  for (int i = 1; i < 4; ++i) at[i] = at[i - 1] + sizes[i - 1];
  std::vector<UnitRow<T>> unit(n + m);
  const Gradient<T> job{
      {{keys, grad_keys, unit.data(), at[2], at[0]}, {queries, grad_queries, unit.data() + n, at[3], at[1]}},
      slope,
      factor};
  // The shares of both sides in a row: two threads take a side each, and what one makes stays in its cache.
  const int64_t work = n * m * d / kSerialWork, shares = std::clamp<int64_t>(work, 1, k.gradient_panels(d));
  const auto for_shares = [&](int first, int last, const auto& step) {
    const auto some = [&](int64_t begin, int64_t end) {
      for (int side = first; side < last; ++side) {
        const int64_t from = side * shares;
        const Share share{std::max<int64_t>(begin - from, 0), std::min(end - from, shares), shares};
        if (share.begin < share.end) step(job, side, share);
      }
    };
    if (work == 0) return some(first * shares, last * shares);
    torch::stable::parallel_for(first * shares, last * shares, 1, some);
  };
  const int first = grad_keys == nullptr ? 1 : 0, last = grad_queries == nullptr ? 1 : 2;
  for_shares(0, 2, k.gradient_rows);
  for_shares(first, last, k.gradient_columns);
  for_shares(first, last, k.gradient_finish);
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
  const Tensor grad_keys = empty({need_keys ? k.n : 0, k.d}, type);
  const Tensor grad_queries = empty({need_queries ? q.n : 0, q.d}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    gradient_pass<T>(k, q, view<T>(s), *view<T>(factor), need_keys ? data<T>(grad_keys) : nullptr,
                     need_queries ? data<T>(grad_queries) : nullptr);
  });
  return {as(grad_keys, keys.scalar_type()), as(grad_queries, queries.scalar_type())};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, CPU, m) {
  m.impl("weighted_focal_loss", TORCH_BOX(&weighted_focal_loss));
  m.impl("weighted_focal_loss_backward", TORCH_BOX(&weighted_focal_loss_backward));
}
