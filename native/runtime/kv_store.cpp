#include "runtime/kv_store.h"

#include <cstring>
#include <stdexcept>

namespace ferrite {

KvStore::KvStore(const KvShape& shape)
    : shape_(shape),
      cell_bytes_(shape.head_dim * 16 * (shape.half ? 2 : 4)),
      cells_(shape.block_tokens / 16),
      side_bytes_(shape.kv_heads * cells_ * cell_bytes_),
      block_bytes_(shape.layers * 2 * side_bytes_) {
  if (shape.head_dim % 16 != 0 || shape.block_tokens % 16 != 0 || block_bytes_ <= 0 || shape.blocks <= 0)
    throw std::invalid_argument("KV store: head size and block size must be positive multiples of 16");
  memory_ = MappedMemory(static_cast<std::size_t>(block_bytes_ * shape.blocks));
}

uint8_t* KvStore::k_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const {
  const int64_t cell = position % shape_.block_tokens / 16;
  return memory_.data() + block * block_bytes_ + layer * 2 * side_bytes_ +
         (head * cells_ + cell) * cell_bytes_;
}

uint8_t* KvStore::v_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const {
  return k_cell(block, layer, head, position) + side_bytes_;
}

void KvStore::copy_block(int64_t source, int64_t target) {
  if (source < 0 || source >= shape_.blocks || target < 0 || target >= shape_.blocks)
    throw std::out_of_range("KV block out of range");
  std::memcpy(memory_.data() + target * block_bytes_, memory_.data() + source * block_bytes_,
              static_cast<std::size_t>(block_bytes_));
}

}  // namespace ferrite
