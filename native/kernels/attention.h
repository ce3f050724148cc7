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
#include <span>
#include <type_traits>

#include "kernels/attention_cells.h"
#include "kernels/exp.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace ferrite {

using Cells = std::span<const uint8_t* const>;

// sum[m] += q[m][d] * k[d] for d in [begin, end).
template <class S, class Cell, int M>
[[gnu::always_inline]] inline void score_columns(const float* const* q, const CellView<Cell>& k,
                                                 int64_t begin, int64_t end,
                                                 typename S::F (&sum)[M][Wide<S>::kParts]) {
  constexpr int kParts = Wide<S>::kParts;
  constexpr int64_t kColumns = 4 / sizeof(typename Cell::Element);  // in a line of sixteen positions each
  for (int64_t line = begin; line < end; line += kColumns) {
    if constexpr (Cell::kStored) __builtin_prefetch(k.ahead + line * 16);
    for (int64_t d = line; d < line + kColumns; ++d) {
      typename S::F key[kParts];
      for (int p = 0; p < kParts; ++p) key[p] = Cell::template load<S>(k.data + d * 16 + p * S::kLanes);
      for (int m = 0; m < M; ++m) {
        const typename S::F query = S::set1(q[m][d]);
        for (int p = 0; p < kParts; ++p) sum[m][p] = S::fma(query, key[p], sum[m][p]);
      }
    }
  }
}

// Scores of M queries against one cell.
template <class S, class Cell, int M>
[[gnu::always_inline]] inline void score_cell(const float* const* q, const CellView<Cell>& k,
                                              int64_t head_dim, float* scores) {
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
        const F scale = S::load_f16(k.scales[0] + kCellPositions * group + p * S::kLanes);
        for (int m = 0; m < M; ++m) sum[m][p] = S::fma(part[m][p], scale, sum[m][p]);
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < kParts; ++p) S::store(scores + m * kScoreStride + p * S::kLanes, sum[m][p]);
}

// Positions of one or more cells, counted from their first.
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
#pragma GCC unroll 4
  for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
    const auto* values = v.data + slot * head_dim;
    if constexpr (Cell::kStored) __builtin_prefetch(v.ahead + slot * head_dim);
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
[[gnu::noinline]] void mix_cells(const CellView<Cell>& v, const float* weights, Slots slots, int64_t head_dim,
                                 float* out) {
  if constexpr (!Cell::kScaled) {
    mix_range<S, Cell, M, kScoreStride>(v, weights, slots, head_dim, 0, head_dim, out);
  } else {
    constexpr int64_t kStride = kMostCells * kCellPositions;
    for (int64_t d = 0; d < head_dim; d += kKvGroup) {
      float scaled[M * kStride];
      for (int64_t i = slots.begin / 16 * 16; i < slots.end; i += S::kLanes) {
        const uint16_t* scales = v.scales[i / 16] + d / kKvGroup * kCellPositions + i % 16;
        for (int m = 0; m < M; ++m)
          S::store(scaled + m * kStride + i,
                   S::mul(S::load(weights + m * kScoreStride + i), S::load_f16(scales)));
      }
      mix_range<S, Cell, M, kStride>(v, scaled, slots, head_dim, d, d + kKvGroup, out);
    }
  }
}

// Some cells, fetched a few lines at a time between other work.
class CellFetch {
 public:
  CellFetch(Cells cells, int64_t cell_bytes) : cells_(cells), cell_bytes_(cell_bytes) {}

  void lines(int64_t count) {
    for (; count > 0 && !cells_.empty(); --count) {
      __builtin_prefetch(cells_.front() + at_);
      at_ += 64;
      if (at_ < cell_bytes_) continue;
      at_ = 0;
      cells_ = cells_.subspan(1);
    }
  }

 private:
  Cells cells_;
  int64_t cell_bytes_, at_ = 0;
};

// What a softmax of some rows can have fetched; a burst would hold up its own loads.
inline constexpr int64_t kSoftmaxFetch = 4096;

// scores = e^(scores - max), added to the lanes of `sum` in order. Where a score is above `max` another is
// NaN, and so is the sum.
template <class S, int Count>
[[gnu::always_inline]] inline void weigh(float* scores, typename S::F max, Wide<S>& sum) {
  constexpr int kRegisters = Count / S::kLanes;
  typename S::F weight[kRegisters];
  for (int i = 0; i < kRegisters; ++i) weight[i] = S::sub(S::load(scores + i * S::kLanes), max);
  exp_of_low<S, kRegisters>(weight);
  for (int i = 0; i < kRegisters; ++i) {
    S::store(scores + i * S::kLanes, weight[i]);
    typename S::F& lane = sum.v[i % Wide<S>::kParts];
    lane = S::add(lane, weight[i]);
  }
}

