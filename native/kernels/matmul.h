// Weights times activations: one tile of 16 rows by T tokens in registers, from one token to thousands.
//
// Each output is one chain in column order: for each run of columns under one scale, the exact int32 dot
// product, then acc = fma(dot, weight scale * activation scale, acc), then for formats with a minimum
// acc = fma(minimum, activation sum, acc) once per 32 columns. Lanes are rows, so no order of summation
// depends on the instruction set, the number of tokens or the threads.
//
// With residual activations the dot product is 254 times that of the first term plus that of the second,
// still an exact int32, and the chain is the same.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/kernels.h"
#include "quant/format.h"

namespace ferrite {

// The tile that comes next, fetched a few lines at a time beside the arithmetic on this one: memory then has
// something to do in every pass over a tile, not in the first alone.
struct Ahead {
  static constexpr int64_t kLine = 64;
  const uint8_t* at;
  const uint8_t* end;
  int64_t lines;  // a time

  [[gnu::always_inline]] void fetch() {
    if (at >= end) return;
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(at + i * kLine);
    at += lines * kLine;
  }
};

// What a tile comes to. Filled from sums that nothing else refers to, so that GCC keeps each in one place.
template <class S, int Parts, int T>
struct TileSums {
  using F = typename S::F;
  [[gnu::always_inline]] explicit TileSums(const F (&acc)[Parts][T]) {
    for (int p = 0; p < Parts; ++p)
      for (int t = 0; t < T; ++t) of[p][t] = acc[p][t];
  }
  F of[Parts][T];
};

// Parts x kLanes rows, T tokens, one or two Terms of int8 activations; `part` is the first register of rows.
template <class S, class Q, int Parts, int T, int Terms>
struct QuantTile {
  using F = typename S::F;
  using I = typename S::I;
  using B = typename S::B;
  using Scales = typename Q::Scales;
  static constexpr int kGroups = Scales::kScaleCols / 4;  // groups of four columns under one scale
  using Dot = typename S::template Dot<Q::kBits, Q::kOffset, kGroups>;

  template <int First, int... G>
  [[gnu::always_inline]] static void dots(std::integer_sequence<int, G...>, const uint8_t* sub, int part,
                                          const int8_t* const (&q)[Terms][T], int64_t col,
                                          Dot (&dot)[Terms][Parts][T]) {
    (
        [&] {
          B weights[Parts];
          for (int p = 0; p < Parts; ++p) weights[p] = quant::group<S, Q::kBits, First + G>(sub, part + p);
          for (int term = 0; term < Terms; ++term)
            for (int t = 0; t < T; ++t) {
              const B x = S::broadcast4(q[term][t] + col + 4 * (First + G));
              for (int p = 0; p < Parts; ++p) {
                dot[term][p][t].template add<G>(weights[p], x);
                if constexpr (T > 1) dot[term][p][t].pin();
              }
            }
        }(),
        ...);
  }

  template <int Half>
  [[gnu::always_inline]] static void scaled_run(const uint8_t* unit, const uint8_t* sub, int part,
                                                const int8_t* const (&q)[Terms][T],
                                                const PairSums* const (&pairs)[Terms][T],
                                                const float* const (&scale)[T], int64_t block,
                                                F (&acc)[Parts][T]) {
    Dot dot[Terms][Parts][T];
    dots<Half * kGroups>(std::make_integer_sequence<int, kGroups>(), sub, part, q, block * 32, dot);
    F d[Parts];
    for (int p = 0; p < Parts; ++p)
      d[p] = Scales::template scale<S>(unit, sub + Q::kQuantBytes, Half, part + p);
    for (int t = 0; t < T; ++t) {
      const F dx = S::set1(scale[t][block]);
      typename Dot::Excess excess[Terms];
      for (int term = 0; term < Terms; ++term) excess[term] = Dot::excess(pairs[term][t] + 2 * block + Half);
      for (int p = 0; p < Parts; ++p) {
        I total = dot[0][p][t].total(excess[0]);
        if constexpr (Terms == 2) {
          static_assert(kResidual == 256 - 2);
          total = S::subi(dot[1][p][t].total(excess[1]),
                          S::subi(S::template shift_left<1>(total), S::template shift_left<8>(total)));
        }
        acc[p][t] = S::fma(S::to_float(total), S::mul(d[p], dx), acc[p][t]);
      }
    }
  }

