#include "runtime/attention_op.h"

#include <algorithm>

namespace ferrite {

int64_t AttentionOp::first_partition(int64_t position) const {
  const int64_t first = config_.window > 0 ? std::max<int64_t>(0, position - config_.window + 1) : 0;
  return first / kPartition;
}

AttentionOp::Partitions AttentionOp::partitions(const StepContext& ctx, const RowRun& run) const {
  const int64_t position = ctx.input.positions[static_cast<std::size_t>(run.first)];
  return {first_partition(position), (position + run.rows - 1) / kPartition};
}

AttentionOp::Item AttentionOp::item(const StepContext& ctx, int64_t index) const {
  const RowRun& run = runs_[static_cast<std::size_t>(index / config_.kv_heads)];
  return {run, index % config_.kv_heads, partitions(ctx, run)};
}

RowRun AttentionOp::attending(const StepContext& ctx, const RowRun& run, int64_t partition) const {
  const int64_t position = ctx.input.positions[static_cast<std::size_t>(run.first)];
  const int64_t base = partition * kPartition;
  const int64_t first = std::max<int64_t>(0, base - position);
  int64_t end = run.rows;
  if (config_.window > 0) end = std::min(end, base + kPartition + config_.window - 1 - position);
  return {run.first + first, end - first};
}

void AttentionOp::prepare(const StepContext& ctx) {
  reset();
  // As many queries as the kernel takes together, or half of them where a prompt's rows would not keep all
  // threads busy.
  const auto rows_of = [&](int64_t queries) { return std::max<int64_t>(1, queries / config_.group()); };
  int64_t most_rows = rows_of(kQueriesTogether);
  if (ctx.input.rows() / most_rows * config_.kv_heads < 8 * ctx.threads)
    most_rows = rows_of(kQueriesTogether / 2);
  runs_.clear();
  longest_ = 0;
  for (int64_t row = 0; row < ctx.input.rows(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    const bool continues = row > 0 && ctx.input.sequences[at] == ctx.input.sequences[at - 1];
    if (!continues || runs_.back().rows == most_rows) runs_.push_back({row, 0});
    longest_ = std::max(longest_, ++runs_.back().rows);
  }
  partitions_ = 0;
  for (const RowRun& run : runs_) {
    const auto [first, last] = partitions(ctx, run);
    partitions_ = std::max(partitions_, last - first + 1);
  }
  // Splitting costs memory and a second op; it pays when there are too few runs to keep the threads busy.
  split_ = partitions_ > 1 && items() < 4 * ctx.threads;
  if (split_)
    partials_.resize(static_cast<std::size_t>(ctx.input.rows() * config_.kv_heads * partitions_ * width()));
  const int64_t floats =
      attention_scratch(longest_ * config_.group(), config_.head_dim) + 2 * longest_ * width();
  scratch_.resize(static_cast<std::size_t>(ctx.threads));
  for (auto& scratch : scratch_) scratch.resize(static_cast<std::size_t>(floats));
}

AttentionOp::Partial AttentionOp::partial_at(float* memory, int64_t rows) const {
  return {memory, memory + rows * config_.group(), memory + 2 * rows * config_.group()};
}

AttentionOp::Partial AttentionOp::partial(const RowRun& run, int64_t kv_head, int64_t partition) {
  const int64_t rows =
      (run.first * config_.kv_heads + kv_head * run.rows) * partitions_ + partition * run.rows;
  return partial_at(partials_.data() + rows * width(), run.rows);
}

AttentionOp::Scratch AttentionOp::scratch(int thread) {
  float* memory = scratch_[static_cast<std::size_t>(thread)].data();
  return {memory + 2 * longest_ * width(), partial_at(memory, longest_),
          partial_at(memory + longest_ * width(), longest_)};
}

void AttentionOp::join(const StepContext& ctx, const RowRun& run, const RowRun& rows, int64_t partition,
                       const Partial& next, const Partial& joined) const {
  const int64_t dim = config_.head_dim;
  const int64_t skipped = (rows.first - run.first) * config_.group();
  for (int64_t i = 0; i < rows.rows * config_.group(); ++i) {
    const int64_t position = ctx.input.positions[static_cast<std::size_t>(rows.first + i / config_.group())];
    const int64_t to = skipped + i;
    if (first_partition(position) == partition) {
      joined.max[to] = next.max[i];
      joined.total[to] = next.total[i];
      std::copy_n(next.out + i * dim, dim, joined.out + to * dim);
    } else {
      ctx.kernels.join(joined.max + to, joined.total + to, joined.out + to * dim, next.max[i], next.total[i],
                       next.out + i * dim, dim);
    }
  }
}

void AttentionOp::attend(const StepContext& ctx, const RowRun& rows, int64_t kv_head, int64_t partition,
                         float* scratch, const Partial& to) const {
  const AttentionConfig& c = config_;
  const auto first = static_cast<std::size_t>(rows.first);
  const auto& table = ctx.input.block_tables[static_cast<std::size_t>(ctx.input.sequences[first])];
  const Buffer& q = ctx.buffers[static_cast<std::size_t>(c.q)];
  AttentionArgs args = {};
  args.q = q.row(rows.first) + kv_head * c.group() * c.head_dim;
  args.q_stride = q.rows().stride;
  args.rows = rows.rows;
  args.heads = c.group();
  args.head_dim = c.head_dim;
  args.position = ctx.input.positions[first];
  args.window = c.window;
  args.base = partition * kPartition;
  const int64_t end = args.end(rows.rows - 1);
  for (int64_t at = args.begin(0) / kCellPositions * kCellPositions; at < end; at += kCellPositions) {
    const int64_t block = table[static_cast<std::size_t>(at / ctx.kv->shape().block_tokens)];
    const auto cell = static_cast<std::size_t>((at - args.base) / kCellPositions);
    args.k_cells[cell] = ctx.kv->k_cell(block, c.layer, kv_head, at);
    args.v_cells[cell] = ctx.kv->v_cell(block, c.layer, kv_head, at);
  }
  args.scratch = scratch;
  args.max = to.max;
  args.total = to.total;
  args.out = to.out;
  ctx.kernels.attend[static_cast<std::size_t>(ctx.kv->shape().type)](args);
}

void AttentionOp::finish(const StepContext& ctx, const RowRun& run, int64_t kv_head,
                         const Partial& joined) const {
  const AttentionConfig& c = config_;
  const Buffer& out = ctx.buffers[static_cast<std::size_t>(c.out)];
  const int64_t column = kv_head * c.group() * c.head_dim;
  for (int64_t i = 0; i < run.rows; ++i) {
    float* y = out.row(run.first + i) + column;
    for (int64_t h = 0; h < c.group(); ++h) {
      const int64_t query = i * c.group() + h;
      ctx.kernels.divide(y + h * c.head_dim, joined.out + query * c.head_dim, joined.total[query],
                         c.head_dim);
    }
    if (out.quantised())
      ctx.kernels.quantize_row(y, c.group() * c.head_dim, out.quant_at(run.first + i, column));
  }
}

void AttentionOp::run(const StepContext& ctx, int thread) noexcept {
  const Scratch scratch = this->scratch(thread);
  if (split_) {
    share(items() * partitions_, 1, [&](int64_t work, int64_t) {
      const auto [run, kv_head, range] = item(ctx, work / partitions_);
      const int64_t offset = work % partitions_, partition = range.first + offset;
      if (partition <= range.last)
        attend(ctx, attending(ctx, run, partition), kv_head, partition, scratch.kernel,
               partial(run, kv_head, offset));
    });
    return;
  }
  share(items(), 1, [&](int64_t index, int64_t) {
    const auto [run, kv_head, range] = item(ctx, index);
    for (int64_t partition = range.first; partition <= range.last; ++partition) {
      const RowRun rows = attending(ctx, run, partition);
      attend(ctx, rows, kv_head, partition, scratch.kernel, scratch.next);
      join(ctx, run, rows, partition, scratch.next, scratch.joined);
    }
    finish(ctx, run, kv_head, scratch.joined);
  });
}

void JoinOp::run(const StepContext& ctx, int thread) noexcept {
  const AttentionOp::Partial joined = attention_.scratch(thread).joined;
  share(attention_.items(), 1, [&](int64_t index, int64_t) {
    const auto [run, kv_head, range] = attention_.item(ctx, index);
    for (int64_t partition = range.first; partition <= range.last; ++partition)
      attention_.join(ctx, run, attention_.attending(ctx, run, partition), partition,
                      attention_.partial(run, kv_head, partition - range.first), joined);
    attention_.finish(ctx, run, kv_head, joined);
  });
}

}  // namespace ferrite
