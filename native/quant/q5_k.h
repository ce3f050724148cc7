// Q5_K: Q4_K with 32 bytes of fifth bits before the nibbles; bit s of byte i belongs to sub s, q[i].
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q5_K : Format<5, 0, 8, SuperScaleMin> {
  static constexpr int kGgmlType = 13, kFileBytes = 176;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    std::memcpy(&row.dmin, block + 2, 2);
    unpack_six_bit_scales(block + 4, row);
    unpack_paired_nibbles(block + 48, q);
    const uint8_t* fifth = block + 16;
    for (int s = 0; s < 8; ++s)
      for (int i = 0; i < 32; ++i)
        q[32 * s + i] = static_cast<uint8_t>(q[32 * s + i] | (((fifth[i] >> s) & 1) << 4));
  }
};

}  // namespace ferrite::quant
