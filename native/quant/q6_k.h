// Q6_K: 256 weights = 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, float16 d.
// w = d * scale[k / 16] * (q - 32). Each half of 128 weights packs four runs of 32 into 64 + 32 bytes.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q6_K : Format<6, 32, 8, SuperScale16> {
  static constexpr int kGgmlType = 14, kFileBytes = 210;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* low = block + 64 * half;
      const uint8_t* high = block + 128 + 32 * half;
      for (int run = 0; run < 4; ++run) {
        const uint8_t* nibbles = low + 32 * (run % 2);
        const int shift = run < 2 ? 0 : 4;
        for (int i = 0; i < 32; ++i)
          q[128 * half + 32 * run + i] =
              static_cast<uint8_t>(((nibbles[i] >> shift) & 15) | (((high[i] >> (2 * run)) & 3) << 4));
      }
    }
    std::memcpy(row.scale, block + 192, 16);
    std::memcpy(&row.d, block + 208, 2);
  }
};

}  // namespace ferrite::quant
