// Attention of the query heads that share one kv head, over one partition of positions.
//
// A score is one chain over head_dim, an output one chain over positions, so neither depends on how many
// queries are taken together. Partitions are joined in order (online softmax, Milakov and Gimelshein 2018).
// With int8 cells a score is a chain over the groups of 32 columns, each adding its scale times a chain over
// its integers; in an output the weight of a position takes the scale, once a group.
//
// One row takes its heads together, so that a cell is loaded once for up to four of them. Several rows take
// S::kQueries queries (a query is a head of a row) together, and share each cell widened to float32.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/attention_cells.h"
#include "kernels/exp.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace ferrite {

inline constexpr int64_t kPartitionCells = kPartition / kCellPositions;

// sum[m] += q[d][m] * k[d] for d in [begin, end).
template <class S, class Cell, int M>
[[gnu::always_inline]] inline void score_columns(const float* q, const CellView<Cell>& k, int64_t begin,
                                                 int64_t end, typename S::F (&sum)[M][Wide<S>::kParts]) {
  constexpr int kParts = Wide<S>::kParts;
  constexpr int64_t kColumns = 4 / sizeof(typename Cell::Element);  // in a line of sixteen positions each
  for (int64_t line = begin; line < end; line += kColumns) {
    __builtin_prefetch(k.ahead + line * 16);
    for (int64_t d = line; d < line + kColumns; ++d) {
      typename S::F key[kParts];
      for (int p = 0; p < kParts; ++p) key[p] = Cell::template load<S>(k.data + d * 16 + p * S::kLanes);
      for (int m = 0; m < M; ++m) {
        const typename S::F query = S::set1(q[d * M + m]);
        for (int p = 0; p < kParts; ++p) sum[m][p] = S::fma(query, key[p], sum[m][p]);
      }
    }
  }
}

