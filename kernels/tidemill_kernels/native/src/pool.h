// A small pool of threads that walk through the same code together, phase by phase.
//
// A phase's tasks are dealt out by a counter, and it ends when they are done, not when every thread has come: one that
// the system has put aside holds nobody up unless it has a task in hand, and skips the phases that it missed. Waiting
// threads spin for a while and then give their time away; between runs they sleep. Knows no operator. The caller's thread
// is number 0.
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

  // Let every thread call body(thread), which calls `each` in the same order with the same counts; return when all
  // phases are done. Not to be nested.
  template <typename Body>
  void run(Body&& body) {
    call_ = [](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); };
    context_ = &body;
    first_phase_ = phase_of(ticket_.load());
    if (num_threads_ > 1) start_run();
    phase_ = first_phase_;
    call_(context_, 0);
    open_run_.store(0);
    wait_until([&] { return num_inside_.load() == 0; });
  }

  // Within a run: deal out 0 .. count in pieces of `grain` and return when all have been done, by whomever.
  template <typename Body>
  void each(int64_t count, int64_t grain, Body&& body) {
    if (num_threads_ == 1 || count == 0) {
      for (int64_t i = 0; i < count; i++) body(i);
      return;
    }
    const uint32_t phase = phase_++;
    for (int64_t first; (first = take(phase, count, grain)) < count;) {
      int64_t last = first + grain < count ? first + grain : count;
      for (int64_t i = first; i < last; i++) body(i);
      if (num_done_.fetch_add(last - first, std::memory_order_acq_rel) + last - first == count) {
        num_done_.store(0, std::memory_order_relaxed);
        ticket_.store((uint64_t)(phase + 1) << 32, std::memory_order_release);
      }
    }
    wait_until([&] { return phase_of(ticket_.load(std::memory_order_acquire)) != phase; });
  }

 private:
  static constexpr int kSpins = 2000;

  static uint32_t phase_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }

  template <typename Condition>
  static void wait_until(Condition&& is_met) {
    for (int spins = 0; !is_met(); spins++) {
      if (spins < kSpins) pause_briefly(); else std::this_thread::yield();
    }
  }

  // Take the next piece of a phase; `count` if there is none left or the phase is over.
  int64_t take(uint32_t phase, int64_t count, int64_t grain) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (phase_of(ticket) == phase && (int64_t)(uint32_t)ticket < count) {
      if (ticket_.compare_exchange_weak(ticket, ticket + grain, std::memory_order_acq_rel)) return (uint32_t)ticket;
    }
    return count;
  }

  void serve(int thread) {
    for (uint32_t seen = 0;;) {
      uint32_t current;
      for (int spins = 0; (current = run_.load(std::memory_order_acquire)) == seen; spins++) {
        if (spins < kSpins) pause_briefly(); else sleep_until_run(seen);
      }
      seen = current;
      if (is_stopping_) return;
      // Who finds the run still open after saying so is waited for at its end; who does not stays out.
      num_inside_.fetch_add(1);
      if (open_run_.load() == seen) {
        phase_ = first_phase_;
        call_(context_, thread);
      }
      num_inside_.fetch_sub(1);
    }
  }

  void start_run() {
    uint32_t next = run_.load() + 1;
    if (next == 0) next = 1;  // 0 means closed
    open_run_.store(next);
    run_.store(next);
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
  uint32_t first_phase_ = 0;
  inline static thread_local uint32_t phase_ = 0;  // the phase that this thread comes to next
  std::atomic<bool> is_stopping_{false};
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> open_run_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  alignas(64) std::atomic<int> num_inside_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};  // the phase, and in the lower half its next task
  alignas(64) std::atomic<int64_t> num_done_{0};
};

}  // namespace tidemill
