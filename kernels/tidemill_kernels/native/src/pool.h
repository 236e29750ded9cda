// A small pool of threads that walk through the same code together: tasks are dealt out by a counter, phases end at a
// barrier.
//
// Barriers spin for a while and then give their time away, so that a busy neighbour costs little; between runs threads
// sleep. Knows no operator. The caller's thread is number 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidemill {

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
    for (int thread = 1; thread < num_threads_; thread++) threads_.emplace_back([this, thread] { serve(thread); });
  }

  ~Pool() {
    is_stopping_ = true;
    start_run();
    for (auto& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return num_threads_; }

  // Let every thread call body(thread); return when all are done. Not to be nested.
  template <typename Body>
  void run(Body&& body) {
    call_ = [](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); };
    context_ = &body;
    if (num_threads_ > 1) start_run();
    call_(context_, 0);
    barrier();
  }

  // Within a run, called by every thread alike: deal out 0 .. count in pieces of `grain`, then wait for all.
  template <typename Body>
  void each(int64_t count, int64_t grain, Body&& body) {
    if (num_threads_ == 1) {
      for (int64_t i = 0; i < count; i++) body(i);
      return;
    }
    for (;;) {
      int64_t first = next_task_.fetch_add(grain, std::memory_order_relaxed);
      if (first >= count) break;
      int64_t last = first + grain < count ? first + grain : count;
      for (int64_t i = first; i < last; i++) body(i);
    }
    barrier();
  }

  void barrier() {
    if (num_threads_ == 1) return;
    uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (num_waiting_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      num_waiting_.store(0, std::memory_order_relaxed);
      next_task_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
      if (spins < kSpins) pause_briefly(); else std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 2000;

  void serve(int thread) {
    for (uint32_t seen = 0;;) {
      for (int spins = 0; run_.load(std::memory_order_acquire) == seen; spins++) {
        if (spins < kSpins) pause_briefly(); else sleep_until_run(seen);
      }
      seen++;
      if (is_stopping_) return;
      call_(context_, thread);
      barrier();
    }
  }

  void start_run() {
    run_.fetch_add(1, std::memory_order_acq_rel);
#if defined(__linux__)
    if (num_asleep_.load()) syscall(SYS_futex, &run_, FUTEX_WAKE_PRIVATE, num_threads_, nullptr, nullptr, 0);
#endif
  }

  void sleep_until_run(uint32_t seen) {
#if defined(__linux__)
    num_asleep_++;
    syscall(SYS_futex, &run_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    num_asleep_--;
#else
    std::this_thread::yield();
#endif
  }

  const int num_threads_;
  std::vector<std::thread> threads_;
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> is_stopping_{false};
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<int> num_waiting_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

}  // namespace tidemill
