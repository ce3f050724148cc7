// The kernels of one instruction set, as plain function pointers: what runtime/ calls and isa/ fills in.
#pragma once

#include <cstdint>

#include "quant/types.h"

namespace ferrite {

// Of sixteen columns, the sums of those that are 0 or 1 and of those that are 2 or 3 modulo 4: halves of a
// 32-bit lane of the products, where a format's offset is taken off.
struct PairSums {
  int16_t low, high;
  bool operator==(const PairSums&) const = default;
};

// Rows of integers in -127..127, the form in which activations are multiplied.
struct Int8Rows {
  int8_t* q;        // [rows][cols]
  PairSums* pairs;  // [rows][cols / 16]
};

// Rows of int8 activations with one float32 scale per 32 columns: x = scale * value, or with the residual
// term x = scale * (kResidual * value + residual), about 15 bits.
struct QuantRows {
  Int8Rows value;
  float* scale;            // [rows][cols / 32]
  float* sum;              // [rows][cols / 32] scale times the sum of the 32 integers
  Int8Rows residual = {};  // null for one term
};

// A residual is at most half a step of q; times 254 it fills -127..127.
inline constexpr int32_t kResidual = 254;

// Rows of activations: float32 always, int8 where an op asked for it.
struct Rows {
  float* x;  // [rows][stride], columns padded with zeros to a multiple of 16
  int64_t stride;
  int64_t cols;
  QuantRows quant;
};

// out[t][r] (+)= bias[r] + sum over columns of weight[r][c] * in[t][c], for rows of tiles [tile_begin,
// tile_end).
struct MatmulArgs {
  const uint8_t* tiles;
  int64_t tile_bytes;
  int64_t tile_begin, tile_end;
  int64_t cols;
  Rows in;
  int64_t tokens;
  float* out;  // [tokens][out_stride]
  int64_t out_stride;
  const float* bias;    // [rows padded to 16] or null
  bool accumulate;      // add to what `out` holds
  const uint8_t* next;  // the tile that this thread will likely need after these, or null
};

// y = x / sqrt(mean(x^2) + eps) * weight over `cols`; y may be x. The quantised form of y is filled in by
// quantize_row.
struct NormArgs {
  const float* x;
  const float* weight;
  float* y;
  int64_t cols;
  float eps;
};

// The largest of some values, and whether all of them are finite (the value means nothing otherwise).
struct Peak {
  float value;
  bool finite;
};

enum class GateKind : int32_t { Silu, GeluTanh };

enum class RopeKind : int32_t {
  Adjacent,  // pairs (2i, 2i + 1): llama files, whose rows were permuted for it
  Halves,    // pairs (i, i + n / 2): GPT-NeoX order
};

// Rotary position embedding (Su et al. 2021): rotate the first `pairs` pairs of a head in place, and multiply
// every column with `scale`.
struct RotateArgs {
  RopeKind kind;
  float* head;  // [head_dim]
  int64_t head_dim;
  const float* cos;  // [pairs]
  const float* sin;  // [pairs]
  int64_t pairs;
  float scale;
};

// Positions attended together; partitions start at its multiples and are joined in order. Part of the
// definition of the result: another size would round differently.
inline constexpr int64_t kPartition = 256;
inline constexpr int64_t kCellPositions = 16;

// How the KV cache keeps K and V: float16, float32, or int8 with one float16 scale for each 32 values of a
// position.
enum class KvType : int32_t { F16, F32, Q8_0 };
inline constexpr int kKvTypes = 3;
inline constexpr int64_t kKvGroup = 32;

// One kv head's part of attention: rows at consecutive positions of one sequence, each with the query heads
// that share the kv head, over one partition, of which every row attends to something.
struct AttentionArgs {
  const float* q;  // [rows][q_stride], of these [heads][head_dim], scaled
  int64_t q_stride;
  int64_t rows;
  int64_t heads;                                        // query heads in the group
  int64_t head_dim;                                     // multiple of 16; of kKvGroup for Q8_0
  int64_t position;                                     // of the first row
  int64_t window;                                       // positions a row sees, itself included; 0 for all
  int64_t base;                                         // the partition's first position
  const uint8_t* k_cells[kPartition / kCellPositions];  // the partition's cells of K, [head_dim][16] each,
  const uint8_t* v_cells[kPartition / kCellPositions];  // and of V, [16][head_dim]; Q8_0: scales behind
  float* scratch;                                       // attention_scratch() floats
  float* max;                                           // [rows][heads] largest score
  float* total;                                         // [rows][heads] sum of exp(score - max)
  float* out;                                           // [rows][heads][head_dim] sum of exp(score - max) * v

  // What a row attends to.
  int64_t begin(int64_t row) const {
    const int64_t first = window > 0 ? position + row - window + 1 : 0;
    return first > base ? first : base;
  }
  int64_t end(int64_t row) const {
    const int64_t last = position + row + 1;
    return last < base + kPartition ? last : base + kPartition;
  }
};

// Queries (heads of rows) that a register tile of attention takes at most.
inline constexpr int64_t kMostQueries = 12;

// From one query's scores to the next's; with a power of two all would fall into the same few lines of a
// cache.
inline constexpr int64_t kScoreStride = kPartition + kCellPositions;

// Queries of several rows for which attention widens a cell once: enough to be worth it, few enough that
// their scores and results stay in a core's cache.
inline constexpr int64_t kQueriesTogether = 48;

// Cells of V that are widened at a time, to at most 16 KiB.
inline constexpr int64_t kMostCells = 4;
constexpr int64_t widened_cells(int64_t head_dim) {
  const int64_t cells = 4096 / (kCellPositions * head_dim);
  return cells < 1 ? 1 : cells < kMostCells ? cells : kMostCells;
}

// Floats of scratch for rows * heads queries: scores and results, and cells widened.
constexpr int64_t attention_scratch(int64_t queries, int64_t head_dim) {
  const int64_t together = queries < kQueriesTogether ? queries : kQueriesTogether;
  return (together + kMostQueries) * (kScoreStride + head_dim) +
         widened_cells(head_dim) * kCellPositions * head_dim;
}

struct KernelTable {
  const char* name;
  void (*matmul[quant::kTypeCount])(const MatmulArgs&);
  void (*quantize_row)(const float* x, int64_t cols, const QuantRows& out);
  void (*rms_norm)(const NormArgs&);
  // gate[i] = activation(gate[i]) * up[i]
  void (*gate)(GateKind kind, float* gate, const float* up, int64_t cols);
  // y[i] += x[i]
  void (*add)(float* y, const float* x, int64_t cols);
  // y[i] = x[i] / divisor, for a multiple of 16
  void (*divide)(float* y, const float* x, float divisor, int64_t cols);
  void (*rotate)(const RotateArgs&);
  Peak (*peak)(const float* x, int64_t count);
  void (*attend[kKvTypes])(const AttentionArgs&);
  void (*store_f16)(uint16_t* out, const float* x, int64_t count);  // count is a multiple of 16
  // q[i] = round(x[i] / scale) with one float16 scale for each kKvGroup values.
  void (*store_q8)(int8_t* q, uint16_t* scales, const float* x, int64_t count);
  // `rounds` rounds of dot products on registers alone; returns the multiply-adds done.
  int64_t (*dot_products)(int64_t rounds);
  // Join the next partition (max, total, out) into (joined_max, joined_total, joined).
  void (*join)(float* joined_max, float* joined_total, float* joined, float max, float total,
               const float* out, int64_t head_dim);
};

const KernelTable& portable_kernels();

}  // namespace ferrite
