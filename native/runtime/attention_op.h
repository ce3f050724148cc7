// Attention over the KV store, by runs of rows and partitions of positions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops.h"

namespace ferrite {

struct AttentionConfig {
  BufferId q, out;
  int64_t heads, kv_heads, head_dim, layer;
  int64_t window;  // positions a query sees, itself included; 0 for all

  int64_t group() const { return heads / kv_heads; }
};

// Rows of a step at consecutive positions of one sequence.
struct RowRun {
  int64_t first, rows;
};

// Attention of every row to its sequence, for runs of rows that share what they read. When there are few runs
// and long contexts the partitions of one go to different threads, and JoinOp joins them; the arithmetic is
// the same either way.
class AttentionOp final : public Op {
 public:
  explicit AttentionOp(const AttentionConfig& config) : config_(config) {}
  void prepare(const StepContext& ctx) override;
  void run(const StepContext& ctx, int thread) noexcept override;
  OpClass op_class() const override { return OpClass::Attention; }

 private:
  friend class JoinOp;
  // What attention over some partitions comes to, for rows * group heads.
  struct Partial {
    float* max;
    float* total;
    float* out;
  };
  struct Scratch {
    float* kernel;
    Partial next, joined;
  };
  struct Partitions {
    int64_t first, last;
  };
  // One kv head of one run.
  struct Item {
    const RowRun& run;
    int64_t kv_head;
    Partitions partitions;
  };

  int64_t items() const { return static_cast<int64_t>(runs_.size()) * config_.kv_heads; }
  int64_t width() const { return config_.group() * (config_.head_dim + 2); }
  int64_t first_partition(int64_t position) const;
  Partitions partitions(const StepContext& ctx, const RowRun& run) const;
  Item item(const StepContext& ctx, int64_t index) const;
  // The rows of `run` that attend to some position of a partition.
  RowRun attending(const StepContext& ctx, const RowRun& run, int64_t partition) const;
  void attend(const StepContext& ctx, const RowRun& rows, int64_t kv_head, int64_t partition, float* scratch,
              const Partial& to) const;
  // Put what `rows` of `run` found in a partition to what they found in those before it.
  void join(const StepContext& ctx, const RowRun& run, const RowRun& rows, int64_t partition,
            const Partial& next, const Partial& joined) const;
  void finish(const StepContext& ctx, const RowRun& run, int64_t kv_head, const Partial& joined) const;
  Partial partial(const RowRun& run, int64_t kv_head, int64_t partition);
  Partial partial_at(float* memory, int64_t rows) const;
  Scratch scratch(int thread);

  AttentionConfig config_;
  bool split_ = false;
  std::vector<RowRun> runs_;
  int64_t longest_ = 0;                      // most rows of any run
  int64_t partitions_ = 0;                   // most partitions of any run
  std::vector<float> partials_;              // when split: [runs][kv_heads][partitions_][rows * width()]
  std::vector<std::vector<float>> scratch_;  // per thread
};

class JoinOp final : public Op {
 public:
  explicit JoinOp(AttentionOp& attention) : attention_(attention) {}
  bool active(const StepContext&) const override { return attention_.split_; }
  void run(const StepContext& ctx, int thread) noexcept override;
  OpClass op_class() const override { return OpClass::Attention; }

 private:
  AttentionOp& attention_;
};

}  // namespace ferrite