  [[gnu::always_inline]] static TileSums<S, Parts, T> run(const uint8_t* tile, int part, int64_t units,
                                                          const Rows& in, int64_t token, Ahead& where) {
    Ahead ahead = where;  // in registers
    const Int8Rows* const terms[] = {&in.quant.value, &in.quant.residual};
    const int8_t* q[Terms][T];
    const PairSums* pairs[Terms][T];
    const float* scale[T];
    const float* sum[T];
    for (int t = 0; t < T; ++t) {
      for (int term = 0; term < Terms; ++term) {
        q[term][t] = terms[term]->q + (token + t) * in.cols;
        pairs[term][t] = terms[term]->pairs + (token + t) * (in.cols / 16);
      }
      scale[t] = in.quant.scale + (token + t) * (in.cols / 32);
      sum[t] = in.quant.sum + (token + t) * (in.cols / 32);
    }
    F acc[Parts][T];
    for (int p = 0; p < Parts; ++p)
      for (int t = 0; t < T; ++t) acc[p][t] = S::zero();
    for (int64_t u = 0; u < units; ++u) {
      const uint8_t* unit = tile + u * Q::kUnitBytes;
      for (int s = 0; s < Q::kSubs; ++s) {
        ahead.fetch();
        const uint8_t* sub = unit + Scales::kHeadBytes + s * Q::kSubBytes;
        const int64_t block = u * Q::kSubs + s;
        scaled_run<0>(unit, sub, part, q, pairs, scale, block, acc);
        if constexpr (Scales::kScaleCols == 16) scaled_run<1>(unit, sub, part, q, pairs, scale, block, acc);
        if constexpr (Scales::kHasMin) {
          for (int p = 0; p < Parts; ++p) {
            const F m = Scales::template min<S>(unit, sub + Q::kQuantBytes, part + p);
            for (int t = 0; t < T; ++t) acc[p][t] = S::fma(m, S::set1(sum[t][block]), acc[p][t]);
          }
        }
      }
    }
    where = ahead;
    return TileSums<S, Parts, T>(acc);
  }
};

struct F32Element {
  static constexpr int64_t kBytes = 4;
  template <class S>
  static typename S::F load(const uint8_t* p) {
    return S::load(reinterpret_cast<const float*>(p));
  }
};
struct F16Element {
  static constexpr int64_t kBytes = 2;
  template <class S>
  static typename S::F load(const uint8_t* p) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(p));
  }
};
struct BF16Element {
  static constexpr int64_t kBytes = 2;
  template <class S>
  static typename S::F load(const uint8_t* p) {
    return S::load_bf16(reinterpret_cast<const uint16_t*>(p));
  }
};

// Unquantised weights: float32 activations, one fma a column.
template <class S, class Element, int Parts, int T>
struct FloatTile {
  using F = typename S::F;

  [[gnu::always_inline]] static TileSums<S, Parts, T> run(const uint8_t* tile, int part, int64_t units,
                                                          const Rows& in, int64_t token, Ahead& ahead) {
    F acc[Parts][T];
    for (int p = 0; p < Parts; ++p)
      for (int t = 0; t < T; ++t) acc[p][t] = S::zero();
    for (int64_t c = 0; c < units; ++c) {
      ahead.fetch();
      const uint8_t* column = tile + (c * quant::kTileRows + part * S::kLanes) * Element::kBytes;
      for (int p = 0; p < Parts; ++p) {
        const F w = Element::template load<S>(column + p * S::kLanes * Element::kBytes);
        for (int t = 0; t < T; ++t)
          acc[p][t] = S::fma(w, S::set1(in.x[(token + t) * in.stride + c]), acc[p][t]);
      }
    }
    return TileSums<S, Parts, T>(acc);
  }
};

