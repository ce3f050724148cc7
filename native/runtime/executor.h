// A model's program: its buffers and ops, and the step that runs them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/attention_op.h"
#include "runtime/op_times.h"
#include "runtime/ops.h"
#include "sampling/scorer.h"

namespace ferrite {

// One executor at a time may step on a team. Built once by calls in program order; every call checks the
// shapes it is given and throws std::invalid_argument, so that step() cannot meet a mismatch.
class Executor {
 public:
  // `quantisation` is what quantised matrices take: Q8 or Q8Residual.
  Executor(std::shared_ptr<Team> team, const KernelTable& kernels, std::shared_ptr<KvStore> kv,
           Quantisation quantisation = Quantisation::Q8);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  BufferId buffer(int64_t cols, RowSpace space);
  void embed(std::shared_ptr<const Weight> table, BufferId out, float scale);
  void select_rows(BufferId in, BufferId out);
  void norm(BufferId in, const std::vector<float>& weight, BufferId out, float eps);
  void linear(BufferId in, std::vector<LinearPiece> pieces);
  void angles(std::vector<double> frequencies, BufferId out);
  void rope(RopeOp::Config config);
  void attention(const AttentionConfig& config);
  void gate(GateKind kind, BufferId gate, BufferId up);
  void add(BufferId y, BufferId x);
  void logits(BufferId in, std::shared_ptr<const Weight> weight, BufferId out);

  int64_t vocab_size() const { return vocab_size_; }
  const KernelTable& kernels() const { return kernels_; }

  // Evaluate a step: KV is written, logits are left in the buffer. Throws std::invalid_argument when the
  // input does not fit the model or the KV store. `begun` is called when the team's other threads are at
  // work.
  void step(const StepInput& input, const std::function<void()>& begun = [] {});
  // Record where the time of the following steps goes, from nothing.
  void record_times();
  // Stop it and return what was recorded. Throws std::logic_error when nothing is.
  OpTimes recorded_times();
  // After step(): the logits of logit row i.
  std::span<const float> logits(int64_t row) const;
  // After step(): one id from each sampler for the first logit rows, -1 where it has none to give; the rows
  // that follow score the scorers' tokens in order, but those whose logits are not finite.
  //
  // With `drafts`, one for each sampler, a sampler has a logit row more for every token of its draft, behind
  // its first row: the row that the token was evaluated in. As long as its ids are those of the draft it goes
  // on to the next row, as it would in steps of its own. The result has an id for each of the rows, in order,
  // and -1 for those that were not reached.
  std::vector<int32_t> sample(std::span<Sampler* const> samplers, std::span<Scorer* const> scorers = {},
                              std::span<const std::span<const int32_t>> drafts = {});

 private:
  const Buffer& at(BufferId id, const char* what) const;
  const Buffer& tokens_at(BufferId id, int64_t cols, const char* what) const;
  void check_attention(BufferId q, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t layer,
                       const char* what) const;
  // The int8 form of a buffer is left by the op that writes it, if that op is one that can.
  void written(BufferId id, bool quantises);
  void read_quantised(BufferId id, const Weight& weight);
  void check(const StepInput& input) const;
  void reserve(const StepInput& input);
  void run(const StepContext& ctx, const std::function<void()>& begun);
  void run_timed(const StepContext& ctx, const std::function<void()>& begun);

  std::shared_ptr<Team> team_;
  const KernelTable& kernels_;
  std::shared_ptr<KvStore> kv_;
  Quantisation quantisation_;
  std::vector<Buffer> buffers_;
  std::vector<bool> quantises_;  // by buffer: whether the last op that wrote it also leaves its int8 form
  std::vector<std::unique_ptr<Op>> ops_;
  LogitsOp* logits_op_ = nullptr;
  BufferId logits_ = -1;
  int64_t vocab_size_ = 0;
  int64_t logit_rows_ = 0;
  bool stepped_ = false;
  std::unique_ptr<OpTimer> timer_;  // while times are recorded
};

}  // namespace ferrite
