// What the CPU implementations share: tensors as rows, memory, the parts that threads take, blocks of packed queries.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "tensors.h"

namespace surprise_hf::cpu {

constexpr int64_t kMaxParts = 64;
// Of a block of queries: 3 MiB packed, which come in again for every block of rows, from a cache that others share; and
// 8 MiB for the parts' sums of rows of few columns.
constexpr int64_t kPackedBytes = 3 << 20, kBlockQueries = 1 << 13;
// Below this many multiplications a second thread costs more than it brings.
constexpr int64_t kSerialWork = 1 << 17;

inline Dtype dtype_of(const Tensor& x, const char* name) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Dtype::kFloat;
    case ScalarType::Half: return Dtype::kHalf;
    case ScalarType::BFloat16: return Dtype::kBFloat16;
    case ScalarType::Double: return Dtype::kDouble;
    default: STD_TORCH_CHECK(false, name, " must be float32, float16, bfloat16 or float64");
  }
}

// A 2-D tensor whose rows are contiguous; `keep` holds a copy where one was needed.
inline Rows rows_of(const Tensor& x, const char* name, bool normalize, Tensor& keep) {
  STD_TORCH_CHECK(x.dim() == 2, name, " must be 2-D");
  const Dtype dtype = dtype_of(x, name);
  keep = x.size(1) > 1 && x.stride(1) != 1 ? torch::stable::contiguous(x) : x;
  return {keep.const_data_ptr(), dtype, x.size(0), x.size(1), keep.stride(0), normalize};
}

// A new tensor of a result's type. torch::stable::new_empty takes four times as long: its arguments pass the dispatcher
// in boxes.
inline Tensor empty(std::initializer_list<int64_t> shape, ScalarType dtype) {
  const int32_t type = dtype == ScalarType::Double ? aoti_torch_dtype_float64()
                       : dtype == ScalarType::Long ? aoti_torch_dtype_int64()
                                                   : aoti_torch_dtype_float32();
  int64_t strides[2] = {1, 1};
  if (shape.size() == 2) strides[0] = std::max<int64_t>(1, shape.begin()[1]);
  AtenTensorHandle made;
  const auto failed = aoti_torch_empty_strided(shape.size(), shape.begin(), strides, type, aoti_torch_device_type_cpu(),
                                               /*device_index=*/0, &made);
  STD_TORCH_CHECK(!failed, "no memory for a result of ", shape.size() == 0 ? 1 : shape.begin()[0] * strides[0],
                  " elements");
  return Tensor(made);
}

struct Pair {
  Tensor keep_keys, keep_queries;
  Rows keys, queries;
};

inline Pair pair_of(const Tensor& keys, const Tensor& queries, bool normalize) {
  Pair p;
  p.keys = rows_of(keys, "keys", normalize, p.keep_keys);
  p.queries = rows_of(queries, "queries", normalize, p.keep_queries);
  STD_TORCH_CHECK(p.keys.d == p.queries.d, "keys have ", p.keys.d, " dimensions but queries have ", p.queries.d);
  STD_TORCH_CHECK(p.keys.dtype == p.queries.dtype, "keys and queries must have one dtype");
  return p;
}

inline const double* moments_of(const Tensor& x, const char* name, int64_t m, Tensor& keep) {
  STD_TORCH_CHECK(x.dim() == 1 && x.size(0) == m, name, " must hold ", m, " values");
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Double, name, " must be float64");
  keep = m > 1 && x.stride(0) != 1 ? torch::stable::contiguous(x) : x;
  return static_cast<const double*>(keep.const_data_ptr());
}

// The rows' parts: [begin(i), begin(i + 1)), whole groups of as many rows as the kernels multiply at once.
struct Parts {
  static constexpr int64_t kGroup = 16;
  int64_t rows, count;
  int64_t begin(int64_t i) const { return std::min(rows, i * ((rows + kGroup - 1) / kGroup) / count * kGroup); }
};

inline Parts parts_of(int64_t rows, int64_t work_per_row) {
  const int64_t by_work = std::max<int64_t>(1, rows * std::max<int64_t>(1, work_per_row) / kSerialWork);
  return {rows, std::min({kMaxParts, by_work, std::max<int64_t>(1, (rows + Parts::kGroup - 1) / Parts::kGroup)})};
}

