// Attention of the query heads that share one kv head, over one partition of positions.
//
// The KV cache keeps cells of 16 positions: K transposed as [head_dim][16], so a score is one chain over
// head_dim with positions in the lanes; V as [16][head_dim], so an output is one chain over positions with
// head_dim in the lanes. Partitions are joined in order (online softmax, Milakov and Gimelshein 2018).
//
// Int8 cells end with float16 scales, [head_dim / 32][16] in both. A score is then a chain over the groups of
// 32, each adding its scale times a chain over its integers; in an output the weight of a position takes the
// scale, once a group.
#pragma once

#include <type_traits>

#include "kernels/exp.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace ferrite {

inline constexpr int64_t kPartitionCells = kPartition / kCellPositions;

struct HalfCell {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  template <class S>
  static typename S::F load(const uint16_t* p) {
    return S::load_f16(p);
  }
};
struct FloatCell {
  using Element = float;
  static constexpr bool kScaled = false;
  template <class S>
  static typename S::F load(const float* p) {
    return S::load(p);
  }
};
struct Q8Cell {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  template <class S>
  static typename S::F load(const int8_t* p) {
    return S::load_i8(p);
  }
  // Of sixteen positions, for one group of columns.
  static const uint16_t* scales(const uint8_t* cell, int64_t head_dim, int64_t group) {
    return reinterpret_cast<const uint16_t*>(cell + kCellPositions * head_dim) + kCellPositions * group;
  }
};

// sum[h] += q[h][d] * k[d] for d in [begin, end).
template <class S, class Cell, int H>
[[gnu::always_inline]] inline void score_columns(const AttentionArgs& a, int64_t head,
                                                 const typename Cell::Element* k, int64_t begin, int64_t end,
                                                 typename S::F (&sum)[H][Wide<S>::kParts]) {
  using F = typename S::F;
  constexpr int kParts = Wide<S>::kParts;
  for (int64_t d = begin; d < end; ++d) {
    F key[kParts];
    for (int p = 0; p < kParts; ++p) key[p] = Cell::template load<S>(k + d * 16 + p * S::kLanes);
    for (int h = 0; h < H; ++h) {
      const F q = S::set1(a.q[(head + h) * a.head_dim + d]);
      for (int p = 0; p < kParts; ++p) sum[h][p] = S::fma(q, key[p], sum[h][p]);
    }
  }
}

// Scores of H query heads against one cell.
template <class S, class Cell, int H>
[[gnu::always_inline]] inline void score_cell(const AttentionArgs& a, int64_t head, int64_t cell,
                                              float* scores) {
  using F = typename S::F;
  constexpr int kParts = Wide<S>::kParts;
  const uint8_t* bytes = a.k_cells[cell % kPartitionCells];
  const auto* k = reinterpret_cast<const typename Cell::Element*>(bytes);
  F sum[H][kParts];
  for (auto& row : sum)
    for (F& part : row) part = S::zero();
  if constexpr (!Cell::kScaled) {
    score_columns<S, Cell, H>(a, head, k, 0, a.head_dim, sum);
  } else {
    for (int64_t group = 0; group < a.head_dim / kKvGroup; ++group) {
      F part[H][kParts];
      for (auto& row : part)
        for (F& each : row) each = S::zero();
      score_columns<S, Cell, H>(a, head, k, group * kKvGroup, (group + 1) * kKvGroup, part);
      const uint16_t* scales = Cell::scales(bytes, a.head_dim, group);
      for (int p = 0; p < kParts; ++p) {
        const F scale = S::load_f16(scales + p * S::kLanes);
        for (int h = 0; h < H; ++h) sum[h][p] = S::fma(part[h][p], scale, sum[h][p]);
      }
    }
  }
  for (int h = 0; h < H; ++h)
    for (int p = 0; p < kParts; ++p) S::store(scores + h * kPartition + p * S::kLanes, sum[h][p]);
}

// out[h][d .. d + 16) = sum over positions of weights[h] * v, H heads at once; weights [H][kPartition].
template <class S, class Cell, int H>
[[gnu::always_inline]] inline void mix_columns(const AttentionArgs& a, int64_t head, int64_t d,
                                               const float* weights) {
  using F = typename S::F;
  constexpr int kParts = Wide<S>::kParts;
  F sum[H][kParts];
  for (auto& row : sum)
    for (F& part : row) part = S::zero();
  const int64_t base = a.begin / kPartition * kPartition;
  for (int64_t position = a.begin; position < a.end; ++position) {
    const auto* cell =
        reinterpret_cast<const typename Cell::Element*>(a.v_cells[position / 16 % kPartitionCells]);
    const auto* v = cell + (position % 16) * a.head_dim + d;
    F value[kParts];
    for (int p = 0; p < kParts; ++p) value[p] = Cell::template load<S>(v + p * S::kLanes);
    for (int h = 0; h < H; ++h) {
      const F weight = S::set1(weights[h * kPartition + position - base]);
      for (int p = 0; p < kParts; ++p) sum[h][p] = S::fma(weight, value[p], sum[h][p]);
    }
  }
  for (int h = 0; h < H; ++h)
    for (int p = 0; p < kParts; ++p) S::store(a.out + (head + h) * a.head_dim + d + p * S::kLanes, sum[h][p]);
}

