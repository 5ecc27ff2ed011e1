// The CPU implementations of torch.ops.surprise_hf: check, allocate, share rows among threads, merge, finish.
//
// Rows are cut into at most kMaxParts parts whatever the number of threads, and partial sums are merged in their order:
// the same input gives the same bits from run to run. Queries go in blocks so that the packed block and the partial
// sums stay within a few MiB however many there are.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/common.h"

namespace {

using namespace surprise_hf;
using namespace surprise_hf::cpu;

// The moments of a block of queries as columns for the kernels; the padding stands below every query (z = -inf).
template <class T>
struct ColumnStore {
  std::vector<T> data;
  int64_t size;

  ColumnStore(const double* mean, const double* std, int64_t m) : size(table<T>().padded(m)) {
    data.assign(4 * size, T(0));
    std::fill(data.begin() + m, data.begin() + size, std::numeric_limits<T>::infinity());
    std::fill(data.begin() + 2 * size + m, data.begin() + 3 * size, T(1));
    for (int64_t j = 0; j < m; ++j) {
      const Column<T> c = make_column<T>(mean[j], std[j]);
      data[j] = c.mean_hi;
      data[size + j] = c.mean_lo;
      data[2 * size + j] = c.inv_std;
      data[3 * size + j] = c.edge;
    }
  }
  Columns<T> columns() const {
    const T* p = data.data();
    return {p, p + size, p + 2 * size, p + 3 * size};
  }
};

// Cosines of all keys (kept where `out` is not null) and their moments.
template <class T>
void moments_pass(const Rows& keys, const Rows& queries, T* out, double* mean, double* std) {
  const Kernels<T>& k = table<T>();
  if (keys.n == 0) {
    std::fill(mean, mean + queries.n, 0.0);
    std::fill(std, std + queries.n, 0.0);
    return;
  }
  for_query_blocks<T>(queries, [&](int64_t first, int64_t m, const T* packed) {
    const int64_t width = k.padded(m);
    const Parts parts = parts_of(keys.n, keys.d * m);
    std::vector<T> shift(width, T(0));
    std::vector<double> sums(parts.count * 2 * width, 0.0);
    Product<T> job{keys, packed, m, Epilogue::kCosines};
    job.queries = &queries;
    job.first_query = first;
    job.out = shift.data();
    job.out_stride = m;
    k.product(job, 0, 1);  // the first row's cosines are the shift of the sums

    job.epilogue = Epilogue::kMoments;
    job.shift = shift.data();
    job.out = out == nullptr ? nullptr : out + first;
    job.out_stride = queries.n;
    job.whole_rows = m == queries.n;
    for_parts(parts, [&](int64_t part, int64_t begin, int64_t end) {
      Product<T> mine = job;
      mine.sum = sums.data() + part * 2 * width;
      mine.sum_sq = mine.sum + width;
      if (out != nullptr && first == 0) fault_in(out + begin * queries.n, (end - begin) * queries.n * sizeof(T));
      k.product(mine, begin, end);
    });
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0, sum_sq = 0;
      for (int64_t part = 0; part < parts.count; ++part) {
        sum += sums[part * 2 * width + j];
        sum_sq += sums[part * 2 * width + width + j];
      }
      const Moments result = finish_moments<T>(static_cast<double>(keys.n), shift[j], sum, sum_sq);
      mean[first + j] = result.mean;
      std[first + j] = result.std;
    }
  });
}

template <class T>
void finish_pass(T* matrix, int64_t rows, int64_t m, const double* mean, const double* std, Output output) {
  const ColumnStore<T> store(mean, std, m);
  for_parts(parts_of(rows, m * 32), [&](int64_t, int64_t begin, int64_t end) {
    table<T>().finish(matrix + begin * m, end - begin, m, store.columns(), output);
  });
}

