#include "quant/types.h"

#include <array>

#include "isa/half.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace ferrite::quant {
namespace {

template <class Q>
void pack(const uint8_t* file, int64_t row_bytes, int rows, int64_t units, uint8_t* tile) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int64_t u = 0; u < units; ++u) {
      uint8_t q[Q::kUnitCols] = {};
      typename Q::Scales::Row scales = {};
      if (row < rows) Q::unpack(file + row * row_bytes + u * Q::kFileBytes, q, scales);
      uint8_t* unit = tile + u * Q::kUnitBytes;
      for (int s = 0; s < Q::kSubs; ++s) {
        uint8_t* sub = unit + Q::Scales::kHeadBytes + s * Q::kSubBytes;
        scatter<Q::kBits>(q + s * kSubCols, sub, row);
        Q::Scales::put(scales, unit, sub + Q::kQuantBytes, s, row);
      }
    }
  }
}

// One lane wide: the scale readers are templates over a traits struct, so a scalar one reads one row.
struct Scalar {
  static constexpr int kLanes = 1;
  using F = float;
  static F zero() { return 0.0F; }
  static F mul(F a, F b) { return a * b; }
  static F sub(F a, F b) { return a - b; }
  static F load_f16(const uint16_t* p) {
    uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return isa::half_to_float(h);
  }
  static F load_u8(const uint8_t* p) { return static_cast<float>(*p); }
  static F load_i8(const int8_t* p) { return static_cast<float>(*p); }
};

template <class Q>
void unpack_row(const uint8_t* tile, int row, int64_t units, float* out) {
  for (int64_t u = 0; u < units; ++u) {
    const uint8_t* unit = tile + u * Q::kUnitBytes;
    for (int s = 0; s < Q::kSubs; ++s) {
      const uint8_t* sub = unit + Q::Scales::kHeadBytes + s * Q::kSubBytes;
      const uint8_t* scales = sub + Q::kQuantBytes;
      uint8_t q[kSubCols];
      gather<Q::kBits>(sub, row, q);
      for (int i = 0; i < kSubCols; ++i) {
        const int quant = Q::kBits == 8 ? static_cast<int8_t>(q[i]) : q[i] - Q::kOffset;
        const float d = Q::Scales::template scale<Scalar>(unit, scales, i / Q::Scales::kScaleCols, row);
        float value = d * static_cast<float>(quant);
        if constexpr (Q::Scales::kHasMin) value += Q::Scales::template min<Scalar>(unit, scales, row);
        *out++ = value;
      }
    }
  }
}

// Unquantised tiles: [column][16 rows] of the file's own element.
template <class Element>
void pack_floats(const uint8_t* file, int64_t row_bytes, int rows, int64_t units, uint8_t* tile) {
  for (int row = 0; row < kTileRows; ++row)
    for (int64_t c = 0; c < units; ++c) {
      Element value = {};
      if (row < rows)
        std::memcpy(&value, file + row * row_bytes + c * static_cast<int64_t>(sizeof value), sizeof value);
      std::memcpy(tile + (c * kTileRows + row) * static_cast<int64_t>(sizeof value), &value, sizeof value);
    }
}

template <class Element, float (*ToFloat)(Element)>
void unpack_floats(const uint8_t* tile, int row, int64_t units, float* out) {
  for (int64_t c = 0; c < units; ++c) {
    Element value;
    std::memcpy(&value, tile + (c * kTileRows + row) * static_cast<int64_t>(sizeof value), sizeof value);
    out[c] = ToFloat(value);
  }
}

float same(float x) {
  return x;
}
float from_half(uint16_t x) {
  return isa::half_to_float(x);
}
float from_bfloat(uint16_t x) {
  return isa::bfloat_to_float(x);
}

template <class Q>
constexpr TypeInfo quantised(Type type, const char* name) {
  return {type, Q::kGgmlType, name, true, Q::kUnitCols, Q::kFileBytes, Q::kUnitBytes, pack<Q>, unpack_row<Q>};
}

constexpr std::array<TypeInfo, kTypeCount> kTypes = {{
    {Type::F32, 0, "F32", false, 1, 4, 64, pack_floats<float>, unpack_floats<float, same>},
    {Type::F16, 1, "F16", false, 1, 2, 32, pack_floats<uint16_t>, unpack_floats<uint16_t, from_half>},
    {Type::BF16, 30, "BF16", false, 1, 2, 32, pack_floats<uint16_t>, unpack_floats<uint16_t, from_bfloat>},
    quantised<Q4_0>(Type::Q4_0, "Q4_0"),
    quantised<Q4_1>(Type::Q4_1, "Q4_1"),
    quantised<Q5_0>(Type::Q5_0, "Q5_0"),
    quantised<Q5_1>(Type::Q5_1, "Q5_1"),
    quantised<Q8_0>(Type::Q8_0, "Q8_0"),
    quantised<Q4_K>(Type::Q4_K, "Q4_K"),
    quantised<Q5_K>(Type::Q5_K, "Q5_K"),
    quantised<Q6_K>(Type::Q6_K, "Q6_K"),
}};

}  // namespace

const TypeInfo* find_type(int32_t ggml_type) {
  for (const TypeInfo& type : kTypes)
    if (type.ggml_type == ggml_type) return &type;
  return nullptr;
}

const TypeInfo& info(Type type) {
  return kTypes[static_cast<std::size_t>(type)];
}

}  // namespace ferrite::quant
