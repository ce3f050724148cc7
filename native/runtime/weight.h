// A weight matrix in tiles, or a plain float32 vector.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/types.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ferrite {

class Weight {
 public:
  // `file` holds rows x cols values of a GGUF type, row by row. Throws std::invalid_argument when the type
  // is not supported or the sizes do not fit.
  static Weight pack(std::span<const uint8_t> file, int32_t ggml_type, int64_t rows, int64_t cols,
                     Team& team);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t tiles() const { return (rows_ + 15) / 16; }
  int64_t tile_bytes() const { return tile_bytes_; }
  const uint8_t* data() const { return memory_.data(); }
  const quant::TypeInfo& type() const { return *type_; }
  int64_t bytes() const { return tiles() * tile_bytes_; }

  // Row `row` as float32 into out[cols].
  void read_row(int64_t row, float* out) const;

 private:
  const quant::TypeInfo* type_ = nullptr;
  int64_t rows_ = 0, cols_ = 0, tile_bytes_ = 0;
  MappedMemory memory_;
};

// Norm weights, biases: float32, zero-padded to a multiple of 16.
using Vector = std::vector<float>;

}  // namespace ferrite
