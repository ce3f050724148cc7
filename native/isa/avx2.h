// AVX2 with FMA and F16C: eight lanes, two registers for the sixteen rows of a tile.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa/pairs.h"

namespace ferrite::isa {

struct Avx2 {
  static constexpr int kLanes = 8;
  // The dot products of 4 tokens x 2 registers of rows, with what they are made from, fill the 16 registers;
  // the float sums wait in memory meanwhile. Every broadcast of an activation serves both halves of the tile.
  static constexpr int kTokens = 4;
  static constexpr int kWideTokens = 4;
  // Attention: 6 queries x 2 registers of positions or columns, two keys and a query fill the registers.
  static constexpr int kQueries = 6;
  static constexpr int kRegisters = 16;
  using F = __m256;
  using I = __m256i;
  using B = __m256i;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F select_less(F a, F b, F x, F y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
  static F zero_if_less(F a, F b, F y) { return _mm256_andnot_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), y); }
  static F exp2_of_shifted(F t) {
    const I bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3F800000)));
  }

  static F load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_f16(uint16_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static F load_bf16(const uint16_t* p) {
    const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F load_u8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_i8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }

  static I set1i(int32_t x) { return _mm256_set1_epi32(x); }
  template <int Shift>
  static I shift_left(I a) {
    return _mm256_slli_epi32(a, Shift);
  }
  static I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static I round(F a) { return _mm256_cvtps_epi32(a); }
  // One store, so that who reads half of it right away need not wait until it is in the cache.
  static void store_i8(int8_t* p, const I (&a)[4]) {
    const I bytes = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(a[2], a[3]));
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing keeps to halves of a register
    _mm256_storeu_si256(reinterpret_cast<I*>(p), _mm256_permutevar8x32_epi32(bytes, order));
  }

  // Keeps what made `a` where it stands among other pinned values.
  static void pin(F& a) { asm volatile("" : "+x"(a)); }
  // Keeps the compiler from knowing what a register holds, for measuring.
  static void opaque(B& a) { asm volatile("" : "+x"(a)); }
  static B load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static B broadcast4(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
  }
  template <int Right, int Mask>
  static B field(B a) {
    static_assert(Mask <= 255 >> Right);  // the bits that come from a neighbouring byte
    if constexpr (Right > 0) a = _mm256_srli_epi16(a, Right);
    return _mm256_and_si256(a, _mm256_set1_epi8(Mask));
  }
  static B or_bytes(B a, B b) { return _mm256_or_si256(a, b); }

  // vpmaddubsw adds two products into 16 bits, and 16-bit sums wrap: as long as the sum without the offset
  // fits, the steps on the way there need not, and one vpmaddwd widens it.
  template <int Bits, int Offset, int Groups>
  struct Dot {
    static_assert((Offset == 0 ? (1 << Bits) - 1 : Offset) * 127 * 2 * Groups <= 32767);
    static_assert(Offset == 0 || Offset == 1 << (Bits - 1));
    using Excess = __m256i;  // int16, what Offset adds to each half of a lane
    __m256i sum = _mm256_setzero_si256();
    template <int Group>
    void add(B w, B x) {
      const __m256i pairs = _mm256_maddubs_epi16(w, x);
      sum = Group == 0 ? pairs : _mm256_add_epi16(sum, pairs);
    }
    // GCC would rather compute all products first, and keep them in memory.
    void pin() { asm volatile("" : "+x"(sum)); }
    static Excess excess(const PairSums* pairs) {
      if constexpr (Offset == 0) return _mm256_setzero_si256();
      __m256i both = broadcast(pairs[0]);
      if constexpr (Groups == 8) both = _mm256_add_epi16(both, broadcast(pairs[1]));
      return _mm256_slli_epi16(both, Bits - 1);
    }
    I total(Excess excess) const {
      const __m256i centred = Offset == 0 ? sum : _mm256_sub_epi16(sum, excess);
      return _mm256_madd_epi16(centred, _mm256_set1_epi16(1));
    }
    static __m256i broadcast(const PairSums& pairs) {
      int32_t word;
      std::memcpy(&word, &pairs, sizeof word);
      return _mm256_set1_epi32(word);
    }
  };
};

// Five bits without an offset need seventeen: take 16 off each weight, and give it back in 32 bits.
template <>
struct Avx2::Dot<5, 0, 8> {
  using Centred = Dot<5, 16, 8>;
  struct Excess {
    __m256i narrow, wide;
  };
  Centred dot;
  template <int Group>
  void add(B w, B x) {
    dot.add<Group>(w, x);
  }
  void pin() { dot.pin(); }
  static Excess excess(const PairSums* pairs) {
    const __m256i narrow = Centred::excess(pairs);
    return {narrow, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))};
  }
  I total(const Excess& excess) const { return _mm256_add_epi32(dot.total(excess.narrow), excess.wide); }
};

// Signed weights: |w| times x with w's sign; 128 * 127 * 2 still fits 16 bits.
template <int Groups>
struct Avx2::Dot<8, 0, Groups> {
  struct Excess {};
  __m256i sum = _mm256_setzero_si256();
  template <int Group>
  void add(B w, B x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  void pin() { asm volatile("" : "+x"(sum)); }
  static Excess excess(const PairSums*) { return {}; }
  I total(Excess) const { return sum; }
};

}  // namespace ferrite::isa
