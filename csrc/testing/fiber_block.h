// A GPU block on the host: one fiber per thread, taking turns. Runs the kernel bodies of csrc/cuda unchanged, so that
// their indexing, barriers and warp exchanges can be tested where there is no GPU. Slow, and meant to be strict: shared
// memory starts out as NaN, an asynchronous copy arrives no sooner than it is waited for, every other block runs its
// threads in reverse (a missing barrier shows in one of the two orders), and a barrier that a thread misses is an
// error.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/element.h"

namespace surprise_hf {

namespace testing {

// Threads that meet at a barrier.
struct Meeting {
  int size = 0, arrived = 0;
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

  void meet(Meeting& m) {
    const int64_t generation = m.generation;
    if (++m.arrived == m.size) {
      m.arrived = 0, ++m.generation, ++progress;
      return;
    }
    while (m.generation == generation) yield();
  }

  static void enter(uint32_t high, uint32_t low) {
    auto* self = reinterpret_cast<Fibers*>((static_cast<uint64_t>(high) << 32) | low);
    self->body(self->current);
    self->done[self->current] = true;
    ++self->progress;
    self->yield();
  }

  void run(int threads, bool reverse, std::function<void(int)> f) {
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
    // a warp runs on until it waits for another one: the order furthest from lockstep
    const int warps = (threads + 31) / 32;
    while (std::count(done.begin(), done.end(), false) > 0) {
      const int64_t before = progress;
      for (int turn = 0; turn < warps; ++turn) {
        const int first = 32 * (reverse ? warps - 1 - turn : turn), size = std::min(32, threads - first);
        for (int64_t seen = -1; seen != progress;) {
          seen = progress;
          for (int lane = 0; lane < size; ++lane) {
            current = first + (reverse ? size - 1 - lane : lane);
            if (!done[current]) resume();
          }
        }
      }
      if (progress == before) throw std::runtime_error("a barrier or warp exchange is not reached by all its threads");
    }
  }
};

struct Warp {
  Meeting meeting;
  double value[32];
  const Chunk* row[32];
  uint32_t fragment[32][6];
};

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
    std::vector<Chunk> memory;
  };

  FiberBlock(Shared& shared, int thread) : s_(shared), thread_(thread) {}

  int thread() const { return thread_; }
  int threads() const { return s_.threads; }
  int64_t index() const { return s_.index; }
  char* shared() const { return reinterpret_cast<char*>(s_.memory.data()); }
  void sync() { s_.fibers.meet(s_.meeting); }

  template <class T>
  T shuffle_xor(T x, int mask) {
    testing::Warp& w = warp();
    T* slots = reinterpret_cast<T*>(w.value);
    slots[lane()] = x;
    s_.fibers.meet(w.meeting);
    const T other = slots[lane() ^ mask];
    s_.fibers.meet(w.meeting);
    return other;
  }

  void copy_async(Chunk* to, const void* from, bool valid) { copies_.push_back({to, valid ? from : nullptr, group_}); }
  void commit() { ++group_; }
  template <int kPending>
  void wait() {
    while (!copies_.empty() && copies_.front().group < group_ - kPending) {
      const Copy& copy = copies_.front();
      *copy.to = Chunk{};
      if (copy.from != nullptr) memcpy(copy.to, copy.from, sizeof(Chunk));
      copies_.pop_front();
    }
  }

  void load_matrices(uint32_t* word, const Chunk* row) {
    testing::Warp& w = warp();
    w.row[lane()] = row;
    s_.fibers.meet(w.meeting);
    for (int i = 0; i < 4; ++i) word[i] = w.row[8 * i + lane() / 4]->word[lane() % 4];
    s_.fibers.meet(w.meeting);
  }

  void mma(float, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<float, 1>(c, a, b); }
  void mma(F16, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<F16, 2>(c, a, b); }
  void mma(BF16, float (&c)[4], const uint32_t* a, const uint32_t* b) { mma_any<BF16, 2>(c, a, b); }

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
    s_.fibers.meet(w.meeting);
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
      const int col = 2 * t + i % 2, lower = i / 2;
      for (int k = 0; k < 8; ++k)
        for (int e = 0; e < kPacked; ++e)
          c[i] += element<T, kPacked>(w.fragment[g * 4 + k % 4][lower + 2 * (k / 4)], e) *
                  element<T, kPacked>(w.fragment[col * 4 + k % 4][4 + k / 4], e);
    }
    s_.fibers.meet(w.meeting);
  }

  struct Copy {
    Chunk* to;
    const void* from;
    int group;
  };

  Shared& s_;
  const int thread_;
  int group_ = 0;
  std::deque<Copy> copies_;
};

// Runs `body(block)` for every thread of every block.
template <class Body>
void run_blocks(int64_t blocks, int threads, size_t shared_bytes, Body body) {
  testing::Fibers fibers;
  for (int64_t index = 0; index < blocks; ++index) {
    FiberBlock::Shared shared{fibers, threads, index, {threads}, {}, {}};
    shared.warps.resize((threads + 31) / 32);
    for (auto& warp : shared.warps) warp.meeting.size = 32;
    shared.memory.resize(shared_bytes / sizeof(Chunk) + 1);
    memset(static_cast<void*>(shared.memory.data()), 0xff, shared.memory.size() * sizeof(Chunk));
    fibers.run(threads, index % 2 == 1, [&](int thread) {
      FiberBlock block(shared, thread);
      body(block);
    });
  }
}

}  // namespace surprise_hf
