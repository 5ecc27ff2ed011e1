// The CPU kernels of every instruction set this processor has, without torch, for tests/ops/test_cpu_kernels.py.
#include "testing/cpu_kernels.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "cpu/kernels.h"

namespace py = pybind11;
using namespace surprise_hf;
using namespace surprise_hf::cpu;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T>
const Kernels<T>& table_of(const std::string& name) {
  for (const KernelSet* set : available()) {
    if (name != set->name) continue;
    if constexpr (sizeof(T) == 8) {
      return set->f64;
    } else {
      return set->f32;
    }
  }
  throw py::value_error("no kernels named " + name + " on this processor");
}

// Phi of every element by the vector form, through the sweep with mean 0 and standard deviation 1.
template <class T>
Array<T> normal_cdf_vector(const std::string& name, const Array<T>& z) {
  const Kernels<T>& k = table_of<T>(name);
  Array<T> out(z.size());
  std::copy(z.data(), z.data() + z.size(), out.mutable_data());
  const std::vector<T> zeros(k.padded(1), T(0)), ones(k.padded(1), T(1));
  const Columns<T> columns{zeros.data(), zeros.data(), ones.data(), zeros.data()};
  k.finish(out.mutable_data(), z.size(), 1, columns, Output::kScore);
  return out;
}

// Similarities of rows [begin, end) with every query: pack and the tile product. The other rows stay NaN.
template <class T>
Array<T> tile_product(const std::string& name, const Array<T>& keys, const Array<T>& queries, int64_t begin,
                      int64_t end, bool normalize) {
  const Kernels<T>& k = table_of<T>(name);
  const Dtype dtype = sizeof(T) == 8 ? Dtype::kDouble : Dtype::kFloat;
  const int64_t n = keys.shape(0), m = queries.shape(0), d = keys.shape(1);
  std::vector<T> packed(k.packed_size(m, d));
  k.pack({queries.data(), dtype, m, d, d, normalize}, 0, m, 0, 1, packed.data());
  Array<T> out({n, m});
  std::fill(out.mutable_data(), out.mutable_data() + n * m, std::numeric_limits<T>::quiet_NaN());
  Product<T> job{{keys.data(), dtype, n, d, d, normalize}, packed.data(), m, Epilogue::kCosines};
  job.out = out.mutable_data();
  job.out_stride = m;
  job.whole_rows = true;
  k.product(job, begin, end);
  return out;
}

// Cosines -> slopes of the focal loss, and its two sums.
template <class T>
py::tuple focal(const std::string& name, const Array<T>& cosines, const Array<bool>& positive, const Array<T>& weight,
                double gamma, double epsilon, double delta, bool softplus, bool balanced) {
  Array<T> slopes({cosines.shape(0), cosines.shape(1)});
  double loss = 0, cross_entropy = 0;
  FocalRows<T> job{};
  job.focal = focal_of<T>(gamma, epsilon, delta, softplus, std::numeric_limits<T>::epsilon());
  job.balanced = balanced;
  job.documents = job.rows = cosines.shape(0), job.m = cosines.shape(1);
  job.positive = positive.data(), job.weight = weight.data(), job.slopes = slopes.mutable_data();
  job.cosines = cosines.data(), job.row_step = job.m, job.step = 1;
  job.loss = &loss, job.cross_entropy = &cross_entropy;
  table_of<T>(name).focal(job);
  return py::make_tuple(slopes, loss, cross_entropy);
}

