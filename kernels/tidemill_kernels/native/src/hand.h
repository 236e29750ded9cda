// What a thread of the pool has in hand, so that others can go on with it where the system has put that thread aside.
//
// A task's steps compute without being seen and then write. Before it writes, a thread claims the step; who waits for it
// may claim the rest of the task first, and the thread, when it runs again, drops what it has computed. So every step is
// written once, whoever does it. Knows tasks and steps as numbers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace tidemill {

class Turn;

class alignas(64) Hand {
 public:
  struct Task {
    int64_t number, step;
  };

  // Take a task into the hand, or the rest of one that was another thread's. A task is taken over once: a step that is long
  // in itself, not for want of a core, would else be begun again for ever.
  Turn take(uint32_t phase, Task task, bool is_taken_over);

 private:
  friend class Turn;
  friend class Suspicion;

  // From the top: 16 bits of the phase, 24 of the task, 21 of the step, whether it was taken over, and what is going on.
  // Within a run of the pool phases are fewer than 2^16.
  enum Activity : uint64_t { kNothing = 0, kComputing = 1, kWriting = 2, kActivities = 3 };
  static constexpr uint64_t kTakenOver = 4, kStep = 8, kSteps = (1 << 21) - 1, kTasks = (1 << 24) - 1;

  static uint64_t pack(uint32_t phase, Task task) {
    return (uint64_t)(phase & 0xffff) << 48 | (uint64_t)task.number << 24 | (uint64_t)task.step << 3 | kComputing;
  }
  static Task unpack(uint64_t state) { return {(int64_t)(state >> 24 & kTasks), (int64_t)(state >> 3 & kSteps)}; }

  // Go from one state to another, unless somebody else has left the first meanwhile.
  static bool move(std::atomic<uint64_t>& hand, uint64_t from, uint64_t to) {
    return hand.compare_exchange_strong(from, to, std::memory_order_acq_rel, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> state_{kNothing};
};

// A thread's work on a task, or on the rest of one.
class Turn {
 public:
  Turn(std::atomic<uint64_t>* hand, uint64_t state) : hand_(hand), state_(state) {}

  int64_t first() const { return Hand::unpack(state_).step; }

  // Write what a step has computed, and say so; or not, if the rest of the task has become another thread's.
  template <typename Write>
  bool write(Write&& write) {
    if (hand_ != nullptr && !Hand::move(*hand_, state_, state_ ^ Hand::kComputing ^ Hand::kWriting)) return false;
    write();
    state_ += Hand::kStep;
    if (hand_ != nullptr) hand_->store(state_, std::memory_order_release);
    return true;
  }

  // Lay the task down; say whether it was this thread's until now.
  bool end() { return Hand::move(*hand_, state_, Hand::kNothing); }

 private:
  std::atomic<uint64_t>* hand_;  // null where a thread is alone
  uint64_t state_;
};

inline Turn Hand::take(uint32_t phase, Task task, bool is_taken_over) {
  uint64_t state = pack(phase, task) | (is_taken_over ? kTakenOver : 0);
  state_.store(state, std::memory_order_release);
  return {&state_, state};
}

// What a thread that waits thinks of the others: one whose step takes long beside what this thread has done since the
// phase began has lost its core.
class Suspicion {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Suspicion(Clock::time_point began) : began_(began) {}

  // Say whether another thread has had the same step of this phase in hand for long.
  bool is_grounded(std::vector<Hand>& hands, int self, uint32_t phase) {
    if (hand_ != nullptr && hand_->load(std::memory_order_acquire) == state_) return Clock::now() - since_ > patience_;
    since_ = Clock::now();
    patience_ = std::max<Clock::duration>(kPatience, (since_ - began_) / kShareOfPhase);
    hand_ = nullptr;
    for (int i = 0; i < (int)hands.size() && hand_ == nullptr; i++) {
      uint64_t state = hands[i].state_.load(std::memory_order_acquire);
      bool is_of_phase = state >> 48 == (phase & 0xffff) && (state & Hand::kActivities) == Hand::kComputing;
      if (i == self || !is_of_phase || (state & Hand::kTakenOver) != 0) continue;
      hand_ = &hands[i].state_;
      state_ = state;
    }
    return false;
  }

  // Take the rest of its task away from it, unless it has gone on.
  bool take_over(Hand::Task* rest) {
    *rest = Hand::unpack(state_);
    return Hand::move(*hand_, state_, Hand::kNothing);
  }

 private:
  // Longer than steps take that have a core, shorter than what the system gives another program.
  static constexpr std::chrono::microseconds kPatience{50};
  static constexpr int kShareOfPhase = 4;

  const Clock::time_point began_;
  std::atomic<uint64_t>* hand_ = nullptr;
  uint64_t state_ = 0;
  Clock::time_point since_;
  Clock::duration patience_{};
};

}  // namespace tidemill