// Formats as the loop below sees them.
template <class Q, int Terms>
struct Quantised {
  static constexpr int64_t kUnitCols = Q::kUnitCols;
  static constexpr int64_t kFetchCols = quant::kSubCols;
  static constexpr int kTerms = Terms;
  template <class S, int Parts, int T>
  using Tile = QuantTile<S, Q, Parts, T, Terms>;
};
template <class Element>
struct Unquantised {
  static constexpr int64_t kUnitCols = 1;
  static constexpr int64_t kFetchCols = 1;
  static constexpr int kTerms = 1;
  template <class S, int Parts, int T>
  using Tile = FloatTile<S, Element, Parts, T>;
};

template <class S, class Format, int Parts, int T>
[[gnu::always_inline]] inline void matmul_tile(const MatmulArgs& a, int64_t tile, int64_t token,
                                               Ahead& ahead) {
  constexpr int kParts = quant::kTileRows / S::kLanes;
  for (int part = 0; part < kParts; part += Parts) {
    const TileSums<S, Parts, T> sums = Format::template Tile<S, Parts, T>::run(
        a.tiles + tile * a.tile_bytes, part, a.cols / Format::kUnitCols, a.in, token, ahead);
    for (int p = 0; p < Parts; ++p) {
      const int64_t row = tile * quant::kTileRows + (part + p) * S::kLanes;
      for (int t = 0; t < T; ++t) {
        float* out = a.out + (token + t) * a.out_stride + row;
        typename S::F y = sums.of[p][t];
        if (a.bias != nullptr) y = S::add(y, S::load(a.bias + row));
        if (a.accumulate) y = S::add(S::load(out), y);
        S::store(out, y);
      }
    }
  }
}

template <class S, class Format, int T>
[[gnu::noinline]] void matmul_tokens(const MatmulArgs& a, int64_t tile, int64_t token, Ahead& ahead) {
  constexpr int kParts = quant::kTileRows / S::kLanes;
  matmul_tile<S, Format, (T * Format::kTerms <= S::kWideTokens ? kParts : 1), T>(a, tile, token, ahead);
}

template <class S, class Format, int T>
inline void matmul_rest(const MatmulArgs& a, int64_t tile, int64_t token, int64_t rest, Ahead& ahead) {
  if constexpr (T > 0) {
    if (rest == T) return matmul_tokens<S, Format, T>(a, tile, token, ahead);
    matmul_rest<S, Format, T - 1>(a, tile, token, rest, ahead);
  }
}

// Tokens are taken in blocks whose int8 rows stay in the second-level cache while the tiles pass over them.
inline constexpr int64_t kTokenBlock = 64;

template <class S, class Format>
void matmul_all(const MatmulArgs& a) {
  // Two terms need twice the accumulators, so half the tokens fill the registers.
  constexpr int kTokens = S::kTokens < Format::kTerms ? 1 : S::kTokens / Format::kTerms;
  const int64_t passes = (std::min(a.tokens, kTokenBlock) + kTokens - 1) / kTokens;
  const int64_t times = passes * (a.cols / Format::kFetchCols);
  const int64_t lines = (a.tile_bytes + Ahead::kLine * times - 1) / (Ahead::kLine * times);
  for (int64_t block = 0; block < a.tokens; block += kTokenBlock) {
    const int64_t end = std::min(block + kTokenBlock, a.tokens);
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
      // Later blocks find the tiles in the cache.
      const uint8_t* next = block > 0               ? nullptr
                            : tile + 1 < a.tile_end ? a.tiles + (tile + 1) * a.tile_bytes
                                                    : a.next;
      Ahead ahead = {next, next == nullptr ? nullptr : next + a.tile_bytes, lines};
      int64_t token = block;
      for (; token + kTokens <= end; token += kTokens)
        matmul_tokens<S, Format, kTokens>(a, tile, token, ahead);
      matmul_rest<S, Format, kTokens - 1>(a, tile, token, end - token, ahead);
    }
  }
}

template <class S, class Q>
void matmul_quantised(const MatmulArgs& a) {
  if (a.in.quant.residual.q == nullptr) return matmul_all<S, Quantised<Q, 1>>(a);
  matmul_all<S, Quantised<Q, 2>>(a);
}

template <class S, class Element>
void matmul_floats(const MatmulArgs& a) {
  matmul_all<S, Unquantised<Element>>(a);
}

}  // namespace ferrite
