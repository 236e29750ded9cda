// Memory that kernels read in long runs: aligned to huge pages and asked for as such, or plain and aligned.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tidemill {

inline constexpr int64_t kHugePage = 2 << 20;

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// A zeroed, growing buffer of T; what it held is lost when it grows.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* reserve(int64_t count) {
    if (count <= count_) return data_;
    std::free(data_);
    data_ = nullptr;
    count_ = 0;
    int64_t bytes = round_up(count * (int64_t)sizeof(T), 4096);
    bool is_large = bytes >= kHugePage;
    if (is_large) bytes = round_up(bytes, kHugePage);
    data_ = static_cast<T*>(std::aligned_alloc(is_large ? kHugePage : 4096, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (is_large) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    std::memset(static_cast<void*>(data_), 0, bytes);
    count_ = count;
    return data_;
  }

  T* data() const { return data_; }
  int64_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace tidemill
