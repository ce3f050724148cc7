// 16-bit float conversions against their definition and against the CPU's own.
#include "isa/half.h"

#include <cmath>
#include <vector>

#include "tests/check.h"
#include "tests/random.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ferrite {
namespace {

using isa::bfloat_to_float;
using isa::float_to_half;
using isa::half_to_float;

uint32_t bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

#if defined(__x86_64__)
bool hardware() {
  return __builtin_cpu_supports("f16c") != 0;
}
[[gnu::target("avx,f16c")]] float widen(uint16_t half) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}
[[gnu::target("avx,f16c")]] uint16_t narrow(float value) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT)));
}
#elif defined(__aarch64__)
bool hardware() {
  return true;
}
float widen(uint16_t half) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}
uint16_t narrow(float value) {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(value))), 0);
}
#else
bool hardware() {
  return false;
}
float widen(uint16_t) {
  return 0.0F;
}
uint16_t narrow(float) {
  return 0;
}
#endif

// IEEE 754 binary16 by its formula.
double defined_value(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_finite(uint16_t half) {
  return (half & 0x7C00) != 0x7C00;
}

void every_half_widens_to_its_value() {
  int wrong = 0, unlike_hardware = 0, lost = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float value = half_to_float(half);
    if (is_finite(half)) {
      wrong += double{value} != defined_value(half) || std::signbit(value) != (half >= 0x8000);
    } else {
      wrong += std::isinf(value) != ((half & 0x3FF) == 0) || std::isnan(value) != ((half & 0x3FF) != 0);
    }
    if (hardware()) unlike_hardware += bits(widen(half)) != bits(value);
    const auto quiet = static_cast<uint16_t>(std::isnan(value) ? half | 0x200 : half);
    lost += float_to_half(value) != quiet;
  }
  CHECK(wrong == 0);
  CHECK(unlike_hardware == 0);
  CHECK(lost == 0);
}

// No half lies nearer, and of two equally near the even one was taken.
bool is_nearest(float value, uint16_t half) {
  const double target = std::abs(double{value});
  const auto magnitude = static_cast<uint16_t>(half & 0x7FFF);
  const auto at = [](int h) { return h == 0x7C00 ? 65536.0 : defined_value(static_cast<uint16_t>(h)); };
  const double own = std::abs(target - at(magnitude));
  for (const int other : {magnitude - 1, magnitude + 1}) {
    if (other < 0 || other > 0x7C00) continue;
    const double distance = std::abs(target - at(other));
    if (distance < own || (distance == own && (magnitude & 1) != 0)) return false;
  }
  return std::signbit(value) == ((half & 0x8000) != 0);
}

void floats_narrow_to_the_nearest_half() {
  std::vector<uint32_t> patterns;
  // Around every half and around the middle between it and the next.
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    const uint32_t exact = bits(half_to_float(static_cast<uint16_t>(half)));
    const uint32_t next =
        half == 0x7BFF ? bits(65536.0F) : bits(half_to_float(static_cast<uint16_t>(half + 1)));
    const uint32_t middle = bits((std::bit_cast<float>(exact) + std::bit_cast<float>(next)) / 2);
    for (const uint32_t near : {exact, middle})
      for (const uint32_t offset : {0xFFFFFFFFU, 0U, 1U})
        if (near + offset <= 0x7F800000U) patterns.push_back(near + offset);
  }
  test::Random random(1);
  for (int i = 0; i < 300000; ++i) patterns.push_back(static_cast<uint32_t>(random.bits()) & 0x7FFFFFFFU);
  for (const float special : test::kSpecialFloats) patterns.push_back(bits(special) & 0x7FFFFFFFU);
  for (const uint32_t nan : {0x7F800001U, 0x7FBFFFFFU, 0x7FC00000U, 0x7FFFFFFFU, 0x7F802000U})
    patterns.push_back(nan);

  int wrong = 0, unlike_hardware = 0;
  for (const uint32_t pattern : patterns)
    for (const uint32_t sign : {0U, 0x80000000U}) {
      const float value = std::bit_cast<float>(pattern | sign);
      const uint16_t half = float_to_half(value);
      if (std::isnan(value)) {
        wrong += !std::isnan(half_to_float(half));
      } else if (std::abs(value) >= 65536.0F) {
        wrong += half != ((sign != 0 ? 0xFC00 : 0x7C00));
      } else {
        wrong += !is_nearest(value, half);
      }
      if (hardware()) unlike_hardware += narrow(value) != half;
    }
  CHECK(wrong == 0);
  CHECK(unlike_hardware == 0);
}

void every_bfloat_is_the_top_half_of_a_float() {
  int wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) wrong += bits(bfloat_to_float(static_cast<uint16_t>(i))) != i << 16;
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  every_half_widens_to_its_value();
  floats_narrow_to_the_nearest_half();
  every_bfloat_is_the_top_half_of_a_float();
  return test::tally.finish();
}
