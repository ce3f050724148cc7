// The interleaved tile: how a quantised weight matrix lies in memory after loading.
//
// A matrix of `rows` x `cols` becomes ceil(rows / 16) tiles; a tile is a run of units, a unit a run of
// subs, and a sub holds 32 consecutive columns of 16 rows:
//
//   unit = [head][sub 0][sub 1]...
//   sub  = [low quants][high bits][scales]
//
// Quants go in groups of four columns, one 32-bit lane a row, so 64 bytes hold a group of all 16 rows.
//   8 bit:      8 groups of 64 bytes, signed
//   4..6 bit:   4 x 64 bytes; byte i of the j-th holds group j in its low nibble and group j + 4 in its high
//   bit 4:      64 bytes (5-bit formats); bit g of byte i belongs to group g
//   bits 4, 5:  2 x 64 bytes (6-bit formats); bits 2h, 2h+1 of byte i of the v-th belong to group 4v + h
//
// The quantised values and scales are those of the file, only moved: nothing is rounded again.
#pragma once

#include <cstdint>
#include <cstring>

namespace ferrite::quant {

inline constexpr int kTileRows = 16;
inline constexpr int kSubCols = 32;
inline constexpr int kGroupBytes = 64;  // 16 rows x 4 columns

// Bytes of one sub's quants.
constexpr int quant_bytes(int bits) {
  return bits == 8 ? 512 : 256 + 64 * (bits - 4);
}

// Put one row's 32 quants of one sub into the tile.
template <int Bits>
void scatter(const uint8_t* q, uint8_t* sub, int row) {
  if constexpr (Bits == 8) {
    for (int g = 0; g < 8; ++g) std::memcpy(sub + g * kGroupBytes + 4 * row, q + 4 * g, 4);
  } else {
    uint8_t low[16];
    for (int i = 0; i < 16; ++i) low[i] = static_cast<uint8_t>((q[i] & 15) | ((q[i + 16] & 15) << 4));
    for (int j = 0; j < 4; ++j) std::memcpy(sub + j * kGroupBytes + 4 * row, low + 4 * j, 4);
    // The high bits of a group's four quants at once: a group is one 32-bit word.
    constexpr int kHighBits = Bits - 4;
    constexpr uint32_t kMask = 0x01010101U * ((1 << kHighBits) - 1);
    constexpr int kGroupsPerWord = kHighBits == 0 ? 8 : 8 / kHighBits;
    for (int v = 0; v < kHighBits; ++v) {
      uint32_t high = 0;
      for (int h = 0; h < kGroupsPerWord; ++h) {
        uint32_t word;
        std::memcpy(&word, q + 4 * (kGroupsPerWord * v + h), sizeof word);
        high |= ((word >> 4) & kMask) << (kHighBits * h);
      }
      std::memcpy(sub + (4 + v) * kGroupBytes + 4 * row, &high, sizeof high);
    }
  }
}

// One row's quants of one sub, the inverse of scatter.
template <int Bits>
void gather(const uint8_t* sub, int row, uint8_t* q) {
  for (int g = 0; g < 8; ++g)
    for (int c = 0; c < 4; ++c) {
      const int at = 4 * row + c;
      if constexpr (Bits == 8) {
        q[4 * g + c] = sub[g * kGroupBytes + at];
      } else {
        const int low = (sub[(g % 4) * kGroupBytes + at] >> (g < 4 ? 0 : 4)) & 15;
        int high = 0;
        if constexpr (Bits == 5) high = (sub[4 * kGroupBytes + at] >> g) & 1;
        if constexpr (Bits == 6) high = (sub[(4 + g / 4) * kGroupBytes + at] >> (2 * (g % 4))) & 3;
        q[4 * g + c] = static_cast<uint8_t>(low | (high << 4));
      }
    }
}

// Group G of a sub as bytes, lanes from `part` * S::kLanes on.
template <class S, int Bits, int G>
inline typename S::B group(const uint8_t* sub, int part) {
  const uint8_t* lanes = sub + part * 4 * S::kLanes;
  if constexpr (Bits == 8) {
    return S::load_bytes(lanes + G * kGroupBytes);
  } else {
    const typename S::B both = S::load_bytes(lanes + (G % 4) * kGroupBytes);
    const typename S::B low = G < 4 ? S::low_nibbles(both) : S::high_nibbles(both);
    if constexpr (Bits == 4) {
      return low;
    } else if constexpr (Bits == 5) {
      return S::or_bytes(low, S::template bits_to_4<G, 1>(S::load_bytes(lanes + 4 * kGroupBytes)));
    } else {
      const typename S::B high = S::load_bytes(lanes + (4 + G / 4) * kGroupBytes);
      return S::or_bytes(low, S::template bits_to_4<2 * (G % 4), 2>(high));
    }
  }
}

}  // namespace ferrite::quant