// Scores of M queries, q [head_dim][M], against one cell.
template <class S, class Cell, int M>
[[gnu::always_inline]] inline void score_cell(const float* q, const CellView<Cell>& k, int64_t head_dim,
                                              float* scores) {
  using F = typename S::F;
  constexpr int kParts = Wide<S>::kParts;
  F sum[M][kParts];
  for (auto& row : sum)
    for (F& part : row) part = S::zero();
  if constexpr (!Cell::kScaled) {
    score_columns<S, Cell, M>(q, k, 0, head_dim, sum);
  } else {
    for (int64_t group = 0; group < head_dim / kKvGroup; ++group) {
      F part[M][kParts];
      for (auto& row : part)
        for (F& each : row) each = S::zero();
      score_columns<S, Cell, M>(q, k, group * kKvGroup, (group + 1) * kKvGroup, part);
      for (int p = 0; p < kParts; ++p) {
        const F scale = S::load_f16(k.scales + kCellPositions * group + p * S::kLanes);
        for (int m = 0; m < M; ++m) sum[m][p] = S::fma(part[m][p], scale, sum[m][p]);
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < kParts; ++p) S::store(scores + m * kScoreStride + p * S::kLanes, sum[m][p]);
}

// Positions of a cell, counted from its first.
struct Slots {
  int64_t begin, end;
};

// out[m][d .. d + Columns) += sum over slots of weights[m][slot] * v[slot], for M queries at once.
template <class S, class Cell, int M, int Columns, int64_t WeightStride>
[[gnu::always_inline]] inline void mix_columns(const CellView<Cell>& v, const float* weights, Slots slots,
                                               int64_t head_dim, float* out) {
  using F = typename S::F;
  constexpr int kParts = Columns / S::kLanes;
  F sum[M][kParts];
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < kParts; ++p) sum[m][p] = S::load(out + m * head_dim + p * S::kLanes);
  // The fewer of weights and values stay in registers while the others pass.
  for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
    const auto* values = v.data + slot * head_dim;
    __builtin_prefetch(v.ahead + slot * head_dim);
    if constexpr (M < kParts) {
      F weight[M];
      for (int m = 0; m < M; ++m) weight[m] = S::set1(weights[m * WeightStride + slot]);
      for (int p = 0; p < kParts; ++p) {
        const F value = Cell::template load<S>(values + p * S::kLanes);
        for (int m = 0; m < M; ++m) sum[m][p] = S::fma(weight[m], value, sum[m][p]);
      }
    } else {
      F value[kParts];
      for (int p = 0; p < kParts; ++p) value[p] = Cell::template load<S>(values + p * S::kLanes);
      for (int m = 0; m < M; ++m) {
        const F weight = S::set1(weights[m * WeightStride + slot]);
        for (int p = 0; p < kParts; ++p) sum[m][p] = S::fma(weight, value[p], sum[m][p]);
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < kParts; ++p) S::store(out + m * head_dim + p * S::kLanes, sum[m][p]);
}

// The same for columns [begin, end): 32 at a time where the sums leave registers for a value and M weights.
template <class S, class Cell, int M, int64_t WeightStride>
[[gnu::always_inline]] inline void mix_range(const CellView<Cell>& v, const float* weights, Slots slots,
                                             int64_t head_dim, int64_t begin, int64_t end, float* out) {
  constexpr bool kPairs = M * (32 / S::kLanes) + M + 1 <= S::kRegisters;
  int64_t d = begin;
  if constexpr (kPairs)
    for (; d + 32 <= end; d += 32)
      mix_columns<S, Cell, M, 32, WeightStride>(v.from(d), weights, slots, head_dim, out + d);
  for (; d < end; d += 16)
    mix_columns<S, Cell, M, 16, WeightStride>(v.from(d), weights, slots, head_dim, out + d);
}

// out [M][head_dim] += sum over slots of weights [M][kScoreStride] times v.
template <class S, class Cell, int M>
[[gnu::noinline]] void mix_cell(const CellView<Cell>& v, const float* weights, Slots slots, int64_t head_dim,
                                float* out) {
  if constexpr (!Cell::kScaled) {
    mix_range<S, Cell, M, kScoreStride>(v, weights, slots, head_dim, 0, head_dim, out);
  } else {
    const uint16_t* scales = v.scales;
    for (int64_t d = 0; d < head_dim; d += kKvGroup, scales += kCellPositions) {
      float scaled[M * kCellPositions];
      for (int m = 0; m < M; ++m)
        for (int i = 0; i < kCellPositions; i += S::kLanes)
          S::store(scaled + m * kCellPositions + i,
                   S::mul(S::load(weights + m * kScoreStride + i), S::load_f16(scales + i)));
      mix_range<S, Cell, M, kCellPositions>(v, scaled, slots, head_dim, d, d + kKvGroup, out);
    }
  }
}

// scores = e^(scores - max), added to the lanes of `sum` in order.
template <class S, int Count>
[[gnu::always_inline]] inline void weigh(float* scores, typename S::F max, Wide<S>& sum) {
  constexpr int kRegisters = Count / S::kLanes;
  typename S::F weight[kRegisters];
  for (int i = 0; i < kRegisters; ++i) weight[i] = S::sub(S::load(scores + i * S::kLanes), max);
  exp<S, kRegisters>(weight);
  for (int i = 0; i < kRegisters; ++i) {
    S::store(scores + i * S::kLanes, weight[i]);
    typename S::F& lane = sum.v[i % Wide<S>::kParts];
    lane = S::add(lane, weight[i]);
  }
}

// Softmax weights in place of the scores of [begin, end) of a partition; the rest of the cells that these
// touch weighs nothing.
template <class S>
void softmax_partition(float* scores, int64_t begin, int64_t end, float* max, float* total) {
  using F = typename S::F;
  const int64_t first = begin / 16 * 16;
  const int64_t last = (end + 15) / 16 * 16;
  for (int64_t i = first; i < begin; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = end; i < last; ++i) scores[i] = -__builtin_inff();
  Wide<S> largest = Wide<S>::set1(-__builtin_inff());
  for (int64_t i = first; i < last; i += 16)
    for (int p = 0; p < Wide<S>::kParts; ++p)
      largest.v[p] = S::max(largest.v[p], S::load(scores + i + p * S::kLanes));
  *max = max_lanes(largest);
  Wide<S> sum = Wide<S>::set1(0.0F);
  const F most = S::set1(*max);
  int64_t i = first;
  for (; i + 32 <= last; i += 32) weigh<S, 32>(scores + i, most, sum);
  if (i < last) weigh<S, 16>(scores + i, most, sum);
  *total = sum_lanes(sum);
}

// Queries [first, first + count) of a.rows * a.heads, M at a time.
template <class S, class Stored, int M, bool Widened>
class Attention {
  using Cell = std::conditional_t<Widened, WideCell<Stored::kScaled>, Stored>;
  static_assert(M <= kMostQueries);

 public:
  Attention(const AttentionArgs& a, int64_t first, int64_t count)
      : a_(a),
        first_(first),
        count_(count),
        tiles_((count + M - 1) / M),
        scores_(a.scratch),
        q_(scores_ + tiles_ * M * kScoreStride),
        out_(q_ + tiles_ * M * a.head_dim),
        wide_(out_ + tiles_ * M * a.head_dim) {}

  void run() {
    gather_queries();
    each_cell(a_.k_cells, a_.v_cells, [&](int64_t cell, const CellView<Cell>& k) {
      for (int64_t tile = 0; tile < tiles_; ++tile)
        if (touched(tile, cell))
          score_cell<S, Cell, M>(q_ + tile * M * a_.head_dim, k, a_.head_dim,
                                 scores_ + tile * M * kScoreStride + 16 * cell);
    });
    for (int64_t i = 0; i < count_; ++i)
      softmax_partition<S>(scores_ + i * kScoreStride, begin(i), end(i), a_.max + first_ + i,
                           a_.total + first_ + i);
    std::fill_n(out_, tiles_ * M * a_.head_dim, 0.0F);
    each_cell(a_.v_cells, nullptr, [&](int64_t cell, const CellView<Cell>& v) {
      for (int64_t tile = 0; tile < tiles_; ++tile)
        if (touched(tile, cell)) mix(tile, cell, v);
    });
    std::copy_n(out_, count_ * a_.head_dim, a_.out + first_ * a_.head_dim);
  }

 private:
  int64_t row(int64_t query) const { return (first_ + query) / a_.heads; }
  int64_t last_of(int64_t tile) const { return std::min(count_, (tile + 1) * M) - 1; }
  // What a query attends to, counted from the start of the partition; neither falls from query to query.
  int64_t begin(int64_t query) const { return a_.begin(row(query)) - a_.base; }
  int64_t end(int64_t query) const { return a_.end(row(query)) - a_.base; }

  // Some query of the tile attends to some position of the cell.
  bool touched(int64_t tile, int64_t cell) const {
    return 16 * cell < end(last_of(tile)) && begin(tile * M) < 16 * (cell + 1);
  }

  // q_[tile][head_dim][M]; the last tile is filled up with zeros.
  void gather_queries() {
    for (int64_t i = 0; i < tiles_ * M; ++i) {
      const int64_t query = first_ + i;
      const float* q = a_.q + query / a_.heads * a_.q_stride + query % a_.heads * a_.head_dim;
      float* to = q_ + i / M * M * a_.head_dim + i % M;
      for (int64_t d = 0; d < a_.head_dim; ++d) to[d * M] = i < count_ ? q[d] : 0.0F;
    }
  }

  // fn for each of the cells that some query attends to; those of `next` come after them.
  template <class Fn>
  void each_cell(const uint8_t* const (&cells)[kPartitionCells], const uint8_t* const* next, Fn fn) {
    constexpr int64_t kAhead = 2;
    const int64_t first = begin(0) / 16, last = (end(count_ - 1) - 1) / 16;
    for (int64_t cell = first; cell <= last; ++cell) {
      const uint8_t* bytes = cells[cell];
      const uint16_t* scales = Stored::kScaled ? cell_scales(bytes, a_.head_dim) : nullptr;
      if constexpr (Widened && !std::is_same_v<Cell, Stored>) {
        const float* wide = widen<S, Stored>(bytes, kCellPositions * a_.head_dim, wide_);
        fn(cell, CellView<Cell>{wide, wide, scales});
      } else {
        const int64_t ahead = cell + kAhead, after = first + ahead - last - 1;
        const uint8_t* later = ahead <= last                      ? cells[ahead]
                               : next != nullptr && after <= last ? next[after]
                                                                  : bytes;
        using Element = typename Cell::Element;
        fn(cell, CellView<Cell>{reinterpret_cast<const Element*>(bytes),
                                reinterpret_cast<const Element*>(later), scales});
      }
    }
  }

  // Where the queries of a tile see different parts of a cell, each takes its own: what lies beyond is
  // another's, or nobody's and may be NaN.
  void mix(int64_t tile, int64_t cell, const CellView<Cell>& v) {
    const int64_t query = tile * M, last = last_of(tile);
    const auto slots = [&](int64_t i) {
      return Slots{std::max<int64_t>(begin(i) - 16 * cell, 0), std::min<int64_t>(end(i) - 16 * cell, 16)};
    };
    const Slots first_sees = slots(query), last_sees = slots(last);
    const float* weights = scores_ + query * kScoreStride + 16 * cell;
    float* out = out_ + query * a_.head_dim;
    if (first_sees.begin == last_sees.begin && first_sees.end == last_sees.end)
      return mix_cell<S, Cell, M>(v, weights, first_sees, a_.head_dim, out);
    for (int64_t i = query; i <= last; ++i, weights += kScoreStride, out += a_.head_dim)
      mix_cell<S, Cell, 1>(v, weights, slots(i), a_.head_dim, out);
  }

  const AttentionArgs& a_;
  int64_t first_, count_, tiles_;
  float* scores_;  // [tiles][M][kScoreStride]
  float* q_;       // [tiles][head_dim][M]
  float* out_;     // [tiles][M][head_dim]
  float* wide_;    // [16 * head_dim]
};

// Heads of one row that one pass over K or V serves: with two registers of lanes each, 8 sums hide the
// latency of each other.
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

template <class S, class Stored>
void attend(const AttentionArgs& a) {
  if (a.rows > 1) return Attention<S, Stored, S::kQueries, true>(a, 0, a.rows * a.heads).run();
  in_head_groups(a.heads, [&](int64_t head, auto count) {
    Attention<S, Stored, count(), false>(a, head, count()).run();
  });
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