// The gradients of keys (n, d) and queries (m, d) from the slopes (n, m). Rows and panels are taken in `shares` goes.
template <class T>
py::tuple focal_gradient(const std::string& name, const Array<T>& keys, const Array<T>& queries, const Array<T>& slope,
                         T factor, int64_t shares) {
  const Kernels<T>& k = table_of<T>(name);
  const Dtype dtype = sizeof(T) == 8 ? Dtype::kDouble : Dtype::kFloat;
  const int64_t d = keys.shape(1), counts[2] = {keys.shape(0), queries.shape(0)};
  const T nothing = std::numeric_limits<T>::quiet_NaN();
  std::vector<UnitRow<T>> unit[2];
  std::vector<T> copies[2], slopes[2];
  Array<T> out[2];
  Gradient<T> job{};
  for (int s = 0; s < 2; ++s) {
    const int64_t n = counts[s];
    unit[s].resize(n);
    copies[s].assign(n * d, nothing);
    slopes[s].assign(k.slopes_size(n, counts[1 - s]), nothing);
    out[s] = Array<T>({n, d});
    const Rows rows{(s == 0 ? keys : queries).data(), dtype, n, d, d, true};
    job.sides[s] = {rows, out[s].mutable_data(), unit[s].data(), copies[s].data(), slopes[s].data()};
  }
  job.slope = slope.data();
  job.factor = factor;
  for (const auto step : {k.gradient_rows, k.gradient_columns, k.gradient_finish})
    for (int s = 0; s < 2; ++s)
      for (int64_t i = 0; i < shares; ++i) step(job, s, {i, i + 1, shares});
  return py::make_tuple(out[0], out[1]);
}

// Every value of rows [begin, end) above its query's bar, as kSearch offers it: (query, row, value). Keys and queries
// hold numbers of `dtype`: bfloat16 as their bits, or T.
template <class T>
py::list search(const std::string& name, const py::array& keys, const py::array& queries, const Array<T>& margin,
                const std::optional<Array<T>>& scale, const Array<T>& bar, int64_t begin, int64_t end) {
  const Kernels<T>& k = table_of<T>(name);
  const Dtype dtype = keys.itemsize() == 2 ? Dtype::kBFloat16 : sizeof(T) == 8 ? Dtype::kDouble : Dtype::kFloat;
  const int64_t n = keys.shape(0), m = queries.shape(0), d = keys.shape(1);
  std::vector<T> packed(k.packed_size(m, d)), margins(k.padded(m)),
      bars(k.padded(m), std::numeric_limits<T>::infinity());
  std::copy_n(margin.data(), m, margins.begin());
  std::copy_n(bar.data(), m, bars.begin());
  k.pack_search({queries.data(), dtype, m, d, d, false}, 0, m, 0, 1, packed.data());
  py::list found;
  Product<T> job{{keys.data(), dtype, n, d, d, false}, packed.data(), m, Epilogue::kSearch};
  job.scale = scale.has_value() ? scale->data() : nullptr;
  job.margin = margins.data();
  job.bar = bars.data();
  job.found = &found;
  job.offer = [](void* list, int64_t query, int64_t row, T value) {
    static_cast<py::list*>(list)->append(py::make_tuple(query, row, value));
  };
  k.search(job, begin, end);
  return found;
}

double halves_product(const std::string& name, const Array<uint16_t>& near, const Array<int16_t>& rest,
                      const Array<double>& query) {
  const HalvesRow row{near.data(), rest.data()};
  for (const KernelSet* set : available())
    if (name == set->name) return set->halves_product(row, row, query.data(), query.size());
  throw py::value_error("no kernels named " + name + " on this processor");
}

}  // namespace

void bind_cpu_kernels(py::module_& m) {
  m.def("cpu_sets", [] {
    std::vector<std::string> names;
    for (const KernelSet* set : available()) names.push_back(set->name);
    return names;
  });
  m.def("normal_cdf_vector_f32", &normal_cdf_vector<float>);
  m.def("normal_cdf_vector_f64", &normal_cdf_vector<double>);
  m.def("tile_product_f32", &tile_product<float>);
  m.def("tile_product_f64", &tile_product<double>);
  m.def("search_f32", &search<float>);
  m.def("search_f64", &search<double>);
  m.def("halves_product", &halves_product);
  m.def("focal_f32", &focal<float>);
  m.def("focal_f64", &focal<double>);
  m.def("focal_gradient_f32", &focal_gradient<float>);
  m.def("focal_gradient_f64", &focal_gradient<double>);
}
