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

// The pair sums of 32 integers; returns the sum of all.
static inline int32_t sum_pairs(const int8_t* q, PairSums* pairs) {
#if defined(__SSSE3__)
  const auto sums = [](const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
  };
  // A 32-bit lane holds the sums of four columns: four lanes of each sixteen are added to one.
  const __m128i low = sums(q), high = sums(q + 16);
  const __m128i halves = _mm_add_epi16(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
  const __m128i both = _mm_add_epi16(halves, _mm_srli_epi64(halves, 32));
  const __m128i packed = _mm_shuffle_epi32(both, _MM_SHUFFLE(2, 0, 2, 0));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(pairs), packed);
  const __m128i wide = _mm_madd_epi16(packed, _mm_set1_epi16(1));
  return _mm_cvtsi128_si32(_mm_add_epi32(wide, _mm_srli_epi64(wide, 32)));
#else
  int32_t sum = 0;
  for (int half = 0; half < 2; ++half) {
    int low = 0, high = 0;
    for (int i = 16 * half; i < 16 * half + 16; i += 4) {
      low += q[i] + q[i + 1];
      high += q[i + 2] + q[i + 3];
    }
    pairs[half] = {static_cast<int16_t>(low), static_cast<int16_t>(high)};
    sum += low + high;
  }
  return sum;
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
