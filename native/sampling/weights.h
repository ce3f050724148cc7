// Probabilities as integers in units of 2^-44 of the highest one, so that their sums are exact in any order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/exp.h"
#include "sampling/ranking.h"

namespace ferrite {

// The highest weight. kMaxVocab of them fit into 64 bits, and the tokens lost below one unit hold less of
// the probability than float32 exponentials lose by rounding: 2^-26 for 262,144 tokens.
inline constexpr float kUnit = 0x1p44F;
inline constexpr int32_t kMaxVocab = (1 << 20) - 1;
inline constexpr float kNegligible = -31.0F;  // exp(-31) is below one unit

// By way of a signed integer, for which x86 has an instruction.
inline uint64_t to_units(float share) {
  return static_cast<uint64_t>(static_cast<int64_t>(share * kUnit));
}

// The probability of a token as a share of the highest one's.
inline float share_of(float logit, float highest, float temperature) {
  return exp_f32(std::max((logit - highest) / temperature, kNegligible));
}

// The sum of the weights at or above `floor`, which is at least 1. `block_highest`: the highest logit of each
// kBlock logits, so that blocks without weight are left out; or empty.
inline uint64_t sum_of_weights(std::span<const float> logits, std::span<const float> block_highest,
                               float highest, float temperature, uint64_t floor) {
  std::array<float, kBlock> shares;  // exponentials first, then their sum, so that the former vectorise
  uint64_t sum = 0;
  for (std::size_t start = 0; start < logits.size(); start += kBlock) {
    if (!block_highest.empty() && (block_highest[start / kBlock] - highest) / temperature <= kNegligible)
      continue;
    const auto chunk = logits.subspan(start, std::min(kBlock, logits.size() - start));
    for (std::size_t i = 0; i < chunk.size(); ++i) shares[i] = share_of(chunk[i], highest, temperature);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const uint64_t units = to_units(shares[i]);
      sum += units < floor ? 0 : units;
    }
  }
  return sum;
}

}  // namespace ferrite
