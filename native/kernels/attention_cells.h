// The cells of sixteen positions in which the KV cache keeps keys and values, as attention reads them.
//
// K is transposed, [head_dim][16], so that positions are lanes of a score; V is [16][head_dim], so that
// columns are lanes of an output. Int8 cells end with float16 scales, [head_dim / 32][16] in both.
#pragma once

#include "kernels/kernels.h"

namespace ferrite {

// `count` elements of a cell as float32, integers as integers; `memory` holds them where they were not.
template <class S, class Cell>
const float* widen(const uint8_t* cell, int64_t count, float* memory) {
  const auto* elements = reinterpret_cast<const typename Cell::Element*>(cell);
  for (int64_t i = 0; i < count; i += S::kLanes) S::store(memory + i, Cell::template load<S>(elements + i));
  return memory;
}

struct HalfCell {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  template <class S>
  static typename S::F load(const uint16_t* p) {
    return S::load_f16(p);
  }
};

struct Q8Cell {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  template <class S>
  static typename S::F load(const int8_t* p) {
    return S::load_i8(p);
  }
};

// A float32 cell, or one that was widened; the scales of one that had some are still to be applied.
template <bool Scaled>
struct WideCell {
  using Element = float;
  static constexpr bool kScaled = Scaled;
  template <class S>
  static typename S::F load(const float* p) {
    return S::load(p);
  }
};
using FloatCell = WideCell<false>;

// A cell to be read, and the one to be fetched from memory meanwhile; itself for none.
template <class Cell>
struct CellView {
  using Element = typename Cell::Element;
  const Element* data;
  const Element* ahead;
  const uint16_t* scales;  // null where there are none

  CellView from(int64_t element) const { return {data + element, ahead + element, scales}; }
};

// The scales of an int8 cell, [head_dim / kKvGroup][16].
inline const uint16_t* cell_scales(const uint8_t* cell, int64_t head_dim) {
  return reinterpret_cast<const uint16_t*>(cell + kCellPositions * head_dim);
}

}  // namespace ferrite
