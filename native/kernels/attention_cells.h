// The cells of sixteen positions in which the KV cache keeps keys and values, as attention reads them.
//
// K is transposed, [head_dim][16], so that positions are lanes of a score; V is [16][head_dim], so that
// columns are lanes of an output. Int8 cells end with float16 scales, [head_dim / 32][16] in both.
#pragma once

#include "kernels/kernels.h"

namespace ferrite {

// kStored: its cells come from the cache, and are worth fetching ahead.
struct HalfCell {
  using Element = uint16_t;
  static constexpr bool kStored = true;
  static constexpr bool kScaled = false;
  template <class S>
  static typename S::F load(const uint16_t* p) {
    return S::load_f16(p);
  }
};

struct Q8Cell {
  using Element = int8_t;
  static constexpr bool kStored = true;
  static constexpr bool kScaled = true;
  template <class S>
  static typename S::F load(const int8_t* p) {
    return S::load_i8(p);
  }
};

struct FloatCell {
  using Element = float;
  static constexpr bool kStored = true;
  static constexpr bool kScaled = false;
  template <class S>
  static typename S::F load(const float* p) {
    return S::load(p);
  }
};

// A cell of any kind as float32; the scales of one that has some are still to be applied.
template <bool Scaled>
struct WideCell : FloatCell {
  static constexpr bool kStored = false;
  static constexpr bool kScaled = Scaled;
};

// `count` elements of a cell as float32, integers as integers.
template <class S, class Cell>
void widen(const uint8_t* cell, int64_t count, float* wide) {
  const auto* elements = reinterpret_cast<const typename Cell::Element*>(cell);
  for (int64_t i = 0; i < count; i += S::kLanes) S::store(wide + i, Cell::template load<S>(elements + i));
}

// Cells that are read together, one behind the other, and the one to be fetched from memory meanwhile; the
// first of them for none.
template <class Cell>
struct CellView {
  using Element = typename Cell::Element;
  const Element* data;
  const Element* ahead;
  const uint16_t* scales[kMostCells];  // where there are some

  CellView from(int64_t element) const {
    CellView rest = *this;
    rest.data += element;
    rest.ahead += element;
    return rest;
  }
};

// The scales of an int8 cell, [head_dim / kKvGroup][16].
inline const uint16_t* cell_scales(const uint8_t* cell, int64_t head_dim) {
  return reinterpret_cast<const uint16_t*>(cell + kCellPositions * head_dim);
}

}  // namespace ferrite
