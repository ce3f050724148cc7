#include "runtime/team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrite {
namespace {

// About 30 microseconds: longer than an op of a small model takes, short enough that a team whose member
// was descheduled, or that has no work, soon leaves the core to whoever needs it.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int threads) : size_(threads) {
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  stopping_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(const std::function<void(int)>& body) {
  if (size_ == 1) return body(0);
  body_ = &body;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  body(0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t before = passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
  } else {
    wait_for_change(passed_, before);
  }
}

void Team::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_for_change(job_, seen);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_) return;
    (*body_)(thread);
    barrier();
  }
}

}  // namespace ferrite
