// Matrix products of every kernel table against the portable one, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/tables.h"

namespace ferrite {
namespace {

using quant::Type;
using quant::TypeInfo;
using test::Numbers;
using test::Random;

int64_t padded(int64_t count) {
  return (count + 15) / 16 * 16;
}

// Tiles without the padding that mapped memory has behind it, so that a sanitizer sees one byte too far.
struct Tiles {
  Tiles(const TypeInfo& type_info, const std::vector<uint8_t>& file, int64_t n_rows, int64_t n_cols)
      : type(type_info), rows(n_rows), cols(n_cols), bytes(n_cols / type.block_cols * type.unit_bytes) {
    const int64_t units = cols / type.block_cols;
    const int64_t row_bytes = units * type.block_bytes;
    data.resize(static_cast<std::size_t>(count() * bytes));
    for (int64_t tile = 0; tile < count(); ++tile)
      type.pack(file.data() + tile * 16 * row_bytes, row_bytes,
                static_cast<int>(std::min<int64_t>(16, rows - tile * 16)), units, data.data() + tile * bytes);
  }
  int64_t count() const { return padded(rows) / 16; }

  const TypeInfo& type;
  int64_t rows, cols, bytes;
  std::vector<uint8_t> data;
};

enum class Form { Float, OneTerm, TwoTerms };

// What a type takes; quantised ones take either form.
Form random_form(Random& random, const TypeInfo& type) {
  return !type.quantised ? Form::Float : random.chance() ? Form::OneTerm : Form::TwoTerms;
}

struct Activations {
  Activations(const std::vector<float>& values, int64_t tokens, int64_t n_cols, Form form)
      : stride(padded(n_cols)), cols(n_cols) {
    x.assign(static_cast<std::size_t>(tokens * stride), 0.0F);
    for (int64_t t = 0; t < tokens; ++t) std::copy_n(values.data() + t * cols, cols, x.data() + t * stride);
    if (form == Form::Float) return;
    q.resize(static_cast<std::size_t>(tokens * cols));
    pairs.resize(q.size() / 16);
    if (form == Form::TwoTerms) {
      residual = q;
      residual_pairs = pairs;
    }
    scale.resize(static_cast<std::size_t>(tokens * cols / 32));
    sum.resize(scale.size());
    for (int64_t t = 0; t < tokens; ++t)
      portable_kernels().quantize_row(x.data() + t * stride, cols, rows(t).quant);
  }
  // The rows from `token` on.
  Rows rows(int64_t token) {
    if (q.empty()) return {x.data() + token * stride, stride, cols, {}};
    const int64_t at = token * cols;
    const Int8Rows second =
        residual.empty() ? Int8Rows{} : Int8Rows{residual.data() + at, residual_pairs.data() + at / 16};
    return {x.data() + token * stride,
            stride,
            cols,
            {{q.data() + at, pairs.data() + at / 16}, scale.data() + at / 32, sum.data() + at / 32, second}};
  }
  double value(int64_t token, int64_t col) const {
    if (q.empty()) return double{x[static_cast<std::size_t>(token * stride + col)]};
    const auto at = static_cast<std::size_t>(token * cols + col);
    return double{scale[at / 32]} * (residual.empty() ? q[at] : kResidual * q[at] + residual[at]);
  }

