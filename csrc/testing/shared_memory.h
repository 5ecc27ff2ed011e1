// A block's shared memory on the host, which knows who touched each word and since which barrier. What a GPU answers
// with a wrong number now and then is an error here, whatever order the threads run in: a race, a word read before it
// was written, an asynchronous copy not waited for, a place outside the block's memory or not a multiple of the type.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace surprise_hf {

namespace testing {

// Who reads or writes: a thread, between the barrier `epoch` of its block and the next.
struct Access {
  int thread;
  int64_t epoch;
};

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes), chunks_(bytes / 16 + 1), words_(bytes / 4 + 1) {
    memset(static_cast<void*>(chunks_.data()), 0xff, chunks_.size() * sizeof(Line));
  }

  void load(void* to, int64_t at, size_t size, size_t alignment, Access by) {
    for (Word& w : words(at, size, alignment)) {
      if (w.sender >= 0)
        fail("is read while an asynchronous copy of thread " + name(w.sender) + " is under way", at, by);
      if (w.written < 0) fail("is read before it is written", at, by);
      if (w.written == by.epoch && w.writer != by.thread)
        fail("races with the write of thread " + name(w.writer), at, by);
      w.reader = w.read == by.epoch && w.reader != by.thread ? kSeveral : by.thread;
      w.read = by.epoch;
    }
    memcpy(to, data() + at, size);
  }

  void store(const void* from, int64_t at, size_t size, size_t alignment, Access by) {
    for (Word& w : words(at, size, alignment)) {
      claim(w, at, by);
      w.written = by.epoch, w.writer = by.thread;
    }
    memcpy(data() + at, from, size);
  }

  // An asynchronous copy may write from here on until it has been waited for.
  void send(int64_t at, size_t size, size_t alignment, Access by) {
    for (Word& w : words(at, size, alignment)) {
      claim(w, at, by);
      w.sender = by.thread;
    }
  }
  void arrive(const void* from, int64_t at, size_t size, Access by) {
    for (Word& w : words(at, size, 4)) w.sender = kNobody;
    store(from, at, size, 4, by);
  }

 private:
  static constexpr int kNobody = -1, kSeveral = -2;
  struct alignas(16) Line {
    char bytes[16];
  };
  struct Word {
    int64_t written = -1, read = -1;  // epochs
    int writer = kNobody, reader = kNobody, sender = kNobody;
  };
  struct Range {
    Word *first, *last;
    Word* begin() const { return first; }
    Word* end() const { return last; }
  };

  char* data() { return reinterpret_cast<char*>(chunks_.data()); }
  static std::string name(int thread) { return thread == kSeveral ? "several" : std::to_string(thread); }

  void claim(const Word& w, int64_t at, Access by) {
    if (w.sender >= 0)
      fail("is written while an asynchronous copy of thread " + name(w.sender) + " is under way", at, by);
    if (w.written == by.epoch && w.writer != by.thread)
      fail("races with the write of thread " + name(w.writer), at, by);
    if (w.read == by.epoch && w.reader != by.thread) fail("races with the read of thread " + name(w.reader), at, by);
  }

  Range words(int64_t at, size_t size, size_t alignment) {
    const Access nobody{kNobody, 0};
    if (at < 0 || at + size > bytes_)
      fail("is outside the " + std::to_string(bytes_) + " bytes of the block", at, nobody);
    if (at % alignment != 0) fail("is no multiple of " + std::to_string(alignment), at, nobody);
    return {&words_[at / 4], &words_[at / 4] + (size + 3) / 4};
  }

  [[noreturn]] static void fail(const std::string& what, int64_t at, Access by) {
    throw std::runtime_error("shared memory at byte " + std::to_string(at) + " " + what + " (thread " +
                             std::to_string(by.thread) + ", after " + std::to_string(by.epoch) + " barriers)");
  }

  size_t bytes_;
  std::vector<Line> chunks_;
  std::vector<Word> words_;
};

}  // namespace testing

// A pointer into shared memory as one thread holds it: every access through it is recorded.
template <class Block, class T>
class SharedPointer {
 public:
  class Reference {
   public:
    Reference(const Block* block, int64_t at) : block_(block), at_(at) {}
    operator T() const {
      T x;
      block_->memory().load(&x, at_, sizeof(T), alignof(T), block_->access());
      return x;
    }
    const Reference& operator=(const T& x) const {
      block_->memory().store(&x, at_, sizeof(T), alignof(T), block_->access());
      return *this;
    }
    const Reference& operator=(const Reference& x) const { return *this = static_cast<T>(x); }

   private:
    const Block* block_;
    int64_t at_;
  };

  SharedPointer() = default;
  SharedPointer(const Block* block, int64_t at) : block_(block), at_(at) {}
  Reference operator[](int64_t i) const { return {block_, at_ + i * static_cast<int64_t>(sizeof(T))}; }
  Reference operator*() const { return (*this)[0]; }
  SharedPointer operator+(int64_t i) const { return {block_, at_ + i * static_cast<int64_t>(sizeof(T))}; }
  int64_t at() const { return at_; }

 private:
  const Block* block_ = nullptr;
  int64_t at_ = 0;
};

}  // namespace surprise_hf
