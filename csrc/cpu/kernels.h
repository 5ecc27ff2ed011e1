// The table of CPU kernels: one table per instruction set, filled by kernel_impl.inc, chosen by dispatch.cpp, driven by
// ops.cpp. T is the compute type: float (for float32, float16 and bfloat16 rows) or double.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/compiler.h"
#include "focal.h"

namespace surprise_hf::cpu {

enum class Dtype : int { kFloat, kHalf, kBFloat16, kDouble };

// Rows of a matrix: `stride` elements apart, the elements of a row next to each other.
struct Rows {
  const void* data;
  Dtype dtype;
  int64_t n, d, stride;
  bool normalize;
};

// A float32 row whose bits are 2^16 times `near`, its nearest bfloat16 numbers, and `rest`.
struct HalvesRow {
  const uint16_t* near;
  const int16_t* rest;
};

// Columns in structure-of-arrays form, each array padded to `padded(m)` entries.
template <class T>
struct Columns {
  const T *mean_hi, *mean_lo, *inv_std, *edge;
};

enum class Epilogue { kCosines, kMoments, kStandardize, kTopK, kSearch, kQuadratic };

// What to do with the products of keys and one block of queries.
template <class T>
struct Product {
  Rows keys;
  const T* packed;  // the block's queries, normalised, as pack() wrote them
  int64_t m;        // queries in the block
  Epilogue epilogue;
  // All the queries and the first of the block: for what is multiplied anew without `normalize` (null: not wanted)
  const Rows* queries = nullptr;
  int64_t first_query = 0;

  // kCosines, kMoments (null: keep no matrix), kStandardize: out[row * out_stride + query]
  T* out = nullptr;
  int64_t out_stride = 0;
  bool whole_rows = false;  // the block is the whole row: a vector store may spill into the next row, written later

  // kMoments: sums over the rows of (psi - shift) and its square, in float64; padded(m) entries
  const T* shift = nullptr;
  double *sum = nullptr, *sum_sq = nullptr;

  // kStandardize, kTopK
  Columns<T> columns{};
  Output output = Output::kScore;

  // kTopK: running best of each row, best first; value[row * k + i] holds z
  int64_t k = 0;
  T* value = nullptr;
  int64_t* index = nullptr;
  T* similarity = nullptr;  // the psi beside each z, where wanted

  // kSearch: offers (query of the block, row, value) where value = (psi + margin) scale[row] is above the query's bar,
  // which an offer may raise; padded(m) margins and bars, the bars of the padding +inf
  const T* scale = nullptr;  // null: ones
  const T *margin = nullptr, *bar = nullptr;
  void (*offer)(void* found, int64_t query, int64_t row, T value) = nullptr;
  void* found = nullptr;

