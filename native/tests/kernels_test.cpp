// Row kernels of every table against the portable one, bit for bit, and against double.
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

std::size_t size(int64_t count) {
  return static_cast<std::size_t>(count);
}

int64_t padded(int64_t count) {
  return (count + 15) / 16 * 16;
}

// `count` numbers, zeros up to a multiple of 16; one in four is a special one where `special` says so.
std::vector<float> random_row(Random& random, int64_t count, float limit, bool special) {
  std::vector<float> row(size(padded(count)));
  for (int64_t i = 0; i < count; ++i)
    row[size(i)] =
        special && random.between(0, 3) == 0 ? random.pick(test::kSpecialFloats) : random.uniform(limit);
  return row;
}

enum class Terms { One, Two };

struct Quantised {
  Quantised(int64_t cols, Terms terms)
      : q(size(cols), 99),
        residual(terms == Terms::Two ? q : std::vector<int8_t>()),
        scale(size(cols / 32), 99.0F),
        sum(scale),
        pairs(size(cols / 16), {99, 99}),
        residual_pairs(residual.empty() ? 0 : pairs.size(), {99, 99}) {}
  QuantRows rows() {
    return {{q.data(), pairs.data()},
            scale.data(),
            sum.data(),
            residual.empty() ? Int8Rows{} : Int8Rows{residual.data(), residual_pairs.data()}};
  }
  // Column i in units of its block's scale.
  int integer(std::size_t i) const { return residual.empty() ? q[i] : kResidual * q[i] + residual[i]; }
  bool operator==(const Quantised& other) const {
    return q == other.q && residual == other.residual && pairs == other.pairs &&
           residual_pairs == other.residual_pairs && same(scale, other.scale) && same(sum, other.sum);
  }

  std::vector<int8_t> q, residual;
  std::vector<float> scale, sum;
  std::vector<PairSums> pairs, residual_pairs;
};

std::vector<PairSums> expected_pairs(const std::vector<int8_t>& q) {
  std::vector<PairSums> pairs(q.size() / 16);
  for (std::size_t i = 0; i < q.size(); ++i) {
    int16_t& sum = i % 4 < 2 ? pairs[i / 16].low : pairs[i / 16].high;
    sum = static_cast<int16_t>(sum + q[i]);
  }
  return pairs;
}

Quantised quantised(const KernelTable& table, const std::vector<float>& x, Terms terms) {
  Quantised result(static_cast<int64_t>(x.size()), terms);
  table.quantize_row(x.data(), static_cast<int64_t>(x.size()), result.rows());
  return result;
}

bool quantised_like_portable(const std::vector<float>& x) {
  bool equal = true;
  for (const KernelTable* table : test::fast_tables())
    for (const Terms terms : {Terms::One, Terms::Two})
      equal = equal && quantised(*table, x, terms) == quantised(portable_kernels(), x, terms);
  return equal;
}

void quantised_rows_are_the_same_in_every_table() {
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const float limit = random.pick({1e-38F, 1e-30F, 1e-10F, 1.0F, 1e10F, 3e38F});
    const std::vector<float> x = random_row(random, 32 * random.between(1, 5), limit, i % 2 == 0);
    CHECK(quantised_like_portable(x));
  }
  // Halfway between two integers, where round-to-even and round-away differ.
  std::vector<float> ties(256);
  for (std::size_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i % 127) + 0.5F;
  for (std::size_t i = 0; i < ties.size(); i += 32) ties[i] = i % 64 == 0 ? 127.0F : -127.0F;
  CHECK(quantised_like_portable(ties));
}

