// A weight matrix in tiles, or a plain float32 vector.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/types.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ferrite {

// rows x cols values of a GGUF type, row by row.
struct FileMatrix {
  std::span<const uint8_t> data;
  int32_t ggml_type;
  int64_t rows, cols;
};

// Where the data of matrices lies. The pages of a mapped file are dropped behind the packing, so that few of
// them are resident at a time.
enum class Source { Memory, MappedFile };

class Weight {
 public:
  // Pack all matrices into one memory, which is kept as long as one of them: most are too small to fill huge
  // pages of their own. Throws std::invalid_argument, and packs nothing, when a type is not supported or
  // sizes do not fit.
  static std::vector<Weight> pack(std::span<const FileMatrix> matrices, Source source, Team& team);
  // Pack one.
  static Weight pack(std::span<const uint8_t> file, int32_t ggml_type, int64_t rows, int64_t cols,
                     Team& team);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t tiles() const { return (rows_ + 15) / 16; }
  int64_t tile_bytes() const { return tile_bytes_; }
  const uint8_t* data() const { return memory_->data() + offset_; }
  const uint8_t* tile(int64_t number) const { return data() + number * tile_bytes_; }
  const quant::TypeInfo& type() const { return *type_; }
  int64_t bytes() const { return tiles() * tile_bytes_; }

  // Row `row` as float32 into out[cols].
  void read_row(int64_t row, float* out) const;

 private:
  explicit Weight(const FileMatrix& matrix);

  const quant::TypeInfo* type_;
  int64_t rows_, cols_, tile_bytes_;
  int64_t offset_ = 0;
  std::shared_ptr<MappedMemory> memory_;
};

// Norm weights, biases: float32, zero-padded to a multiple of 16.
using Vector = std::vector<float>;

}  // namespace ferrite
