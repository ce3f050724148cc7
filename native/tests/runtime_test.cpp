// The thread team, the floating-point mode and rotary embedding.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/float_mode.h"
#include "runtime/ops.h"
#include "runtime/rope.h"
#include "runtime/team.h"
#include "runtime/time_slice.h"
#include "tests/check.h"
#include "tests/random.h"

namespace ferrite {
namespace {

using test::Random;

void every_job_runs_on_every_thread() {
  for (int threads = 1; threads <= 4; ++threads) {
    Team team(threads);
    CHECK(team.size() == threads);
    std::vector<int> runs(static_cast<std::size_t>(threads));
    for (int job = 0; job < 1000; ++job)
      team.run([&](int thread) { ++runs[static_cast<std::size_t>(thread)]; });
    CHECK(std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1000; }));
  }
}

// A caller that is held up in `begun`, say by who takes its core, holds up no other thread.
void others_work_while_the_caller_is_held_up() {
  for (int threads = 2; threads <= 4; ++threads) {
    Team team(threads);
    std::atomic<int> at_work = 0;
    bool called = false, before = false;
    const auto body = [&](int thread) {
      if (thread == 0) {
        before = called;
      } else {
        ++at_work;
      }
    };
    team.run(body, [&] {
      while (at_work < threads - 1) std::this_thread::yield();
      called = true;
    });
    CHECK(before);
  }
}

// Each piece of an op is done once, and no thread leaves the op before all are: plain ints written by one
// thread and read by the others, so that one that leaves too early shows here or in a thread sanitizer.
class CountingOp final : public Op {
 public:
  CountingOp(int64_t total, int64_t chunk)
      : counts(static_cast<std::size_t>(total)), total_(total), chunk_(chunk) {}
  void run(const StepContext&, int) noexcept override {
    share(total_, chunk_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++counts[static_cast<std::size_t>(i)];
    });
    for (const int count : counts) wrong += count != expected;
  }

  std::vector<int> counts;
  int expected = 0;
  std::atomic<int> wrong = 0;

 private:
  int64_t total_, chunk_;
};

void work_is_shared_and_finished_before_any_thread_goes_on() {
  const StepInput input = {};
  std::vector<Buffer> buffers;
  for (int threads = 1; threads <= 4; ++threads) {
    Team team(threads);
    const StepContext ctx = {input, portable_kernels(), buffers, nullptr, threads};
    std::vector<std::unique_ptr<CountingOp>> ops;
    for (const int64_t total : {0, 1, 2, 7, 64})
      for (const int64_t chunk : {1, 3, 100}) ops.push_back(std::make_unique<CountingOp>(total, chunk));
    for (int job = 1; job <= 100; ++job) {
      for (const auto& op : ops) {
        op->prepare(ctx);
        op->expected = job;
      }
      team.run([&](int thread) {
        for (const auto& op : ops) op->run(ctx, thread);
      });
    }
    for (const auto& op : ops) {
      CHECK(op->wrong == 0);
      CHECK(std::all_of(op->counts.begin(), op->counts.end(), [](int count) { return count == 100; }));
    }
  }
}

void an_idle_team_ends() {
  for (int i = 0; i < 100; ++i) {
    Team team(1 + i % 4);
    if (i % 3 == 0) continue;
    int sum = 0;
    team.run([&](int thread) {
      if (thread == 0) ++sum;
    });
    CHECK(sum == 1);
  }
}

// Half the least normal number, which a thread that flushes denormals makes zero.
bool keeps_denormals() {
  volatile float least = std::numeric_limits<float>::min(), half = 0.5F;
  return least * half != 0.0F;
}

// The mode that fast-math libraries leave behind.
void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040U);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{1} << 24));
#endif
}

void work_keeps_denormals_on_every_thread_and_leaves_the_mode_of_the_caller() {
  {
    const FloatMode restored_at_the_end;
    CHECK(keeps_denormals());
    flush_denormals();
    CHECK(!keeps_denormals());
    {
      const FloatMode mode;
      CHECK(keeps_denormals());
    }
    CHECK(!keeps_denormals());
    Team team(3);
    std::atomic<int> kept = 0;
    team.run([&](int) { kept += keeps_denormals() ? 1 : 0; });
    CHECK(kept == 3);
    CHECK(!keeps_denormals());
  }
  CHECK(keeps_denormals());
}

double sincos_error(double x) {
  const SinCos own = sincos(x);
  return std::max(std::abs(own.sin - std::sin(x)), std::abs(own.cos - std::cos(x)));
}

// A thread that computes lets others in at once; one that it creates is an ordinary thread again. Where the
// system does not tell slices there is nothing to see.
void threads_of_a_team_have_long_slices() {
  const auto ordinary = [] {
    uint64_t slice = 0;
    std::thread([&] { slice = requested_slice(); }).join();
    return slice;
  };
  const uint64_t before = ordinary();
  std::vector<uint64_t> slices(3);
  uint64_t inherited = 0;
  std::thread([&] {
    Team team(3);
    team.run([&](int thread) { slices[static_cast<std::size_t>(thread)] = requested_slice(); });
    inherited = ordinary();
  }).join();
  CHECK(inherited == before);
  for (const uint64_t slice : slices) CHECK(before == 0 ? slice == 0 : slice > 2 * before);
}

void angles_are_those_of_the_c_library() {
  double error = 0.0;
  for (const double frequency : {1.0, 0.8659643233600653, 0.5, 0.1})
    for (int position = 0; position <= 131072; ++position)
      error = std::max(error, sincos_error(position * frequency));
  for (const double base : {10000.0, 500000.0, 1000000.0})
    for (int pair = 0; pair < 64; ++pair) {
      const double frequency = std::pow(base, -pair / 64.0);
      for (int position = 0; position <= 131072; position += 61)
        error = std::max(error, sincos_error(position * frequency));
    }
  // Where the quadrant changes.
  for (int n = 0; n < 100000; n += 7) {
    const double border = (n + 0.5) * 1.57079632679489661923;
    for (const double x : {border, std::nextafter(border, 0.0), std::nextafter(border, 1e9)})
      error = std::max(error, sincos_error(x));
  }
  CHECK(error <= 1e-15);
  CHECK(sincos(0.0).sin == 0.0 && sincos(0.0).cos == 1.0);
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  every_job_runs_on_every_thread();
  others_work_while_the_caller_is_held_up();
  work_is_shared_and_finished_before_any_thread_goes_on();
  an_idle_team_ends();
  work_keeps_denormals_on_every_thread_and_leaves_the_mode_of_the_caller();
  threads_of_a_team_have_long_slices();
  angles_are_those_of_the_c_library();
  return test::tally.finish();
}