template <class T>
void score_pass(const Rows& keys, const Rows& queries, const double* mean, const double* std, T* out, Output output) {
  for_query_blocks<T>(queries, [&](int64_t first, int64_t m, const T* packed) {
    const ColumnStore<T> store(mean + first, std + first, m);
    Product<T> job{keys, packed, m, Epilogue::kStandardize};
    job.queries = &queries;
    job.first_query = first;
    job.out = out + first;
    job.out_stride = queries.n;
    job.whole_rows = m == queries.n;
    job.columns = store.columns();
    job.output = output;
    for_parts(parts_of(keys.n, keys.d * m), [&](int64_t, int64_t begin, int64_t end) {
      if (first == 0) fault_in(out + begin * queries.n, (end - begin) * queries.n * sizeof(T));
      table<T>().product(job, begin, end);
    });
  });
}

// NaN has filled no slot. Every number is in one then: NaN is what is left, the lower index first.
template <class T>
void fill_with_nan(T* value, int64_t* index, int64_t filled, int64_t k, int64_t m) {
  std::vector<bool> taken(m);
  for (int64_t i = 0; i < filled; ++i) taken[index[i]] = true;
  for (int64_t q = 0; filled < k; ++q) {
    if (taken[q]) continue;
    index[filled] = q;
    value[filled++] = std::numeric_limits<T>::quiet_NaN();
  }
}

template <class T>
void topk_pass(const Rows& keys, const Rows& queries, const double* mean, const double* std, int64_t k, T* value,
               int64_t* index, Output output) {
  constexpr int64_t kEmpty = std::numeric_limits<int64_t>::max();
  std::vector<T> similarity(output == Output::kCosine ? keys.n * k : 0);
  for_query_blocks<T>(queries, [&](int64_t first, int64_t m, const T* packed) {
    const ColumnStore<T> store(mean + first, std + first, m);
    Product<T> job{keys, packed, m, Epilogue::kTopK};
    job.queries = &queries;
    job.first_query = first;
    job.columns = store.columns();
    job.k = k;
    job.value = value;
    job.index = index;
    job.similarity = similarity.empty() ? nullptr : similarity.data();
    for_parts(parts_of(keys.n, keys.d * m), [&](int64_t, int64_t begin, int64_t end) {
      if (first == 0) {
        std::fill(value + begin * k, value + end * k, -std::numeric_limits<T>::infinity());
        std::fill(index + begin * k, index + end * k, kEmpty);
      }
      table<T>().product(job, begin, end);
    });
  });
  const std::vector<double> zeros(k, 0.0), ones(k, 1.0);
  const ColumnStore<T> standard(zeros.data(), ones.data(), k);  // z is its own z
  for_parts(parts_of(keys.n, 64 * k), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t *row = index + i * k, *empty = std::find(row, row + k, kEmpty);
      if (output == Output::kCosine) std::copy_n(&similarity[i * k], k, value + i * k);
      if (empty != row + k) fill_with_nan(value + i * k, row, empty - row, k, queries.n);
    }
    table<T>().finish(value + begin * k, end - begin, k, standard.columns(), output);
  });
}

// The pairs i <= j < n, neighbours in the plane near each other in the list: a thread's share of it needs few i and j.
std::vector<std::pair<int64_t, int64_t>> pairs_of(int64_t n) {
  constexpr int64_t kSide = 6;
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t top = 0; top < n; top += kSide)
    for (int64_t left = top; left < n; left += kSide)
      for (int64_t i = top; i < std::min(n, top + kSide); ++i)
        for (int64_t j = std::max(i, left); j < std::min(n, left + kSide); ++j) pairs.emplace_back(i, j);
  return pairs;
}

// The statistics of one run of rows, (count, mean, scatter), and its block that is being added.
template <class T>
struct Chain {
  int64_t row, end;
  double *count, *mean, *scatter;
  T* staged;
  std::vector<double> center, delta;
  int64_t length = 0;
  Scatter<T> job{};
};

