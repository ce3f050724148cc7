// AArch64 NEON with the int8 dot product (Armv8.2 DotProd): four lanes, four registers a tile.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "isa/pairs.h"

namespace ferrite::isa {

struct Neon {
  static constexpr int kLanes = 4;
  static constexpr int kTokens = 8;      // per register of rows: 8 float + 8 int accumulators of 32
  static constexpr int kWideTokens = 2;  // 2 tokens x 4 registers of rows
  static constexpr int kQueries = 6;     // 6 queries x 4 registers of positions
  static constexpr int kRegisters = 32;
  using F = float32x4_t;
  using I = int32x4_t;
  using B = uint8x16_t;

  static F zero() { return vdupq_n_f32(0.0F); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F a) { vst1q_f32(p, a); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F select_less(F a, F b, F x, F y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
  static F zero_if_less(F a, F b, F y) { return select_less(a, b, zero(), y); }
  static F exp2_of_shifted(F t) {
    const uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    return vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(0x3F800000U)));
  }

  static F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static void store_f16(uint16_t* p, F a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
  static F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static F load_u8(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
  }
  static F load_i8(const int8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }

  static I set1i(int32_t x) { return vdupq_n_s32(x); }
  template <int Shift>
  static I shift_left(I a) {
    return vshlq_n_s32(a, Shift);
  }
  static I subi(I a, I b) { return vsubq_s32(a, b); }
  static F to_float(I a) { return vcvtq_f32_s32(a); }
  static I round(F a) { return vcvtnq_s32_f32(a); }
  static void store_i8(int8_t* p, const I (&a)[8]) {
    for (int i = 0; i < 8; i += 4) {
      const int16x8_t low = vcombine_s16(vqmovn_s32(a[i]), vqmovn_s32(a[i + 1]));
      const int16x8_t high = vcombine_s16(vqmovn_s32(a[i + 2]), vqmovn_s32(a[i + 3]));
      vst1q_s8(p + 4 * i, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    }
  }

  // Keeps what made `a` where it stands among other pinned values.
  static void pin(F& a) { asm volatile("" : "+w"(a)); }
  // Keeps the compiler from knowing what a register holds, for measuring.
  static void opaque(B& a) { asm volatile("" : "+w"(a)); }
  static B load_bytes(const uint8_t* p) { return vld1q_u8(p); }
  static B broadcast4(const int8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return vreinterpretq_u8_u32(vdupq_n_u32(word));
  }
  template <int Right, int Mask>
  static B field(B a) {
    if constexpr (Right > 0) a = vshrq_n_u8(a, Right);
    return Mask == 255 >> Right ? a : vandq_u8(a, vdupq_n_u8(Mask));
  }
  static B or_bytes(B a, B b) { return vorrq_u8(a, b); }

  // sdot takes signed bytes; unsigned weights below 2^7 are the same bytes.
  template <int Bits, int Offset, int Groups>
  struct Dot {
    using Excess = int32x4_t;
    int32x4_t sum = vdupq_n_s32(0);
    template <int Group>
    void add(B w, B x) {
      sum = vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
    }
    void pin() {}
    static Excess excess(const PairSums* pairs) { return vdupq_n_s32(excess_sum<Offset, Groups>(pairs)); }
    I total(Excess excess) const { return Offset == 0 ? sum : vsubq_s32(sum, excess); }
  };
};

}  // namespace ferrite::isa