// Calls f(i) for all i < count. A thread takes the i of its own range, which are neighbours in memory and its own again
// in the next call, and then, from the last on, those that others have not come to: where another program has one of
// the cores for a while, nobody waits for it. `grain` is the fewest i worth a thread. With `own`, what another will
// come to soon is left to it: its cache has what that needs.
template <class F>
void share_out(int64_t count, int64_t grain, const F& f, bool own = false) {
  if (count == 1) return f(0);
  std::vector<std::atomic<bool>> taken(count);
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const auto is_taken = [&](int64_t i) { return taken[i].load(std::memory_order_relaxed); };
    const auto take = [&](int64_t i) {
      if (!is_taken(i) && !taken[i].exchange(true)) f(i);
    };
    for (int64_t i = begin; i < end; ++i) take(i);
    const int64_t soon = own ? (end - begin) / 4 : 0;
    for (int64_t k = 1; k <= count - (end - begin); ++k) {
      const int64_t i = (begin - k + count) % count;
      if (i >= soon && !is_taken(i - soon)) take(i);
    }
  });
}

template <class F>
void for_parts(const Parts& parts, const F& f) {
  share_out(parts.count, 1, [&](int64_t i) { f(i, parts.begin(i), parts.begin(i + 1)); });
}

// Asks for all pages of a result about to be written: a fault for each 4 KiB costs more than what is written there.
inline void fault_in(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr int64_t kWorthwhile = 1 << 18;
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE; an error before Linux 5.14, and nothing happens
  const int64_t page = sysconf(_SC_PAGESIZE);
  char* const first = reinterpret_cast<char*>((reinterpret_cast<intptr_t>(data) + page - 1) / page * page);
  const int64_t length = (static_cast<char*>(data) + bytes - first) / page * page;
  if (bytes < kWorthwhile) return;
  unsigned char there = 0;  // memory that the allocator gives out again
  if (mincore(first + length / page / 2 * page, page, &there) == 0 && (there & 1) == 0)
    madvise(first, length, kPopulateWrite);
#endif
}

// Calls f with a value of the type to compute in: double or float.
template <class F>
auto with_type(ScalarType type, const F& f) {
  return type == ScalarType::Double ? f(double{}) : f(float{});
}

// Memory for the length of a call. A thread keeps its last buffer of up to kKeptBytes for the next call: fresh pages
// took 180 of the 440 microseconds of 64 keys by 150 queries of 768 columns.
template <class T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t elements) : block_(std::exchange(kept(), Block())) {
    const size_t bytes = (elements * sizeof(T) + 64) / 64 * 64;
    if (block_.bytes >= bytes) return;
    block_ = Block(bytes);
    STD_TORCH_CHECK(block_.data != nullptr, "out of memory: ", bytes, " bytes of workspace");
  }
  ~AlignedBuffer() {
    if (block_.bytes <= kKeptBytes && block_.bytes > kept().bytes) kept() = std::move(block_);
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  T* get() const { return static_cast<T*>(block_.data.get()); }

 private:
  static constexpr size_t kKeptBytes = 16 << 20;  // a d x d matrix of doubles up to d = 1,448; more than those above
  struct Block {
    std::unique_ptr<void, void (*)(void*)> data{nullptr, std::free};
    size_t bytes = 0;

    Block() = default;
    explicit Block(size_t size) : data(std::aligned_alloc(64, size), std::free), bytes(size) {}
  };
  static Block& kept() {
    thread_local Block block;
    return block;
  }

  Block block_;
};

// Calls f(first, count, packed) for each block of queries.
template <class T, class F>
void for_query_blocks(const Rows& queries, const F& f, decltype(Kernels<T>::pack) pack = table<T>().pack) {
  const Kernels<T>& k = table<T>();
  const int64_t row_bytes = std::max<int64_t>(1, queries.d) * sizeof(T);
  const int64_t most = k.block_queries(std::min(kPackedBytes / row_bytes, kBlockQueries));
  const int64_t block = std::min(most, queries.n);
  if (block == 0) return;
  AlignedBuffer<T> packed(k.packed_size(block, queries.d));
  for (int64_t first = 0; first < queries.n; first += block) {
    const int64_t count = std::min(block, queries.n - first);
    const Parts parts = parts_of(count, queries.d * 16);
    for_parts(parts, [&](int64_t part, int64_t, int64_t) {
      pack(queries, first, first + count, part, parts.count, packed.get());
    });
    f(first, count, static_cast<const T*>(packed.get()));
  }
}

}  // namespace surprise_hf::cpu
