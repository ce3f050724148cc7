// The angles of rotary position embedding (Su et al. 2021) in double precision, by our own sine and cosine so
// that no C library decides the bits.
#pragma once

#include <cstdint>

namespace ferrite {

struct SinCos {
  double sin, cos;
};

// For 0 <= x < 2^20 * pi / 2; error below 1e-15.
SinCos sincos(double x);

}  // namespace ferrite
