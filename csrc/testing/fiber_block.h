// A GPU block on the host: one fiber per thread, taking turns. Runs the kernel bodies of csrc/cuda unchanged, so that
// their indexing, barriers and warp exchanges can be tested where there is no GPU. Slow, and meant to be strict:
//
// - shared memory knows who touched what (shared_memory.h): races and reads before writes are errors in any order;
// - an asynchronous copy arrives no sooner than it is waited for, and takes 16 bytes from a multiple of 16;
// - warps and lanes take turns forwards, backwards, then shuffled, block by block, each as far as it gets;
// - threads that meet at a barrier or a warp exchange must have come to it on the same line, and all of them;
// - the tensor core adds as coarsely as any generation does.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/element.h"
#include "testing/shared_memory.h"

namespace surprise_hf {

namespace testing {

// Threads that meet at a barrier.
struct Meeting {
  int size = 0, arrived = 0, line = 0;
  int64_t generation = 0;
};

struct Fibers {
  static constexpr size_t kStack = 256 << 10;
  struct Jump {
    jmp_buf buffer;
  };
  jmp_buf scheduler_jump;
  std::vector<ucontext_t> contexts;
  std::vector<Jump> jumps;
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<bool> done, started;
  int current = 0;
  int64_t progress = 0;  // barriers completed and fibers finished: a round without any is a deadlock
  std::function<void(int)> body;
  std::string error;  // an exception can't leave its fiber

  // setjmp and longjmp switch between started fibers without the system calls of swapcontext.
  void yield() {
    if (_setjmp(jumps[current].buffer) == 0) _longjmp(scheduler_jump, 1);
  }
  void resume() {
    if (_setjmp(scheduler_jump) != 0) return;
    if (started[current]) _longjmp(jumps[current].buffer, 1);
    started[current] = true;
    setcontext(&contexts[current]);
  }

  void meet(Meeting& m, int line) {
    const int64_t generation = m.generation;
    if (m.arrived == 0) m.line = line;
    if (m.line != line)
      throw std::runtime_error("threads that should meet come from lines " + std::to_string(m.line) + " and " +
                               std::to_string(line));
    if (++m.arrived == m.size) {
      m.arrived = 0, ++m.generation, ++progress;
      return;
    }
    while (m.generation == generation) yield();
  }

  static void enter(uint32_t high, uint32_t low) {
    auto* self = reinterpret_cast<Fibers*>((static_cast<uint64_t>(high) << 32) | low);
    try {
      self->body(self->current);
    } catch (const std::exception& e) {
      self->error = e.what();
    }
    self->done[self->current] = true;
    ++self->progress;
    self->yield();
  }

  void run(int threads, int64_t block, std::function<void(int)> f) {
    body = std::move(f);
    contexts.resize(threads);
    stacks.resize(threads);
    jumps.resize(threads);
    done.assign(threads, false);
    started.assign(threads, false);
    const uint64_t self = reinterpret_cast<uint64_t>(this);
    for (int i = 0; i < threads; ++i) {
      if (!stacks[i]) stacks[i].reset(new char[kStack]);
      getcontext(&contexts[i]);
      contexts[i].uc_stack = {stacks[i].get(), 0, kStack};
      contexts[i].uc_link = nullptr;
      makecontext(&contexts[i], reinterpret_cast<void (*)()>(&enter), 2, static_cast<uint32_t>(self >> 32),
                  static_cast<uint32_t>(self));
    }
    const int warps = (threads + 31) / 32;
    std::vector<int> warp_order = order(warps, block), lane_order = order(32, block);
    // a warp runs on until it waits for another one: the order furthest from lockstep
    while (std::count(done.begin(), done.end(), false) > 0) {
      const int64_t before = progress;
      for (const int warp : warp_order) {
        for (int64_t seen = -1; seen != progress;) {
          seen = progress;
          for (const int lane : lane_order) {
            current = 32 * warp + lane;
            if (current >= threads || done[current]) continue;
            resume();
            if (!error.empty()) throw std::runtime_error(error);
          }
        }
      }
      if (progress == before) throw std::runtime_error("a barrier or warp exchange is not reached by all its threads");
    }
  }

