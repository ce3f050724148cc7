// The memory of all KV blocks. Which block belongs to whom is decided in Python.
//
// A block holds `block_tokens` positions of every layer. For each layer, K then V; for each kv head, cells
// of 16 positions: K as [head_dim][16], V as [16][head_dim].
#pragma once

#include <cstdint>

#include "runtime/memory.h"

namespace ferrite {

struct KvShape {
  int64_t layers;
  int64_t kv_heads;
  int64_t head_dim;      // multiple of 16
  int64_t block_tokens;  // multiple of 16
  int64_t blocks;
  bool half;  // float16 elements; float32 otherwise
};

class KvStore {
 public:
  // Throws std::invalid_argument for sizes that make no sense, std::bad_alloc when they cannot be reserved.
  explicit KvStore(const KvShape& shape);

  const KvShape& shape() const { return shape_; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t element_bytes() const { return shape_.half ? 2 : 4; }

  // The cell that holds `position` % block_tokens of one layer and head in a block.
  uint8_t* k_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const;
  uint8_t* v_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const;

  void copy_block(int64_t source, int64_t target);

 private:
  KvShape shape_;
  int64_t cell_bytes_ = 0, cells_ = 0, side_bytes_ = 0, block_bytes_ = 0;
  MappedMemory memory_;
};

}  // namespace ferrite
