// The KV store: where cells lie, copies, what is refused, and memory that goes back to the system.
#include "runtime/kv_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace ferrite {
namespace {

void kv_cells_cover_a_block_without_overlap() {
  for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8_0}) {
    const KvShape shape = {3, 2, 96, 32, kInterleaved + 5, type};
    const KvStore store(shape);
    const int64_t cell_bytes = type == KvType::F16   ? 96 * 16 * 2
                               : type == KvType::F32 ? 96 * 16 * 4
                                                     : 96 * 16 + 96 / 32 * 16 * 2;
    CHECK(shape.cell_bytes() == cell_bytes);
    CHECK(store.block_bytes() == 3 * 2 * 2 * 2 * cell_bytes);
    const uint8_t* first = store.k_cell(0, 0, 0, 0);
    std::set<int64_t> offsets;
    for (int64_t block = 0; block < shape.blocks; ++block)
      for (int64_t layer = 0; layer < shape.layers; ++layer)
        for (int64_t head = 0; head < shape.kv_heads; ++head)
          for (int64_t position = 0; position < shape.block_tokens; position += 16) {
            offsets.insert(store.k_cell(block, layer, head, position) - first);
            offsets.insert(store.v_cell(block, layer, head, position) - first);
            CHECK(store.k_cell(block, layer, head, position) ==
                  store.k_cell(block, layer, head, position + 15));
            CHECK(store.v_cell(block, layer, head, position) ==
                  store.v_cell(block, layer, head, position + 32 * 7));
          }
    // As many different cells as fit, each at a multiple of its size: all of the memory, once.
    CHECK(static_cast<int64_t>(offsets.size()) * cell_bytes == shape.blocks * store.block_bytes());
    CHECK(*offsets.begin() == 0 && *offsets.rbegin() == shape.blocks * store.block_bytes() - cell_bytes);
    CHECK(std::all_of(offsets.begin(), offsets.end(),
                      [&](int64_t offset) { return offset % cell_bytes == 0; }));
  }
}

// fn(cell) for every cell of a block.
template <class Fn>
void each_cell(const KvStore& store, int64_t block, Fn fn) {
  const KvShape& shape = store.shape();
  for (int64_t layer = 0; layer < shape.layers; ++layer)
    for (int64_t head = 0; head < shape.kv_heads; ++head)
      for (int64_t position = 0; position < shape.block_tokens; position += 16) {
        fn(store.k_cell(block, layer, head, position));
        fn(store.v_cell(block, layer, head, position));
      }
}

void fill(const KvStore& store, int64_t block, uint8_t value) {
  const auto bytes = static_cast<std::size_t>(store.shape().cell_bytes());
  each_cell(store, block, [&](uint8_t* cell) { std::memset(cell, value, bytes); });
}

bool holds(const KvStore& store, int64_t block, uint8_t value) {
  bool all = true;
  each_cell(store, block, [&](const uint8_t* p) {
    all = all && std::all_of(p, p + store.shape().cell_bytes(), [&](uint8_t byte) { return byte == value; });
  });
  return all;
}

void kv_blocks_are_copied_whole_and_alone() {
  // Two whole interleavings and a part of one; a copy within one and from one to another.
  const int64_t blocks = 2 * kInterleaved + 3;
  KvStore store({2, 2, 16, 32, blocks, KvType::F16});
  const auto value = [](int64_t block) { return static_cast<uint8_t>(block + 1); };
  for (int64_t block = 0; block < blocks; ++block) fill(store, block, value(block));
  store.copy_block(2, 0);
  store.copy_block(blocks - 1, kInterleaved);
  for (int64_t block = 0; block < blocks; ++block)
    CHECK(holds(store, block, value(block == 0 ? 2 : block == kInterleaved ? blocks - 1 : block)));
  CHECK_THROWS(store.copy_block(blocks, 0), std::out_of_range);
  CHECK_THROWS(store.copy_block(0, blocks), std::out_of_range);
  CHECK_THROWS(store.copy_block(-1, 0), std::out_of_range);
  CHECK_THROWS(store.copy_block(0, -1), std::out_of_range);
}

