// Row kernels and attention of every table against the portable one, bit for bit, and against double.
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "isa/half.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/tables.h"

namespace ferrite {
namespace {

using test::Random;
using test::same;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t size(int64_t count) { return static_cast<std::size_t>(count); }

int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

// `count` numbers, zeros up to a multiple of 16; one in four is a special one where `special` says so.
std::vector<float> random_row(Random& random, int64_t count, float limit, bool special) {
  std::vector<float> row(size(padded(count)));
  for (int64_t i = 0; i < count; ++i)
    row[size(i)] = special && random.between(0, 3) == 0 ? random.pick(test::kSpecialFloats) : random.uniform(limit);
  return row;
}

struct Quantised {
  explicit Quantised(int64_t cols) : q(size(cols), 99), scale(size(cols / 32), 99.0F), sum(scale), sum16(size(cols / 16), 99) {}
  QuantRows rows() { return {q.data(), scale.data(), sum.data(), sum16.data()}; }
  bool operator==(const Quantised& other) const {
    return q == other.q && sum16 == other.sum16 && same(scale, other.scale) && same(sum, other.sum);
  }

  std::vector<int8_t> q;
  std::vector<float> scale, sum;
  std::vector<int32_t> sum16;
};

Quantised quantised(const KernelTable& table, const std::vector<float>& x) {
  Quantised result(static_cast<int64_t>(x.size()));
  table.quantize_row(x.data(), static_cast<int64_t>(x.size()), result.rows());
  return result;
}

void quantised_rows_are_the_same_in_every_table() {
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const float limit = random.pick({1e-38F, 1e-30F, 1e-10F, 1.0F, 1e10F, 3e38F});
    const std::vector<float> x = random_row(random, 32 * random.between(1, 5), limit, i % 2 == 0);
    for (const KernelTable* table : test::fast_tables()) CHECK(quantised(*table, x) == quantised(portable_kernels(), x));
  }
  // Halfway between two integers, where round-to-even and round-away differ.
  std::vector<float> ties(256);
  for (std::size_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i % 127) + 0.5F;
  for (std::size_t i = 0; i < ties.size(); i += 32) ties[i] = i % 64 == 0 ? 127.0F : -127.0F;
  for (const KernelTable* table : test::fast_tables()) CHECK(quantised(*table, ties) == quantised(portable_kernels(), ties));
}

void quantised_rows_are_near_their_floats() {
  Random random(2);
  for (const KernelTable* table : test::all_tables())
    for (const float limit : {1e-28F, 1e-3F, 1.0F, 50.0F, 3e38F}) {
      const std::vector<float> x = random_row(random, 96, limit, false);
      const Quantised result = quantised(*table, x);
      for (std::size_t block = 0; block < 3; ++block) {
        double largest = 0.0;
        int sums[2] = {0, 0}, extreme = 0;
        for (std::size_t i = 0; i < 32; ++i) {
          largest = std::max(largest, std::abs(double{x[32 * block + i]}));
          sums[i / 16] += result.q[32 * block + i];
          extreme = std::max(extreme, std::abs(int{result.q[32 * block + i]}));
        }
        const double scale = double{result.scale[block]};
        CHECK(std::abs(scale - largest / 127) <= 1e-7 * scale);
        CHECK(extreme == 127);
        CHECK(sums[0] == result.sum16[2 * block] && sums[1] == result.sum16[2 * block + 1]);
        CHECK(std::abs(double{result.sum[block]} - scale * (sums[0] + sums[1])) <= 1e-7 * std::abs(double{result.sum[block]}));
        double error = 0.0;
        for (std::size_t i = 0; i < 32; ++i)
          error = std::max(error, std::abs(result.q[32 * block + i] * scale - double{x[32 * block + i]}));
        // Half a step, and the roundings of the scale and its inverse at up to 127 steps.
        CHECK(error <= scale * (0.5 + 127 * 4 * 0x1p-24));
      }
    }
}

void a_block_that_is_not_finite_shows_in_its_scale_only() {
  for (const KernelTable* table : test::all_tables())
    for (const float fault : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      std::vector<float> x(96, 2.0F);
      x[40] = fault;
      const Quantised result = quantised(*table, x);
      CHECK(std::isnan(result.scale[1]) && std::isnan(result.sum[1]));
      CHECK(result.scale[0] > 0.0F && result.scale[2] > 0.0F);
      CHECK(std::all_of(result.q.begin() + 32, result.q.begin() + 64, [](int8_t q) { return q == 0; }));
    }
}

void a_block_too_small_to_invert_counts_as_zero() {
  for (const KernelTable* table : test::all_tables())
    for (const float tiny : {0.0F, -0.0F, 1e-45F, -1e-38F, 9.9e-31F}) {
      const Quantised result = quantised(*table, std::vector<float>(32, tiny));
      CHECK(result.scale[0] == 0.0F && result.sum[0] == 0.0F && result.sum16[0] == 0 && result.sum16[1] == 0);
      CHECK(std::all_of(result.q.begin(), result.q.end(), [](int8_t q) { return q == 0; }));
    }
}

std::vector<float> normalised(const KernelTable& table, const std::vector<float>& x, const std::vector<float>& weight,
                              int64_t cols, bool in_place) {
  std::vector<float> y = in_place ? x : std::vector<float>(x.size(), kNaN);
  table.rms_norm({in_place ? y.data() : x.data(), weight.data(), y.data(), cols, 1e-6F});
  return y;
}

void norms_are_the_same_in_every_table() {
  Random random(3);
  for (int64_t cols = 1; cols <= 100; ++cols)
    for (const bool special : {false, true}) {
      const std::vector<float> x = random_row(random, cols, random.pick({1e-20F, 1.0F, 1e15F}), special);
      const std::vector<float> weight = random_row(random, cols, 2.0F, false);
      const std::vector<float> expected = normalised(portable_kernels(), x, weight, cols, false);
      for (const KernelTable* table : test::all_tables())
        for (const bool in_place : {false, true}) CHECK(same(normalised(*table, x, weight, cols, in_place), expected));
      if (special) continue;
      double squares = 0.0;
      for (const float value : x) squares += double{value} * double{value};
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(cols) + double{1e-6F});
      double error = 0.0;
      for (std::size_t i = 0; i < x.size(); ++i)
        error = std::max(error, std::abs(double{expected[i]} - double{x[i]} * scale * double{weight[i]}));
      // Sums of squares in sixteen chains of at most seven, a tree of four, then five more operations.
      CHECK(error <= 16 * 0x1p-24 * 2.0 * scale * std::sqrt(squares));
    }
}

