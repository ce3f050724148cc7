#include "runtime/kv_store.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <vector>

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

int64_t KvShape::cell_bytes() const {
  switch (type) {
    case KvType::F16:
      return product({head_dim, kCellPositions, 2});
    case KvType::F32:
      return product({head_dim, kCellPositions, 4});
    case KvType::Q8_0:
      return product({head_dim / kKvGroup, kCellPositions, kKvGroup + 2});
  }
  return 0;
}

int64_t KvShape::block_bytes() const {
  if (head_dim % 16 != 0 || block_tokens % kCellPositions != 0)
    throw std::invalid_argument("KV store: head size and block size must be multiples of 16");
  if (type == KvType::Q8_0 && head_dim % kKvGroup != 0)
    throw std::invalid_argument("KV store: q8_0 needs a head size that is a multiple of 32");
  const int64_t bytes = product({layers, 2, kv_heads, block_tokens / kCellPositions, cell_bytes()});
  if (backend == KvBackend::Vec) return bytes;
  const auto page = static_cast<int64_t>(page_bytes());
  return product({(bytes - 1) / page + 1, page});
}

KvStore::KvStore(const KvShape& shape)
    : shape_(shape),
      block_bytes_(shape.block_bytes()),
      cell_bytes_(shape.cell_bytes()),
      run_bytes_(shape.block_tokens / kCellPositions * cell_bytes_),
      lanes_(shape.layers * 2 * shape.kv_heads),
      interleaved_(shape.backend == KvBackend::Vec ? kInterleaved : 1),
      memory_(static_cast<std::size_t>(product({block_bytes_, shape.blocks})),
              shape.backend == KvBackend::Vec ? Pages::Huge : Pages::Small) {}

uint8_t* KvStore::run(int64_t block, int64_t lane) const {
  const int64_t first = block / interleaved_ * interleaved_;
  const int64_t together = std::min(interleaved_, shape_.blocks - first);
  return memory_.data() + first * block_bytes_ + (lane * together + block - first) * run_bytes_;
}

uint8_t* KvStore::k_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const {
  const int64_t cell = position % shape_.block_tokens / kCellPositions;
  return run(block, layer * 2 * shape_.kv_heads + head) + cell * cell_bytes_;
}

uint8_t* KvStore::v_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const {
  return k_cell(block, layer, shape_.kv_heads + head, position);
}

void KvStore::check(int64_t block) const {
  if (block < 0 || block >= shape_.blocks) throw std::out_of_range("KV block out of range");
}

void KvStore::copy_block(int64_t source, int64_t target) {
  check(source);
  check(target);
  for (int64_t lane = 0; lane < lanes_; ++lane)
    std::memcpy(run(target, lane), run(source, lane), static_cast<std::size_t>(run_bytes_));
}

void KvStore::return_blocks(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) check(block);
  if (shape_.backend == KvBackend::Vec) return;
  std::vector<int32_t> sorted(blocks.begin(), blocks.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  // Neighbours go back in one call.
  const auto bytes = static_cast<std::size_t>(block_bytes_);
  for (auto first = sorted.begin(); first != sorted.end();) {
    auto last = first + 1;
    while (last != sorted.end() && *last == *(last - 1) + 1) ++last;
    memory_.release(static_cast<std::size_t>(*first) * bytes, static_cast<std::size_t>(last - first) * bytes);
    first = last;
  }
}

}  // namespace ferrite
