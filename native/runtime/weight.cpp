#include "runtime/weight.h"

#include <atomic>
#include <stdexcept>
#include <string>

namespace ferrite {

Weight Weight::pack(std::span<const uint8_t> file, int32_t ggml_type, int64_t rows, int64_t cols,
                    Team& team) {
  const quant::TypeInfo* type = quant::find_type(ggml_type);
  if (type == nullptr)
    throw std::invalid_argument("weight type " + std::to_string(ggml_type) + " is not supported");
  if (rows < 1 || cols < 1 || cols % type->block_cols != 0)
    throw std::invalid_argument("shape does not fit the blocks of " + std::string(type->name));
  const int64_t units = cols / type->block_cols;
  const auto size = static_cast<int64_t>(file.size());
  // Divisions, because the product of a hostile shape may not fit.
  const bool row_fits = units <= size / type->block_bytes;
  const int64_t row_bytes = row_fits ? units * type->block_bytes : 0;
  if (!row_fits || size / row_bytes != rows || size % row_bytes != 0)
    throw std::invalid_argument("size of the data does not match its shape");

  Weight weight;
  weight.type_ = type;
  weight.rows_ = rows;
  weight.cols_ = cols;
  weight.tile_bytes_ = units * type->unit_bytes;
  weight.memory_ = MappedMemory(static_cast<std::size_t>(weight.bytes()));
  std::atomic<int64_t> next = 0;
  team.run([&](int) {
    for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < weight.tiles();) {
      const int64_t row = tile * 16;
      const int present = static_cast<int>(rows - row < 16 ? rows - row : 16);
      type->pack(file.data() + row * row_bytes, row_bytes, present, units,
                 weight.memory_.data() + tile * weight.tile_bytes_);
    }
  });
  return weight;
}

void Weight::read_row(int64_t row, float* out) const {
  type_->unpack_row(memory_.data() + row / 16 * tile_bytes_, static_cast<int>(row % 16),
                    cols_ / type_->block_cols, out);
}

}  // namespace ferrite
