#include "runtime/rope.h"

namespace ferrite {

SinCos sincos(double x) {
  // x = n pi / 2 + r with |r| <= pi / 4. The first part of pi / 2 has 33 bits, so n times it is exact.
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  constexpr double kHalfPiHigh = 0x1.921fb544p+0;
  constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
  const double n = (x * kTwoOverPi + kShift) - kShift;
  const double r = (x - n * kHalfPiHigh) - n * kHalfPiLow;
  const double square = r * r;
  double s = 1.0, c = 1.0;
  // Taylor series in nested form, to r^19 and r^18: the next terms are below 1e-18.
  for (int k = 18; k >= 2; k -= 2) {
    s = 1.0 - s * square / static_cast<double>(k * (k + 1));
    c = 1.0 - c * square / static_cast<double>(k * (k - 1));
  }
  s *= r;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace ferrite
