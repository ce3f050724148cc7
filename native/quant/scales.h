// The four ways GGUF formats scale a sub of 32 quants, each as it lies in the tile and as the kernels read
// it.
//
// A weight is scale * (quant - offset) + minimum. kScaleCols columns share a scale; where a super-block
// scale multiplies a small integer one, the product of an 11-bit and a 6- to 8-bit number is exact in
// float32, so no rounding is added to the file's meaning.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/half.h"
#include "quant/tile.h"

namespace ferrite::quant {

// float16 scale for each row and sub.
struct HalfScale {
  static constexpr int kHeadBytes = 0, kScaleBytes = 32, kScaleCols = 32;
  static constexpr bool kHasMin = false;
  struct Row {
    uint16_t d;
  };
  static void put(const Row& r, uint8_t*, uint8_t* scales, int, int row) {
    std::memcpy(scales + 2 * row, &r.d, 2);
  }
  template <class S>
  static typename S::F scale(const uint8_t*, const uint8_t* scales, int, int part) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(scales) + part * S::kLanes);
  }
};

// float16 scale and minimum for each row and sub.
struct HalfScaleMin {
  static constexpr int kHeadBytes = 0, kScaleBytes = 64, kScaleCols = 32;
  static constexpr bool kHasMin = true;
  struct Row {
    uint16_t d, m;
  };
  static void put(const Row& r, uint8_t*, uint8_t* scales, int, int row) {
    std::memcpy(scales + 2 * row, &r.d, 2);
    std::memcpy(scales + 32 + 2 * row, &r.m, 2);
  }
  template <class S>
  static typename S::F scale(const uint8_t*, const uint8_t* scales, int, int part) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(scales) + part * S::kLanes);
  }
  template <class S>
  static typename S::F min(const uint8_t*, const uint8_t* scales, int part) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(scales + 32) + part * S::kLanes);
  }
};

// float16 super-block scale and minimum, a 6-bit factor of each for every sub; the minimum is subtracted.
struct SuperScaleMin {
  static constexpr int kHeadBytes = 64, kScaleBytes = 32, kScaleCols = 32;
  static constexpr bool kHasMin = true;
  struct Row {
    uint16_t d, dmin;
    uint8_t scale[8], min[8];
  };
  static void put(const Row& r, uint8_t* head, uint8_t* scales, int sub, int row) {
    std::memcpy(head + 2 * row, &r.d, 2);
    std::memcpy(head + 32 + 2 * row, &r.dmin, 2);
    scales[row] = r.scale[sub];
    scales[16 + row] = r.min[sub];
  }
  template <class S>
  static typename S::F scale(const uint8_t* head, const uint8_t* scales, int, int part) {
    const int at = part * S::kLanes;
    return S::mul(S::load_f16(reinterpret_cast<const uint16_t*>(head) + at), S::load_u8(scales + at));
  }
  template <class S>
  static typename S::F min(const uint8_t* head, const uint8_t* scales, int part) {
    const int at = part * S::kLanes;
    const typename S::F m =
        S::mul(S::load_f16(reinterpret_cast<const uint16_t*>(head + 32) + at), S::load_u8(scales + 16 + at));
    return S::sub(S::zero(), m);
  }
};

// float16 super-block scale, a signed 8-bit factor for every 16 columns.
struct SuperScale16 {
  static constexpr int kHeadBytes = 32, kScaleBytes = 32, kScaleCols = 16;
  static constexpr bool kHasMin = false;
  struct Row {
    uint16_t d;
    int8_t scale[16];
  };
  static void put(const Row& r, uint8_t* head, uint8_t* scales, int sub, int row) {
    std::memcpy(head + 2 * row, &r.d, 2);
    std::memcpy(scales + row, &r.scale[2 * sub], 1);
    std::memcpy(scales + 16 + row, &r.scale[2 * sub + 1], 1);
  }
  template <class S>
  static typename S::F scale(const uint8_t* head, const uint8_t* scales, int half, int part) {
    const int at = part * S::kLanes;
    const int8_t* factors = reinterpret_cast<const int8_t*>(scales) + 16 * half + at;
    return S::mul(S::load_f16(reinterpret_cast<const uint16_t*>(head) + at), S::load_i8(factors));
  }
};

}  // namespace ferrite::quant