// Softmax weights in place of the scores of [begin, end) of a partition, for each of `count` queries; the
// rest of the cells that these touch weighs nothing. The lanes of all queries are joined side by side: one
// after the other, each would wait for its own. Memory, else idle, brings what is in `fetch`.
template <class S, int M>
void softmax_rows(float* scores, const Slots* sees, int64_t count, float* max, float* total,
                  CellFetch& fetch) {
  // Of 64 bytes each, before each 64 weights of a whole partition of M rows; rounded up, none is left over.
  constexpr int64_t kLines = (kSoftmaxFetch / kPartition + M - 1) / M;
  Wide<S> lanes[M];
  for (int64_t m = 0; m < count; ++m) {
    float* row = scores + m * kScoreStride;
    const auto [begin, end] = sees[m];
    const int64_t first = begin / 16 * 16, last = (end + 15) / 16 * 16;
    std::fill(row + first, row + begin, -__builtin_inff());
    std::fill(row + end, row + last, -__builtin_inff());
    lanes[m] = Wide<S>::set1(-__builtin_inff());
    for (int64_t i = first; i < last; i += 16)
      for (int p = 0; p < Wide<S>::kParts; ++p)
        lanes[m].v[p] = S::max(lanes[m].v[p], S::load(row + i + p * S::kLanes));
  }
  for (int64_t m = 0; m < count; ++m) max[m] = max_lanes(lanes[m]);
  for (int64_t m = 0; m < count; ++m) {
    float* row = scores + m * kScoreStride;
    const int64_t last = (sees[m].end + 15) / 16 * 16;
    lanes[m] = Wide<S>::set1(0.0F);
    const typename S::F most = S::set1(max[m]);
    int64_t i = sees[m].begin / 16 * 16;
    for (; i + 64 <= last; i += 64) {
      fetch.lines(kLines);
      weigh<S, 64>(row + i, most, lanes[m]);
    }
    for (; i < last; i += 16) weigh<S, 16>(row + i, most, lanes[m]);
  }
  for (int64_t m = 0; m < count; ++m) total[m] = sum_lanes(lanes[m]);
}

// Queries [first, first + count) of a.rows * a.heads, M at a time.
template <class S, class Stored, int M, bool Widened>
class Attention {
  using Cell = std::conditional_t<Widened, WideCell<Stored::kScaled>, Stored>;
  static_assert(M <= kMostQueries);

 public:
  static constexpr int64_t kMost = Widened ? kQueriesTogether : M;

  Attention(const AttentionArgs& a, int64_t first, int64_t count)
      : a_(a),
        first_(first),
        count_(count),
        tiles_((count + M - 1) / M),
        scores_(a.scratch),
        out_(scores_ + tiles_ * M * kScoreStride),
        wide_(out_ + tiles_ * M * a.head_dim) {
    // The last tile is filled up with its last query, whose results go nowhere.
    for (int64_t i = 0; i < tiles_ * M; ++i) {
      const int64_t query = first + std::min(i, count - 1), row = query / a.heads;
      q_[i] = a.q + row * a.q_stride + query % a.heads * a.head_dim;
      sees_[i] = {a.begin(row) - a.base, a.end(row) - a.base};
    }
  }

  void run() {
    const int64_t first = sees_[0].begin / 16, last = (sees_[count_ - 1].end - 1) / 16;
    const Cells k_cells(a_.k_cells + first, a_.k_cells + last + 1);
    const Cells v_cells(a_.v_cells + first, a_.v_cells + last + 1);
    each_cell(first, k_cells, v_cells, kAhead, 1, [&](int64_t tile, Slots slots, const CellView<Cell>& k) {
      score_cell<S, Cell, M>(q_ + tile * M, k, a_.head_dim, scores_ + tile * M * kScoreStride + slots.begin);
    });
    // The first cells of V are on their way; those behind them come meanwhile.
    const int64_t cell_bytes =
        kCellPositions * a_.head_dim * static_cast<int64_t>(sizeof(typename Stored::Element));
    const int64_t fetched = Widened ? 0 : kSoftmaxFetch / cell_bytes;
    const Cells behind = from(v_cells, kAhead);
    CellFetch fetch(behind.first(std::min(behind.size(), static_cast<std::size_t>(fetched))), cell_bytes);
    for (int64_t i = 0; i < count_; i += M)
      softmax_rows<S, M>(scores_ + i * kScoreStride, sees_ + i, std::min<int64_t>(M, count_ - i),
                         a_.max + first_ + i, a_.total + first_ + i, fetch);
    std::fill_n(out_, tiles_ * M * a_.head_dim, 0.0F);
    // Values of several cells, as far as a core's nearest cache has room for them: results are taken up less
    // often.
    const int64_t together = Widened ? widened_cells(a_.head_dim) : 1;
    each_cell(first, v_cells, {}, kAhead + fetched, together,
              [&](int64_t tile, Slots slots, const CellView<Cell>& v) { mix(tile, slots, v); });
    std::copy_n(out_, count_ * a_.head_dim, a_.out + first_ * a_.head_dim);
  }

