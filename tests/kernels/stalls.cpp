// Threads of the pool that the system puts aside in the middle of a task, staged: `stalls NAME` ends with 0 if all is well.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pool.h"

using namespace tidemill;
using Counts = std::vector<std::atomic<int>>;

namespace {

constexpr int kTasks = 40, kSteps = 5;

void expect(bool is_met, const char* what) {
  if (is_met) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

void sleep_ms(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

void expect_once(const Counts& counts) {
  for (const auto& count : counts) expect(count.load() == 1, "every step is written once");
}

// All threads go through a phase; before(thread, task, step) is called where a step computes, within(...) where it writes.
template <typename Before, typename Within>
void phase(Pool& pool, int thread, Counts& counts, Before&& before, Within&& within) {
  pool.each_in_steps(kTasks, [&](int64_t task, Turn& turn) {
    for (int64_t step = turn.first(); step < kSteps; step++) {
      before(thread, task, step);
      bool is_mine = turn.write([&] {
        within(thread, task, step);
        counts[task * kSteps + step]++;
      });
      if (!is_mine) return;
    }
  });
}

void nothing(int, int64_t, int64_t) {}

// Whether another thread's phase ended before the one that was put aside ran again, by where that one was.
bool is_done_without(bool is_writing) {
  Pool pool(3);
  Counts counts(kTasks * kSteps);
  std::atomic<bool> is_aside{false}, is_back{false};
  bool is_early = false;
  auto stall = [&](int thread, int64_t, int64_t step) {
    if (thread == 1 && step == 2 && !is_aside.exchange(true)) {
      sleep_ms(300);
      is_back = true;
    }
    if (thread != 1) while (!is_aside) std::this_thread::yield();  // so that it has a task in hand
  };
  pool.run([&](int thread) {
    if (is_writing) phase(pool, thread, counts, nothing, stall); else phase(pool, thread, counts, stall, nothing);
    if (thread == 0) is_early = !is_back;
  });
  expect(is_back, "a run ends when nobody is inside");
  expect_once(counts);
  return is_early;
}

void later_phases() {
  Pool pool(2);
  std::vector<Counts> counts(100);
  for (auto& each : counts) each = Counts(kTasks * kSteps);
  std::atomic<bool> is_aside{false}, is_back{false};
  bool is_early = false;
  pool.run([&](int thread) {
    for (size_t i = 0; i < counts.size(); i++) {
      phase(pool, thread, counts[i], [&](int who, int64_t, int64_t step) {
        if (who == 1 && step == 1 && !is_aside.exchange(true)) {
          sleep_ms(500);
          is_back = true;
        }
        if (who == 0) while (!is_aside) std::this_thread::yield();
      }, nothing);
      pool.each(7, 2, [](int64_t) {});
    }
    if (thread == 0) is_early = !is_back;
  });
  expect(is_early, "later phases need no thread that has been put aside");
  for (auto& each : counts) expect_once(each);
}

// Both the owner and who took over are put aside: a task changes hands once, so all wait, and nothing is done twice.
void taken_over_once() {
  Pool pool(3);
  Counts counts(kTasks * kSteps);
  std::atomic<int> num_aside{0};
  pool.run([&](int thread) {
    phase(pool, thread, counts, [&](int, int64_t task, int64_t step) {
      if (task == 0 && step == 2 && num_aside++ < 3) sleep_ms(100);
      if (task != 0) while (num_aside == 0) std::this_thread::yield();
    }, nothing);
  });
  expect(num_aside.load() == 2, "what was taken over once stays where it is");
  expect_once(counts);
}

void many_stalls() {
  for (int threads : {2, 3, 5}) {
    Pool pool(threads);
    std::vector<Counts> counts(60);
    for (auto& each : counts) each = Counts(kTasks * kSteps);
    pool.run([&](int thread) {
      std::minstd_rand random(thread + 1);
      for (auto& each : counts) {
        auto stall = [&](int, int64_t, int64_t) {
          if (random() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
        };
        phase(pool, thread, each, stall, stall);
        pool.each(kTasks, 3, [&](int64_t task) { for (int step = 0; step < kSteps; step++) each[task * kSteps + step]--; });
        phase(pool, thread, each, stall, nothing);
      }
    });
    for (auto& each : counts) expect_once(each);
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::string name = count > 1 ? arguments[1] : "";
  if (name == "computing") expect(is_done_without(false), "others do the rest of what it computes");
  else if (name == "writing") expect(!is_done_without(true), "others wait for what it writes");
  else if (name == "later") later_phases();
  else if (name == "once") taken_over_once();
  else if (name == "many") many_stalls();
  else expect(false, "known name");
  return 0;
}