  // Forwards in the first block, backwards in the second, shuffled in the others.
  static std::vector<int> order(int size, int64_t block) {
    std::vector<int> all(size);
    std::iota(all.begin(), all.end(), 0);
    if (block == 1) std::reverse(all.begin(), all.end());
    if (block > 1) std::shuffle(all.begin(), all.end(), std::mt19937(static_cast<uint32_t>(block)));
    return all;
  }
};

struct Warp {
  Meeting meeting;
  double value[32];
  int64_t row[32];
  uint32_t fragment[32][6];
};

// What a tensor core makes of a sum of exact products: every addend is cut to 24 bits at the place of the largest, and
// so is the sum. Newer generations keep a bit or two more and add in smaller groups (Fasi et al., Numerical behavior of
// NVIDIA tensor cores, 2021).
inline float cut_sum(const double* x, int count) {
  double largest = 0, sum = 0, plain = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    plain += x[i];
  }
  if (largest == 0 || !std::isfinite(plain)) return static_cast<float>(plain);
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 23), inverse = 1 / unit;
  for (int i = 0; i < count; ++i) sum += std::trunc(x[i] * inverse);
  const float rounded = static_cast<float>(sum * unit);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(sum * unit) ? std::nextafter(rounded, 0.0f) : rounded;
}

}  // namespace testing

// The host's counterpart of DeviceBlock: one object per thread, over the shared state of its block.
class FiberBlock {
 public:
  struct Shared {
    testing::Fibers& fibers;
    int threads;
    int64_t index;
    testing::Meeting meeting;
    std::vector<testing::Warp> warps;
    testing::SharedMemory memory;
  };
  template <class T>
  using Pointer = SharedPointer<FiberBlock, T>;

  FiberBlock(Shared& shared, int thread) : s_(shared), thread_(thread) {}

  int thread() const { return thread_; }
  int threads() const { return s_.threads; }
  int64_t index() const { return s_.index; }
  template <class T>
  Pointer<T> shared() const {
    return {this, 0};
  }
  void sync(int line = __builtin_LINE()) { s_.fibers.meet(s_.meeting, line); }

  template <class T>
  T shuffle_xor(T x, int mask, int line = __builtin_LINE()) {
    testing::Warp& w = warp();
    T* slots = reinterpret_cast<T*>(w.value);
    slots[lane()] = x;
    s_.fibers.meet(w.meeting, line);
    const T other = slots[lane() ^ mask];
    s_.fibers.meet(w.meeting, line);
    return other;
  }

  uint32_t ballot(bool x, int line = __builtin_LINE()) {
    testing::Warp& w = warp();
    w.value[lane()] = x;
    s_.fibers.meet(w.meeting, line);
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(w.value[i] != 0) << i;
    s_.fibers.meet(w.meeting, line);
    return bits;
  }

