// A small pool of threads that walk through the same code together, phase by phase.
//
// A thread begins with its own part of a phase's tasks, the same part in every phase, so that it finds what it wrote in
// its own cache; who is done takes from the others. A phase ends when its tasks are done, not when every thread has come:
// one that the system has put aside skips what it missed, and of what it has in hand others take the rest (see hand.h).
// Waiting threads spin for a while and then give their time away; between runs they sleep. Knows no operator. The caller's
// thread is number 0.
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

#include "hand.h"

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
  explicit Pool(int num_threads)
      : num_threads_(num_threads < 1 ? 1 : num_threads), parts_(num_threads_), hands_(num_threads_) {
    threads_.reserve(num_threads_);
    try {
      for (int thread = 1; thread < num_threads_; thread++) threads_.emplace_back([this, thread] { serve(thread); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return num_threads_; }

  // Let every thread call body(thread), which calls `each` in the same order with the same counts; return when all
  // phases are done. Not to be nested.
  template <typename Body>
  void run(Body&& body) {
    call_ = [](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); };
    context_ = &body;
    first_phase_ = open_phase_.load();
    if (num_threads_ > 1) start_run();
    phase_ = first_phase_;
    thread_ = 0;
    call_(context_, 0);
    open_run_.store(0);
    wait_until([&] { return num_inside_.load() == 0; });
  }

  // Within a run: do 0 .. count in pieces of at most `grain` and return when all have been done, by whomever.
  template <typename Body>
  void each(int64_t count, int64_t grain, Body&& body) {
    if (num_threads_ == 1 || count == 0) {
      for (int64_t i = 0; i < count; i++) body(i);
      return;
    }
    const uint32_t phase = phase_++;
    for (Range range; (range = take(phase, count, grain)).first < range.last;) {
      for (int64_t i = range.first; i < range.last; i++) body(i);
      count_done(phase, range.last - range.first, count);
    }
    wait_until([&] { return is_over(phase); });
  }

  // The same for tasks of several steps, each of which computes and then writes what others see: body(task, turn) goes
  // through the steps from turn.first() on, writes by turn.write(), and ends where that fails. A thread that waits while
  // another one's step takes suspiciously long does the rest in its place.
  template <typename Body>
  void each_in_steps(int64_t count, Body&& body) {
    if (num_threads_ == 1 || count == 0) {
      for (int64_t i = 0; i < count; i++) {
        Turn turn(nullptr, 0);
        body(i, turn);
      }
      return;
    }
    const uint32_t phase = phase_++;
    const auto began = Suspicion::Clock::now();
    auto work = [&](Hand::Task task, bool is_taken_over) {
      Turn turn = hands_[thread_].take(phase, task, is_taken_over);
      body(task.number, turn);
      if (turn.end()) count_done(phase, 1, count);
    };
    for (Range range; (range = take(phase, count, 1)).first < range.last;)
      work({range.first, 0}, false);
    Suspicion suspicion(began);
    wait_until([&] {
      Hand::Task rest;
      bool is_mine = !is_over(phase) && suspicion.is_grounded(hands_, thread_, phase) && suspicion.take_over(&rest);
      if (is_mine) work(rest, true);
      return is_over(phase);
    });
  }

 private:
  static constexpr int kSpins = 2000;

  struct Range {
    int64_t first, last;
  };

  struct alignas(64) Part {
    std::atomic<uint64_t> ticket{0};  // the phase, and in the lower half how many of the part's tasks are taken
  };

  template <typename Condition>
  static void wait_until(Condition&& is_met) {
    for (int spins = 0; !is_met(); spins++) {
      if (spins < kSpins) pause_briefly(); else std::this_thread::yield();
    }
  }

  bool is_over(uint32_t phase) const { return open_phase_.load(std::memory_order_acquire) != phase; }

  // Count tasks of a phase as done; with the last of them it is over.
  void count_done(uint32_t phase, int64_t size, int64_t count) {
    if (num_done_.fetch_add(size, std::memory_order_acq_rel) + size != count) return;
    num_done_.store(0, std::memory_order_relaxed);
    for (Part& part : parts_) part.ticket.store((uint64_t)(phase + 1) << 32, std::memory_order_relaxed);
    open_phase_.store(phase + 1, std::memory_order_release);
  }

  // Take the next tasks of a phase, first of this thread's own; none if all are taken or the phase is over.
  Range take(uint32_t phase, int64_t count, int64_t grain) {
    for (int turn = 0; turn < num_threads_; turn++) {
      int owner = (thread_ + turn) % num_threads_;
      int64_t begin = count * owner / num_threads_, end = count * (owner + 1) / num_threads_;
      std::atomic<uint64_t>& part = parts_[owner].ticket;
      uint64_t ticket = part.load(std::memory_order_acquire);
      while ((uint32_t)(ticket >> 32) == phase && begin + (int64_t)(uint32_t)ticket < end) {
        int64_t first = begin + (uint32_t)ticket, size = end - first < grain ? end - first : grain;
        if (part.compare_exchange_weak(ticket, ticket + size, std::memory_order_acq_rel)) return {first, first + size};
      }
    }
    return {0, 0};
  }

  void serve(int thread) {
    thread_ = thread;
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

  void stop() {
    is_stopping_ = true;
    start_run();
    for (auto& thread : threads_) thread.join();
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
  std::vector<Part> parts_;
  std::vector<Hand> hands_;
  std::vector<std::thread> threads_;
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  uint32_t first_phase_ = 0;
  inline static thread_local uint32_t phase_ = 0;  // the phase that this thread comes to next
  inline static thread_local int thread_ = 0;
  std::atomic<bool> is_stopping_{false};
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> open_run_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  alignas(64) std::atomic<int> num_inside_{0};
  alignas(64) std::atomic<uint32_t> open_phase_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
};

}  // namespace tidemill