// Adds the statistics of other rows to those of `into` (Chan, Golub and LeVeque), on and above the diagonal.
template <class T>
void merge(const Chain<T>& into, const Chain<T>& other, int64_t d) {
  const double count = *into.count + *other.count, weight = *into.count * (*other.count / count);
  std::vector<double> delta(d);
  for (int64_t i = 0; i < d; ++i) delta[i] = other.mean[i] - into.mean[i];
  for_parts(parts_of(d, d), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double scaled = weight * delta[i];
      double* const out = into.scatter + i * d;
      const double* const in = other.scatter + i * d;
      for (int64_t j = i; j < d; ++j) out[j] += in[j] + scaled * delta[j];
    }
  });
  for (int64_t i = 0; i < d; ++i) into.mean[i] += delta[i] * (*other.count / count);
  *into.count = count;
}

// Merges the rows into (count, mean, scatter) a block at a time: a block is centred by its own mean while it is in the
// cache, so its float32 products lose nothing to the size of the mean. Many rows are two chains, side by side: two
// threads take one each, and none waits for lines that the other has written, which takes four times as long where
// their cores have no cache in common.
template <class T>
void update_pass(const Rows& batch, double& count, double* mean, double* scatter) {
  constexpr int64_t kWorthTwo = 16;  // rows for each column, beside which a second matrix is little
  const Kernels<T>& k = table<T>();
  const int64_t d = batch.d, width = k.panel_width, panels = (d + width - 1) / width;
  const int64_t block = std::min(k.block_rows, batch.n), size = k.panel_size(block);
  const int64_t blocks = (batch.n + block - 1) / block, chains = batch.n >= kWorthTwo * d && blocks > 1 ? 2 : 1;
  AlignedBuffer<T> staged(chains * panels * size);
  AlignedBuffer<double> second(chains == 1 ? 0 : 1 + d + d * d);
  const int64_t half = chains == 1 ? batch.n : (blocks + 1) / 2 * block;
  std::vector<Chain<T>> all(1, {0, half, &count, mean, scatter, staged.get()});
  if (chains == 2) {
    double* const own = second.get();
    std::fill(own, own + 1 + d + d * d, 0.0);
    all.push_back({half, batch.n, own, own + 1, own + 1 + d, staged.get() + panels * size});
  }
  for (Chain<T>& chain : all) chain.center.resize(panels * width), chain.delta.resize(d);
  const std::vector<std::pair<int64_t, int64_t>> pairs = pairs_of(panels);
  // f(chain, item) for `items` of each chain that has rows left: one chain's are a thread's own, as far as they go
  const auto for_chains = [&](int64_t items, int64_t grain, const auto& f) {
    const int64_t active = all.back().length > 0 ? chains : 1;
    share_out(active * items, grain, [&](int64_t i) { f(all[i / items], i % items); }, /*own=*/true);
  };
  const Parts parts = parts_of(block, d * 16);
  while (all[0].row < all[0].end) {
    for (Chain<T>& chain : all) chain.length = std::min(block, chain.end - chain.row);
    for_chains(parts.count, 1, [&](Chain<T>& chain, int64_t part) {
      const int64_t begin = parts.begin(part), end = std::min(parts.begin(part + 1), chain.length);
      if (begin < end) k.unit_rows(batch, chain.row + begin, chain.row + end, chain.row, chain.staged, size);
    });
    for_chains(panels, 1, [&](Chain<T>& chain, int64_t p) {
      k.centre(chain.staged + p * size, block, chain.length, chain.center.data() + p * width);
    });
    for (Chain<T>& chain : all) {
      if (chain.length == 0) continue;
      const double rows = static_cast<double>(chain.length), sum = *chain.count + rows;
      for (int64_t i = 0; i < d; ++i) chain.delta[i] = chain.center[i] - chain.mean[i];
      chain.job = {chain.staged, size, block, chain.length, d, chain.delta.data(), *chain.count * rows / sum,
                   chain.scatter};
      for (int64_t i = 0; i < d; ++i) chain.mean[i] += chain.delta[i] * (rows / sum);
      *chain.count = sum;
      chain.row += chain.length;
    }
    for_chains(pairs.size(), 4,
               [&](Chain<T>& chain, int64_t t) { k.scatter_tile(chain.job, pairs[t].first, pairs[t].second); });
  }
  if (chains == 2) merge(all[0], all[1], d);
  for_parts(parts_of(d, d), [&](int64_t, int64_t begin, int64_t end) {
    constexpr int64_t kTile = 64;
    for (int64_t row = begin; row < end; row += kTile)
      for (int64_t i = 0; i < end; ++i)
        for (int64_t j = std::max(row, i + 1); j < std::min(end, row + kTile); ++j)
          scatter[j * d + i] = scatter[i * d + j];
  });
}

