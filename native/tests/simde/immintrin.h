// AVX-512 for a CPU that has AVX2: stands before the compiler's own <immintrin.h> when isa/avx512.cpp is
// compiled for its test. SIMDe has most of what that file uses; the conversions it lacks are two AVX2 halves
// each.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cstring>

namespace ferrite::emulated {

// Two halves of any types, one after the other in memory.
template <class To, class Half>
inline To join(Half low, Half high) {
  static_assert(sizeof(To) == 2 * sizeof(Half));
  To whole;
  std::memcpy(&whole, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&whole) + sizeof low, &high, sizeof high);
  return whole;
}

template <class Half, class From>
inline Half half(From whole, int index) {
  static_assert(sizeof(From) == 2 * sizeof(Half));
  Half part;
  std::memcpy(&part, reinterpret_cast<const char*>(&whole) + index * static_cast<int>(sizeof part),
              sizeof part);
  return part;
}

inline simde__m512 cvtph_ps(__m256i a) {
  return join<simde__m512>(_mm256_cvtph_ps(half<__m128i>(a, 0)), _mm256_cvtph_ps(half<__m128i>(a, 1)));
}
template <int Rounding>
inline __m256i cvtps_ph(simde__m512 a) {
  return join<__m256i>(_mm256_cvtps_ph(half<__m256>(a, 0), Rounding),
                       _mm256_cvtps_ph(half<__m256>(a, 1), Rounding));
}
inline simde__m512i cvtepu16_epi32(__m256i a) {
  return join<simde__m512i>(_mm256_cvtepu16_epi32(half<__m128i>(a, 0)),
                            _mm256_cvtepu16_epi32(half<__m128i>(a, 1)));
}
inline simde__m512i cvtepu8_epi32(__m128i a) {
  return join<simde__m512i>(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)));
}
inline simde__m512i cvtepi8_epi32(__m128i a) {
  return join<simde__m512i>(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
inline simde__m512 cvtepi32_ps(simde__m512i a) {
  return join<simde__m512>(_mm256_cvtepi32_ps(half<__m256i>(a, 0)), _mm256_cvtepi32_ps(half<__m256i>(a, 1)));
}
inline simde__m512i cvtps_epi32(simde__m512 a) {
  return join<simde__m512i>(_mm256_cvtps_epi32(half<__m256>(a, 0)), _mm256_cvtps_epi32(half<__m256>(a, 1)));
}
// Truncates, where the packing instructions of AVX2 saturate.
inline __m128i cvtepi32_epi8(simde__m512i a) {
  int32_t wide[16];
  int8_t narrow[16];
  std::memcpy(wide, &a, sizeof wide);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<int8_t>(wide[i]);
  __m128i result;
  std::memcpy(&result, narrow, sizeof result);
  return result;
}

}  // namespace ferrite::emulated

#define _mm512_cvtph_ps(a) ferrite::emulated::cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) ferrite::emulated::cvtps_ph<rounding>(a)
#define _mm512_cvtepu16_epi32(a) ferrite::emulated::cvtepu16_epi32(a)
#define _mm512_cvtepu8_epi32(a) ferrite::emulated::cvtepu8_epi32(a)
#define _mm512_cvtepi8_epi32(a) ferrite::emulated::cvtepi8_epi32(a)
#define _mm512_cvtepi32_ps(a) ferrite::emulated::cvtepi32_ps(a)
#define _mm512_cvtps_epi32(a) ferrite::emulated::cvtps_epi32(a)
#define _mm512_cvtepi32_epi8(a) ferrite::emulated::cvtepi32_epi8(a)
