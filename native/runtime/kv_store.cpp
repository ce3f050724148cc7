#include "runtime/kv_store.h"

#include <cstring>
#include <initializer_list>
#include <stdexcept>

namespace ferrite {

namespace {

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (factor < 1 || __builtin_mul_overflow(result, factor, &result))
      throw std::invalid_argument(
          "KV store: sizes must be positive and their product must fit the address space");
  return result;
}

}  // namespace

KvStore::KvStore(const KvShape& shape) : shape_(shape) {
  if (shape.head_dim % 16 != 0 || shape.block_tokens % 16 != 0)
    throw std::invalid_argument("KV store: head size and block size must be multiples of 16");
  const int64_t total = product(
      {shape.layers, 2, shape.kv_heads, shape.block_tokens, shape.head_dim, element_bytes(), shape.blocks});
  cell_bytes_ = shape.head_dim * 16 * element_bytes();
  cells_ = shape.block_tokens / 16;
  side_bytes_ = shape.kv_heads * cells_ * cell_bytes_;
  block_bytes_ = shape.layers * 2 * side_bytes_;
  memory_ = MappedMemory(static_cast<std::size_t>(total));
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