// Means m . q^ and variances q^ . C q^ of all queries, in float64: C is symmetric, so half the product is enough.
void quadratic_pass(const Rows& queries, const double* mean, const double* covariance, double* mu, double* variance) {
  const Kernels<double>& k = table<double>();
  const int64_t d = queries.d;
  AlignedBuffer<double> packed(k.padded(d) * d);
  k.pack_triangle(covariance, d, packed.get());
  std::fill(variance, variance + queries.n, 0.0);
  Product<double> job{queries, packed.get(), d, Epilogue::kQuadratic};
  job.out = variance;
  const Rows center{mean, Dtype::kDouble, 1, d, d, false};
  AlignedBuffer<double> packed_mean(k.packed_size(1, d));
  k.pack(center, 0, 1, 0, 1, packed_mean.get());
  Product<double> dots{queries, packed_mean.get(), 1, Epilogue::kCosines};
  dots.out = mu;
  dots.out_stride = 1;
  for_parts(parts_of(queries.n, d * d), [&](int64_t, int64_t begin, int64_t end) {
    k.product(job, begin, end);
    k.product(dots, begin, end);
  });
}

// --- the ops -----------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> cosine_surprise(const Tensor& keys, const Tensor& queries, bool normalize,
                                                   const std::string& output) {
  const Pair p = pair_of(keys, queries, normalize);
  const Output wanted = output_of(output);
  const int64_t n = p.keys.n, m = p.queries.n;
  Tensor scores = empty({n, m}, result_type(keys));
  Tensor mean = empty({m}, ScalarType::Double), std = empty({m}, ScalarType::Double);
  double* mu = static_cast<double*>(mean.mutable_data_ptr());
  double* sigma = static_cast<double*>(std.mutable_data_ptr());
  with_type(keys.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* out = static_cast<T*>(scores.mutable_data_ptr());
    moments_pass<T>(p.keys, p.queries, out, mu, sigma);
    finish_pass<T>(out, n, m, mu, sigma, wanted);
  });
  return {scores, mean, std};
}

std::tuple<Tensor, Tensor> cosine_moments(const Tensor& ensemble, const Tensor& queries, bool normalize) {
  const Pair p = pair_of(ensemble, queries, normalize);
  const int64_t m = p.queries.n;
  Tensor mean = empty({m}, ScalarType::Double);
  Tensor std = empty({m}, ScalarType::Double);
  with_type(ensemble.scalar_type(), [&](auto zero) {
    moments_pass<decltype(zero)>(p.keys, p.queries, nullptr, static_cast<double*>(mean.mutable_data_ptr()),
                                 static_cast<double*>(std.mutable_data_ptr()));
  });
  return {mean, std};
}

Tensor surprise_from_moments(const Tensor& keys, const Tensor& queries, const Tensor& mean, const Tensor& std,
                             bool normalize, const std::string& output) {
  const Pair p = pair_of(keys, queries, normalize);
  const Output wanted = output_of(output);
  const int64_t m = p.queries.n;
  Tensor keep_mean, keep_std;
  const double* mu = moments_of(mean, "mean", m, keep_mean);
  const double* sigma = moments_of(std, "std", m, keep_std);
  Tensor scores = empty({p.keys.n, m}, result_type(keys));
  with_type(keys.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    score_pass<T>(p.keys, p.queries, mu, sigma, static_cast<T*>(scores.mutable_data_ptr()), wanted);
  });
  return scores;
}

