#include "sampling/ranking.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>

namespace ferrite {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;        // independent maxima, so that the scan vectorises
constexpr size_t kFirstChunk = 256;  // ranks sorted at first; most draws and nuclei end within them

// Ascending keys are descending logits, then ascending ids.
uint64_t make_key(float logit, size_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // both zeros compare equal
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{~ascending} << 32 | id;
}

float max_of(std::span<const float> values) {
  std::array<float, kLanes> lanes;
  lanes.fill(kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  float highest = kMinusInfinity;
  for (const float lane : lanes) highest = std::max(highest, lane);
  for (; i < values.size(); ++i) highest = std::max(highest, values[i]);
  return highest;
}

}  // namespace

void Ranking::reset(std::span<const float> logits) {
  logits_ = logits;
  block_max_.clear();
  for (size_t start = 0; start < logits.size(); start += kBlock) {
    block_max_.push_back(max_of(logits.subspan(start, std::min(kBlock, logits.size() - start))));
  }
  highest_ = max_of(block_max_);
  pool_.clear();
  sorted_ = 0;
  collected_ = std::numeric_limits<float>::infinity();
  kept_ = false;
}

int32_t Ranking::argmax() const {
  const auto block = std::find(block_max_.begin(), block_max_.end(), highest_) - block_max_.begin();
  const auto first = logits_.begin() + block * static_cast<std::ptrdiff_t>(kBlock);
  return static_cast<int32_t>(std::find(first, logits_.end(), highest_) - logits_.begin());
}

void Ranking::keep(size_t k) {
  collect_first(k);
  if (k < pool_.size()) {
    std::nth_element(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(k), pool_.end());
    pool_.resize(k);
  }
  kept_ = true;
  kept_logits_.clear();
  for (const uint64_t key : pool_) kept_logits_.push_back(logits_[static_cast<uint32_t>(key)]);
}

int32_t Ranking::at(size_t i) {
  while (sorted_ <= i) sort_more();
  return static_cast<int32_t>(static_cast<uint32_t>(pool_[i]));
}

void Ranking::collect(float bound, float below) {
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < bound) continue;
    const size_t end = std::min((block + 1) * kBlock, logits_.size());
    for (size_t id = block * kBlock; id < end; ++id) {
      const float logit = logits_[id];
      if (logit >= bound && logit < below && logit > kMinusInfinity) pool_.push_back(make_key(logit, id));
    }
  }
  collected_ = bound;
}

void Ranking::collect_first(size_t count) {
  float bound = kMinusInfinity;
  if (count < block_max_.size()) {
    // The count-th highest block maximum cannot be above the count-th highest logit.
    bound_scratch_ = block_max_;
    const auto nth = bound_scratch_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(bound_scratch_.begin(), nth, bound_scratch_.end(), std::greater<>{});
    bound = *nth;
  }
  collect(bound, std::numeric_limits<float>::infinity());
}

void Ranking::sort_more() {
  if (pool_.empty()) {
    collect_first(kFirstChunk);
  } else if (sorted_ == pool_.size()) {
    collect(kMinusInfinity, collected_);
  }
  const size_t wanted = std::min(pool_.size(), std::max(kFirstChunk, 4 * sorted_));
  const auto from = pool_.begin() + static_cast<std::ptrdiff_t>(sorted_);
  const auto to = pool_.begin() + static_cast<std::ptrdiff_t>(wanted);
  if (to != pool_.end()) std::nth_element(from, to, pool_.end());
  std::sort(from, to);
  sorted_ = wanted;
}

}  // namespace ferrite
