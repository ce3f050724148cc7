#include "runtime/team.h"

#include "runtime/float_mode.h"
#include "runtime/time_slice.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrite {
namespace {

// About 30 microseconds: longer than a piece of work takes, short enough that a thread which waits for one
// that was descheduled, or that has no work, soon leaves the core to whoever needs it.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

Team::Team(int threads) : size_(threads) {
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();  // a thread that is not joined would end the process
    throw;
  }
}

Team::~Team() {
  stop();
}

void Team::stop() {
  stopping_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(const std::function<void(int)>& body, const std::function<void()>& begun) {
  prefer_long_slices();
  const FloatMode mode;
  body_ = &body;
  finished_.store(0, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  begun();
  body(0);
  const auto others = static_cast<uint32_t>(size_ - 1);
  for (uint32_t done; (done = finished_.load(std::memory_order_acquire)) != others;)
    wait_while_equal(finished_, done);
}

void Team::work(int thread) {
  prefer_long_slices();
  const FloatMode mode;  // a thread starts in the mode of the one that made it
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(job_, seen);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_) return;
    (*body_)(thread);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

}  // namespace ferrite
