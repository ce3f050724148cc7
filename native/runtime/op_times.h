// Where the time of steps goes, op class by op class. Recorded only while somebody asks for it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ferrite {

enum class OpClass : std::size_t { Linear, Attention, Norm, Other };
inline constexpr std::size_t kOpClasses = 4;

// Sums over steps; seconds of work and of waiting are summed over the team's threads too.
struct OpTimes {
  int64_t steps = 0;
  double seconds = 0.0;       // inside steps
  double span_seconds = 0.0;  // from the begin of the first step to the end of the last
  std::array<double, kOpClasses> work = {};
  // For pieces that other threads hold, for the step to reach a thread, for the last thread.
  double wait = 0.0;
};

// Threads add as they go; begin() and end() belong to the thread that steps.
class OpTimer {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  static int64_t nanoseconds(Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  void begin(Time now) {
    begun_ = now;
    if (times_.steps == 0) first_ = now;
  }
  void end(Time now) {
    ++times_.steps;
    times_.seconds += std::chrono::duration<double>(now - begun_).count();
    times_.span_seconds = std::chrono::duration<double>(now - first_).count();
  }
  // What a thread spent in an op, waiting included.
  void add(OpClass kind, Clock::duration time) {
    spent_[static_cast<std::size_t>(kind)] += nanoseconds(time);
  }
  // What a thread spent without an op.
  void idle(Clock::duration time) { idle_ += nanoseconds(time); }
  // Where an op of the class adds the nanoseconds for which it let a thread wait.
  std::atomic<int64_t>* waited(OpClass kind) { return &waited_[static_cast<std::size_t>(kind)]; }

  OpTimes times() const {
    OpTimes result = times_;
    result.wait = 1e-9 * static_cast<double>(idle_);
    for (std::size_t i = 0; i < kOpClasses; ++i) {
      result.work[i] = 1e-9 * static_cast<double>(spent_[i] - waited_[i]);
      result.wait += 1e-9 * static_cast<double>(waited_[i]);
    }
    return result;
  }

 private:
  OpTimes times_;
  Time first_, begun_;
  std::array<std::atomic<int64_t>, kOpClasses> spent_ = {}, waited_ = {};
  std::atomic<int64_t> idle_ = 0;
};

}  // namespace ferrite