void quantised_rows_are_near_their_floats() {
  Random random(2);
  for (const KernelTable* table : test::all_tables())
    for (const Terms terms : {Terms::One, Terms::Two})
      for (const float limit : {1e-28F, 1e-3F, 1.0F, 50.0F, 3e38F}) {
        const std::vector<float> x = random_row(random, 96, limit, false);
        const Quantised result = quantised(*table, x, terms);
        CHECK(result.pairs == expected_pairs(result.q));
        CHECK(result.residual_pairs == expected_pairs(result.residual));
        const int steps = terms == Terms::One ? 127 : 127 * kResidual;
        for (std::size_t block = 0; block < 3; ++block) {
          const double scale = double{result.scale[block]}, sum = double{result.sum[block]};
          double largest = 0.0, error = 0.0;
          int total = 0, extreme = 0;
          for (std::size_t i = 32 * block; i < 32 * block + 32; ++i) {
            largest = std::max(largest, std::abs(double{x[i]}));
            total += result.integer(i);
            extreme = std::max(extreme, std::abs(result.integer(i)));
            error = std::max(error, std::abs(result.integer(i) * scale - double{x[i]}));
          }
          CHECK(std::abs(scale - largest / steps) <= 1e-7 * scale);
          CHECK(extreme == steps);
          CHECK(std::abs(sum - scale * total) <= 2e-7 * std::abs(sum));
          // Half a step, and the roundings of the scale, its inverse and the products at full range.
          CHECK(error <= scale * (0.5 + steps * 5 * 0x1p-24));
        }
      }
}

void a_block_that_is_not_finite_shows_in_its_scale_only() {
  for (const KernelTable* table : test::all_tables())
    for (const float fault : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      std::vector<float> x(96, 2.0F);
      x[40] = fault;
      const Quantised result = quantised(*table, x, Terms::Two);
      CHECK(std::isnan(result.scale[1]) && std::isnan(result.sum[1]));
      CHECK(result.scale[0] > 0.0F && result.scale[2] > 0.0F);
      for (std::size_t i = 32; i < 64; ++i) CHECK(result.q[i] == 0 && result.residual[i] == 0);
    }
}

void a_block_too_small_to_invert_counts_as_zero() {
  for (const KernelTable* table : test::all_tables())
    for (const float tiny : {0.0F, -0.0F, 1e-45F, -1e-38F, 9.9e-31F}) {
      const Quantised result = quantised(*table, std::vector<float>(32, tiny), Terms::Two);
      CHECK(result.scale[0] == 0.0F && result.sum[0] == 0.0F);
      CHECK(result.pairs == std::vector<PairSums>(2, {0, 0}) && result.residual_pairs == result.pairs);
      for (std::size_t i = 0; i < 32; ++i) CHECK(result.q[i] == 0 && result.residual[i] == 0);
    }
}

// Without the padding, of which a table writes what its registers cover.
std::vector<float> normalised(const KernelTable& table, const std::vector<float>& x,
                              const std::vector<float>& weight, int64_t cols, bool in_place) {
  std::vector<float> y = in_place ? x : std::vector<float>(x.size());
  table.rms_norm({in_place ? y.data() : x.data(), weight.data(), y.data(), cols, 1e-6F});
  if (std::isfinite(y[0]))
    CHECK(std::all_of(y.begin() + cols, y.end(), [](float padding) { return padding == 0.0F; }));
  y.resize(size(cols));
  return y;
}

struct StoredQ8 {
  std::vector<int8_t> q;
  std::vector<uint16_t> scales;
  bool operator==(const StoredQ8&) const = default;
};

StoredQ8 stored_q8(const KernelTable& table, const std::vector<float>& x) {
  StoredQ8 result = {std::vector<int8_t>(x.size(), 99), std::vector<uint16_t>(x.size() / 32, 99)};
  table.store_q8(result.q.data(), result.scales.data(), x.data(), static_cast<int64_t>(x.size()));
  return result;
}

// The least float16 that is not below max|x| / 127, found by trying all, and the nearest multiples of it.
bool is_q8_of(const StoredQ8& stored, const std::vector<float>& x) {
  bool right = true;
  for (std::size_t group = 0; group < stored.scales.size(); ++group) {
    float largest = 0.0F;
    for (std::size_t i = 32 * group; i < 32 * group + 32; ++i) largest = std::max(largest, std::abs(x[i]));
    uint16_t half = 0;
    while (isa::half_to_float(half) < largest / 127.0F) ++half;
    right = right && stored.scales[group] == half;
    const double scale = double{isa::half_to_float(half)};
    for (std::size_t i = 32 * group; i < 32 * group + 32; ++i) {
      const double error = std::abs(stored.q[i] * scale - double{x[i]});
      right = right && std::abs(int{stored.q[i]}) <= 127 &&
              (scale == 0.0 ? stored.q[i] == 0 : error <= scale * (0.5 + 127 * 0x1p-24));
    }
  }
  return right;
}

