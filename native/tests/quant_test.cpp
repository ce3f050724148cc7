// Packed weights read back against the GGUF block formats, de-quantised here from their definition.
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "runtime/weight.h"
#include "tests/check.h"
#include "tests/random.h"

namespace ferrite {
namespace {

using quant::Type;
using test::Numbers;
using test::Random;

double half_at(const uint8_t* p) {
  const int bits = p[0] | (p[1] << 8);
  const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

int nibble(const uint8_t* bytes, int index, int half) {
  return half == 0 ? bytes[index] % 16 : bytes[index] / 16;
}
int bit(const uint8_t* bytes, int index) {
  return bytes[index / 8] >> (index % 8) & 1;
}

// Weight `i` of a block of 32: the first sixteen quants are the low nibbles.
int quant_of_32(const uint8_t* nibbles, int i) {
  return nibble(nibbles, i % 16, i / 16);
}

// Weight `i` of a block of 256 in the k-formats with nibbles: 64 at a time, low nibbles first.
int quant_of_256(const uint8_t* nibbles, int i) {
  return nibble(nibbles + i / 64 * 32, i % 32, i % 64 / 32);
}

// The six-bit scale (which = 0) or minimum (which = 1) of sub-block s, packed into twelve bytes.
int six_bits(const uint8_t* packed, int s, int which) {
  if (s < 4) return packed[4 * which + s] & 63;
  return nibble(packed, 4 + s, which) + 16 * (packed[4 * which + s - 4] / 64);
}

// Exact in double: every product and sum of these numbers has fewer than 53 bits.
double weight_of(Type type, const uint8_t* block, int i) {
  const double d = half_at(block);
  switch (type) {
    case Type::F32: {
      float value;
      std::memcpy(&value, block, 4);
      return value;
    }
    case Type::F16:
      return d;
    case Type::BF16: {
      const uint32_t bits = static_cast<uint32_t>(block[0] | (block[1] << 8)) << 16;
      return std::bit_cast<float>(bits);
    }
    case Type::Q4_0:
      return d * (quant_of_32(block + 2, i) - 8);
    case Type::Q4_1:
      return d * quant_of_32(block + 4, i) + half_at(block + 2);
    case Type::Q5_0:
      return d * (quant_of_32(block + 6, i) + 16 * bit(block + 2, i) - 16);
    case Type::Q5_1:
      return d * (quant_of_32(block + 8, i) + 16 * bit(block + 4, i)) + half_at(block + 2);
    case Type::Q8_0:
      return d * static_cast<int8_t>(block[2 + i]);
    case Type::Q4_K:
      return d * six_bits(block + 4, i / 32, 0) * quant_of_256(block + 16, i) -
             half_at(block + 2) * six_bits(block + 4, i / 32, 1);
    case Type::Q5_K: {
      const int quant = quant_of_256(block + 48, i) + 16 * (block[16 + i % 32] >> (i / 32) & 1);
      return d * six_bits(block + 4, i / 32, 0) * quant - half_at(block + 2) * six_bits(block + 4, i / 32, 1);
    }
    case Type::Q6_K: {
      // 128 weights share 64 bytes of low nibbles and 32 of upper bit pairs.
      const int part = i / 128, run = i % 128 / 32, column = i % 32;
      const int low = nibble(block + 64 * part, 32 * (run % 2) + column, run / 2);
      const int high = block[128 + 32 * part + column] >> (2 * run) & 3;
      const auto scale = static_cast<int8_t>(block[192 + i / 16]);
      return half_at(block + 208) * scale * (low + 16 * high - 32);
    }
  }
  return 0.0;
}

bool reads_back(const Weight& weight, const quant::TypeInfo& type, int64_t rows, int64_t cols,
                const std::vector<uint8_t>& file) {
  if (weight.rows() != rows || weight.cols() != cols || weight.type().type != type.type) return false;
  const int64_t row_bytes = cols / type.block_cols * type.block_bytes;
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    weight.read_row(r, row.data());
    for (int64_t c = 0; c < cols; ++c) {
      const uint8_t* block = file.data() + r * row_bytes + c / type.block_cols * type.block_bytes;
      const auto expected =
          static_cast<float>(weight_of(type.type, block, static_cast<int>(c % type.block_cols)));
      if (!(row[static_cast<std::size_t>(c)] == expected)) return false;
    }
  }
  return true;
}

void packed_rows_read_back_as_the_file_defines_them() {
  Random random(1);
  Team team(2);
  for (int32_t i = 0; i < quant::kTypeCount; ++i) {
    const quant::TypeInfo& type = quant::info(static_cast<Type>(i));
    for (int64_t rows = 1; rows <= 50; ++rows) {
      const int64_t cols =
          type.block_cols == 1 ? random.between(1, 40) : type.block_cols * random.between(1, 3);
      const Numbers numbers = rows % 2 == 0 ? Numbers::Usual : Numbers::Extreme;
      const std::vector<uint8_t> file = test::random_matrix(random, type, rows, cols, numbers);
      CHECK(reads_back(Weight::pack(file, type.ggml_type, rows, cols, team), type, rows, cols, file));
    }
  }
}

void matrices_packed_together_read_back() {
  Random random(3);
  Team team(2);
  std::vector<std::vector<uint8_t>> files;
  std::vector<FileMatrix> matrices;
  for (int32_t i = 0; i < 3 * quant::kTypeCount; ++i) {
    const quant::TypeInfo& type = quant::info(static_cast<Type>(i % quant::kTypeCount));
    const int64_t rows = random.between(1, 40), cols = type.block_cols * random.between(1, 9);
    files.push_back(test::random_matrix(random, type, rows, cols, Numbers::Usual));
    matrices.push_back({files.back(), type.ggml_type, rows, cols});
  }
  std::vector<Weight> weights = Weight::pack(matrices, Source::Memory, team);
  CHECK(weights.size() == matrices.size());
  weights.erase(weights.begin());  // the memory is still that of the others
  for (std::size_t i = 1; i < matrices.size(); ++i)
    CHECK(reads_back(weights[i - 1], *quant::find_type(matrices[i].ggml_type), matrices[i].rows,
                     matrices[i].cols, files[i]));
}

void rows_beyond_the_matrix_are_zero() {
  Random random(2);
  Team team(1);
  for (int32_t i = 0; i < quant::kTypeCount; ++i) {
    const quant::TypeInfo& type = quant::info(static_cast<Type>(i));
    const int64_t cols = type.block_cols == 1 ? 7 : type.block_cols;
    const Weight weight = Weight::pack(test::random_matrix(random, type, 3, cols, Numbers::Usual),
                                       type.ggml_type, 3, cols, team);
    std::vector<float> row(static_cast<std::size_t>(cols));
    int other = 0;
    for (int missing = 3; missing < 16; ++missing) {
      type.unpack_row(weight.data(), missing, cols / type.block_cols, row.data());
      for (const float value : row) other += value != 0.0F;
    }
    CHECK(other == 0);
  }
}

void types_are_found_by_their_number_in_the_file() {
  const std::vector<int32_t> numbers = {0, 1, 30, 2, 3, 6, 7, 8, 12, 13, 14};
  for (int32_t i = 0; i < quant::kTypeCount; ++i) {
    const quant::TypeInfo& type = quant::info(static_cast<Type>(i));
    CHECK(type.type == static_cast<Type>(i));
    CHECK(type.ggml_type == numbers[static_cast<std::size_t>(i)]);
    CHECK(quant::find_type(type.ggml_type) == &type);
  }
  for (const int32_t unknown : {-1, 4, 5, 9, 10, 11, 15, 16, 29, 31, 1000})
    CHECK(quant::find_type(unknown) == nullptr);
}

void data_that_does_not_fit_is_refused() {
  Team team(1);
  const auto pack = [&](std::size_t bytes, int32_t type, int64_t rows, int64_t cols) {
    const std::vector<uint8_t> file(bytes);
    return Weight::pack(file, type, rows, cols, team).bytes();
  };
  constexpr int32_t kF32 = 0, kQ4_0 = 2, kQ4_K = 12;
  CHECK(pack(4 * 6, kF32, 2, 3) == 3 * 64);
  CHECK_THROWS(pack(4 * 6, 9, 2, 3), std::invalid_argument);
  CHECK_THROWS(pack(0, kF32, 0, 3), std::invalid_argument);
  CHECK_THROWS(pack(0, kF32, 3, 0), std::invalid_argument);
  CHECK_THROWS(pack(4 * 6, kF32, -2, -3), std::invalid_argument);
  CHECK_THROWS(pack(18, kQ4_0, 1, 31), std::invalid_argument);
  CHECK_THROWS(pack(144, kQ4_K, 1, 32), std::invalid_argument);
  CHECK_THROWS(pack(4 * 6 - 1, kF32, 2, 3), std::invalid_argument);
  CHECK_THROWS(pack(4 * 6 + 1, kF32, 2, 3), std::invalid_argument);
  CHECK_THROWS(pack(4 * 9, kF32, 2, 3), std::invalid_argument);
  CHECK_THROWS(pack(0, kF32, 1, 1), std::invalid_argument);
  // Sizes whose product passes 2^63 must be refused before they are multiplied.
  CHECK_THROWS(pack(16, kF32, 1, int64_t{1} << 62), std::invalid_argument);
  CHECK_THROWS(pack(16, kF32, int64_t{1} << 62, 4), std::invalid_argument);
  CHECK_THROWS(pack(18, kQ4_0, 1, (int64_t{1} << 62) + 32), std::invalid_argument);
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  packed_rows_read_back_as_the_file_defines_them();
  matrices_packed_together_read_back();
  rows_beyond_the_matrix_are_zero();
  types_are_found_by_their_number_in_the_file();
  data_that_does_not_fit_is_refused();
  return test::tally.finish();
}
