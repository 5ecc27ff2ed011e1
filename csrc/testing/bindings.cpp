// The torch-free inner pieces, for the tests in tests/ops/test_block_bodies.py. Never shipped.
//
// Half types travel as uint16 arrays of their bits. Every function runs one kernel body over all its blocks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "cuda/loss.cuh"
#include "cuda/product.cuh"
#include "cuda/scatter.cuh"
#include "cuda/topk.cuh"
#include "testing/cpu_kernels.h"
#include "testing/fiber_block.h"
#include "testing/misuse.h"

namespace py = pybind11;
using namespace surprise_hf;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

constexpr int kThreads = 64;  // of the small kernels; the GPU uses 256
constexpr int kWarps = kThreads / kWarpSize;

Output output_of(const std::string& name) {
  return name == "cosine"  ? Output::kCosine
         : name == "z"     ? Output::kZ
         : name == "score" ? Output::kScore
                           : Output::kLogTail;
}

template <class F>
auto by_type(const std::string& type, F f) {
  if (type == "float32") return f(float{});
  return type == "float16" ? f(F16{}) : f(BF16{});
}

template <class T>
const T* rows_of(const py::array& x) {
  if (x.itemsize() != sizeof(T)) throw py::type_error("the array does not hold elements of the named type");
  return static_cast<const T*>(x.data());
}

py::tuple prepare(const std::string& type, const py::array& keys, const py::array& queries, bool normalize) {
  const int64_t m = queries.shape(0);
  Array<float> scale(m), shift(m);
  by_type(type, [&](auto element) {
    using T = decltype(element);
    const PrepareArgs<T> args{rows_of<T>(keys), rows_of<T>(queries), keys.shape(0),        m,
                              keys.shape(1),    normalize,           scale.mutable_data(), shift.mutable_data()};
    run_blocks(ceil_div(m, kWarps), kThreads, 0, [&](FiberBlock& block) { prepare_body(block, args); });
  });
  return py::make_tuple(scale, shift);
}

template <class T, int kCols>
void product_shape(const ProductArgs<T>& args) {
  using S = ProductShape<T, kCols>;
  const int64_t blocks = ceil_div(ceil_div(args.n, S::kRows), args.tiles_per_block) * ceil_div(args.m, S::kCols);
  run_blocks(blocks, S::kThreads, S::kShared, [&](FiberBlock& block) { Product<S, FiberBlock>(block, args).run(); });
}

py::tuple product(const std::string& type, const py::array& keys, const py::array& queries, const Array<float>& scale,
                  const Array<float>& shift, bool normalize, int tiles_per_block, const std::string& output,
                  std::optional<Array<double>> mean, std::optional<Array<double>> std) {
  const int64_t n = keys.shape(0), m = queries.shape(0), dim = keys.shape(1);
  const int64_t groups = ceil_div(ceil_div(n, kProductRows), tiles_per_block);
  Array<float> out({n, m});
  Array<double> partial({groups, m, int64_t{2}});
  by_type(type, [&](auto element) {
    using T = decltype(element);
    ProductArgs<T> args{};
    args.keys = rows_of<T>(keys), args.queries = rows_of<T>(queries), args.n = n, args.m = m, args.dim = dim;
    args.aligned = dim * sizeof(T) % 16 == 0 && reinterpret_cast<uintptr_t>(args.keys) % 16 == 0 &&
                   reinterpret_cast<uintptr_t>(args.queries) % 16 == 0;
    args.normalize = normalize, args.tiles_per_block = tiles_per_block;
    args.scale = scale.data(), args.shift = shift.data();
    args.partial = reinterpret_cast<Sums*>(partial.mutable_data());
    if (mean) args.mean = mean->data(), args.std = std->data();
    args.output = output_of(output), args.out = out.mutable_data();
    switch (product_cols(m)) {
      case 8: return product_shape<T, 8>(args);
      case 16: return product_shape<T, 16>(args);
      case 32: return product_shape<T, 32>(args);
      case 64: return product_shape<T, 64>(args);
      case 96: return product_shape<T, 96>(args);
      default: return product_shape<T, 128>(args);
    }
  });
  return py::make_tuple(out, partial);
}