void int8_caches_hold_the_nearest_multiples_of_their_scale() {
  Random random(20);
  for (const float limit : {1e-45F, 1e-38F, 1e-8F, 1e-5F, 1e-3F, 1.0F, 50.0F, 1e4F, 8e6F})
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> x = random_row(random, 32 * random.between(1, 4), limit, false);
      const StoredQ8 expected = stored_q8(portable_kernels(), x);
      CHECK(is_q8_of(expected, x));
      for (const KernelTable* table : test::fast_tables()) CHECK(stored_q8(*table, x) == expected);
    }
  for (const float constant : {0.0F, -0.0F, 1e-45F, 127.0F, -127.0F, 65504.0F, 127.0F * 65504.0F}) {
    const std::vector<float> x(32, constant);
    for (const KernelTable* table : test::all_tables()) CHECK(is_q8_of(stored_q8(*table, x), x));
  }
  // Halfway between two integers, where round-to-even and round-away differ.
  std::vector<float> ties(256), rounded(256);
  for (std::size_t i = 0; i < ties.size(); ++i) {
    ties[i] = i % 32 == 0 ? 127.0F : static_cast<float>(i % 127) - 0.5F;
    rounded[i] = i % 32 == 0 ? 127.0F : static_cast<float>((i % 127) / 2 * 2);
  }
  for (const KernelTable* table : test::all_tables()) {
    const StoredQ8 stored = stored_q8(*table, ties);
    CHECK(std::all_of(stored.scales.begin(), stored.scales.end(),
                      [](uint16_t scale) { return scale == isa::float_to_half(1.0F); }));
    CHECK(std::equal(rounded.begin(), rounded.end(), stored.q.begin(),
                     [](float wanted, int8_t q) { return wanted == static_cast<float>(q); }));
  }
}

void what_no_int8_cache_can_hold_is_not_a_number_in_it() {
  for (const KernelTable* table : test::all_tables())
    for (const float fault : {kNaN, -kNaN, kInfinity, -kInfinity, 127.0F * 65520.0F, -3e38F}) {
      std::vector<float> x(96, 2.0F);
      x[40] = fault;
      const StoredQ8 stored = stored_q8(*table, x);
      CHECK(std::isnan(isa::half_to_float(stored.scales[1])));
      CHECK(std::isfinite(isa::half_to_float(stored.scales[0])) && stored.scales[0] == stored.scales[2]);
      CHECK(std::all_of(stored.q.begin() + 32, stored.q.begin() + 64, [](int8_t q) { return q == 0; }));
    }
}

void norms_are_the_same_in_every_table() {
  Random random(3);
  for (int64_t cols = 1; cols <= 100; ++cols)
    for (const bool special : {false, true}) {
      const std::vector<float> x = random_row(random, cols, random.pick({1e-20F, 1.0F, 1e15F}), special);
      const std::vector<float> weight = random_row(random, cols, 2.0F, false);
      const std::vector<float> expected = normalised(portable_kernels(), x, weight, cols, false);
      for (const KernelTable* table : test::all_tables())
        for (const bool in_place : {false, true})
          CHECK(same(normalised(*table, x, weight, cols, in_place), expected));
      if (special) continue;
      double squares = 0.0;
      for (const float value : x) squares += double{value} * double{value};
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(cols) + double{1e-6F});
      double error = 0.0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        error = std::max(error, std::abs(double{expected[i]} - double{x[i]} * scale * double{weight[i]}));
      // Sums of squares in sixteen chains of at most seven, a tree of four, then five more operations.
      CHECK(error <= 16 * 0x1p-24 * 2.0 * scale * std::sqrt(squares));
    }
}