  int64_t stride, cols;
  std::vector<float> x, scale, sum;
  std::vector<int8_t> q, residual;
  std::vector<PairSums> pairs, residual_pairs;
};

struct Options {
  int64_t tile_begin, tile_end;
  const std::vector<float>* bias;
  bool accumulate;
};

void multiply(const KernelTable& table, const Tiles& tiles, const Rows& in, int64_t tokens,
              const Options& options, std::vector<float>& out) {
  MatmulArgs args = {};
  args.tiles = tiles.data.data();
  args.tile_bytes = tiles.bytes;
  args.tile_begin = options.tile_begin;
  args.tile_end = options.tile_end;
  args.cols = tiles.cols;
  args.in = in;
  args.tokens = tokens;
  args.out = out.data();
  args.out_stride = padded(tiles.rows);
  args.bias = options.bias == nullptr ? nullptr : options.bias->data();
  args.accumulate = options.accumulate;
  table.matmul[static_cast<std::size_t>(tiles.type.type)](args);
}

std::vector<const TypeInfo*> types() {
  std::vector<const TypeInfo*> all;
  for (int32_t i = 0; i < quant::kTypeCount; ++i) all.push_back(&quant::info(static_cast<Type>(i)));
  return all;
}

int64_t random_cols(Random& random, const TypeInfo& type) {
  return type.block_cols == 1 ? random.between(1, 70)
                              : type.block_cols * random.between(1, type.block_cols == 32 ? 6 : 2);
}

// `out` starts as `before`, so that rows outside the tile range must stay and accumulation has something to
// add to.
void compare(const Tiles& tiles, Activations& in, int64_t tokens, const Options& options,
             const std::vector<float>& before) {
  std::vector<float> expected = before;
  multiply(portable_kernels(), tiles, in.rows(0), tokens, options, expected);
  for (const KernelTable* table : test::fast_tables()) {
    std::vector<float> out = before;
    multiply(*table, tiles, in.rows(0), tokens, options, out);
    const bool equal = test::same(out, expected);
    CHECK(equal);
    if (!equal)
      std::fprintf(stderr, "  %s %s rows %ld cols %ld tokens %ld\n", table->name, tiles.type.name,
                   long(tiles.rows), long(tiles.cols), long(tokens));
  }
}

void random_case(Random& random, const TypeInfo& type, int64_t rows, int64_t tokens, Numbers weights,
                 Numbers inputs) {
  const int64_t cols = random_cols(random, type);
  const Tiles tiles(type, test::random_matrix(random, type, rows, cols, weights), rows, cols);
  std::vector<float> values(static_cast<std::size_t>(tokens * cols));
  for (float& value : values) value = test::random_float(random, inputs);
  Activations in(values, tokens, cols, random_form(random, type));
  const std::vector<float> bias = test::random_floats(random, padded(rows), 3.0F);
  Options options = {0, tiles.count(), random.chance() ? &bias : nullptr, random.chance()};
  if (random.chance()) {
    options.tile_begin = random.between(0, tiles.count());
    options.tile_end = random.between(options.tile_begin, tiles.count());
  }
  compare(tiles, in, tokens, options, test::random_floats(random, tokens * padded(rows), 5.0F));
}

void every_remainder_of_rows_and_tokens_gives_the_portable_bits() {
  Random random(1);
  for (const TypeInfo* type : types())
    for (int64_t i = 0; i < 100; ++i)
      random_case(random, *type, 1 + i % 50, 1 + i * 7 % 20, Numbers::Usual, Numbers::Usual);
}

void token_blocks_give_the_portable_bits() {
  Random random(2);
  for (const TypeInfo* type : types())
    for (const int64_t tokens : {63, 64, 65, 71, 130})
      random_case(random, *type, 20, tokens, Numbers::Usual, Numbers::Usual);
}

void extreme_numbers_give_the_portable_bits() {
  Random random(3);
  for (const TypeInfo* type : types())
    for (const Numbers weights : {Numbers::Usual, Numbers::Extreme, Numbers::Zero, Numbers::NotFinite})
      for (const Numbers inputs : {Numbers::Usual, Numbers::Extreme, Numbers::Zero, Numbers::NotFinite})
        for (int i = 0; i < 3; ++i)
          random_case(random, *type, random.between(1, 40), random.between(1, 9), weights, inputs);
}

// Quants at the ends of their range times activations of -127 or 127: where an int16 sum would overflow.
void the_largest_products_give_the_portable_bits() {
  Random random(4);
  for (const TypeInfo* type : types()) {
    if (!type->quantised) continue;
    for (const int byte : {0x00, 0x0F, 0xF0, 0x7F, 0x80, 0x81, 0xFF}) {
      const int64_t rows = 17, tokens = 9, cols = type->block_cols * 2;
      std::vector<uint8_t> file = test::random_matrix(random, *type, rows, cols, Numbers::Usual);
      const std::size_t block = static_cast<std::size_t>(type->block_bytes);
      // The float16 scales stand in the first four bytes, or in Q6_K's last two.
      for (std::size_t i = 0; i < file.size(); ++i)
        if (i % block >= 4 && i % block < block - 2) file[i] = static_cast<uint8_t>(byte);
      const Tiles tiles(*type, file, rows, cols);
      for (const bool alternating : {false, true}) {
        std::vector<float> values(static_cast<std::size_t>(tokens * cols), 1.0F);
        for (std::size_t i = 0; i < values.size(); ++i)
          if (alternating && random.chance()) values[i] = -1.0F;
        for (int64_t c = 0; c < cols; ++c) values[static_cast<std::size_t>(c)] = -1.0F;
        for (const Form form : {Form::OneTerm, Form::TwoTerms}) {
          Activations in(values, tokens, cols, form);
          compare(tiles, in, tokens, {0, tiles.count(), nullptr, false},
                  std::vector<float>(static_cast<std::size_t>(tokens * 32)));
        }
      }
    }
  }
}

void a_token_has_the_same_bits_in_every_batch() {
  Random random(5);
  constexpr int64_t kTokens = 21, kRows = 33;
  for (const KernelTable* table : test::all_tables())
    for (const TypeInfo* type : types()) {
      const int64_t cols = random_cols(random, *type);
      const Tiles tiles(*type, test::random_matrix(random, *type, kRows, cols, Numbers::Usual), kRows, cols);
      Activations in(test::random_floats(random, kTokens * cols, 4.0F), kTokens, cols,
                     random_form(random, *type));
      const int64_t stride = padded(kRows);
      const Options options = {0, tiles.count(), nullptr, false};
      std::vector<float> alone(static_cast<std::size_t>(kTokens * stride));
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<float> row(static_cast<std::size_t>(stride));
        multiply(*table, tiles, in.rows(t), 1, options, row);
        std::copy(row.begin(), row.end(), alone.begin() + t * stride);
      }
      for (int64_t tokens = 1; tokens <= kTokens; ++tokens) {
        std::vector<float> together(static_cast<std::size_t>(tokens * stride));
        multiply(*table, tiles, in.rows(0), tokens, options, together);
        CHECK(std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)) == 0);
      }
    }
}

