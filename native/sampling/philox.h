// Philox-4x32-10, a counter-based random generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC'11). A value depends only on its key and its counter, so a request's randomness
// cannot depend on what else runs.
#pragma once

#include <array>
#include <cstdint>

namespace ferrite {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox_4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kKeyStep0 = 0x9E3779B9;
  constexpr uint32_t kKeyStep1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kKeyStep0;
    key[1] += kKeyStep1;
  }
  return counter;
}

// 64 random bits for draw number `draw` of the stream `seed`.
constexpr uint64_t random_bits(uint64_t seed, uint64_t draw) {
  const PhiloxBlock block =
      philox_4x32_10({static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), 0, 0},
                     {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{block[1]} << 32 | block[0];
}

}  // namespace ferrite
