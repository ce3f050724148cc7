#include "runtime/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace ferrite {
namespace {

// Tiles one thread takes at a time: at most 64 KiB of weights or one tile, enough to hide the shared counter,
// little enough that the threads finish together; and of these as many as leave no thread with much more than
// another while all keep pace.
int64_t chunk_tiles(int64_t tiles, int64_t tile_bytes, int threads) {
  constexpr int64_t kBytes = 64 * 1024;
  int64_t best = 0, least = INT64_MAX;
  for (int64_t chunk = std::max<int64_t>(1, kBytes / tile_bytes); chunk > 0; --chunk) {
    const int64_t pieces = (tiles + chunk - 1) / chunk;
    const int64_t busiest = std::min(tiles, (pieces + threads - 1) / threads * chunk);
    if (busiest < least) {
      least = busiest;
      best = chunk;
    }
  }
  return best;
}

void quantise(const StepContext& ctx, const Buffer& buffer, int64_t row) {
  if (buffer.quantised()) ctx.kernels.quantize_row(buffer.row(row), buffer.cols(), buffer.quant_at(row, 0));
}

MatmulArgs matmul_args(const StepContext& ctx, const Weight& weight, const Buffer& in, const Buffer& out) {
  MatmulArgs args = {};
  args.tiles = weight.data();
  args.tile_bytes = weight.tile_bytes();
  args.cols = weight.cols();
  args.in = in.rows();
  args.tokens = ctx.rows_of(in.space());
  args.out = out.row(0);
  args.out_stride = out.rows().stride;
  return args;
}

void run_matmul(const StepContext& ctx, const Weight& weight, const MatmulArgs& args) {
  ctx.kernels.matmul[static_cast<std::size_t>(weight.type().type)](args);
}

// Elements of one position, into its place among the sixteen of a cell whose rows hold one element of each.
template <class T>
void put_column(uint8_t* cell, int64_t slot, const T* values, int64_t count) {
  T* out = reinterpret_cast<T*>(cell);
  for (int64_t i = 0; i < count; ++i) out[i * kCellPositions + slot] = values[i];
}

}  // namespace

void Buffer::reserve(int64_t rows) {
  if (rows <= capacity_) return;
  // All memory is had before any of it counts, so that running out of it leaves the buffer as it was.
  const auto bytes = [](int64_t count, std::size_t size) { return static_cast<std::size_t>(count) * size; };
  const int64_t quants = quantised() ? rows * cols_ : 0;
  MappedMemory floats(bytes(rows * stride_, sizeof(float)));
  const int64_t residual_quants = quantisation_ == Quantisation::Q8Residual ? quants : 0;
  MappedMemory q(bytes(quants, 1));
  MappedMemory pairs(bytes(quants / 16, sizeof(PairSums)));
  MappedMemory residuals(bytes(residual_quants, 1));
  MappedMemory residual_pairs(bytes(residual_quants / 16, sizeof(PairSums)));
  MappedMemory scales(bytes(quants / 32, sizeof(float)));
  MappedMemory sums(bytes(quants / 32, sizeof(float)));
  rows_ = {
      reinterpret_cast<float*>(floats.data()),
      stride_,
      cols_,
      {{reinterpret_cast<int8_t*>(q.data()), reinterpret_cast<PairSums*>(pairs.data())},
       reinterpret_cast<float*>(scales.data()),
       reinterpret_cast<float*>(sums.data()),
       {reinterpret_cast<int8_t*>(residuals.data()), reinterpret_cast<PairSums*>(residual_pairs.data())}}};
  memory_ = {std::move(floats),         std::move(q),      std::move(pairs), std::move(residuals),
             std::move(residual_pairs), std::move(scales), std::move(sums)};
  capacity_ = rows;
}

QuantRows Buffer::quant_at(int64_t i, int64_t col) const {
  const int64_t at = i * cols_ + col;
  const QuantRows& all = rows_.quant;
  const auto from = [&](const Int8Rows& rows) {
    return rows.q == nullptr ? rows : Int8Rows{rows.q + at, rows.pairs + at / 16};
  };
  return {from(all.value), all.scale + at / 32, all.sum + at / 32, from(all.residual)};
}

void EmbedOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(out_)];
  share_rows(ctx, ctx.input.rows(), [&](int64_t row) {
    float* x = out.row(row);
    table_->read_row(ctx.input.tokens[static_cast<std::size_t>(row)], x);
    // Ops that add to this buffer also write its padding, where a row that is not finite leaves NaN.
    std::fill(x + out.cols(), x + out.rows().stride, 0.0F);
    if (scale_ != 1.0F)
      for (int64_t c = 0; c < out.cols(); ++c) x[c] *= scale_;
  });
}

void SelectRowsOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& in = ctx.buffers[static_cast<std::size_t>(in_)];
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(out_)];
  share(ctx.input.logits(), 1, [&](int64_t row, int64_t) {
    const int64_t from = ctx.input.logit_rows[static_cast<std::size_t>(row)];
    std::memcpy(out.row(row), in.row(from), static_cast<std::size_t>(in.rows().stride) * sizeof(float));
    quantise(ctx, out, row);
  });
}

void NormOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& in = ctx.buffers[static_cast<std::size_t>(in_)];
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(out_)];
  share_rows(ctx, ctx.rows_of(in.space()), [&](int64_t row) {
    ctx.kernels.rms_norm({in.row(row), weight_.data(), out.row(row), in.cols(), eps_});
    quantise(ctx, out, row);
  });
}

const uint8_t* LinearOp::tile_at(int64_t number) const {
  for (const LinearPiece& piece : pieces_) {
    if (number < piece.weight->tiles()) return piece.weight->tile(number);
    number -= piece.weight->tiles();
  }
  return nullptr;
}

void LinearOp::prepare(const StepContext& ctx) {
  reset();
  if (chunk_ != 0) return;
  // Pieces are numbered through in tiles, so that a chunk may end one and the next begin another.
  int64_t tile_bytes = 0;
  for (const LinearPiece& piece : pieces_) {
    tiles_ += piece.weight->tiles();
    tile_bytes = std::max(tile_bytes, piece.weight->tile_bytes());
  }
  chunk_ = chunk_tiles(tiles_, tile_bytes, ctx.threads);
}

void LinearOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& in = ctx.buffers[static_cast<std::size_t>(in_)];
  share(tiles_, chunk_, [&](int64_t begin, int64_t end) {
    int64_t offset = 0;
    for (const LinearPiece& piece : pieces_) {
      const int64_t tiles = piece.weight->tiles();
      MatmulArgs args = matmul_args(ctx, *piece.weight, in, ctx.buffers[static_cast<std::size_t>(piece.out)]);
      args.tile_begin = std::max<int64_t>(0, begin - offset);
      args.tile_end = std::min(tiles, end - offset);
      args.bias = piece.bias.empty() ? nullptr : piece.bias.data();
      args.accumulate = piece.accumulate;
      // Threads take chunks in turn as long as none of them is held up.
      args.next = tile_at(end > offset + tiles ? offset + tiles : begin + ctx.threads * chunk_);
      if (args.tile_begin < args.tile_end) run_matmul(ctx, *piece.weight, args);
      offset += tiles;
    }
  });
}

void LogitsOp::prepare(const StepContext& ctx) {
  reset();
  rows_ = ctx.input.logits();
  threads_ = ctx.threads;
  if (chunk_ == 0) chunk_ = chunk_tiles(weight_->tiles(), weight_->tile_bytes(), threads_);
  best_.assign(static_cast<std::size_t>(rows_ * threads_),
               {-std::numeric_limits<float>::infinity(), -1, true});
}

void LogitsOp::run(const StepContext& ctx, int thread) noexcept {
  const Buffer& in = ctx.buffers[static_cast<std::size_t>(in_)];
  MatmulArgs args = matmul_args(ctx, *weight_, in, ctx.buffers[static_cast<std::size_t>(out_)]);
  if (args.tokens == 0) return;
  share(weight_->tiles(), chunk_, [&](int64_t begin, int64_t end) {
    args.tile_begin = begin;
    args.tile_end = end;
    const int64_t next = begin + ctx.threads * chunk_;
    args.next = next < weight_->tiles() ? weight_->tile(next) : nullptr;
    run_matmul(ctx, *weight_, args);
    scan(ctx, thread, begin * 16, std::min(end * 16, weight_->rows()));
  });
}

void LogitsOp::scan(const StepContext& ctx, int thread, int64_t begin, int64_t end) {
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(out_)];
  for (int64_t row = 0; row < rows_; ++row) {
    Best& best = best_[static_cast<std::size_t>(thread * rows_ + row)];
    const float* logits = out.row(row);
    const Peak peak = ctx.kernels.peak(logits + begin, end - begin);
    best.finite = best.finite && peak.finite;
    // Chunks come in any order: among equal values the lower id wins, whichever was seen first.
    if (peak.value < best.value || (peak.value == best.value && begin > best.id)) continue;
    const float* found = std::find(logits + begin, logits + end, peak.value);
    if (found != logits + end) best = {peak.value, static_cast<int32_t>(found - logits), best.finite};
  }
}

int32_t LogitsOp::best(int64_t row) const {
  Best result = {-std::numeric_limits<float>::infinity(), -1, true};
  for (int thread = 0; thread < threads_; ++thread) {
    const Best& best = best_[static_cast<std::size_t>(thread * rows_ + row)];
    result.finite = result.finite && best.finite;
    if (best.id >= 0 && (best.value > result.value || (best.value == result.value && best.id < result.id)))
      result = {best.value, best.id, result.finite};
  }
  return result.finite ? result.id : -1;
}

void AnglesOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(out_)];
  share_rows(ctx, ctx.input.rows(), [&](int64_t row) {
    const auto position = static_cast<double>(ctx.input.positions[static_cast<std::size_t>(row)]);
    float* cos = out.row(row);
    float* sin = cos + frequencies_.size();
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      const SinCos angle = sincos(position * frequencies_[i]);
      cos[i] = static_cast<float>(angle.cos);
      sin[i] = static_cast<float>(angle.sin);
    }
  });
}