  void copy_async(Pointer<Chunk> to, const void* from, bool valid) {
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0) throw std::runtime_error("an asynchronous copy is not aligned");
    memory().send(to.at(), sizeof(Chunk), sizeof(Chunk), access());
    copies_.push_back({to.at(), valid ? from : nullptr, group_});
  }
  void commit() { ++group_; }
  template <int kPending>
  void wait() {
    while (!copies_.empty() && copies_.front().group < group_ - kPending) {
      const Copy& copy = copies_.front();
      Chunk chunk{};
      if (copy.from != nullptr) memcpy(&chunk, copy.from, sizeof(Chunk));
      memory().arrive(&chunk, copy.to, sizeof(Chunk), access());
      copies_.pop_front();
    }
  }

  void load_matrices(uint32_t* word, Pointer<Chunk> row, int line = __builtin_LINE()) {
    testing::Warp& w = warp();
    w.row[lane()] = row.at();
    s_.fibers.meet(w.meeting, line);
    for (int i = 0; i < 4; ++i) memory().load(word + i, w.row[8 * i + lane() / 4] + lane() % 4 * 4, 4, 4, access());
    if (row.at() % sizeof(Chunk) != 0) throw std::runtime_error("a matrix row is not aligned");
    s_.fibers.meet(w.meeting, line);
  }

  void mma(float, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<float, 1>(c, a, b); }
  void mma(F16, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<F16, 2>(c, a, b); }
  void mma(BF16, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<BF16, 2>(c, a, b); }

  // At the end of a thread: a copy still under way would write into the next block's memory.
  void leave() const {
    if (!copies_.empty()) throw std::runtime_error("a thread ends with an asynchronous copy under way");
  }

  // What SharedPointer asks.
  testing::SharedMemory& memory() const { return s_.memory; }
  testing::Access access() const { return {thread_, s_.meeting.generation}; }

 private:
  testing::Warp& warp() { return s_.warps[thread_ / 32]; }
  int lane() const { return thread_ % 32; }

  // Element e of a register that packs kPacked of them.
  template <class T, int kPacked>
  static float element(uint32_t word, int e) {
    if constexpr (kPacked == 1)
      return bits_to_float(word & 0xffffe000u);  // the hardware reads 19 bits of a tf32
    else
      return widen(T{static_cast<uint16_t>(word >> (16 * e))});
  }

  // Fragment layout of the PTX manual: lane (g, t) holds a[g][t..], a[g+8][t..], a[g][t+4..], a[g+8][t+4..],
  // b[t..][g], b[t+4..][g] in units of kPacked columns, and c[g][2t], c[g][2t+1], c[g+8][2t], c[g+8][2t+1].
  template <class T, int kPacked>
  void mma_any(float (&c)[4], const uint32_t* a, const uint32_t* b) {
    testing::Warp& w = warp();
    std::copy_n(a, 4, w.fragment[lane()]);
    std::copy_n(b, 2, w.fragment[lane()] + 4);
    s_.fibers.meet(w.meeting, __LINE__);
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
      const int col = 2 * t + i % 2, lower = i / 2;
      double addend[1 + 8 * kPacked] = {c[i]};
      for (int k = 0; k < 8; ++k)
        for (int e = 0; e < kPacked; ++e)
          addend[1 + k * kPacked + e] =
              static_cast<double>(element<T, kPacked>(w.fragment[g * 4 + k % 4][lower + 2 * (k / 4)], e)) *
              element<T, kPacked>(w.fragment[col * 4 + k % 4][4 + k / 4], e);
      c[i] = testing::cut_sum(addend, 1 + 8 * kPacked);
    }
    s_.fibers.meet(w.meeting, __LINE__);
  }

  struct Copy {
    int64_t to;
    const void* from;
    int group;
  };

  Shared& s_;
  const int thread_;
  int group_ = 0;
  std::deque<Copy> copies_;
};

// Runs `body(block)` for every thread of every block.
//
// Raises std::runtime_error: what shared_memory.h or this file forbids; says which thread and where.
template <class Body>
void run_blocks(int64_t blocks, int threads, size_t shared_bytes, Body body) {
  testing::Fibers fibers;
  for (int64_t index = 0; index < blocks; ++index) {
    FiberBlock::Shared shared{fibers, threads, index, {threads}, {}, testing::SharedMemory(shared_bytes)};
    shared.warps.resize((threads + 31) / 32);
    for (auto& warp : shared.warps) warp.meeting.size = 32;
    fibers.run(threads, index, [&](int thread) {
      FiberBlock block(shared, thread);
      body(block);
      block.leave();
    });
  }
}

}  // namespace surprise_hf
