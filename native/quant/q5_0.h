// Q5_0: 32 weights = float16 d, 32 fifth bits, 16 bytes; w = d * (q - 16). Bit i of the word belongs to q[i].
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q5_0 : Format<5, 16, 1, HalfScale> {
  static constexpr int kGgmlType = 6, kFileBytes = 22;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    unpack_nibbles(block + 6, q);
    add_fifth_bits(block + 2, q);
  }
};

}  // namespace ferrite::quant