std::vector<float> gated(const KernelTable& table, GateKind kind, std::vector<float> gate,
                         const std::vector<float>& up) {
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
  const std::vector<float> ones(sweep.size(), 1.0F),
      up = random_row(random, static_cast<int64_t>(sweep.size()), 3.0F, true);
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
    const std::vector<float> x = random_row(random, cols, 1e5F, true),
                             y = random_row(random, cols, 1.0F, true);
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

void heads_rotate_in_the_order_of_their_kind() {
  Random random(1);
  for (const int64_t pairs : {1, 3, 8, 20, 32})
    for (const RopeKind kind : {RopeKind::Adjacent, RopeKind::Halves}) {
      // Columns that are not rotated are still scaled.
      const std::vector<float> before = test::random_floats(random, 2 * pairs + 2, 3.0F);
      std::vector<float> cos, sin;
      for (int64_t i = 0; i < pairs; ++i) {
        cos.push_back(std::cos(static_cast<float>(i) + 0.3F));
        sin.push_back(std::sin(static_cast<float>(i) + 0.3F));
      }
      const auto rotated = [&](const KernelTable& table, float scale) {
        std::vector<float> head = before;
        const auto width = static_cast<int64_t>(head.size());
        table.rotate({kind, head.data(), width, cos.data(), sin.data(), pairs, scale});
        return head;
      };
      const std::vector<float> plain = rotated(portable_kernels(), 1.0F);
      bool right = std::equal(before.end() - 2, before.end(), plain.end() - 2);
      for (int64_t i = 0; i < pairs; ++i) {
        const std::size_t a = size(kind == RopeKind::Adjacent ? 2 * i : i),
                          b = size(kind == RopeKind::Adjacent ? 2 * i + 1 : i + pairs);
        const double c = double{cos[size(i)]}, s = double{sin[size(i)]};
        const double x = double{before[a]}, y = double{before[b]};
        right = right && std::abs(double{plain[a]} - (x * c - y * s)) < 1e-6 &&
                std::abs(double{plain[b]} - (x * s + y * c)) < 1e-6;
      }
      CHECK(right);
      std::vector<float> scaled = plain;
      for (float& column : scaled) column *= 0.3F;
      for (const KernelTable* table : test::all_tables()) {
        CHECK(same(rotated(*table, 1.0F), plain));
        CHECK(same(rotated(*table, 0.3F), scaled));
      }
    }
}

void rows_are_divided_by_one_number() {
  Random random(9);
  for (int64_t cols = 16; cols <= 64; cols += 16) {
    const std::vector<float> x = random_row(random, cols, 1e5F, true);
    for (const float divisor : {3.0F, -0.1F, 0.0F, kNaN}) {
      std::vector<float> expected = x;
      for (float& column : expected) column /= divisor;
      for (const KernelTable* table : test::all_tables()) {
        std::vector<float> y(x.size());
        table->divide(y.data(), x.data(), divisor, cols);
        CHECK(same(y, expected));
      }
    }
  }
}

void peaks_are_the_largest_values_of_finite_rows() {
  Random random(8);
  for (const KernelTable* table : test::all_tables())
    for (int64_t count = 1; count <= 70; ++count) {
      std::vector<float> x = test::random_floats(random, count, 1e30F);
      const Peak peak = table->peak(x.data(), count);
      CHECK(peak.finite && peak.value == *std::max_element(x.begin(), x.end()));
      for (const float fault : {kNaN, kInfinity, -kInfinity}) {
        std::vector<float> faulty = x;
        faulty[size(random.between(0, count - 1))] = fault;
        CHECK(!table->peak(faulty.data(), count).finite);
      }
      for (float& value : x) value = -std::numeric_limits<float>::max();
      CHECK(table->peak(x.data(), count).value == -std::numeric_limits<float>::max());
    }
}

void dot_products_are_counted() {
  for (const KernelTable* table : test::all_tables()) {
    CHECK(table->dot_products(0) == 0);
    CHECK(table->dot_products(3) > 0 && table->dot_products(6) == 2 * table->dot_products(3));
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
  int8_caches_hold_the_nearest_multiples_of_their_scale();
  what_no_int8_cache_can_hold_is_not_a_number_in_it();
  norms_are_the_same_in_every_table();
  gates_are_the_same_in_every_table();
  gates_follow_their_definitions();
  sums_and_stores_are_the_same_in_every_table();
  heads_rotate_in_the_order_of_their_kind();
  rows_are_divided_by_one_number();
  peaks_are_the_largest_values_of_finite_rows();
  dot_products_are_counted();
  return test::tally.finish();
}
