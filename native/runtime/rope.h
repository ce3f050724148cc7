// Rotary position embedding (Su et al. 2021): angles in double precision, by our own sine and cosine so that
// no C library decides the bits.
#pragma once

#include <cstdint>
#include <vector>

namespace ferrite {

struct SinCos {
  double sin, cos;
};

// For 0 <= x < 2^20 * pi / 2; error below 1e-15.
SinCos sincos(double x);

enum class RopeKind : int32_t {
  Adjacent,  // pairs (2i, 2i + 1): llama files, whose rows were permuted for it
  Halves,    // pairs (i, i + n / 2): GPT-NeoX order
};

// Rotate `pairs` pairs of one head in place; cos and sin are [pairs].
void rotate(RopeKind kind, float* head, const float* cos, const float* sin, int64_t pairs);

}  // namespace ferrite
