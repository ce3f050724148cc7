// log(x) of a positive normal double with add, mul and div only, so every compiler gives the same bits.
//
// x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s) with s = (m - 1) / (m + 1), by its series to
// s^21. |s| < 0.1716, so the next term is below 2e-18.
#pragma once

#include <bit>
#include <cstdint>

namespace ferrite {

constexpr double log_f64(double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // n times it is exact for |n| < 2^11
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;  // ln 2 less kLn2High
  constexpr int kTerms = 10;
  const auto bits = std::bit_cast<uint64_t>(x);
  auto n = static_cast<int64_t>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000);  // in [1/2, 1)
  if (m < kSqrtHalf) {
    m *= 2.0;
    --n;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int i = kTerms; i >= 1; --i) sum = (sum + 1.0 / (2 * i + 1)) * square;
  const auto exponent = static_cast<double>(n);
  return exponent * kLn2High + (exponent * kLn2Low + 2.0 * s * (1.0 + sum));
}

}  // namespace ferrite
