// Q5_1: 32 weights = float16 d, float16 m, 32 fifth bits, 16 bytes; w = d * q + m.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q5_1 : Format<5, 0, 1, HalfScaleMin> {
  static constexpr int kGgmlType = 7, kFileBytes = 24;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    std::memcpy(&row.m, block + 2, 2);
    unpack_nibbles(block + 8, q);
    add_fifth_bits(block + 4, q);
  }
};

}  // namespace ferrite::quant
