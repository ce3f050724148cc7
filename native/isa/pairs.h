// Sums over activations, which say what an offset of the weights adds to a dot product. Internal linkage,
// since each instruction set compiles its own.
#pragma once

#if defined(__SSSE3__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace ferrite::isa {

// The pair sums of sixteen integers.
static inline PairSums sum_pairs(const int8_t* q) {
#if defined(__SSSE3__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
  const __m128i halves = _mm_add_epi16(pairs, _mm_unpackhi_epi64(pairs, pairs));
  const int32_t word = _mm_cvtsi128_si32(_mm_add_epi16(halves, _mm_srli_epi64(halves, 32)));
  PairSums sums;
  std::memcpy(&sums, &word, sizeof sums);
  return sums;
#else
  int low = 0, high = 0;
  for (int i = 0; i < 16; i += 4) {
    low += q[i] + q[i + 1];
    high += q[i + 2] + q[i + 3];
  }
  return {static_cast<int16_t>(low), static_cast<int16_t>(high)};
#endif
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
