// Q4_0: 32 weights = float16 d, 16 bytes; w = d * (q - 8). Byte i holds q[i] low, q[i + 16] high.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q4_0 : Format<4, 8, 1, HalfScale> {
  static constexpr int kGgmlType = 2, kFileBytes = 18;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    unpack_nibbles(block + 2, q);
  }
};

}  // namespace ferrite::quant