std::vector<float> gated(const KernelTable& table, GateKind kind, std::vector<float> gate, const std::vector<float>& up) {
  table.gate(kind, gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  return gate;
}

void gates_are_the_same_in_every_table() {
  Random random(4);
  std::vector<float> sweep;
  for (float x = -100.0F; x <= 100.0F; x += 0.03125F) sweep.push_back(x);
  for (const float special : test::kSpecialFloats) sweep.push_back(special);
  for (int i = 0; i < 4000; ++i) sweep.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.bits())));
  sweep.resize(size(padded(static_cast<int64_t>(sweep.size()))));
  const std::vector<float> ones(sweep.size(), 1.0F), up = random_row(random, static_cast<int64_t>(sweep.size()), 3.0F, true);
  for (const KernelTable* table : test::fast_tables())
    for (const GateKind kind : {GateKind::Silu, GateKind::GeluTanh}) {
      CHECK(same(gated(*table, kind, sweep, ones), gated(portable_kernels(), kind, sweep, ones)));
      CHECK(same(gated(*table, kind, sweep, up), gated(portable_kernels(), kind, sweep, up)));
    }
}

// x / (1 + e^-y) with y = x or y = 2u is all that a gate is, so this is also the accuracy of exp.
void gates_follow_their_definitions() {
  constexpr double kPi = 3.14159265358979323846;
  std::vector<float> sweep;
  for (float x = -20.0F; x < 20.0F; x += 0.0078125F) sweep.push_back(x);
  const std::vector<float> ones(sweep.size(), 1.0F);
  for (const KernelTable* table : test::all_tables()) {
    const std::vector<float> silu = gated(*table, GateKind::Silu, sweep, ones);
    const std::vector<float> gelu = gated(*table, GateKind::GeluTanh, sweep, ones);
    double silu_error = 0.0, gelu_error = 0.0;
    for (std::size_t i = 0; i < sweep.size(); ++i) {
      const double x = double{sweep[i]};
      const double silu_true = x / (1.0 + std::exp(-x));
      const double gelu_true = 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
      if (x != 0.0) silu_error = std::max(silu_error, std::abs((double{silu[i]} - silu_true) / silu_true));
      gelu_error = std::max(gelu_error, std::abs(double{gelu[i]} - gelu_true) / (1.0 + std::abs(gelu_true)));
    }
    CHECK(silu_error < 4e-7);
    CHECK(gelu_error < 4e-7);
    for (const GateKind kind : {GateKind::Silu, GateKind::GeluTanh}) {
      const std::vector<float> ends(16, 1.0F);
      CHECK(gated(*table, kind, std::vector<float>(16, 1e20F), ends)[0] == 1e20F);
      CHECK(std::abs(gated(*table, kind, std::vector<float>(16, -1e20F), ends)[0]) < 1e-15F);
      CHECK(std::isnan(gated(*table, kind, std::vector<float>(16, kNaN), ends)[0]));
    }
  }
}

