// What one step evaluates, and the buffers that every op of the step sees.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/kv_store.h"
#include "runtime/memory.h"
#include "sampling/sampler.h"

namespace ferrite {

struct StepInput {
  std::span<const int32_t> tokens;     // [n]
  std::span<const int32_t> positions;  // [n]
  std::span<const int32_t> sequences;  // [n] index into block_tables
  std::vector<std::span<const int32_t>> block_tables;
  std::span<const int32_t> logit_rows;  // [m]

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  int64_t logits() const { return static_cast<int64_t>(logit_rows.size()); }
};

// A buffer has a row for every token of the step, or only for those whose logits are wanted.
enum class RowSpace : int32_t { Tokens, Logits };

// What an op leaves besides float32: nothing, int8 activations, or int8 with the residual term.
enum class Quantisation : int32_t { None, Q8, Q8Residual };

class Buffer {
 public:
  Buffer(int64_t cols, RowSpace space, Quantisation quantisation)
      : cols_(cols), stride_((cols + 15) / 16 * 16), space_(space), quantisation_(quantisation) {}

  int64_t cols() const { return cols_; }
  RowSpace space() const { return space_; }
  bool quantised() const { return quantisation_ != Quantisation::None; }
  void want(Quantisation quantisation) { quantisation_ = quantisation; }

  // Make room for `rows` rows. Contents are lost when it grows; padding columns are zero.
  void reserve(int64_t rows);
  Rows rows() const { return rows_; }
  float* row(int64_t i) const { return rows_.x + i * rows_.stride; }
  // The int8 rows from row i, column `col` (a multiple of 32) on.
  QuantRows quant_at(int64_t i, int64_t col) const;

 private:
  int64_t cols_, stride_;
  RowSpace space_;
  Quantisation quantisation_;
  int64_t capacity_ = 0;
  std::array<MappedMemory, 7> memory_;
  Rows rows_ = {};
};

// Everything an op may touch while it runs.
struct StepContext {
  const StepInput& input;
  const KernelTable& kernels;
  std::vector<Buffer>& buffers;
  const KvStore* kv;
  int threads;

  int64_t rows_of(RowSpace space) const { return space == RowSpace::Tokens ? input.rows() : input.logits(); }
};

}  // namespace ferrite