void RopeOp::prepare(const StepContext& ctx) {
  reset();
  packed_.resize(static_cast<std::size_t>(2 * config_.head_dim * ctx.threads));
}

void RopeOp::run(const StepContext& ctx, int thread) noexcept {
  const Config& c = config_;
  const Buffer& q = ctx.buffers[static_cast<std::size_t>(c.q)];
  const Buffer& k = ctx.buffers[static_cast<std::size_t>(c.k)];
  const Buffer& angles = ctx.buffers[static_cast<std::size_t>(c.angles)];
  const int64_t pairs = angles.cols() / 2;
  share_rows(ctx, ctx.input.rows(), [&](int64_t row) {
    const float* cos = angles.row(row);
    const auto turn = [&](const Buffer& buffer, int64_t heads, const HeadNorm& norm, float scale) {
      for (int64_t h = 0; h < heads; ++h) {
        float* head = buffer.row(row) + h * c.head_dim;
        if (!norm.weight.empty())
          ctx.kernels.rms_norm({head, norm.weight.data(), head, c.head_dim, norm.eps});
        ctx.kernels.rotate({c.kind, head, c.head_dim, cos, cos + pairs, pairs, scale});
      }
    };
    turn(q, c.heads, c.q_norm, c.q_scale);
    turn(k, c.kv_heads, c.k_norm, 1.0F);
    store(ctx, row, packed_.data() + 2 * c.head_dim * thread);
  });
}

void RopeOp::store(const StepContext& ctx, int64_t row, uint16_t* packed) const {
  const Config& c = config_;
  const auto index = static_cast<std::size_t>(row);
  const int64_t position = ctx.input.positions[index];
  const auto& table = ctx.input.block_tables[static_cast<std::size_t>(ctx.input.sequences[index])];
  const int64_t block = table[static_cast<std::size_t>(position / ctx.kv->shape().block_tokens)];
  const int64_t slot = position % kCellPositions;
  const int64_t dim = c.head_dim;
  for (int64_t h = 0; h < c.kv_heads; ++h) {
    const float* k = ctx.buffers[static_cast<std::size_t>(c.k)].row(row) + h * dim;
    const float* v = ctx.buffers[static_cast<std::size_t>(c.v)].row(row) + h * dim;
    uint8_t* k_cell = ctx.kv->k_cell(block, c.layer, h, position);
    uint8_t* v_cell = ctx.kv->v_cell(block, c.layer, h, position);
    switch (ctx.kv->shape().type) {
      case KvType::F16:
        ctx.kernels.store_f16(packed, k, dim);
        put_column(k_cell, slot, packed, dim);
        ctx.kernels.store_f16(reinterpret_cast<uint16_t*>(v_cell) + slot * dim, v, dim);
        break;
      case KvType::F32:
        put_column(k_cell, slot, k, dim);
        std::memcpy(reinterpret_cast<float*>(v_cell) + slot * dim, v,
                    static_cast<std::size_t>(dim) * sizeof(float));
        break;
      case KvType::Q8_0: {
        auto* q = reinterpret_cast<int8_t*>(packed);
        uint16_t* scales = packed + dim;
        ctx.kernels.store_q8(q, scales, k, dim);
        put_column(k_cell, slot, q, dim);
        put_column(k_cell + kCellPositions * dim, slot, scales, dim / kKvGroup);
        ctx.kernels.store_q8(reinterpret_cast<int8_t*>(v_cell) + slot * dim, scales, v, dim);
        put_column(v_cell + kCellPositions * dim, slot, scales, dim / kKvGroup);
        break;
      }
    }
  }
}

void GateOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& gate = ctx.buffers[static_cast<std::size_t>(gate_)];
  const Buffer& up = ctx.buffers[static_cast<std::size_t>(up_)];
  // A piece of a row: a multiple of 32 columns, so that it can be quantised by itself.
  constexpr int64_t kColumns = 512;
  const int64_t pieces = (gate.cols() + kColumns - 1) / kColumns;
  share_rows(ctx, ctx.rows_of(gate.space()) * pieces, [&](int64_t work) {
    const int64_t row = work / pieces, column = work % pieces * kColumns;
    const int64_t cols = std::min(kColumns, gate.cols() - column);
    ctx.kernels.gate(kind_, gate.row(row) + column, up.row(row) + column, cols);
    if (gate.quantised()) ctx.kernels.quantize_row(gate.row(row) + column, cols, gate.quant_at(row, column));
  });
}

void AddOp::run(const StepContext& ctx, int) noexcept {
  const Buffer& y = ctx.buffers[static_cast<std::size_t>(y_)];
  const Buffer& x = ctx.buffers[static_cast<std::size_t>(x_)];
  share_rows(ctx, ctx.rows_of(y.space()),
             [&](int64_t row) { ctx.kernels.add(y.row(row), x.row(row), y.cols()); });
}

}  // namespace ferrite