void sums_and_stores_are_the_same_in_every_table() {
  Random random(5);
  for (int64_t cols = 1; cols <= 64; ++cols) {
    const std::vector<float> x = random_row(random, cols, 1e5F, true), y = random_row(random, cols, 1.0F, true);
    std::vector<float> expected = y;
    std::vector<uint16_t> halves(x.size());
    portable_kernels().add(expected.data(), x.data(), cols);
    portable_kernels().store_f16(halves.data(), x.data(), static_cast<int64_t>(x.size()));
    bool right = true;
    for (std::size_t i = 0; i < x.size(); ++i)
      right = right && same(expected[i], x[i] + y[i]) && halves[i] == isa::float_to_half(x[i]);
    CHECK(right);
    for (const KernelTable* table : test::fast_tables()) {
      std::vector<float> sum = y;
      std::vector<uint16_t> stored(x.size());
      table->add(sum.data(), x.data(), cols);
      table->store_f16(stored.data(), x.data(), static_cast<int64_t>(x.size()));
      CHECK(same(sum, expected));
      CHECK(stored == halves);
    }
  }
}

// One partition of the KV cache, of halves or floats; every cell that [begin, end) does not touch is absent,
// and every other position of a touched cell holds NaN, as left over by a block's last owner.
template <class Element>
struct Cache {
  Cache(Random& random, int64_t width, int64_t first, int64_t last) : head_dim(width), begin(first), end(last) {
    for (int64_t cell = begin / 16; cell * 16 < end; ++cell) {
      k.emplace_back(size(16 * head_dim));
      v.emplace_back(size(16 * head_dim));
      for (int64_t slot = 0; slot < 16; ++slot) {
        const bool live = cell * 16 + slot >= begin && cell * 16 + slot < end;
        for (int64_t d = 0; d < head_dim; ++d) {
          k.back()[size(d * 16 + slot)] = narrow(live ? random.uniform(1.0F) : kNaN);
          v.back()[size(slot * head_dim + d)] = narrow(live ? random.uniform(2.0F) : kNaN);
        }
      }
    }
  }
  static Element narrow(float value) {
    if constexpr (sizeof(Element) == 2) return isa::float_to_half(value);
    else return value;
  }
  static double widen(Element value) {
    if constexpr (sizeof(Element) == 2) return double{isa::half_to_float(value)};
    else return double{value};
  }
  double key(int64_t position, int64_t d) const { return widen(k[size(position / 16 - begin / 16)][size(d * 16 + position % 16)]); }
  double value(int64_t position, int64_t d) const {
    return widen(v[size(position / 16 - begin / 16)][size(position % 16 * head_dim + d)]);
  }

  int64_t head_dim, begin, end;
  std::vector<std::vector<Element>> k, v;
};

struct Attended {
  std::vector<float> max, total, out;
  bool operator==(const Attended& other) const {
    return same(max, other.max) && same(total, other.total) && same(out, other.out);
  }
};

template <class Element>
Attended attend(const KernelTable& table, const Cache<Element>& cache, const std::vector<float>& q, int64_t heads) {
  Attended result = {std::vector<float>(size(heads)), std::vector<float>(size(heads)), std::vector<float>(q.size(), kNaN)};
  std::vector<float> scores(size(heads * kPartition), kNaN);
  AttentionArgs args = {};
  args.q = q.data();
  args.heads = heads;
  args.head_dim = cache.head_dim;
  for (std::size_t i = 0; i < cache.k.size(); ++i) {
    const std::size_t cell = (size(cache.begin) / 16 + i) % (kPartition / kCellPositions);
    args.k_cells[cell] = reinterpret_cast<const uint8_t*>(cache.k[i].data());
    args.v_cells[cell] = reinterpret_cast<const uint8_t*>(cache.v[i].data());
  }
  args.begin = cache.begin;
  args.end = cache.end;
  args.scores = scores.data();
  args.max = result.max.data();
  args.total = result.total.data();
  args.out = result.out.data();
  (sizeof(Element) == 2 ? table.attend_f16 : table.attend_f32)(args);
  return result;
}

