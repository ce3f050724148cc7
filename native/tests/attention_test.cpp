// Attention over one partition, and the joining of partitions, of every table against the portable one and
// double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "isa/half.h"
#include "kernels/kernels.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/tables.h"

namespace ferrite {
namespace {

using test::Random;
using test::same;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::size_t size(int64_t count) {
  return static_cast<std::size_t>(count);
}

// One partition of the KV cache; every cell that [begin, end) does not touch is absent, and every other
// position of a touched cell holds NaN (int8 any integers, and a scale of NaN), as left over by a block's
// last owner.
struct Cache {
  Cache(Random& random, KvType kind, int64_t width, int64_t first, int64_t last)
      : type(kind),
        head_dim(width),
        begin(first),
        end(last),
        keys(size(width * (last - first))),
        values(keys) {
    for (int64_t cell = begin / 16; cell * 16 < end; ++cell) {
      k.emplace_back(size(16 * head_dim * (type == KvType::F32 ? 4 : 2)));
      v.emplace_back(k.back().size());
      for (int64_t slot = 0; slot < 16; ++slot) {
        const int64_t row = cell * 16 + slot - begin;
        const bool live = row >= 0 && row < end - begin;
        for (int64_t d = 0; d < head_dim; d += kKvGroup) {
          const int64_t columns = std::min(kKvGroup, head_dim - d);
          put(random, k.back(), slot, d, d * 16 + slot, 16, columns,
              live ? &keys[size(row * head_dim + d)] : nullptr, 1.0F);
          put(random, v.back(), slot, d, slot * head_dim + d, 1, columns,
              live ? &values[size(row * head_dim + d)] : nullptr, 2.0F);
        }
      }
    }
  }

  // One group of a position's columns: the first at element `at`, each next one `stride` elements on. What
  // they are worth goes to `worth`; a position without it is another owner's.
  void put(Random& random, std::vector<uint8_t>& cell, int64_t slot, int64_t d, int64_t at, int64_t stride,
           int64_t columns, double* worth, float limit) {
    const uint16_t scale = isa::float_to_half(worth == nullptr ? kNaN : random.uniform(limit / 127.0F));
    if (type == KvType::Q8_0) test::put(cell, size(16 * head_dim + 2 * (d / kKvGroup * 16 + slot)), scale);
    for (int64_t i = 0; i < columns; ++i, at += stride) {
      const float any = worth == nullptr ? kNaN : random.uniform(limit);
      const auto integer = static_cast<int8_t>(random.between(-127, 127));
      const uint16_t half = isa::float_to_half(any);
      if (type == KvType::F16) test::put(cell, size(2 * at), half);
      if (type == KvType::F32) test::put(cell, size(4 * at), any);
      if (type == KvType::Q8_0) test::put(cell, size(at), integer);
      if (worth == nullptr) continue;
      worth[i] = type == KvType::F16   ? double{isa::half_to_float(half)}
                 : type == KvType::F32 ? double{any}
                                       : integer * double{isa::half_to_float(scale)};
    }
  }
  double key(int64_t position, int64_t d) const { return keys[size((position - begin) * head_dim + d)]; }
  double value(int64_t position, int64_t d) const { return values[size((position - begin) * head_dim + d)]; }

