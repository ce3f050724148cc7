// Sums over activations, which say what an offset of the weights adds to a dot product. Internal linkage,
// since each instruction set compiles its own.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ferrite::isa {

// The pair sums of sixteen integers.
static inline PairSums sum_pairs(const int8_t* q) {
  int low = 0, high = 0;
  for (int i = 0; i < 16; i += 4) {
    low += q[i] + q[i + 1];
    high += q[i + 2] + q[i + 3];
  }
  return {static_cast<int16_t>(low), static_cast<int16_t>(high)};
}

// The excess of a dot product of Groups times four columns; `pairs` are those of its first sixteen.
template <int Offset, int Groups>
static int32_t excess_sum(const PairSums* pairs) {
  static_assert(Groups == 4 || Groups == 8);
  int32_t sum = pairs[0].low + pairs[0].high;
  if constexpr (Groups == 8) sum += pairs[1].low + pairs[1].high;
  return Offset * sum;
}

}  // namespace ferrite::isa
