// The memory of all KV blocks. Which block belongs to whom is decided in Python.
//
// A block holds `block_tokens` positions of every layer. For each layer, K then V; for each kv head, cells
// of 16 positions: K as [head_dim][16], V as [16][head_dim]. A cell of int8 elements ends with its float16
// scales, [head_dim / 32][16] in both.
//
// With Vec, blocks of neighbouring numbers lie interleaved, kInterleaved of them, so that what attention
// reads in a row (one side of one head of one layer) is one run of memory: a prompt takes neighbouring
// blocks, and two cores read runs of 64 KiB twice as fast as cells of 2 KiB here and there.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "runtime/memory.h"

namespace ferrite {

// What becomes of the memory of free blocks: Vec keeps it, in huge pages, for the next owner; Locus gives it
// back, so its blocks are whole pages.
enum class KvBackend : int32_t { Vec, Locus };

// The run that whoever hands out blocks is told of, with Locus too, which gives neighbours back in one call.
inline constexpr int64_t kInterleaved = 32;

struct KvShape {
  int64_t layers;
  int64_t kv_heads;
  int64_t head_dim;      // multiple of 16; of 32 for Q8_0
  int64_t block_tokens;  // multiple of 16
  int64_t blocks;
  KvType type;
  KvBackend backend = KvBackend::Vec;

  int64_t cell_bytes() const;
  // Throws std::invalid_argument for sizes that make no sense.
  int64_t block_bytes() const;
};

class KvStore {
 public:
  // Throws std::invalid_argument for sizes that make no sense, std::bad_alloc when they cannot be reserved.
  explicit KvStore(const KvShape& shape);

  const KvShape& shape() const { return shape_; }
  int64_t block_bytes() const { return block_bytes_; }

  // The cell that holds `position` % block_tokens of one layer and head in a block.
  uint8_t* k_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const;
  uint8_t* v_cell(int64_t block, int64_t layer, int64_t head, int64_t position) const;

  // Both throw std::out_of_range for a block that the store does not have.
  void copy_block(int64_t source, int64_t target);
  // These blocks are free. What they held is lost with Locus.
  void return_blocks(std::span<const int32_t> blocks);

 private:
  void check(int64_t block) const;
  // The cells of one block, layer, side and head; `lane` numbers the last three.
  uint8_t* run(int64_t block, int64_t lane) const;

  KvShape shape_;
  int64_t block_bytes_, cell_bytes_, run_bytes_;
  int64_t lanes_;        // layers x sides x heads
  int64_t interleaved_;  // blocks that lie interleaved
  MappedMemory memory_;
};

}  // namespace ferrite
