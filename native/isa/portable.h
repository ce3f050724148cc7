// The oracle: sixteen lanes in plain C++. Every other traits header must give these bits.
//
// A traits struct S offers one register of kLanes 32-bit lanes as F (float), I (int32) and B (4 bytes a
// lane), the operations the kernels are written in, and the exact dot product Dot. Only IEEE
// operations with one defined result are allowed: add, sub, mul, div, sqrt, fma, compare, convert.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa/half.h"
#include "isa/pairs.h"

namespace ferrite::isa {

struct Portable {
  static constexpr int kLanes = 16;
  static constexpr int kTokens = 1;      // tokens one register tile covers
  static constexpr int kWideTokens = 1;  // tokens up to which all sixteen rows share one pass
  static constexpr int kQueries = 2;     // queries of several rows of attention that one pass serves
  static constexpr int kRegisters = 4;   // what a pass can hold
  struct F {
    float v[kLanes];
  };
  struct I {
    int32_t v[kLanes];
  };
  struct B {
    uint8_t v[4 * kLanes];
  };

  template <class Fn>
  static F map(Fn fn) {
    F r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = fn(i);
    return r;
  }

  static F zero() { return set1(0.0F); }
  static F set1(float x) {
    return map([&](int) { return x; });
  }
  static F load(const float* p) {
    return map([&](int i) { return p[i]; });
  }
  static void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
  static F add(F a, F b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  // a * b + c, rounded once.
  static F fma(F a, F b, F c) {
    return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  // a > b ? a : b, so a NaN in either gives b.
  static F max(F a, F b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  // a < b ? x : y, lane by lane.
  static F select_less(F a, F b, F x, F y) {
    return map([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
  }
  // a < b ? 0 : y, lane by lane.
  static F zero_if_less(F a, F b, F y) { return select_less(a, b, zero(), y); }
  // 2^n of a float that holds 1.5 * 2^23 + n.
  static F exp2_of_shifted(F t) {
    return map([&](int i) {
      uint32_t bits;
      std::memcpy(&bits, &t.v[i], sizeof bits);
      bits = (bits << 23) + 0x3F800000U;
      float r;
      std::memcpy(&r, &bits, sizeof r);
      return r;
    });
  }

  static F load_f16(const uint16_t* p) {
    return map([&](int i) { return half_to_float(p[i]); });
  }
  static void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
  }
  static F load_bf16(const uint16_t* p) {
    return map([&](int i) { return bfloat_to_float(p[i]); });
  }
  static F load_u8(const uint8_t* p) {
    return map([&](int i) { return static_cast<float>(p[i]); });
  }
  static F load_i8(const int8_t* p) {
    return map([&](int i) { return static_cast<float>(p[i]); });
  }

  static I set1i(int32_t x) {
    I r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = x;
    return r;
  }
  template <int Shift>
  static I shift_left(I a) {
    for (int i = 0; i < kLanes; ++i) a.v[i] <<= Shift;
    return a;
  }
  static I subi(I a, I b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] -= b.v[i];
    return a;
  }
  static F to_float(I a) {
    return map([&](int i) { return static_cast<float>(a.v[i]); });
  }
  // Nearest integer, ties to even; |a| must be below 2^31.
  static I round(F a) {
    I r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = static_cast<int32_t>(std::nearbyint(a.v[i]));
    return r;
  }
  // 32 integers in -127..127.
  static void store_i8(int8_t* p, const I (&a)[32 / kLanes]) {
    for (int i = 0; i < 32; ++i) p[i] = static_cast<int8_t>(a[i / kLanes].v[i % kLanes]);
  }

  // Keeps what made `a` where it stands among other pinned values.
  static void pin(F&) {}
  // Keeps the compiler from knowing what a register holds, for measuring.
  static void opaque(B& a) { asm volatile("" : "+m"(a)); }
  static B load_bytes(const uint8_t* p) {
    B r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  // The same four bytes in every lane.
  static B broadcast4(const int8_t* p) {
    B r;
    for (int i = 0; i < kLanes; ++i) std::memcpy(r.v + 4 * i, p, 4);
    return r;
  }
  // (a >> Right) & Mask of every byte.
  template <int Right, int Mask>
  static B field(B a) {
    for (uint8_t& x : a.v) x = static_cast<uint8_t>((x >> Right) & Mask);
    return a;
  }
  static B or_bytes(B a, B b) {
    for (int i = 0; i < 4 * kLanes; ++i) a.v[i] |= b.v[i];
    return a;
  }

  // Exact int32 sum over Groups groups of four products a lane: unsigned weights below 2^Bits, or signed when
  // Bits is 8, less Offset each, times int8 activations in -127..127.
  template <int Bits, int Offset, int Groups>
  struct Dot {
    using Excess = I;
    I sum = set1i(0);
    template <int Group>
    void add(B w, B x) {
      for (int i = 0; i < kLanes; ++i)
        for (int c = 0; c < 4; ++c) {
          const int weight = Bits == 8 ? static_cast<int8_t>(w.v[4 * i + c]) : w.v[4 * i + c];
          sum.v[i] += weight * static_cast<int8_t>(x.v[4 * i + c]);
        }
    }
    // For optimising compilers: finish each sum where it stands.
    void pin() {}
    static Excess excess(const PairSums* pairs) { return set1i(excess_sum<Offset, Groups>(pairs)); }
    I total(const Excess& excess) const { return Offset == 0 ? sum : subi(sum, excess); }
  };
};

}  // namespace ferrite::isa
