// Q4_K: 256 weights = float16 d, float16 dmin, 12 bytes of 6-bit scales and minimums, 128 bytes of nibbles.
// w = d * scale[s] * q - dmin * min[s] for sub s of 32. Byte 32 c + i holds sub 2c's q[i] low, sub 2c+1's
// high.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q4_K : Format<4, 0, 8, SuperScaleMin> {
  static constexpr int kGgmlType = 12, kFileBytes = 144;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    std::memcpy(&row.dmin, block + 2, 2);
    unpack_six_bit_scales(block + 4, row);
    unpack_paired_nibbles(block + 16, q);
  }
};

}  // namespace ferrite::quant
