// Seeded random inputs of the native tests, the same numbers on every platform.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "quant/types.h"

namespace ferrite::test {

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  // Both ends included.
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(bits() % static_cast<uint64_t>(last - first + 1));
  }
  bool chance() { return (bits() >> 63) != 0; }
  // In [-limit, limit).
  float uniform(float limit) { return (static_cast<float>(bits() >> 40) * 0x1p-23F - 1.0F) * limit; }
  template <class T, std::size_t N>
  T pick(const T (&choices)[N]) {
    return choices[bits() % N];
  }

 private:
  uint64_t state_;
};

inline std::vector<float> random_floats(Random& random, int64_t count, float limit) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = random.uniform(limit);
  return values;
}

// What a kernel may meet and a uniform draw never shows.
inline constexpr float kSpecialFloats[] = {0.0F,
                                           -0.0F,
                                           1.0F,
                                           -1.0F,
                                           std::numeric_limits<float>::denorm_min(),
                                           -1e-40F,
                                           std::numeric_limits<float>::min(),
                                           1e-30F,
                                           -9.9e-31F,
                                           87.3F,
                                           -87.3F,
                                           88.7F,
                                           -88.8F,
                                           65504.0F,
                                           -65520.0F,
                                           1e20F,
                                           -1e20F,
                                           std::numeric_limits<float>::max(),
                                           std::numeric_limits<float>::lowest(),
                                           std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity(),
                                           std::numeric_limits<float>::quiet_NaN()};

// The same bits, or two NaNs: which NaN comes out of an operation is not part of the contract.
inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = same(a[i], b[i]);
  return equal;
}

// How the numbers that scale a block are drawn; the quants are always any bits.
enum class Numbers { Usual, Small, Extreme, Zero, NotFinite };

// A float16: for Usual between 2^-12 and 2, for Small between 2^-9 and 2^-7, for Extreme any that is finite.
inline uint16_t random_half(Random& random, Numbers numbers) {
  const auto sign = static_cast<uint16_t>(random.chance() ? 0x8000 : 0);
  const auto mantissa = static_cast<uint16_t>(random.between(0, 0x3FF));
  const auto number = [&](int64_t exponent) {
    return static_cast<uint16_t>(sign | (exponent << 10) | mantissa);
  };
  switch (numbers) {
    case Numbers::Usual:
      return number(random.between(3, 15));
    case Numbers::Small:
      return number(random.between(6, 7));
    case Numbers::Extreme:
      return random.chance() ? number(random.between(0, 30))
                             : random.pick<uint16_t>({0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF});
    case Numbers::Zero:
      return sign;
    case Numbers::NotFinite:
      return random.chance() ? number(31) : static_cast<uint16_t>(sign | 0x7C00);
  }
  return 0;
}

inline float random_float(Random& random, Numbers numbers) {
  switch (numbers) {
    case Numbers::Usual:
      return random.uniform(1.0F);
    case Numbers::Small:
      return random.uniform(0.125F);
    case Numbers::Extreme: {
      const float any = std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
      return std::isfinite(any) ? any : std::numeric_limits<float>::max();
    }
    case Numbers::Zero:
      return random.chance() ? 0.0F : -0.0F;
    case Numbers::NotFinite:
      return random.pick(
          {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0F});
  }
  return 0.0F;
}

template <class T>
void put(std::vector<uint8_t>& bytes, std::size_t at, T value) {
  const auto raw = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
  for (std::size_t i = 0; i < raw.size(); ++i) bytes[at + i] = raw[i];
}

// A matrix as a GGUF file holds it.
inline std::vector<uint8_t> random_matrix(Random& random, const quant::TypeInfo& type, int64_t rows,
                                          int64_t cols, Numbers numbers) {
  const auto blocks = static_cast<std::size_t>(rows * (cols / type.block_cols));
  const auto block_bytes = static_cast<std::size_t>(type.block_bytes);
  std::vector<uint8_t> file(blocks * block_bytes);
  for (uint8_t& byte : file) byte = static_cast<uint8_t>(random.bits());
  for (std::size_t at = 0; at < file.size(); at += block_bytes) switch (type.type) {
      case quant::Type::F32:
        put(file, at, random_float(random, numbers));
        break;
      case quant::Type::BF16:
        put(file, at, static_cast<uint16_t>(std::bit_cast<uint32_t>(random_float(random, numbers)) >> 16));
        break;
      case quant::Type::Q4_1:
      case quant::Type::Q5_1:
      case quant::Type::Q4_K:
      case quant::Type::Q5_K:
        put(file, at, random_half(random, numbers));
        put(file, at + 2, random_half(random, numbers));
        break;
      case quant::Type::Q6_K:
        put(file, at + 208, random_half(random, numbers));
        break;
      default:
        put(file, at, random_half(random, numbers));
    }
  return file;
}

}  // namespace ferrite::test
