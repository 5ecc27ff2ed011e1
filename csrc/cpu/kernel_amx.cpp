// The kernels for AMX: those for AVX-512, with the float32 product on the matrix unit; see kernel_avx512.cpp for why
// the pragma comes first.
#include "compiler.h"
#if defined(SHF_HAS_AMX)
SHF_TARGET("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c,amx-tile,amx-int8,amx-bf16")
#include <immintrin.h>
#define SHF_VECTOR_BYTES 64
#define SHF_REGISTERS 32
#define SHF_MATRIX_UNIT
// clang-format off: the order is the order of use
#include "kernel_impl.inc"
#include "impl/amx.inc"
#include "impl/digits.inc"
#include "impl/scatter_digits.inc"
#include "impl/bfloat_tiles.inc"
// clang-format on

namespace {

int64_t packed_size_amx(int64_t m, int64_t d) {
  return std::max(bfloat_size(m, d), digit_form(m, d) ? digits_size(m, d) : packed_size<float>(m, d));
}

void pack_amx(const Rows& queries, int64_t begin, int64_t end, int64_t part, int64_t parts, float* packed) {
  if (!digit_form(end - begin, queries.d)) return pack(queries, begin, end, part, parts, packed);
  pack_digits(queries, begin, end, part, parts, reinterpret_cast<uint8_t*>(packed));
}

void product_amx(const Product<float>& job, int64_t row_begin, int64_t row_end) {
  const bool digits = digit_form(job.m, job.keys.d) && job.epilogue != Epilogue::kQuadratic;
  return digits ? product_digits(job, row_begin, row_end) : product(job, row_begin, row_end);
}

void pack_search_amx(const Rows& queries, int64_t begin, int64_t end, int64_t part, int64_t parts, float* packed) {
  if (!bfloat_form(queries)) return pack_amx(queries, begin, end, part, parts, packed);
  pack_bfloat(queries, begin, end, part, parts, reinterpret_cast<uint32_t*>(packed));
}

void search_amx(const Product<float>& job, int64_t row_begin, int64_t row_end) {
  return bfloat_form(job.keys) ? search_bfloat(job, row_begin, row_end) : product_amx(job, row_begin, row_end);
}

template <class T>
constexpr Kernels<T> make_scatter_table() {
  Kernels<T> table = make_table<T>();
  table.panel_width = kPanelWidth;
  table.block_rows = 768;
  table.panel_size = panel_size_digits<T>;
  table.unit_rows = unit_rows<T, kPanelWidth>;
  table.centre = centre_digits<T>;
  table.scatter_tile = scatter_digits<T>;
  return table;
}

constexpr Kernels<float> make_amx_table() {
  Kernels<float> table = make_scatter_table<float>();
  table.packed_size = packed_size_amx;
  table.pack = pack_amx;
  table.product = product_amx;
  table.pack_search = pack_search_amx;
  table.search = search_amx;
  return table;
}

}  // namespace

const surprise_hf::cpu::KernelSet surprise_hf::cpu::kernels_amx = {"amx", make_amx_table(),
                                                                   make_scatter_table<double>(), halves_product};
SHF_TARGET_END
#endif