  KvType type;
  int64_t head_dim, begin, end;
  std::vector<double> keys, values;  // [end - begin][head_dim]
  std::vector<std::vector<uint8_t>> k, v;
};

struct Attended {
  std::vector<float> max, total, out;
  bool operator==(const Attended& other) const {
    return same(max, other.max) && same(total, other.total) && same(out, other.out);
  }
};

// Rows at consecutive positions from `position` on.
struct Queries {
  int64_t position, rows, heads, window;
  std::vector<float> q;  // [rows][heads][head_dim]
};

Attended attend(const KernelTable& table, const Cache& cache, const Queries& queries) {
  const int64_t count = queries.rows * queries.heads, head_dim = cache.head_dim;
  Attended result = {std::vector<float>(size(count)), std::vector<float>(size(count)),
                     std::vector<float>(queries.q.size(), kNaN)};
  std::vector<float> scratch(size(attention_scratch(count, head_dim)), kNaN);
  AttentionArgs args = {};
  args.q = queries.q.data();
  args.q_stride = queries.heads * head_dim;
  args.rows = queries.rows;
  args.heads = queries.heads;
  args.head_dim = head_dim;
  args.position = queries.position;
  args.window = queries.window;
  args.base = cache.begin / kPartition * kPartition;
  for (std::size_t i = 0; i < cache.k.size(); ++i) {
    const std::size_t cell = (size(cache.begin) / 16 + i) % (kPartition / kCellPositions);
    args.k_cells[cell] = cache.k[i].data();
    args.v_cells[cell] = cache.v[i].data();
  }
  args.scratch = scratch.data();
  args.max = result.max.data();
  args.total = result.total.data();
  args.out = result.out.data();
  table.attend[static_cast<std::size_t>(cache.type)](args);
  return result;
}

// One row that attends to all of the cache.
Queries one_row(const Cache& cache, const std::vector<float>& q, int64_t heads) {
  return {cache.end - 1, 1, heads, cache.end - cache.begin, q};
}

// The definition, unnormalised: e^(score - max), their sum, and the sum of them times v.
bool near_definition(const Attended& result, const Cache& cache, const std::vector<float>& q, int64_t heads) {
  bool near = true;
  for (int64_t h = 0; h < heads; ++h) {
    const double max = double{result.max[size(h)]};
    double largest = -HUGE_VAL, total = 0.0;
    std::vector<double> mixed(size(cache.head_dim));
    for (int64_t position = cache.begin; position < cache.end; ++position) {
      double score = 0.0;
      for (int64_t d = 0; d < cache.head_dim; ++d)
        score += double{q[size(h * cache.head_dim + d)]} * cache.key(position, d);
      largest = std::max(largest, score);
      const double weight = std::exp(score - max);
      total += weight;
      for (int64_t d = 0; d < cache.head_dim; ++d) mixed[size(d)] += weight * cache.value(position, d);
    }
    // |score| < 32, so its chain of 256 is off by less than 2e-4 in the worst case and 1e-5 in practice.
    near = near && std::abs(largest - max) < 1e-5 &&
           std::abs(double{result.total[size(h)]} - total) < 2e-5 * total;
    for (int64_t d = 0; d < cache.head_dim; ++d)
      near =
          near && std::abs(double{result.out[size(h * cache.head_dim + d)]} - mixed[size(d)]) < 4e-5 * total;
  }
  return near;
}

void attention_case(Random& random, KvType type, int64_t heads, int64_t head_dim, int64_t begin,
                    int64_t end) {
  const Cache cache(random, type, head_dim, begin, end);
  const std::vector<float> q = test::random_floats(random, heads * head_dim, 0.5F);
  const Queries queries = one_row(cache, q, heads);
  const Attended expected = attend(portable_kernels(), cache, queries);
  CHECK(near_definition(expected, cache, q, heads));
  for (const KernelTable* table : test::fast_tables()) CHECK(attend(*table, cache, queries) == expected);
}

// Several rows get what each gets alone, in the portable table and in every other.
void rows_case(Random& random, KvType type, const Queries& shape, int64_t head_dim) {
  const int64_t last = shape.position + shape.rows - 1;
  const int64_t base = last / kPartition * kPartition;
  Queries all = shape;
  // Rows before the partition do not take part.
  all.position = std::max(shape.position, base);
  all.rows = last + 1 - all.position;
  const int64_t begin = std::max(base, all.window > 0 ? all.position - all.window + 1 : 0);
  Cache cache(random, type, head_dim, begin, last + 1);
  // What only the last row sees must not reach the others, not even times zero.
  if (type != KvType::Q8_0 && all.rows > 1) {
    const int64_t slot = last % 16;
    for (int64_t d = 0; d < head_dim; ++d) {
      const std::size_t at = size(slot * head_dim + d);
      if (type == KvType::F16) test::put(cache.v.back(), 2 * at, isa::float_to_half(kNaN));
      if (type == KvType::F32) test::put(cache.v.back(), 4 * at, kNaN);
    }
  }
  const int64_t width = all.heads * head_dim;
  all.q = test::random_floats(random, all.rows * width, 0.5F);
  Attended expected;
  for (int64_t row = 0; row < all.rows; ++row) {
    Queries alone = {all.position + row, 1, all.heads, all.window, {}};
    alone.q.assign(all.q.begin() + row * width, all.q.begin() + (row + 1) * width);
    const Attended one = attend(portable_kernels(), cache, alone);
    expected.max.insert(expected.max.end(), one.max.begin(), one.max.end());
    expected.total.insert(expected.total.end(), one.total.begin(), one.total.end());
    expected.out.insert(expected.out.end(), one.out.begin(), one.out.end());
  }
  CHECK(attend(portable_kernels(), cache, all) == expected);
  for (const KernelTable* table : test::fast_tables()) CHECK(attend(*table, cache, all) == expected);
}

void rows_together_are_the_same_as_alone() {
  Random random(8);
  for (int64_t heads = 1; heads <= 8; ++heads)
    for (const int64_t head_dim : {16, 32, 48, 64, 128, 256}) {
      const int64_t position = random.between(0, 3 * kPartition);
      const Queries shape = {position,
                             random.between(2, 24),
                             heads,
                             random.between(0, 1) == 0 ? 0 : random.between(1, 2 * kPartition),
                             {}};
      rows_case(random, KvType::F16, shape, head_dim);
      rows_case(random, KvType::F32, shape, head_dim);
      if (head_dim % kKvGroup == 0) rows_case(random, KvType::Q8_0, shape, head_dim);
    }
  // Around the borders of cells, windows and partitions.
  for (const int64_t position : {0, 1, 14, 15, 16, 240, 255, 256, 300})
    for (const int64_t rows : {2, 3, 17, 40})
      for (const int64_t window : {0, 1, 7, 16, 17, 256, 300})
        for (const KvType type : {KvType::F16, KvType::Q8_0})
          rows_case(random, type, {position, rows, 2, window, {}}, 32);
}

void attention_is_the_same_in_every_table() {
  Random random(6);
  for (int64_t heads = 1; heads <= 8; ++heads)
    for (int64_t head_dim = 16; head_dim <= 256; head_dim += head_dim < 64 ? 16 : 64) {
      const int64_t base = kPartition * random.between(0, 3);
      const int64_t begin = base + random.between(0, kPartition - 1);
      const int64_t end = random.between(begin + 1, base + kPartition);
      attention_case(random, KvType::F16, heads, head_dim, begin, end);
      attention_case(random, KvType::F32, heads, head_dim, begin, end);
      if (head_dim % kKvGroup == 0) attention_case(random, KvType::Q8_0, heads, head_dim, begin, end);
    }
  // Around the borders of cells and partitions, one position included.
  for (const int64_t begin : {0, 1, 15, 16, 17, 255, 256, 511})
    for (const int64_t end : {1, 16, 17, 240, 241, 255, 256, 257, 512})
      if (begin < end && begin / kPartition == (end - 1) / kPartition)
        for (const KvType type : {KvType::F16, KvType::Q8_0}) attention_case(random, type, 2, 32, begin, end);
}

void joins_are_the_same_in_every_table() {
  Random random(7);
  for (int64_t head_dim = 16; head_dim <= 128; head_dim += 16)
    for (const float difference : {0.0F, 0.5F, -0.5F, 60.0F, -60.0F, 200.0F, -200.0F}) {
      const std::vector<float> first = test::random_floats(random, head_dim, 9.0F),
                               next = test::random_floats(random, head_dim, 9.0F);
      const auto joined = [&](const KernelTable& table) {
        Attended result = {{1.25F}, {7.0F}, first};
        table.join(result.max.data(), result.total.data(), result.out.data(), 1.25F + difference, 11.0F,
                   next.data(), head_dim);
        return result;
      };
      const Attended expected = joined(portable_kernels());
      for (const KernelTable* table : test::fast_tables()) CHECK(joined(*table) == expected);
      const double keep = std::exp(std::min(0.0, -double{difference})),
                   take = std::exp(std::min(0.0, double{difference}));
      CHECK(expected.max[0] == std::max(1.25F, 1.25F + difference));
      CHECK(std::abs(double{expected.total[0]} - (7.0 * keep + 11.0 * take)) < 1e-5);
      double error = 0.0;
      for (std::size_t d = 0; d < first.size(); ++d)
        error = std::max(
            error, std::abs(double{expected.out[d]} - (double{first[d]} * keep + double{next[d]} * take)));
      CHECK(error < 1e-5);
    }
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  attention_is_the_same_in_every_table();
  rows_together_are_the_same_as_alone();
  joins_are_the_same_in_every_table();
  return test::tally.finish();
}
