// What the CUDA implementations share: the operands of a call, calls into torch, and the launches around the product.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>

#include "cuda/launch.h"
#include "cuda/scatter.cuh"
#include "tensors.h"

#if defined(__CUDACC__)
// torch's header declares it only under USE_CUDA.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace surprise_hf {

constexpr int kWarps = kThreads / kWarpSize;

SHF_BODY(PrepareBody, prepare_body)
SHF_BODY(UnitRowsBody, unit_rows_body)
SHF_BODY(CentreBody, centre_body)

inline Tensor call(const char* name, const char* overload, StableIValue* stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor mm(const Tensor& a, const Tensor& b) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(a), torch::stable::detail::from(b)};
  return call("aten::mm", "", stack.data());
}

inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

// A kernel can't tell a pointer into another device's memory: it would end the process' use of the GPU.
inline void check_device(const Tensor& x, const char* name, const Tensor& keys) {
  STD_TORCH_CHECK(x.is_cuda() == keys.is_cuda() && x.get_device_index() == keys.get_device_index(), name,
                  " must be on the device of the keys");
}

#if defined(__CUDACC__)
#define SHF_DISPATCH_KEY CUDA
// Makes a tensor's device current for as long as it lives, and knows the stream to launch on.
struct Place {
  torch::stable::accelerator::DeviceGuard guard;
  Stream stream;

  explicit Place(const Tensor& x) : guard(x.get_device_index()) {
    void* current = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &current));
    stream = static_cast<Stream>(current);
  }
};
#else
#define SHF_DISPATCH_KEY CPU
struct Place {
  Stream stream = nullptr;
  explicit Place(const Tensor&) {}
};
#endif

// One call: the operands made dense, on their device.
struct Call {
  Place place;
  Stream stream;
  Tensor keys, queries;
  int64_t n, m, dim;
  bool normalize;

  Call(const Tensor& k, const Tensor& q, bool normalize)
      : place(k),
        stream(place.stream),
        keys(dense(k)),
        queries(dense(q)),
        n(keys.size(0)),
        m(queries.size(0)),
        dim(keys.size(1)),
        normalize(normalize) {
    check_device(queries, "queries", keys);
    STD_TORCH_CHECK(keys.scalar_type() == queries.scalar_type(), "keys and queries must have one dtype");
    STD_TORCH_CHECK(queries.size(1) == dim, "keys and queries must have one dimension");
  }

  Tensor empty(std::initializer_list<int64_t> shape, ScalarType dtype) const {
    return torch::stable::new_empty(keys, torch::headeronly::IntHeaderOnlyArrayRef(shape.begin(), shape.size()), dtype);
  }
  template <class T>
  Tensor columns() const {
    return empty({m * static_cast<int64_t>(sizeof(Column<T>) / sizeof(T))},
                 sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float);
  }
};

// Calls `f` with the element type as a value: float, F16 or BF16; `g` for double.
template <class F, class G>
auto by_type(ScalarType type, F f, G g) {
  switch (type) {
    case ScalarType::Float: return f(float{});
    case ScalarType::Half: return f(F16{});
    case ScalarType::BFloat16: return f(BF16{});
    default: STD_TORCH_CHECK(type == ScalarType::Double, "dtype must be float16, bfloat16, float32 or float64");
  }
  return g();
}

template <class T, class C>
void unit_rows(Stream stream, const Tensor& x, bool normalize, const Tensor& out) {
  launch<UnitRowsBody>(ceil_div(x.size(0), kWarps), 0, stream,
                       UnitRowsArgs<T, C>{view<T>(x), data<C>(out), x.size(0), x.size(1), normalize});
}

inline Tensor cosines_f64(const Call& c) {
  Tensor keys = c.keys, queries = c.queries;
  if (c.normalize) {
    keys = c.empty({c.n, c.dim}, ScalarType::Double), queries = c.empty({c.m, c.dim}, ScalarType::Double);
    unit_rows<double, double>(c.stream, c.keys, true, keys);
    unit_rows<double, double>(c.stream, c.queries, true, queries);
  }
  return mm(keys, torch::stable::transpose(queries, 0, 1));
}

template <class T>
ProductArgs<T> product_args(const Call& c) {
  const bool aligned = c.dim * sizeof(T) % 16 == 0 && reinterpret_cast<uintptr_t>(view<T>(c.keys)) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(view<T>(c.queries)) % 16 == 0;
  ProductArgs<T> args{};
  args.keys = view<T>(c.keys), args.queries = view<T>(c.queries);
  args.n = c.n, args.m = c.m, args.dim = c.dim;
  args.aligned = aligned, args.normalize = c.normalize, args.tiles_per_block = 1, args.output = Output::kCosine;
  return args;
}

// Unit factors of the queries and shifts of the moment sums, (2, m).
template <class T>
Tensor prepare(const Call& c) {
  Tensor both = c.empty({2, c.m}, ScalarType::Float);
  launch<PrepareBody>(ceil_div(c.m, kWarps), 0, c.stream,
                      PrepareArgs<T>{view<T>(c.keys), view<T>(c.queries), c.n, c.m, c.dim, c.normalize,
                                     data<float>(both), data<float>(both) + c.m});
  return both;
}

// Products of the rows of a call, or their cosines.
template <class T>
Tensor product(const Call& c) {
  const Tensor out = c.empty({c.n, c.m}, ScalarType::Float), prepared = prepare<T>(c);
  ProductArgs<T> args = product_args<T>(c);
  args.scale = view<float>(prepared), args.out = data<float>(out);
  if (c.n > 0 && c.m > 0) launch_product(args, c.stream);
  return out;
}

}  // namespace surprise_hf
