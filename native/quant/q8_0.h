// Q8_0: 32 weights = float16 d, 32 signed bytes; w = d * q.
#pragma once

#include "quant/format.h"

namespace ferrite::quant {

struct Q8_0 : Format<8, 0, 1, HalfScale> {
  static constexpr int kGgmlType = 8, kFileBytes = 34;
  static void unpack(const uint8_t* block, uint8_t* q, Scales::Row& row) {
    std::memcpy(&row.d, block, 2);
    std::memcpy(q, block + 2, 32);
  }
};

}  // namespace ferrite::quant