template <class S, class Cell, int H>
[[gnu::noinline]] void score_heads(const AttentionArgs& a, int64_t head) {
  const int64_t base = a.begin / kPartition * kPartition;
  for (int64_t cell = a.begin / 16; cell * 16 < a.end; ++cell)
    score_cell<S, Cell, H>(a, head, cell, a.scores + head * kPartition + cell * 16 - base);
}

// scaled[h] = weights[h] times the scales of one group of V's columns, for the cells of [begin, end).
template <class S, class Cell, int H>
[[gnu::always_inline]] inline void scale_weights(const AttentionArgs& a, int64_t group, const float* weights,
                                                 float* scaled) {
  const int64_t base = a.begin / kPartition * kPartition;
  for (int64_t cell = a.begin / 16; cell * 16 < a.end; ++cell) {
    const uint16_t* scales = Cell::scales(a.v_cells[cell % kPartitionCells], a.head_dim, group);
    for (int p = 0; p < Wide<S>::kParts; ++p) {
      const typename S::F scale = S::load_f16(scales + p * S::kLanes);
      const int64_t at = cell * 16 - base + p * S::kLanes;
      for (int h = 0; h < H; ++h)
        S::store(scaled + h * kPartition + at, S::mul(S::load(weights + h * kPartition + at), scale));
    }
  }
}

template <class S, class Cell, int H>
[[gnu::noinline]] void mix_heads(const AttentionArgs& a, int64_t head) {
  const float* weights = a.scores + head * kPartition;
  if constexpr (!Cell::kScaled) {
    for (int64_t d = 0; d < a.head_dim; d += 16) mix_columns<S, Cell, H>(a, head, d, weights);
  } else {
    float scaled[H * kPartition];
    for (int64_t d = 0; d < a.head_dim; d += kKvGroup) {
      scale_weights<S, Cell, H>(a, d / kKvGroup, weights, scaled);
      for (int64_t i = 0; i < kKvGroup; i += 16) mix_columns<S, Cell, H>(a, head, d + i, scaled);
    }
  }
}

// Softmax weights in place: positions outside [begin, end) weigh nothing.
template <class S>
void softmax_partition(const AttentionArgs& a, int64_t head) {
  using F = typename S::F;
  const int64_t base = a.begin / kPartition * kPartition;
  const int64_t first = a.begin / 16 * 16 - base;
  const int64_t last = (a.end + 15) / 16 * 16 - base;
  float* scores = a.scores + head * kPartition;
  for (int64_t i = first; i < a.begin - base; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = a.end - base; i < last; ++i) scores[i] = -__builtin_inff();
  Wide<S> largest = Wide<S>::set1(-__builtin_inff());
  for (int64_t i = first; i < last; i += 16)
    for (int p = 0; p < Wide<S>::kParts; ++p)
      largest.v[p] = S::max(largest.v[p], S::load(scores + i + p * S::kLanes));
  const float max = max_lanes(largest);
  Wide<S> total = Wide<S>::set1(0.0F);
  for (int64_t i = first; i < last; i += 16)
    for (int p = 0; p < Wide<S>::kParts; ++p) {
      float* at = scores + i + p * S::kLanes;
      const F weight = exp<S>(S::sub(S::load(at), S::set1(max)));
      S::store(at, weight);
      total.v[p] = S::add(total.v[p], weight);
    }
  a.max[head] = max;
  a.total[head] = sum_lanes(total);
}

// Query heads that one pass over K or V serves: 4 heads x 2 registers of positions, keys and queries fit 16
// registers, and 8 sums hide the latency of each other.
inline constexpr int64_t kHeads = 4;

// fn(first, count) for all heads, where `count` is a constant from 1 to kHeads, as equal as may be.
template <class Fn>
[[gnu::always_inline]] inline void in_head_groups(int64_t heads, Fn fn) {
  for (int64_t head = 0; head < heads;) {
    const int64_t left = heads - head;
    const int64_t passes = (left + kHeads - 1) / kHeads;
    const int64_t count = (left + passes - 1) / passes;
    static_assert(kHeads == 4);
    if (count == 4) {
      fn(head, std::integral_constant<int, 4>());
    } else if (count == 3) {
      fn(head, std::integral_constant<int, 3>());
    } else if (count == 2) {
      fn(head, std::integral_constant<int, 2>());
    } else {
      fn(head, std::integral_constant<int, 1>());
    }
    head += count;
  }
}

template <class S, class Cell>
void attend(const AttentionArgs& a) {
  in_head_groups(a.heads, [&](int64_t head, auto count) { score_heads<S, Cell, count()>(a, head); });
  for (int64_t head = 0; head < a.heads; ++head) softmax_partition<S>(a, head);
  in_head_groups(a.heads, [&](int64_t head, auto count) { mix_heads<S, Cell, count()>(a, head); });
}

// joined = joined * e^(old max - new max) + next * e^(next max - new max).
template <class S>
void join(float* joined_max, float* joined_total, float* joined, float max, float total, const float* out,
          int64_t head_dim) {
  const float largest = *joined_max > max ? *joined_max : max;
  const float keep = exp_f32(*joined_max - largest);
  const float take = exp_f32(max - largest);
  *joined_total = *joined_total * keep + total * take;
  *joined_max = largest;
  for (int64_t d = 0; d < head_dim; d += S::kLanes) {
    const typename S::F scaled = S::mul(S::load(out + d), S::set1(take));
    S::store(joined + d, S::fma(S::load(joined + d), S::set1(keep), scaled));
  }
}

}  // namespace ferrite
