// Formats whose weights are kept as unsigned numbers, Offset above their value: what that adds to a dot
// product.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ferrite::isa {

// The excess of a dot product of Groups times four columns; `pairs` are those of its first sixteen.
template <int Offset, int Groups>
int32_t excess_sum(const PairSums* pairs) {
  static_assert(Groups == 4 || Groups == 8);
  int32_t sum = pairs[0].low + pairs[0].high;
  if constexpr (Groups == 8) sum += pairs[1].low + pairs[1].high;
  return Offset * sum;
}

}  // namespace ferrite::isa