  // kQuadratic: the packed matrix is U, upper triangular with U + U^T = 2 C; out[row] = unit row . C unit row
};

// scatter[i, j] += sum over `length` centred rows + weight * delta[i] * delta[j]
template <class T>
struct Scatter {
  const T* panels;  // as centre() left them
  int64_t panel_size, block, length, d;
  const double* delta;
  double weight;
  double* scatter;
};

// Are they of the compute type already?
template <class T>
inline bool direct(const Rows& rows) {
  return rows.dtype == (sizeof(T) == 8 ? Dtype::kDouble : Dtype::kFloat);
}

// The focal loss of some documents with all labels.
template <class T>
struct FocalRows {
  Focal<T> focal;
  bool balanced;
  int64_t documents;  // of the whole batch
  int64_t rows, m;
  const bool* positive;  // (rows, m)
  const T* weight;       // (rows) or null
  const T* cosines;      // (rows, m), row_step and step apart; may be the slopes' memory
  int64_t row_step, step;
  T* slopes;                     // (rows, m), contiguous: dl/dcos
  double *loss, *cross_entropy;  // to which the rows' are added
};

// The unit row is x times `inv` (0 for a zero row); x is the row divided by `peak`.
template <class T>
struct UnitRow {
  const T* x;
  T inv, peak;
};

// Keys or queries, and the gradient that goes to them.
template <class T>
struct GradientSide {
  Rows rows;
  T* out;            // (n, d); null: not wanted
  UnitRow<T>* unit;  // (n)
  T* copies;         // (n, d): written where a row can't be taken as it lies
  T* slopes;         // slopes_size(n, rows of the other side)
};

// Slopes (keys, queries) of cosines -> gradients of keys and queries, times `factor`.
template <class T>
struct Gradient {
  GradientSide<T> sides[2];
  const T* slope;
  T factor;
};

// Shares [begin, end) of `of` equal ones, of rows or of panels.
struct Share {
  int64_t begin, end, of;
  int64_t first(int64_t n) const { return n * begin / of; }
  int64_t last(int64_t n) const { return n * end / of; }
};

template <class T>
struct Kernels {
  bool in_place;                                 // are direct rows multiplied where they lie, or copied first?
  int64_t (*padded)(int64_t m);                  // m rounded up to whole vectors
  int64_t (*packed_size)(int64_t m, int64_t d);  // elements that pack() writes
  int64_t (*block_queries)(int64_t wanted);      // `wanted` rounded to whole panels
  // the part-th of `parts` shares of the block's vectors of queries
  void (*pack)(const Rows& queries, int64_t begin, int64_t end, int64_t part, int64_t parts, T* packed);
  void (*pack_triangle)(const double* matrix, int64_t d, T* packed);  // padded(d) * d elements
  void (*product)(const Product<T>& job, int64_t row_begin, int64_t row_end);
  // These two for kSearch, whose margins allow for a sum in float32 in any order
  void (*pack_search)(const Rows& queries, int64_t begin, int64_t end, int64_t part, int64_t parts, T* packed);
  void (*search)(const Product<T>& job, int64_t row_begin, int64_t row_end);
  void (*finish)(T* matrix, int64_t rows, int64_t m, const Columns<T>& columns, Output output);  // psi -> output

  void (*focal)(const FocalRows<T>& job);
  // Its gradient, in three steps of which each needs the one before it for all shares of both sides (the last two are
  // for a side whose gradient is wanted): its slopes and the unit rows of the other side, panels of columns (of
  // gradient_panels(d)), whole rows.
  int64_t (*gradient_panels)(int64_t d);
  int64_t (*slopes_size)(int64_t rows, int64_t depth);
  void (*gradient_rows)(const Gradient<T>& job, int side, const Share& share);
  void (*gradient_columns)(const Gradient<T>& job, int side, const Share& share);
  void (*gradient_finish)(const Gradient<T>& job, int side, const Share& share);

  // Ensemble statistics, up to `block_rows` at a time, in panels of `panel_width` columns and panel_size(rows)
  // elements.
  int64_t panel_width, block_rows;
  int64_t (*panel_size)(int64_t block);
  // normalised rows [begin, end) of the block that begins at `first`
  void (*unit_rows)(const Rows& rows, int64_t begin, int64_t end, int64_t first, T* panels, int64_t size);
  // takes the mean of each column of a panel (kept in `mean`, a panel's width) from its `length` rows
  void (*centre)(T* panel, int64_t block, int64_t length, double* mean);
  // the part of the scatter matrix in the columns of panels pi <= pj, on and above the diagonal
  void (*scatter_tile)(const Scatter<T>& job, int64_t pi, int64_t pj);
};

struct KernelSet {
  const char* name;
  Kernels<float> f32;
  Kernels<double> f64;
  // The product of a float64 row with a float32 row in two halves of 16 bits; the row that follows is asked for.
  double (*halves_product)(const HalvesRow& row, const HalvesRow& next, const double* query, int64_t d);
};

extern const KernelSet kernels_portable;
#if defined(__x86_64__)
extern const KernelSet kernels_avx2;
extern const KernelSet kernels_avx512;
#endif
#if defined(SHF_HAS_AMX)
extern const KernelSet kernels_amx;
#endif

// The sets this processor runs, best first.
std::vector<const KernelSet*> available();

// The best of them; SURPRISE_HF_CPU=portable|avx2|avx512|amx overrides (for tests).
const KernelSet& kernels();

template <class T>
const Kernels<T>& table();
template <>
inline const Kernels<float>& table<float>() {
  return kernels().f32;
}
template <>
inline const Kernels<double>& table<double>() {
  return kernels().f64;
}

}  // namespace surprise_hf::cpu
