// exp(x) with add and mul only, so every instruction set and every compiler gives the same bits.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial to r^7 (the next term is below 6e-9);
// 2^n by writing the exponent. Below -87.3 the result is 0, above 88.7 it is e^88.7; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace ferrite {

namespace exp_constants {
inline constexpr float kLowest = -87.3F;
inline constexpr float kHighest = 88.7F;
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kShift = 12582912.0F;       // 1.5 * 2^23: adding it rounds to an integer, ties to even
inline constexpr float kLn2High = 0.693359375F;    // 355 / 512: n times it is exact for |n| < 2^15
inline constexpr float kLn2Low = -2.12194440e-4F;  // ln 2 less kLn2High
inline constexpr float kTerm[8] = {1.0F,      1.0F,       1.0F / 2,   1.0F / 6,
                                   1.0F / 24, 1.0F / 120, 1.0F / 720, 1.0F / 5040};
}  // namespace exp_constants

// x[i] = e^x[i] for x[i] up to kHighest or NaN. Each is one long chain, so they go side by side; GCC would
// put one after the other.
template <class S, int N>
[[gnu::always_inline]] inline void exp_of_low(typename S::F (&x)[N]) {
  using namespace exp_constants;
  using F = typename S::F;
  F shifted[N], r[N], sum[N];
  for (int i = 0; i < N; ++i) {
    shifted[i] = S::add(S::mul(x[i], S::set1(kLog2E)), S::set1(kShift));
    const F n = S::sub(shifted[i], S::set1(kShift));
    r[i] = S::sub(S::sub(x[i], S::mul(n, S::set1(kLn2High))), S::mul(n, S::set1(kLn2Low)));
    sum[i] = S::set1(kTerm[7]);
  }
  for (int term = 6; term >= 0; --term)
    for (int i = 0; i < N; ++i) {
      sum[i] = S::add(S::mul(sum[i], r[i]), S::set1(kTerm[term]));
      S::pin(sum[i]);
    }
  for (int i = 0; i < N; ++i) {
    const F result = S::mul(sum[i], S::exp2_of_shifted(shifted[i]));
    x[i] = S::zero_if_less(x[i], S::set1(kLowest), result);  // below it the result is of no use
  }
}

// The same for any x[i].
template <class S, int N>
[[gnu::always_inline]] inline void exp(typename S::F (&x)[N]) {
  const typename S::F highest = S::set1(exp_constants::kHighest);
  for (auto& each : x) each = S::select_less(highest, each, highest, each);
  exp_of_low<S, N>(x);
}

// The same function for one float; internal linkage, since each instruction set compiles its own.
static inline float exp_f32(float x) {
  using namespace exp_constants;
  if (x < kLowest) return 0.0F;
  const float clamped = kHighest < x ? kHighest : x;
  const float shifted = clamped * kLog2E + kShift;
  const float n = shifted - kShift;
  const float r = clamped - n * kLn2High - n * kLn2Low;
  float sum = kTerm[7];
  for (int i = 6; i >= 0; --i) sum = sum * r + kTerm[i];
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3F800000U;
  return sum * std::bit_cast<float>(power);
}

}  // namespace ferrite
