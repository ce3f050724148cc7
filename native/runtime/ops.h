// The operations a program is made of. Each is run by every thread of the team, which take pieces of its work
// from a shared counter until none is left, and then wait until all pieces are finished. So a descheduled
// thread costs the piece it holds, not the step, and no thread waits for another to arrive.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/op_times.h"
#include "runtime/rope.h"
#include "runtime/step.h"
#include "runtime/team.h"
#include "runtime/weight.h"

namespace ferrite {

using BufferId = int32_t;

class Op {
 public:
  virtual ~Op() = default;
  // Called once a step, on one thread, before any run(). All memory is taken here.
  virtual void prepare(const StepContext&) { reset(); }
  // False when the step has nothing for this op.
  virtual bool active(const StepContext&) const { return true; }
  // On return the whole op is finished, whoever did it.
  virtual void run(const StepContext& ctx, int thread) noexcept = 0;
  virtual OpClass op_class() const { return OpClass::Other; }
  // Where threads add the nanoseconds for which they wait in run(); null where nobody counts them.
  void count_waits(std::atomic<int64_t>* waited) { waited_ = waited; }

 protected:
  void reset() {
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }

  // Hand out [0, total) in pieces of `chunk` to `fn(begin, end)`, and wait until all of them are finished.
  // Every thread must call it once a run with the same numbers.
  template <class Fn>
  void share(int64_t total, int64_t chunk, Fn fn) {
    const auto pieces = static_cast<uint32_t>((total + chunk - 1) / chunk);
    for (uint32_t piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      const int64_t begin = piece * chunk;
      fn(begin, begin + chunk < total ? begin + chunk : total);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) done_.notify_all();
    }
    if (done_.load(std::memory_order_acquire) == pieces) return;
    const auto since = waited_ == nullptr ? OpTimer::Time() : OpTimer::Clock::now();
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) < pieces;)
      wait_while_equal(done_, done);
    if (waited_ != nullptr) *waited_ += OpTimer::nanoseconds(OpTimer::Clock::now() - since);
  }

  // Call `fn(row)` for each of `rows` rows, or of equal pieces of rows, as share() does. Neighbours go to one
  // thread: it asks the shared counter less often, and the core fetches ahead along them.
  template <class Fn>
  void share_rows(const StepContext& ctx, int64_t rows, Fn fn) {
    const int64_t chunk = std::clamp<int64_t>(rows / (8 * ctx.threads), 1, 16);
    share(rows, chunk, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) fn(row);
    });
  }

 private:
  std::atomic<int64_t>* waited_ = nullptr;
  alignas(64) std::atomic<uint32_t> next_ = 0;  // pieces handed out
  alignas(64) std::atomic<uint32_t> done_ = 0;  // pieces finished
};

// out = scale * table[token]
class EmbedOp final : public Op {
 public:
  EmbedOp(std::shared_ptr<const Weight> table, BufferId out, float scale)
      : table_(std::move(table)), out_(out), scale_(scale) {}
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  std::shared_ptr<const Weight> table_;
  BufferId out_;
  float scale_;
};

// out = in[logit_rows]
class SelectRowsOp final : public Op {
 public:
  SelectRowsOp(BufferId in, BufferId out) : in_(in), out_(out) {}
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  BufferId in_, out_;
};

// out = rms_norm(in) * weight
class NormOp final : public Op {
 public:
  NormOp(BufferId in, Vector weight, BufferId out, float eps)
      : in_(in), out_(out), weight_(std::move(weight)), eps_(eps) {}
  void run(const StepContext& ctx, int thread) noexcept override;
  OpClass op_class() const override { return OpClass::Norm; }

 private:
  BufferId in_, out_;
  Vector weight_;
  float eps_;
};

struct LinearPiece {
  std::shared_ptr<const Weight> weight;
  BufferId out;
  Vector bias;      // empty for none
  bool accumulate;  // add to what `out` holds
};

// Several matrices times the same input, as one op.
class LinearOp final : public Op {
 public:
  LinearOp(BufferId in, std::vector<LinearPiece> pieces) : in_(in), pieces_(std::move(pieces)) {}
  void prepare(const StepContext& ctx) override;
  void run(const StepContext& ctx, int thread) noexcept override;
  OpClass op_class() const override { return OpClass::Linear; }

 private:
  // The tile with this number, or null behind the last.
  const uint8_t* tile_at(int64_t number) const;

  BufferId in_;
  std::vector<LinearPiece> pieces_;
  int64_t tiles_ = 0, chunk_ = 0;  // of all pieces; of these, a thread takes at a time
};

// The output matrix; also finds each row's largest logit, so that greedy sampling needs no second pass.
class LogitsOp final : public Op {
 public:
  LogitsOp(BufferId in, std::shared_ptr<const Weight> weight, BufferId out)
      : in_(in), out_(out), weight_(std::move(weight)) {}
  void prepare(const StepContext& ctx) override;
  void run(const StepContext& ctx, int thread) noexcept override;
  OpClass op_class() const override { return OpClass::Linear; }
  // After the step: the id of row i's largest logit, the lowest among equals; -1 when any is not finite.
  int32_t best(int64_t row) const;

 private:
  struct Best {
    float value;
    int32_t id;
    bool finite;
  };
  void scan(const StepContext& ctx, int thread, int64_t begin, int64_t end);

  BufferId in_, out_;
  std::shared_ptr<const Weight> weight_;
  int64_t rows_ = 0;
  int threads_ = 1;
  int64_t chunk_ = 0;       // tiles that a thread takes at a time
  std::vector<Best> best_;  // [threads][rows]
};

// out = cosines, then sines, of position * frequency: once a step for all layers that rotate alike.
class AnglesOp final : public Op {
 public:
  AnglesOp(std::vector<double> frequencies, BufferId out) : frequencies_(std::move(frequencies)), out_(out) {}
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  std::vector<double> frequencies_;  // radians a position, one for each rotated pair
  BufferId out_;
};

struct HeadNorm {
  Vector weight;  // [head_dim], empty for none
  float eps;
};

// Normalise and rotate q and k, scale q, and write k and v to the KV store.
class RopeOp final : public Op {
 public:
  struct Config {
    BufferId q, k, v, angles;
    int64_t heads, kv_heads, head_dim, layer;
    RopeKind kind;
    float q_scale;
    HeadNorm q_norm, k_norm;
  };
  explicit RopeOp(Config config) : config_(std::move(config)) {}
  void prepare(const StepContext& ctx) override;
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  void store(const StepContext& ctx, int64_t row, uint16_t* packed) const;

  Config config_;
  std::vector<uint16_t> packed_;  // [threads][2 * head_dim] a key or value as it is stored, and its scales
};

// gate = activation(gate) * up
class GateOp final : public Op {
 public:
  GateOp(GateKind kind, BufferId gate, BufferId up) : kind_(kind), gate_(gate), up_(up) {}
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  GateKind kind_;
  BufferId gate_, up_;
};

// y += x
class AddOp final : public Op {
 public:
  AddOp(BufferId y, BufferId x) : y_(y), x_(x) {}
  void run(const StepContext& ctx, int thread) noexcept override;

 private:
  BufferId y_, x_;
};

}  // namespace ferrite