template <class T>
py::tuple finish(const Array<double>& partial, double count, const Array<T>& shift) {
  const int64_t m = partial.shape(1);
  Array<double> mean(m), std(m);
  std::vector<Column<T>> columns(m);
  const FinishArgs<T> args{reinterpret_cast<const Sums*>(partial.data()),
                           partial.shape(0),
                           m,
                           count,
                           shift.data(),
                           mean.mutable_data(),
                           std.mutable_data(),
                           columns.data()};
  run_blocks(ceil_div(m, kFinishColumns), kThreads, kThreads * sizeof(Sums),
             [&](FiberBlock& block) { finish_body(block, args); });
  return py::make_tuple(mean, std);
}

template <class T>
std::vector<Column<T>> columns_of(const Array<double>& mean, const Array<double>& std) {
  std::vector<Column<T>> columns(mean.size());
  const ColumnsArgs<T> args{mean.data(), std.data(), mean.size(), columns.data()};
  run_blocks(ceil_div(mean.size(), kThreads), kThreads, 0, [&](FiberBlock& block) { columns_body(block, args); });
  return columns;
}

template <class T>
Array<T> sweep(const Array<T>& psi, const Array<double>& mean, const Array<double>& std, const std::string& output,
               int rows_per_block) {
  Array<T> out({psi.shape(0), psi.shape(1)});
  std::copy_n(psi.data(), psi.size(), out.mutable_data());
  const auto columns = columns_of<T>(mean, std);
  const SweepArgs<T> args{out.mutable_data(), psi.shape(0),      psi.shape(1), rows_per_block,
                          columns.data(),     output_of(output), nullptr};
  const int64_t blocks = ceil_div(psi.shape(0), rows_per_block) * ceil_div(psi.shape(1), kSweepColumns);
  run_blocks(blocks, kSweepColumns, 0, [&](FiberBlock& block) { sweep_body(block, args); });
  return out;
}

Array<double> column_sums(Array<double> psi, int rows_per_block) {
  const int64_t groups = ceil_div(psi.shape(0), rows_per_block);
  Array<double> partial({groups, psi.shape(1), py::ssize_t{2}});
  const SweepArgs<double> args{psi.mutable_data(),
                               psi.shape(0),
                               psi.shape(1),
                               rows_per_block,
                               nullptr,
                               Output::kCosine,
                               reinterpret_cast<Sums*>(partial.mutable_data())};
  run_blocks(groups * ceil_div(psi.shape(1), kSweepColumns), kSweepColumns, kSweepColumns * sizeof(Sums),
             [&](FiberBlock& block) { sweep_body(block, args); });
  return partial;
}

template <class T>
py::tuple topk(const Array<T>& psi, const Array<double>& mean, const Array<double>& std, int64_t k,
               const std::string& output) {
  const int64_t n = psi.shape(0);
  Array<T> values({n, k});
  Array<int64_t> indices({n, k});
  const auto columns = columns_of<T>(mean, std);
  const TopkArgs<T> args{
      psi.data(), n, psi.shape(1), k, columns.data(), output_of(output), values.mutable_data(), indices.mutable_data()};
  run_blocks(ceil_div(n, kWarps), kThreads, 0, [&](FiberBlock& block) { topk_body(block, args); });
  return py::make_tuple(values, indices);
}

Array<double> unit_rows(const std::string& type, const py::array& x, bool normalize) {
  const int64_t n = x.shape(0);
  Array<double> out({n, int64_t{x.shape(1)}});
  auto run = [&](auto element) {
    using T = decltype(element);
    const UnitRowsArgs<T, double> args{rows_of<T>(x), out.mutable_data(), n, x.shape(1), normalize};
    run_blocks(ceil_div(n, kWarps), kThreads, 0, [&](FiberBlock& block) { unit_rows_body(block, args); });
  };
  if (type == "float64")
    run(double{});
  else
    by_type(type, run);
  return out;
}

template <class T>
Array<T> centre(const Array<T>& rows, const Array<double>& row_sum, int64_t padded) {
  const int64_t n = rows.shape(0), dim = rows.shape(1);
  Array<T> out({dim, padded});
  const CentreArgs<T> args{rows.data(), row_sum.data(), n, dim, padded, out.mutable_data()};
  run_blocks(ceil_div(dim, kTransposeTile) * ceil_div(padded, kTransposeTile), kThreads,
             kTransposeTile * (kTransposeTile + 1) * sizeof(T), [&](FiberBlock& block) { centre_body(block, args); });
  return out;
}

