// Q4_1: 32 weights = float16 d, float16 m, 16 bytes; w = d * q + m. Nibbles as in Q4_0.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q4_1 : Format<4, 0, 1, HalfScaleMin> {
  static constexpr int kGgmlType = 3, kFileBytes = 20;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    std::memcpy(&row.m, block + 2, 2);
    unpack_nibbles(block + 4, q);
  }
};

}  // namespace ferrite::quant
