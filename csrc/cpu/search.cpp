// The CPU implementations of what a search among stored rows is made of: the rows with the largest products for each
// query, and the products of the few that were found, in float64.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/common.h"

namespace {

using namespace surprise_hf;
using namespace surprise_hf::cpu;

// The k best rows of each query among those that one thread has seen. A list grows to twice that before it is cut, so
// that most rows cost no more than being put at its end.
template <class T>
struct Found {
  struct Row {
    T value;
    int64_t index;
    bool operator<(const Row& other) const {  // stands before it
      return value > other.value || (value == other.value && index < other.index);
    }
  };
  size_t k;
  const double* margin;
  const T* scale;  // of the rows, or null
  double upper;    // a row is left out if its value less twice the margin is above it
  std::vector<std::vector<Row>> lists;
  std::vector<T> bar;

  Found(int64_t m, int64_t k, const double* margin, const T* scale, double upper)
      : k(k),
        margin(margin),
        scale(scale),
        upper(upper),
        lists(m),
        bar(table<T>().padded(m), std::numeric_limits<T>::infinity()) {
    std::fill(bar.begin(), bar.begin() + m, -std::numeric_limits<T>::infinity());
  }
  static void offer(void* self, int64_t query, int64_t row, T value) {
    Found& found = *static_cast<Found*>(self);
    const double width = 2 * found.margin[query];
    if (value - width * (found.scale == nullptr ? T(1) : found.scale[row]) > found.upper) return;
    std::vector<Row>& list = found.lists[query];
    list.push_back({value, row});
    if (list.size() < 2 * found.k) return;
    std::nth_element(list.begin(), list.begin() + (found.k - 1), list.end());
    list.resize(found.k);
    found.bar[query] = list.back().value;
  }
};

template <class T>
void search_pass(const Rows& keys, const Rows& queries, const double* margin, const T* scale, int64_t k, double upper,
                 T* value, int64_t* index) {
  const Kernels<T>& kernel = table<T>();
  const auto use = [&](int64_t first, int64_t m, const T* packed) {
    std::vector<T> margins(kernel.padded(m), T(0));
    std::copy(margin + first, margin + first + m, margins.begin());
    Product<T> job{keys, packed, m, Epilogue::kSearch};
    job.queries = &queries;
    job.first_query = first;
    job.scale = scale;
    job.margin = margins.data();
    job.offer = Found<T>::offer;
    const Parts parts = parts_of(keys.n, keys.d * m);
    std::mutex access;
    std::vector<Found<T>> all;  // of each thread: which of them saw a row makes no difference to the best
    torch::stable::parallel_for(0, parts.count, 1, [&](int64_t begin, int64_t end) {
      Found<T> found(m, k, margin + first, scale, upper);
      Product<T> mine = job;
      mine.bar = found.bar.data();
      mine.found = &found;
      kernel.search(mine, parts.begin(begin), parts.begin(end));
      const std::lock_guard<std::mutex> guard(access);
      all.push_back(std::move(found));
    });
    for_parts(parts_of(m, k * 512), [&](int64_t, int64_t begin, int64_t end) {
      std::vector<typename Found<T>::Row> best;
      for (int64_t j = begin; j < end; ++j) {
        best.clear();
        for (const Found<T>& found : all) best.insert(best.end(), found.lists[j].begin(), found.lists[j].end());
        const int64_t count = std::min<int64_t>(k, best.size());
        std::partial_sort(best.begin(), best.begin() + count, best.end());
        for (int64_t i = 0; i < k; ++i) {
          value[(first + j) * k + i] = i < count ? best[i].value : -std::numeric_limits<T>::infinity();
          index[(first + j) * k + i] = i < count ? best[i].index : 0;
        }
      }
    });
  };
  for_query_blocks<T>(queries, use, kernel.pack_search);
}

std::tuple<Tensor, Tensor> search_topk(const Tensor& keys, const Tensor& queries, const Tensor& margin,
                                       const std::optional<Tensor>& scale, int64_t k, std::optional<double> upper) {
  const Pair p = pair_of(keys, queries, false);
  const int64_t n = p.keys.n, m = p.queries.n;
  STD_TORCH_CHECK(k >= 1 && k <= n, "k must be between 1 and ", n, ", got ", k);
  Tensor keep;
  const double* margins = moments_of(margin, "margin", m, keep);
  STD_TORCH_CHECK(!scale.has_value() || (scale->dim() == 1 && scale->size(0) == n && scale->is_contiguous() &&
                                         scale->scalar_type() == result_type(keys)),
                  "scale must hold ", n, " contiguous values of the type of the products");
  Tensor values = empty({m, k}, result_type(keys));
  Tensor indices = empty({m, k}, ScalarType::Long);
  with_type(keys.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    search_pass<T>(p.keys, p.queries, margins, scale.has_value() ? view<T>(*scale) : nullptr, k,
                   upper.value_or(std::numeric_limits<double>::infinity()), data<T>(values), data<int64_t>(indices));
  });
  return {values, indices};
}

Tensor gathered_products(const Tensor& near, const Tensor& rest, const Tensor& rows, const Tensor& queries) {
  const int64_t n = near.size(0), d = near.size(1), b = rows.size(0), found = rows.size(1);
  STD_TORCH_CHECK(near.scalar_type() == ScalarType::BFloat16 && rest.scalar_type() == ScalarType::Short &&
                      rows.scalar_type() == ScalarType::Long && queries.scalar_type() == ScalarType::Double,
                  "near must be bfloat16, rest int16, rows int64 and queries float64");
  STD_TORCH_CHECK(rest.size(0) == n && rest.size(1) == d && queries.size(0) == b && queries.size(1) == d &&
                      near.is_contiguous() && rest.is_contiguous() && rows.is_contiguous() && queries.is_contiguous(),
                  "near and rest must be (n, d), rows (b, f) and queries (b, d), all contiguous");
  const int64_t* index = view<int64_t>(rows);
  STD_TORCH_CHECK(std::all_of(index, index + b * found, [n](int64_t row) { return row < n; }), "rows must be below ",
                  n);
  Tensor out = empty({b, found}, ScalarType::Double);
  double* products = data<double>(out);
  const auto row_of = [&](int64_t i) -> HalvesRow {
    const int64_t at = std::max<int64_t>(0, index[i]) * d;
    return {view<uint16_t>(near) + at, view<int16_t>(rest) + at};
  };
  for_parts(parts_of(b * found, d * 8), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double* query = view<double>(queries) + i / found * d;
      const HalvesRow next = row_of(std::min(i + 1, end - 1));
      products[i] = index[i] < 0 ? 0.0 : kernels().halves_product(row_of(i), next, query, d);
    }
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, CPU, m) {
  m.impl("search_topk", TORCH_BOX(&search_topk));
  m.impl("gathered_products", TORCH_BOX(&gathered_products));
}
