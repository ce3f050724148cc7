// What the per-format files share: the shape of a packed format, and the bit layouts several of them use.
// Source of all layouts: the GGUF specification and its reference quantisation code (facts, not text).
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/scales.h"
#include "quant/tile.h"

namespace ferrite::quant {

template <int Bits, int Offset, int Subs, class ScaleLayout>
struct Format {
  using Scales = ScaleLayout;
  static constexpr int kBits = Bits;
  static constexpr int kOffset = Offset;             // subtracted from every quant
  static constexpr int kSubs = Subs;                 // subs of 32 columns in a unit
  static constexpr int kUnitCols = Subs * kSubCols;  // columns of a file block
  static constexpr int kQuantBytes = quant_bytes(Bits);
  static constexpr int kSubBytes = kQuantBytes + Scales::kScaleBytes;
  static constexpr int kUnitBytes = Scales::kHeadBytes + Subs * kSubBytes;
};

inline void unpack_nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = bytes[i] & 15;
    q[i + 16] = bytes[i] >> 4;
  }
}

inline void unpack_paired_nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      q[64 * pair + i] = bytes[32 * pair + i] & 15;
      q[64 * pair + 32 + i] = bytes[32 * pair + i] >> 4;
    }
}

// Bit i of a 32-bit word becomes bit 4 of q[i], four quants at a time.
inline void add_fifth_bits(const uint8_t* word, uint8_t* q) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t bits = (word[g / 2] >> (4 * (g % 2))) & 15U;
    const uint32_t spread = (bits & 1U) << 4 | (bits & 2U) << 11 | (bits & 4U) << 18 | (bits & 8U) << 25;
    uint32_t four;
    std::memcpy(&four, q + 4 * g, sizeof four);
    four |= spread;
    std::memcpy(q + 4 * g, &four, sizeof four);
  }
}

// Twelve bytes: scale 0..3 and min 0..3 in the low six bits of bytes 0..3 and 4..7; scale 4..7 and min 4..7
// take their low nibbles from bytes 8..11 and their top two bits from the bytes before.
inline void unpack_six_bit_scales(const uint8_t* b, SuperScaleMin::Row& row) {
  for (int i = 0; i < 4; ++i) {
    row.scale[i] = b[i] & 63;
    row.min[i] = b[4 + i] & 63;
    row.scale[4 + i] = static_cast<uint8_t>((b[8 + i] & 15) | ((b[i] >> 6) << 4));
    row.min[4 + i] = static_cast<uint8_t>((b[8 + i] >> 4) | ((b[4 + i] >> 6) << 4));
  }
}

}  // namespace ferrite::quant
