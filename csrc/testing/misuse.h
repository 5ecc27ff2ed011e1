// Kernel bodies that are wrong in one way each, for the test that fiber_block.h notices.
#pragma once

#include "testing/fiber_block.h"

namespace surprise_hf {

// Runs the wrong body called `kind` in one block of 64 threads with a kilobyte of shared memory; "" and "copy" are
// right.
inline void misuse(const std::string& kind) {
  alignas(16) const char source[32] = {};
  run_blocks(1, 64, 1024, [&](FiberBlock& block) {
    const int thread = block.thread(), next = (thread + 1) % block.threads();
    const auto memory = block.shared<float>();
    const auto chunks = block.shared<Chunk>();
    const auto read = [&](int at) { return static_cast<float>(memory[at]); };
    if (kind == "read unwritten") read(thread);
    if (kind == "outside") memory[256 + thread] = 0;
    if (kind == "before the start") (memory + -1)[0] = 0;
    if (kind == "misaligned") *block.shared<double>() = 0, *(FiberBlock::Pointer<double>(&block, 4)) = 0;
    if (kind == "two writers") memory[thread / 2] = 0;
    memory[thread] = 0;
    if (kind != "no barrier") block.sync();
    read(next);
    if (kind == "write after read") memory[thread] = 1;
    block.sync();
    const bool copies = kind.find("copy") != std::string::npos, waits = kind != "copy left behind";
    if (copies && thread < 32) {
      block.copy_async(chunks + thread, source + (kind == "misaligned copy" ? 8 : 0), true);
      block.commit();
    }
    if (kind == "copy read early" && thread < 32) read(4 * thread);
    if (copies && waits && kind != "copy not awaited") block.wait<0>();
    block.sync();
    if (copies && waits) read(next);
    if (kind == "missed barrier" && thread != 5) block.sync();
    if (kind == "split warp") {
      if (thread % 2 == 0)
        block.ballot(true);
      else
        block.ballot(false);
    }
    if (kind == "two barriers") {
      if (thread < 32)
        block.sync();
      else
        block.sync();
    }
    block.ballot(true);
  });
}

}  // namespace surprise_hf