 private:
  static constexpr int64_t kAhead = 2;  // cells

  static Cells from(Cells cells, int64_t index) {
    return cells.subspan(std::min(cells.size(), static_cast<std::size_t>(index)));
  }

  // fn for `cells`, the first of which is cell `number` of the partition, `together` of them at a time, and
  // for each tile with a query that attends to some. From memory comes what lies `ahead` in them, or in
  // `next` behind them.
  template <class Fn>
  void each_cell(int64_t number, Cells cells, Cells next, int64_t ahead, int64_t together, Fn fn) {
    for (; !cells.empty(); cells = from(cells, together), number += together) {
      const auto count = std::min(together, static_cast<int64_t>(cells.size()));
      CellView<Cell> view = {};
      if constexpr (Stored::kScaled)
        for (int64_t i = 0; i < count; ++i)
          view.scales[i] = cell_scales(cells[static_cast<std::size_t>(i)], a_.head_dim);
      using Element = typename Cell::Element;
      if constexpr (Widened) {
        const int64_t elements = kCellPositions * a_.head_dim;
        for (int64_t i = 0; i < count; ++i)
          widen<S, Stored>(cells[static_cast<std::size_t>(i)], elements, wide_ + i * elements);
        view.data = view.ahead = wide_;
      } else {
        const Cells later = from(cells, ahead);
        const Cells after = from(next, ahead - static_cast<int64_t>(cells.size()));
        const uint8_t* fetched = !later.empty() ? later[0] : !after.empty() ? after[0] : cells[0];
        view.data = reinterpret_cast<const Element*>(cells[0]);
        view.ahead = reinterpret_cast<const Element*>(fetched);
      }
      const Slots slots = {16 * number, 16 * (number + count)};
      for (int64_t tile = 0; tile < tiles_; ++tile)
        if (slots.begin < sees_[tile * M + M - 1].end && sees_[tile * M].begin < slots.end)
          fn(tile, slots, view);
    }
  }

  // What all queries of a tile see of some cells they take together, and each takes the rest alone: that is
  // another's, or nobody's and may be NaN.
  void mix(int64_t tile, Slots cells, const CellView<Cell>& v) {
    const Slots* sees = sees_ + tile * M;
    const float* weights = scores_ + tile * M * kScoreStride + cells.begin;
    float* out = out_ + tile * M * a_.head_dim;
    const int64_t size = cells.end - cells.begin;
    Slots common = {std::max<int64_t>(sees[M - 1].begin - cells.begin, 0),
                    std::min(sees[0].end - cells.begin, size)};
    if (common.begin >= common.end) common = {size, size};
    const auto alone = [&](int64_t from, int64_t to) {
      for (int64_t m = 0; from < to && m < M; ++m) {
        const Slots slots = {std::max(sees[m].begin - cells.begin, from),
                             std::min(sees[m].end - cells.begin, to)};
        if (slots.begin < slots.end)
          mix_cells<S, Cell, 1>(v, weights + m * kScoreStride, slots, a_.head_dim, out + m * a_.head_dim);
      }
    };
    alone(0, common.begin);
    if (common.begin < common.end) mix_cells<S, Cell, M>(v, weights, common, a_.head_dim, out);
    alone(common.end, size);
  }

  static_assert(kMost % M == 0);
  const AttentionArgs& a_;
  int64_t first_, count_, tiles_;
  const float* q_[kMost];
  Slots sees_[kMost];  // of the partition; neither border falls from query to query
  float* scores_;      // [tiles][M][kScoreStride]
  float* out_;         // [tiles][M][head_dim]
  float* wide_;        // [widened_cells][16 * head_dim]
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
  if (a.rows > 1) {
    const int64_t queries = a.rows * a.heads;
    for (int64_t first = 0; first < queries; first += kQueriesTogether)
      Attention<S, Stored, S::kQueries, true>(a, first, std::min(kQueriesTogether, queries - first)).run();
    return;
  }
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