std::tuple<Tensor, Tensor> surprise_topk(const Tensor& keys, const Tensor& queries, const Tensor& mean,
                                         const Tensor& std, int64_t k, bool normalize, const std::string& output) {
  const Pair p = pair_of(keys, queries, normalize);
  const Output wanted = output_of(output);
  const int64_t m = p.queries.n;
  STD_TORCH_CHECK(k >= 1 && k <= m, "k must be between 1 and ", m, ", got ", k);
  Tensor keep_mean, keep_std;
  const double* mu = moments_of(mean, "mean", m, keep_mean);
  const double* sigma = moments_of(std, "std", m, keep_std);
  Tensor values = empty({p.keys.n, k}, result_type(keys));
  Tensor indices = empty({p.keys.n, k}, ScalarType::Long);
  with_type(keys.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    topk_pass<T>(p.keys, p.queries, mu, sigma, k, static_cast<T*>(values.mutable_data_ptr()),
                 static_cast<int64_t*>(indices.mutable_data_ptr()), wanted);
  });
  return {values, indices};
}

void ensemble_update(const Tensor& count, const Tensor& mean, const Tensor& scatter, const Tensor& batch,
                     bool normalize, bool exact) {
  Tensor keep;
  const Rows rows = rows_of(batch, "batch", normalize, keep);
  const auto dense = [](const Tensor& x, const char* name, int64_t elements) {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Double && x.numel() == elements, name, " must be float64 with ",
                    elements, " elements");
    return torch::stable::contiguous(x);
  };
  const Tensor n = dense(count, "count", 1), mu = dense(mean, "mean", rows.d);
  const Tensor s = dense(scatter, "scatter", rows.d * rows.d);
  if (rows.n == 0) return;
  if (exact || rows.dtype == Dtype::kDouble) {
    update_pass<double>(rows, *data<double>(n), data<double>(mu), data<double>(s));
  } else {
    update_pass<float>(rows, *data<double>(n), data<double>(mu), data<double>(s));
  }
  Tensor mean_out = mean, scatter_out = scatter;
  if (!mean.is_contiguous()) torch::stable::copy_(mean_out, mu);
  if (!scatter.is_contiguous()) torch::stable::copy_(scatter_out, s);
}

std::tuple<Tensor, Tensor> ensemble_moments(const Tensor& mean, const Tensor& covariance, const Tensor& queries,
                                            bool normalize) {
  Tensor keep, keep_mean, keep_covariance;
  const Rows rows = rows_of(queries, "queries", normalize, keep);
  const double* m = moments_of(mean, "mean", rows.d, keep_mean);
  STD_TORCH_CHECK(covariance.dim() == 2 && covariance.size(0) == rows.d && covariance.size(1) == rows.d &&
                      covariance.scalar_type() == ScalarType::Double,
                  "covariance must be float64 of shape (", rows.d, ", ", rows.d, ")");
  keep_covariance = torch::stable::contiguous(covariance);
  Tensor mu = empty({rows.n}, ScalarType::Double);
  Tensor variance = empty({rows.n}, ScalarType::Double);
  if (rows.n > 0)
    quadratic_pass(rows, m, static_cast<const double*>(keep_covariance.const_data_ptr()),
                   static_cast<double*>(mu.mutable_data_ptr()), static_cast<double*>(variance.mutable_data_ptr()));
  return {mu, variance};
}

std::string cpu_features() { return kernels().name; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, CPU, m) {
  m.impl("cosine_surprise", TORCH_BOX(&cosine_surprise));
  m.impl("cosine_moments", TORCH_BOX(&cosine_moments));
  m.impl("surprise_from_moments", TORCH_BOX(&surprise_from_moments));
  m.impl("surprise_topk", TORCH_BOX(&surprise_topk));
  m.impl("ensemble_update", TORCH_BOX(&ensemble_update));
  m.impl("ensemble_moments", TORCH_BOX(&ensemble_moments));
}

STABLE_TORCH_LIBRARY_IMPL(surprise_hf, CompositeExplicitAutograd, m) {
  m.impl("cpu_features", TORCH_BOX(&cpu_features));
}
