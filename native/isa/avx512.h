// AVX-512 (F, BW, DQ, VL) with VNNI: one register holds the sixteen rows of a tile.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa/pairs.h"

namespace ferrite::isa {

struct Avx512 {
  static constexpr int kLanes = 16;
  static constexpr int kTokens = 8;  // 8 float + 8 int accumulators of 32 registers
  static constexpr int kWideTokens = 8;
  static constexpr int kQueries = 12;
  static constexpr int kRegisters = 32;
  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F select_less(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static F zero_if_less(F a, F b, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), y);
  }
  static F exp2_of_shifted(F t) {
    const I bits = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3F800000)));
  }

  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_f16(uint16_t* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static F load_bf16(const uint16_t* p) {
    const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F load_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  static I set1i(int32_t x) { return _mm512_set1_epi32(x); }
  template <int Shift>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, Shift);
  }
  static I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I round(F a) { return _mm512_cvtps_epi32(a); }
  static void store_i8(int8_t* p, const I (&a)[2]) {
    for (int i = 0; i < 2; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * i), _mm512_cvtepi32_epi8(a[i]));
  }

  // Keeps what made `a` where it stands among other pinned values.
  static void pin(F& a) { asm volatile("" : "+v"(a)); }
  // Keeps the compiler from knowing what a register holds, for measuring.
  static void opaque(B& a) { asm volatile("" : "+v"(a)); }
  static B load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static B broadcast4(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
  }
  template <int Right, int Mask>
  static B field(B a) {
    static_assert(Mask <= 255 >> Right);  // the bits that come from a neighbouring byte
    if constexpr (Right > 0) a = _mm512_srli_epi16(a, Right);
    return _mm512_and_si512(a, _mm512_set1_epi8(Mask));
  }
  static B or_bytes(B a, B b) { return _mm512_or_si512(a, b); }

  template <int Bits, int Offset, int Groups>
  struct Dot {
    using Excess = __m512i;
    __m512i sum = _mm512_setzero_si512();
    template <int Group>
    void add(B w, B x) {
      sum = _mm512_dpbusd_epi32(sum, w, x);
    }
    void pin() {}
    static Excess excess(const PairSums* pairs) { return set1i(excess_sum<Offset, Groups>(pairs)); }
    I total(Excess excess) const { return Offset == 0 ? sum : _mm512_sub_epi32(sum, excess); }
  };
};

// vpdpbusd wants unsigned weights: w + 128 is w with its top bit turned; what that adds, 128 times the sum
// of the activations, is taken off by a second dot product, so the result is exact.
template <int Groups>
struct Avx512::Dot<8, 0, Groups> {
  struct Excess {};
  __m512i sum = _mm512_setzero_si512();
  __m512i above = _mm512_setzero_si512();
  template <int Group>
  void add(B w, B x) {
    const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
    sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(w, top), x);
    above = _mm512_dpbusd_epi32(above, top, x);
  }
  void pin() {}
  static Excess excess(const PairSums*) { return {}; }
  I total(Excess) const { return _mm512_sub_epi32(sum, above); }
};

}  // namespace ferrite::isa
