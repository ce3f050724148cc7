// The interleaved tile: how a quantised weight matrix lies in memory after loading.
//
// A matrix of `rows` x `cols` becomes ceil(rows / 16) tiles; a tile is a run of units, a unit a run of
// subs, and a sub holds 32 consecutive columns of 16 rows:
//
//   unit = [head][sub 0][sub 1]...
//   sub  = [quants][scales]
//
// Quants go in groups of four columns, one 32-bit lane a row, so 64 bytes hold a field of a group of all 16
// rows. A sub has as many times 64 bytes as its quants have bits: each of the first groups lies in the low
// bits of one of these, and the last ones in what is left above. So most groups cost one `and`.
//
// The quantised values and scales are those of the file, only moved: nothing is rounded again.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ferrite::quant {

inline constexpr int kTileRows = 16;
inline constexpr int kSubCols = 32;
inline constexpr int kGroupBytes = 64;  // 16 rows x 4 columns

// Bytes of one sub's quants.
constexpr int quant_bytes(int bits) {
  return bits * kGroupBytes;
}

// A part of a group's quants: (bytes >> right) & mask of the vector-th 64 bytes.
struct Field {
  int vector, right, mask;  // mask 0 for none
};

// The fields of each group, of which a quant is the sum.
template <int Bits>
inline constexpr Field kFields[8][3] = {};
template <>
inline constexpr Field kFields<4>[8][3] = {{{0, 0, 15}}, {{1, 0, 15}}, {{2, 0, 15}}, {{3, 0, 15}},
                                           {{0, 4, 15}}, {{1, 4, 15}}, {{2, 4, 15}}, {{3, 4, 15}}};
template <>
inline constexpr Field kFields<5>[8][3] = {{{0, 0, 31}},
                                           {{1, 0, 31}},
                                           {{2, 0, 31}},
                                           {{3, 0, 31}},
                                           {{4, 0, 31}},
                                           {{0, 3, 28}, {1, 6, 3}},
                                           {{2, 3, 28}, {3, 6, 3}},
                                           {{4, 3, 28}, {1, 5, 1}, {3, 4, 2}}};
template <>
inline constexpr Field kFields<6>[8][3] = {{{0, 0, 63}},
                                           {{1, 0, 63}},
                                           {{2, 0, 63}},
                                           {{3, 0, 63}},
                                           {{4, 0, 63}},
                                           {{5, 0, 63}},
                                           {{0, 6, 3}, {1, 4, 12}, {2, 2, 48}},
                                           {{3, 6, 3}, {4, 4, 12}, {5, 2, 48}}};
template <>
inline constexpr Field kFields<8>[8][3] = {{{0, 0, 255}}, {{1, 0, 255}}, {{2, 0, 255}}, {{3, 0, 255}},
                                           {{4, 0, 255}}, {{5, 0, 255}}, {{6, 0, 255}}, {{7, 0, 255}}};

// Put one row's 32 quants of one sub into the tile, a group's four as one 32-bit word.
template <int Bits>
void scatter(const uint8_t* q, uint8_t* sub, int row) {
  uint32_t words[Bits] = {};
  for (int g = 0; g < 8; ++g) {
    uint32_t quants;
    std::memcpy(&quants, q + 4 * g, sizeof quants);
    for (const Field& field : kFields<Bits>[g])
      words[field.vector] |= (quants & (0x01010101U * static_cast<uint32_t>(field.mask))) << field.right;
  }
  for (int v = 0; v < Bits; ++v) std::memcpy(sub + v * kGroupBytes + 4 * row, &words[v], sizeof words[v]);
}

// One row's quants of one sub, the inverse of scatter.
template <int Bits>
void gather(const uint8_t* sub, int row, uint8_t* q) {
  for (int g = 0; g < 8; ++g)
    for (int c = 0; c < 4; ++c) {
      int quant = 0;
      for (const Field& field : kFields<Bits>[g])
        quant |= (sub[field.vector * kGroupBytes + 4 * row + c] >> field.right) & field.mask;
      q[4 * g + c] = static_cast<uint8_t>(quant);
    }
}

// Group G of a sub as bytes, lanes from `part` * S::kLanes on.
template <class S, int Bits, int G>
inline typename S::B group(const uint8_t* sub, int part) {
  const uint8_t* lanes = sub + part * 4 * S::kLanes;
  constexpr const Field(&fields)[3] = kFields<Bits>[G];
  const auto load = [&]<int I>(std::integral_constant<int, I>) {
    const typename S::B bytes = S::load_bytes(lanes + fields[I].vector * kGroupBytes);
    if constexpr (fields[I].mask == 255) {
      return bytes;
    } else {
      return S::template field<fields[I].right, fields[I].mask>(bytes);
    }
  };
  typename S::B all = load(std::integral_constant<int, 0>());
  if constexpr (fields[1].mask != 0) all = S::or_bytes(all, load(std::integral_constant<int, 1>()));
  if constexpr (fields[2].mask != 0) all = S::or_bytes(all, load(std::integral_constant<int, 2>()));
  return all;
}

}  // namespace ferrite::quant
