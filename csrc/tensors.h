// Tensors as typed memory, and the types that results have: what the implementations of both devices share.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "surprise.h"

namespace surprise_hf {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
T* data(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}
template <class T>
const T* view(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

// What is computed from a tensor: in double for double, in float for all others.
inline ScalarType result_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
inline ScalarType result_type(const Tensor& x, const Tensor& y) {
  return result_type(x) == ScalarType::Double ? ScalarType::Double : result_type(y);
}

inline Tensor as(const Tensor& x, ScalarType type) { return x.scalar_type() == type ? x : torch::stable::to(x, type); }

inline Output output_of(const std::string& name) {
  if (name == "score") return Output::kScore;
  if (name == "z") return Output::kZ;
  if (name == "cosine") return Output::kCosine;
  STD_TORCH_CHECK(name == "log_tail", "output must be cosine, z, score or log_tail, got ", name);
  return Output::kLogTail;
}

inline double rounding_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Double: return std::numeric_limits<double>::epsilon();
    case ScalarType::Float: return std::numeric_limits<float>::epsilon();
    case ScalarType::Half: return 0x1p-10;
    default: return 0x1p-7;
  }
}

// The operands of the focal loss beside its keys and queries.
struct FocalOperands {
  double coarse;  // rounding of the coarser of keys and queries
  bool softplus;

  FocalOperands(const Tensor& keys, const Tensor& queries, const Tensor& positive, const std::optional<Tensor>& weight,
                const std::string& probability)
      : coarse(std::max(rounding_of(keys), rounding_of(queries))), softplus(probability == "softplus") {
    STD_TORCH_CHECK(positive.scalar_type() == ScalarType::Bool && positive.dim() == 2 &&
                        positive.size(0) == keys.size(0) && positive.size(1) == queries.size(0),
                    "positive must be boolean of shape (", keys.size(0), ", ", queries.size(0), ")");
    STD_TORCH_CHECK(softplus || probability == "relu", "probability must be softplus or relu, got ", probability);
    STD_TORCH_CHECK(!weight.has_value() || (weight->scalar_type() == result_type(keys, queries) && weight->dim() == 1 &&
                                            weight->size(0) == keys.size(0)),
                    "weight must hold ", keys.size(0), " values of the type of the loss");
  }
};

}  // namespace surprise_hf