void kv_shapes_that_cannot_be_are_refused() {
  const auto make = [](const KvShape& shape) -> int64_t {
    try {
      return KvStore(shape).block_bytes();
    } catch (const std::bad_alloc&) {
      return -1;
    }
  };
  CHECK(make({1, 1, 16, 16, 1, KvType::F16}) == 1024);
  CHECK(make({1, 1, 32, 16, 1, KvType::Q8_0}) == 2 * 17 * 32);
  CHECK_THROWS(make({1, 1, 48, 16, 1, KvType::Q8_0}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 0, 16, 1, KvType::Q8_0}), std::invalid_argument);
  CHECK_THROWS(make({0, 1, 16, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 0, 16, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 0, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 24, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 0, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 24, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, 0, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, -1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({-1, -1, 16, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, -1, -16, 16, 1, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, int64_t{1} << 54, KvType::F16}), std::invalid_argument);
  CHECK_THROWS(make({int64_t{1} << 54, 1, 16, 16, 1, KvType::F16}), std::invalid_argument);
}

// A block of one page and a half, so that rounding up shows.
KvShape locus_shape(int64_t blocks) {
  const auto page = static_cast<int64_t>(page_bytes());
  return {3, page / 1024, 16, 16, blocks, KvType::F16, KvBackend::Locus};
}

// Pages of a block that take memory.
int64_t resident_pages(const KvStore& store, int64_t block) {
  std::vector<unsigned char> pages(static_cast<std::size_t>(store.block_bytes()) / page_bytes());
  if (mincore(store.k_cell(block, 0, 0, 0), static_cast<std::size_t>(store.block_bytes()), pages.data()) != 0)
    return -1;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

void neighbouring_blocks_are_one_run() {
  const KvStore store({2, 3, 64, 16, 2 * kInterleaved, KvType::F16});
  const int64_t cell_bytes = store.shape().cell_bytes();
  for (int64_t block = 0; block + 1 < kInterleaved; ++block) {
    CHECK(store.k_cell(block + 1, 1, 2, 0) == store.k_cell(block, 1, 2, 0) + cell_bytes);
    CHECK(store.v_cell(block + 1, 1, 2, 0) == store.v_cell(block, 1, 2, 0) + cell_bytes);
  }
}

void locus_blocks_are_whole_pages() {
  const auto page = static_cast<int64_t>(page_bytes());
  KvShape shape = locus_shape(4);
  CHECK(KvStore(shape).block_bytes() == 3 * page);
  shape.layers = 1;  // exactly one page
  CHECK(KvStore(shape).block_bytes() == page);
  shape.kv_heads += 1;
  CHECK(KvStore(shape).block_bytes() == 2 * page);
  shape.backend = KvBackend::Vec;
  CHECK(KvStore(shape).block_bytes() == page + 1024);
}

void locus_gives_the_memory_of_free_blocks_back() {
  KvStore store(locus_shape(6));
  const int64_t pages = store.block_bytes() / static_cast<int64_t>(page_bytes());
  const auto fill = [&](int64_t block) {
    std::memset(store.k_cell(block, 0, 0, 0), 7, static_cast<std::size_t>(store.block_bytes()));
  };
  const auto resident = [&] {
    std::vector<int64_t> counts;
    for (int64_t block = 0; block < 6; ++block) counts.push_back(resident_pages(store, block));
    return counts;
  };
  CHECK(resident() == std::vector<int64_t>(6, 0));
  for (int64_t block = 0; block < 6; ++block) fill(block);
  CHECK(resident() == std::vector<int64_t>(6, pages));
  // Out of order, twice, and neighbours: each of them and no other.
  store.return_blocks(std::vector<int32_t>{5, 1, 2, 1});
  CHECK(resident() == std::vector<int64_t>{pages, 0, 0, pages, pages, 0});
  for (const int64_t kept : {0, 3, 4}) CHECK(holds(store, kept, 7));
  for (const int64_t returned : {1, 2, 5}) CHECK(holds(store, returned, 0));
  // A block may have a next owner, and be given back a second time.
  fill(2);
  CHECK(holds(store, 2, 7) && holds(store, 1, 0));
  store.return_blocks(std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  store.return_blocks(std::vector<int32_t>{});
  CHECK(resident() == std::vector<int64_t>(6, 0));
}

void vec_keeps_the_memory_of_free_blocks() {
  KvStore store({2, 1, 16, 16, 3, KvType::F16});
  fill(store, 1, 7);
  store.return_blocks(std::vector<int32_t>{1});
  CHECK(holds(store, 1, 7));
}

void only_blocks_of_the_store_are_returned() {
  for (const KvBackend backend : {KvBackend::Vec, KvBackend::Locus}) {
    KvShape shape = locus_shape(3);
    shape.backend = backend;
    KvStore store(shape);
    fill(store, 0, 7);
    for (const int32_t wrong : {3, -1, INT32_MAX, INT32_MIN})
      CHECK_THROWS(store.return_blocks(std::vector<int32_t>{0, wrong}), std::out_of_range);
    CHECK(holds(store, 0, 7));
  }
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  kv_cells_cover_a_block_without_overlap();
  neighbouring_blocks_are_one_run();
  kv_blocks_are_copied_whole_and_alone();
  kv_shapes_that_cannot_be_are_refused();
  locus_blocks_are_whole_pages();
  locus_gives_the_memory_of_free_blocks_back();
  vec_keeps_the_memory_of_free_blocks();
  only_blocks_of_the_store_are_returned();
  return test::tally.finish();
}
