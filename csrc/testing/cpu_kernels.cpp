// The CPU kernels of every instruction set this processor has, without torch, for tests/ops/test_cpu_kernels.py.
#include "testing/cpu_kernels.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

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
}