// The definition, unnormalised: e^(score - max), their sum, and the sum of them times v.
template <class Element>
bool near_definition(const Attended& result, const Cache<Element>& cache, const std::vector<float>& q, int64_t heads) {
  bool near = true;
  for (int64_t h = 0; h < heads; ++h) {
    const double max = double{result.max[size(h)]};
    double largest = -HUGE_VAL, total = 0.0;
    std::vector<double> mixed(size(cache.head_dim));
    for (int64_t position = cache.begin; position < cache.end; ++position) {
      double score = 0.0;
      for (int64_t d = 0; d < cache.head_dim; ++d) score += double{q[size(h * cache.head_dim + d)]} * cache.key(position, d);
      largest = std::max(largest, score);
      const double weight = std::exp(score - max);
      total += weight;
      for (int64_t d = 0; d < cache.head_dim; ++d) mixed[size(d)] += weight * cache.value(position, d);
    }
    // |score| < 32, so its chain of 256 is off by less than 2e-4 in the worst case and 1e-5 in practice.
    near = near && std::abs(largest - max) < 1e-5 && std::abs(double{result.total[size(h)]} - total) < 2e-5 * total;
    for (int64_t d = 0; d < cache.head_dim; ++d)
      near = near && std::abs(double{result.out[size(h * cache.head_dim + d)]} - mixed[size(d)]) < 4e-5 * total;
  }
  return near;
}

template <class Element>
void attention_case(Random& random, int64_t heads, int64_t head_dim, int64_t begin, int64_t end) {
  const Cache<Element> cache(random, head_dim, begin, end);
  const std::vector<float> q = test::random_floats(random, heads * head_dim, 0.5F);
  const Attended expected = attend(portable_kernels(), cache, q, heads);
  CHECK(near_definition(expected, cache, q, heads));
  for (const KernelTable* table : test::fast_tables()) CHECK(attend(*table, cache, q, heads) == expected);
}

void attention_is_the_same_in_every_table() {
  Random random(6);
  for (int64_t heads = 1; heads <= 8; ++heads)
    for (int64_t head_dim = 16; head_dim <= 256; head_dim += head_dim < 64 ? 16 : 64) {
      const int64_t base = kPartition * random.between(0, 3);
      const int64_t begin = base + random.between(0, kPartition - 1);
      const int64_t end = random.between(begin + 1, base + kPartition);
      attention_case<uint16_t>(random, heads, head_dim, begin, end);
      attention_case<float>(random, heads, head_dim, begin, end);
    }
  // Around the borders of cells and partitions, one position included.
  for (const int64_t begin : {0, 1, 15, 16, 17, 255, 256, 511})
    for (const int64_t end : {1, 16, 17, 240, 241, 255, 256, 257, 512})
      if (begin < end && begin / kPartition == (end - 1) / kPartition) attention_case<uint16_t>(random, 2, 32, begin, end);
}

void joins_are_the_same_in_every_table() {
  Random random(7);
  for (int64_t head_dim = 16; head_dim <= 128; head_dim += 16)
    for (const float difference : {0.0F, 0.5F, -0.5F, 60.0F, -60.0F, 200.0F, -200.0F}) {
      const std::vector<float> first = test::random_floats(random, head_dim, 9.0F), next = test::random_floats(random, head_dim, 9.0F);
      const auto joined = [&](const KernelTable& table) {
        Attended result = {{1.25F}, {7.0F}, first};
        table.join(result.max.data(), result.total.data(), result.out.data(), 1.25F + difference, 11.0F, next.data(), head_dim);
        return result;
      };
      const Attended expected = joined(portable_kernels());
      for (const KernelTable* table : test::fast_tables()) CHECK(joined(*table) == expected);
      const double keep = std::exp(std::min(0.0, -double{difference})), take = std::exp(std::min(0.0, double{difference}));
      CHECK(expected.max[0] == std::max(1.25F, 1.25F + difference));
      CHECK(std::abs(double{expected.total[0]} - (7.0 * keep + 11.0 * take)) < 1e-5);
      double error = 0.0;
      for (std::size_t d = 0; d < first.size(); ++d)
        error = std::max(error, std::abs(double{expected.out[d]} - (double{first[d]} * keep + double{next[d]} * take)));
      CHECK(error < 1e-5);
    }
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  quantised_rows_are_the_same_in_every_table();
  quantised_rows_are_near_their_floats();
  a_block_that_is_not_finite_shows_in_its_scale_only();
  a_block_too_small_to_invert_counts_as_zero();
  norms_are_the_same_in_every_table();
  gates_are_the_same_in_every_table();
  gates_follow_their_definitions();
  sums_and_stores_are_the_same_in_every_table();
  attention_is_the_same_in_every_table();
  joins_are_the_same_in_every_table();
  return test::tally.finish();
}
