#include "runtime/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace ferrite {
namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr int64_t kRounds = 1 << 18;  // some ten milliseconds

template <class Fn>
double seconds(Fn fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Wraps at 64 bits; four chains keep the loads ahead of the adds. Lines are fetched a page ahead, without
// which two cores got a third less; to fetch what lies behind the end does nothing.
uint64_t sum_words(const uint8_t* data, std::size_t bytes) {
  constexpr std::size_t kAhead = 4096;
  uint64_t sums[4] = {};
  for (std::size_t at = 0; at + 256 <= bytes; at += 256)
    for (std::size_t i = 0; i < 4; ++i) {
      __builtin_prefetch(data + at + 64 * i + kAhead);
      uint64_t words[8];
      std::memcpy(words, data + at + 64 * i, sizeof words);
      for (const uint64_t word : words) sums[i] += word;
    }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

MachineLimits::MachineLimits(std::shared_ptr<Team> team) : team_(std::move(team)), memory_(kBytes) {
  // Untouched pages are all one page of zeros.
  std::memset(memory_.data(), 1, memory_.size());
}

double MachineLimits::read_bandwidth() {
  double best = 0.0;
  std::atomic<uint64_t> sink = 0;
  const std::size_t share = kBytes / static_cast<std::size_t>(team_->size()) / 256 * 256;
  for (int pass = 0; pass < 3; ++pass) {
    const double took = seconds([&] {
      team_->run([&](int thread) {
        sink += sum_words(memory_.data() + static_cast<std::size_t>(thread) * share, share);
      });
    });
    best = std::max(best, static_cast<double>(share) * team_->size() / took);
  }
  return best;
}

double MachineLimits::multiply_adds(const KernelTable& kernels) {
  double best = 0.0;
  for (int pass = 0; pass < 3; ++pass) {
    std::atomic<int64_t> done = 0;
    const double took = seconds([&] { team_->run([&](int) { done += kernels.dot_products(kRounds); }); });
    best = std::max(best, static_cast<double>(done) / took);
  }
  return best;
}

}  // namespace ferrite