void merge_batch(const Array<float>& product, const Array<double>& row_sum, double rows, Array<double> count,
                 Array<double> mean, Array<double> scatter) {
  const int64_t dim = mean.size();
  const MergeArgs<float> args{product.data(),      row_sum.data(),        rows, dim, count.mutable_data(),
                              mean.mutable_data(), scatter.mutable_data()};
  run_blocks(ceil_div(dim * dim, kThreads), kThreads, 0, [&](FiberBlock& block) { merge_scatter_body(block, args); });
  run_blocks(1, kThreads, 0, [&](FiberBlock& block) { merge_mean_body(block, args); });
}

template <class T>
py::tuple focal(const Array<T>& cosines, const Array<bool>& positive, const Array<T>& weight, double gamma,
                double epsilon, double delta, bool softplus, bool balanced) {
  const int64_t n = cosines.shape(0), m = cosines.shape(1);
  Array<T> slopes({n, m}), sums(2);
  std::copy_n(cosines.data(), cosines.size(), slopes.mutable_data());
  std::vector<Losses> losses(n);
  const Focal<T> options = focal_of<T>(gamma, epsilon, delta, softplus, std::numeric_limits<T>::epsilon());
  const FocalArgs<T> args{options,      balanced, n, m, positive.data(), weight.data(), slopes.mutable_data(),
                          losses.data()};
  run_blocks(ceil_div(n, kWarps), kThreads, 0, [&](FiberBlock& block) { focal_body(block, args); });
  const LossSumArgs<T> sum{losses.data(), n, sums.mutable_data(), sums.mutable_data() + 1};
  run_blocks(1, kThreads, kThreads * sizeof(Losses), [&](FiberBlock& block) { loss_sum_body(block, sum); });
  return py::make_tuple(slopes, sums.at(0), sums.at(1));
}

Array<double> unit_gradient(const std::string& type, const py::array& rows, double factor,
                            const Array<double>& gradient) {
  const int64_t n = rows.shape(0), dim = rows.shape(1);
  Array<double> out({n, dim});
  std::copy_n(gradient.data(), gradient.size(), out.mutable_data());
  by_type(type, [&](auto element) {
    using T = decltype(element);
    const UnitGradientArgs<T, double> args{rows_of<T>(rows), &factor, n, dim, out.mutable_data()};
    run_blocks(ceil_div(n, kWarps), kThreads, 0, [&](FiberBlock& block) { unit_gradient_body(block, args); });
  });
  return out;
}

template <class T>
py::tuple moments_of(double count, double shift, double sum, double sum_sq) {
  const Moments m = finish_moments<T>(count, shift, sum, sum_sq);
  return py::make_tuple(m.mean, m.std);
}

}  // namespace

PYBIND11_MODULE(_testing, m) {
  bind_cpu_kernels(m);
  m.def("misuse", &misuse);
  m.def("normal_cdf", [](float z) { return normal_cdf(z); });
  m.def("log_tail", [](double z) { return log_tail(z); });
  m.def("standardize",
        [](float psi, double mean, double std) { return standardize(psi, make_column<float>(mean, std)); });
  m.def("finish_moments_f32", &moments_of<float>);
  m.def("finish_moments_f64", &moments_of<double>);
  m.def("merge_moments", [](double n, double mean, double m2, double nb, double mb, double sb) {
    merge_moments(n, mean, m2, nb, mb, sb);
    return py::make_tuple(n, mean, m2);
  });
  m.def("product_cols", &product_cols);
  m.def("prepare", &prepare);
  m.def("product", &product, py::arg("type"), py::arg("keys"), py::arg("queries"), py::arg("scale"), py::arg("shift"),
        py::arg("normalize"), py::arg("tiles_per_block") = 1, py::arg("output") = "cosine",
        py::arg("mean") = py::none(), py::arg("std") = py::none());
  m.def("finish_f32", &finish<float>);
  m.def("finish_f64", &finish<double>);
  m.def("sweep_f32", &sweep<float>);
  m.def("sweep_f64", &sweep<double>);
  m.def("column_sums", &column_sums);
  m.def("topk_f32", &topk<float>);
  m.def("topk_f64", &topk<double>);
  m.def("unit_rows", &unit_rows);
  m.def("centre_f32", &centre<float>);
  m.def("merge_batch", &merge_batch);
  m.def("focal_body_f32", &focal<float>);
  m.def("focal_body_f64", &focal<double>);
  m.def("unit_gradient_body", &unit_gradient);
}