// The definition in double: what the portable table itself must be near.
void products_are_those_of_the_weights() {
  Random random(6);
  for (int i = 0; i < 2 * quant::kTypeCount; ++i) {
    const TypeInfo* type = types()[static_cast<std::size_t>(i / 2)];
    const Form form = !type->quantised ? Form::Float : i % 2 == 0 ? Form::OneTerm : Form::TwoTerms;
    const int64_t rows = 19, tokens = 5, cols = type->block_cols == 1 ? 45 : 256;
    const Tiles tiles(*type, test::random_matrix(random, *type, rows, cols, Numbers::Usual), rows, cols);
    Activations in(test::random_floats(random, tokens * cols, 2.0F), tokens, cols, form);
    const std::vector<float> bias = test::random_floats(random, padded(rows), 1.0F);
    const std::vector<float> before = test::random_floats(random, tokens * padded(rows), 1.0F);
    std::vector<float> out = before;
    multiply(portable_kernels(), tiles, in.rows(0), tokens, {0, tiles.count(), &bias, true}, out);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> row(static_cast<std::size_t>(cols));
      type->unpack_row(tiles.data.data() + r / 16 * tiles.bytes, static_cast<int>(r % 16),
                       cols / type->block_cols, row.data());
      for (int64_t t = 0; t < tokens; ++t) {
        const auto at = static_cast<std::size_t>(t * padded(rows) + r);
        double sum = double{before[at]} + double{bias[static_cast<std::size_t>(r)]};
        double magnitude = std::abs(double{before[at]}) + std::abs(double{bias[static_cast<std::size_t>(r)]});
        for (int64_t c = 0; c < cols; ++c) {
          const double product = double{row[static_cast<std::size_t>(c)]} * in.value(t, c);
          sum += product;
          magnitude += std::abs(product);
        }
        // At most `cols` roundings in the chain, one in each scale product and sum, two for bias and
        // accumulation.
        CHECK(std::abs(double{out[at]} - sum) <= static_cast<double>(cols + 4) * 0x1p-24 * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  every_remainder_of_rows_and_tokens_gives_the_portable_bits();
  token_blocks_give_the_portable_bits();
  extreme_numbers_give_the_portable_bits();
  the_largest_products_give_the_portable_bits();
  a_token_has_the_same_bits_in_every_batch();
  products_are_those_of_the_weights();
  return test::tally.finish();
}
