// The weighted focal loss and its gradient on CUDA; the mathematics as in cpu/loss.cpp. Both products of the gradient
// go through the fused product, turned so that what is summed over lies along the rows: the library's float32 product
// may be set to tf32.
#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "cuda/call.h"
#include "cuda/loss.cuh"

namespace surprise_hf {
namespace {

SHF_BODY(FocalBody, focal_body)
SHF_BODY(LossSumBody, loss_sum_body)
SHF_BODY(UnitGradientBody, unit_gradient_body)

// The type that holds both operands.
ScalarType common_type(const Tensor& keys, const Tensor& queries) {
  return keys.scalar_type() == queries.scalar_type() ? keys.scalar_type() : result_type(keys, queries);
}

// Calls f with a value of the compute type.
template <class F>
auto by_compute_type(ScalarType type, F f) {
  return type == ScalarType::Double ? f(double{}) : f(float{});
}

std::tuple<Tensor, Tensor, Tensor> weighted_focal_loss(const Tensor& keys, const Tensor& queries,
                                                       const Tensor& positive_in,
                                                       const std::optional<Tensor>& weight_in, double gamma,
                                                       double epsilon, const std::string& probability, double delta,
                                                       bool balanced) {
  const FocalOperands operands(keys, queries, positive_in, weight_in, probability);
  const ScalarType type = common_type(keys, queries);
  const Call c(as(keys, type), as(queries, type), true);
  const ScalarType result = result_type(c.keys);
  check_device(positive_in, "positive", c.keys);
  if (weight_in.has_value()) check_device(*weight_in, "weight", c.keys);
  const Tensor positive = dense(positive_in);
  std::optional<Tensor> weight;
  if (weight_in.has_value()) weight = dense(*weight_in);
  const Tensor psi =
      by_type(type, [&](auto element) { return product<decltype(element)>(c); }, [&] { return cosines_f64(c); });
  const Tensor losses = c.empty({c.n, 2}, ScalarType::Double);
  const Tensor loss = c.empty({}, result), cross_entropy = c.empty({}, result);
  by_compute_type(result, [&](auto zero) {
    using T = decltype(zero);
    const Focal<T> focal = focal_of<T>(gamma, epsilon, delta, operands.softplus, operands.coarse);
    const T* weights = weight.has_value() ? view<T>(*weight) : nullptr;
    launch<FocalBody>(
        ceil_div(c.n, kWarps), 0, c.stream,
        FocalArgs<T>{focal, balanced, c.n, c.m, view<bool>(positive), weights, data<T>(psi), data<Losses>(losses)});
    launch<LossSumBody>(1, kThreads * static_cast<int>(sizeof(Losses)), c.stream,
                        LossSumArgs<T>{view<Losses>(losses), c.n, data<T>(loss), data<T>(cross_entropy)});
  });
  return {loss, cross_entropy, psi};
}

// (n, dim) -> (dim, n)
Tensor turned(const Call& c, const Tensor& x) {
  const int64_t n = x.size(0), dim = x.size(1);
  const Tensor out = c.empty({dim, n}, ScalarType::Float);
  launch<CentreBody>(ceil_div(dim, kTransposeTile) * ceil_div(n, kTransposeTile),
                     kTransposeTile * (kTransposeTile + 1) * sizeof(float), c.stream,
                     CentreArgs<float>{view<float>(x), nullptr, n, dim, n, data<float>(out)});
  return out;
}

// Gradient of `rows`, n of them, from their slopes with each of `others`.
template <class T, class C>
Tensor side(const Call& c, const Tensor& rows, const Tensor& others, const Tensor& slope, const Tensor& factor) {
  const int64_t n = rows.size(0), m = others.size(0);
  if (n == 0 || m == 0 || c.dim == 0) return torch::stable::new_zeros(rows, std::array<int64_t, 2>{n, c.dim});
  const Tensor unit = c.empty({m, c.dim}, sizeof(C) == 8 ? ScalarType::Double : ScalarType::Float);
  unit_rows<T, C>(c.stream, others, true, unit);
  Tensor gradient;
  if constexpr (sizeof(C) == 8) {
    gradient = mm(slope, unit);
  } else {
    gradient = product<float>(Call(slope, turned(c, unit), false));
  }
  launch<UnitGradientBody>(ceil_div(n, kWarps), 0, c.stream,
                           UnitGradientArgs<T, C>{view<T>(rows), view<C>(factor), n, c.dim, data<C>(gradient)});
  return gradient;
}

std::tuple<Tensor, Tensor> weighted_focal_loss_backward(const Tensor& grad, const Tensor& keys, const Tensor& queries,
                                                        const Tensor& slope_in, bool need_keys, bool need_queries) {
  const ScalarType type = common_type(keys, queries);
  const Call c(as(keys, type), as(queries, type), true);
  const ScalarType result = result_type(c.keys);
  check_device(grad, "grad", c.keys), check_device(slope_in, "slope", c.keys);
  STD_TORCH_CHECK(grad.scalar_type() == result && grad.numel() == 1,
                  "grad must hold one value of the type of the loss");
  STD_TORCH_CHECK(
      slope_in.scalar_type() == result && slope_in.dim() == 2 && slope_in.size(0) == c.n && slope_in.size(1) == c.m,
      "slope must be of the type of the loss and of shape (", c.n, ", ", c.m, ")");
  const Tensor slope = dense(slope_in);
  Tensor grad_keys = c.empty({0, c.dim}, result), grad_queries = c.empty({0, c.dim}, result);
  const auto sides = [&](auto element, auto zero) {
    using T = decltype(element);
    using C = decltype(zero);
    if (need_keys) grad_keys = side<T, C>(c, c.keys, c.queries, slope, grad);
    if (!need_queries) return;
    Tensor copy = slope;
    const Tensor across = sizeof(C) == 8 ? torch::stable::transpose(copy, 0, 1) : turned(c, slope);
    grad_queries = side<T, C>(c, c.queries, c.keys, across, grad);
  };
  by_type(type, [&](auto element) { sides(element, float{}); }, [&] { sides(double{}, double{}); });
  return {as(grad_keys, keys.scalar_type()), as(grad_queries, queries.scalar_type())};
}

}  // namespace
}  // namespace surprise_hf

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, SHF_DISPATCH_KEY, m) {
  m.impl("weighted_focal_loss", TORCH_BOX(&surprise_hf::weighted_focal_loss));
  m.impl("weighted_focal_loss_backward", TORCH_BOX(&surprise_hf::weighted_focal_loss_backward));
}
