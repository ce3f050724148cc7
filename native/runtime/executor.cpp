#include "runtime/executor.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>

namespace ferrite {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

Vector padded(const std::vector<float>& values) {
  Vector result = values;
  result.resize((values.size() + 15) / 16 * 16, 0.0F);
  return result;
}

}  // namespace

Executor::Executor(std::shared_ptr<Team> team, const KernelTable& kernels, std::shared_ptr<KvStore> kv,
                   Quantisation quantisation)
    : team_(std::move(team)), kernels_(kernels), kv_(std::move(kv)), quantisation_(quantisation) {}

const Buffer& Executor::at(BufferId id, const char* what) const {
  require(id >= 0 && static_cast<std::size_t>(id) < buffers_.size(), std::string(what) + ": no such buffer");
  return buffers_[static_cast<std::size_t>(id)];
}

BufferId Executor::buffer(int64_t cols, RowSpace space) {
  require(cols > 0, "buffer: no columns");
  buffers_.emplace_back(cols, space, Quantisation::None);
  return static_cast<BufferId>(buffers_.size()) - 1;
}

void Executor::embed(std::shared_ptr<const Weight> table, BufferId out, float scale) {
  require(at(out, "embed").cols() == table->cols(), "embed: width");
  vocab_size_ = table->rows();
  ops_.push_back(std::make_unique<EmbedOp>(std::move(table), out, scale));
}

void Executor::select_rows(BufferId in, BufferId out) {
  require(at(in, "select").cols() == at(out, "select").cols(), "select: width");
  require(at(in, "select").space() == RowSpace::Tokens && at(out, "select").space() == RowSpace::Logits,
          "select: rows");
  ops_.push_back(std::make_unique<SelectRowsOp>(in, out));
}

void Executor::norm(BufferId in, const std::vector<float>& weight, BufferId out, float eps) {
  require(at(in, "norm").cols() == static_cast<int64_t>(weight.size()), "norm: width");
  require(
      at(in, "norm").cols() == at(out, "norm").cols() && at(in, "norm").space() == at(out, "norm").space(),
      "norm: shapes");
  ops_.push_back(std::make_unique<NormOp>(in, padded(weight), out, eps));
}

void Executor::linear(BufferId in, std::vector<LinearPiece> pieces) {
  for (LinearPiece& piece : pieces) {
    const Buffer& out = at(piece.out, "linear");
    require(piece.weight->cols() == at(in, "linear").cols() && piece.weight->rows() == out.cols(),
            "linear: shapes");
    require(out.space() == at(in, "linear").space() && piece.out != in, "linear: buffers");
    require(piece.bias.empty() || static_cast<int64_t>(piece.bias.size()) == out.cols(), "linear: bias");
    if (!piece.bias.empty()) piece.bias = padded(piece.bias);
    if (piece.weight->type().quantised) buffers_[static_cast<std::size_t>(in)].want(quantisation_);
  }
  ops_.push_back(std::make_unique<LinearOp>(in, std::move(pieces)));
}

void Executor::angles(std::vector<double> frequencies, BufferId out) {
  require(at(out, "angles").cols() == 2 * static_cast<int64_t>(frequencies.size()), "angles: width");
  ops_.push_back(std::make_unique<AnglesOp>(std::move(frequencies), out));
}

void Executor::rope(RopeOp::Config c) {
  require(at(c.q, "rope").cols() == c.heads * c.head_dim, "rope: q width");
  require(
      at(c.k, "rope").cols() == c.kv_heads * c.head_dim && at(c.v, "rope").cols() == c.kv_heads * c.head_dim,
      "rope: k, v width");
  require(at(c.angles, "rope").cols() <= c.head_dim, "rope: more pairs than the head has");
  require(kv_->shape().kv_heads == c.kv_heads && kv_->shape().head_dim == c.head_dim &&
              c.layer < kv_->shape().layers,
          "rope: KV shape");
  for (HeadNorm* norm : {&c.q_norm, &c.k_norm})
    require(norm->weight.empty() || static_cast<int64_t>(norm->weight.size()) == c.head_dim,
            "rope: norm width");
  ops_.push_back(std::make_unique<RopeOp>(std::move(c)));
}

void Executor::attention(const AttentionConfig& c) {
  require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "attention: heads do not divide by kv heads");
  require(c.group() * c.head_dim % 32 == 0,
          "attention: a kv head's query heads must be a multiple of 32 wide");
  require(at(c.q, "attention").cols() == c.heads * c.head_dim &&
              at(c.out, "attention").cols() == c.heads * c.head_dim,
          "attention: width");
  require(kv_->shape().kv_heads == c.kv_heads && kv_->shape().head_dim == c.head_dim &&
              c.layer < kv_->shape().layers,
          "attention: KV shape");
  auto op = std::make_unique<AttentionOp>(c);
  auto join = std::make_unique<JoinOp>(*op);
  ops_.push_back(std::move(op));
  ops_.push_back(std::move(join));
}

void Executor::gate(GateKind kind, BufferId gate, BufferId up) {
  require(
      at(gate, "gate").cols() == at(up, "gate").cols() && at(gate, "gate").space() == at(up, "gate").space(),
      "gate: shapes");
  ops_.push_back(std::make_unique<GateOp>(kind, gate, up));
}

void Executor::add(BufferId y, BufferId x) {
  require(at(y, "add").cols() == at(x, "add").cols() && at(y, "add").space() == at(x, "add").space(),
          "add: shapes");
  ops_.push_back(std::make_unique<AddOp>(y, x));
}

void Executor::logits(BufferId in, std::shared_ptr<const Weight> weight, BufferId out) {
  require(at(in, "logits").cols() == weight->cols() && at(out, "logits").cols() == weight->rows(),
          "logits: shapes");
  require(at(in, "logits").space() == RowSpace::Logits && at(out, "logits").space() == RowSpace::Logits,
          "logits: rows");
  require(weight->rows() == vocab_size_,
          "logits: the output matrix has another vocabulary than the embedding");
  if (weight->type().quantised) buffers_[static_cast<std::size_t>(in)].want(quantisation_);
  auto op = std::make_unique<LogitsOp>(in, std::move(weight), out);
  logits_op_ = op.get();
  logits_ = out;
  ops_.push_back(std::move(op));
}

void Executor::check(const StepInput& in) const {
  require(logits_op_ != nullptr, "step: the program has no logits");
  require(in.rows() > 0 && in.positions.size() == in.tokens.size() && in.sequences.size() == in.tokens.size(),
          "step: row arrays differ in length");
  const int64_t block_tokens = kv_->shape().block_tokens;
  for (std::size_t i = 0; i < in.tokens.size(); ++i) {
    require(in.tokens[i] >= 0 && in.tokens[i] < vocab_size_, "step: token id out of range");
    require(in.sequences[i] >= 0 && static_cast<std::size_t>(in.sequences[i]) < in.block_tables.size(),
            "step: sequence out of range");
    const auto& table = in.block_tables[static_cast<std::size_t>(in.sequences[i])];
    require(in.positions[i] >= 0 && in.positions[i] / block_tokens < static_cast<int64_t>(table.size()),
            "step: position beyond the block table");
    // Rows run side by side within an op: a row may only read positions that are stored before or with it.
    const bool continues = i > 0 && in.sequences[i] == in.sequences[i - 1];
    require(i == 0 || in.sequences[i] >= in.sequences[i - 1], "step: sequences are not in order");
    require(!continues || in.positions[i] == in.positions[i - 1] + 1,
            "step: positions of a sequence are not consecutive");
  }
  for (const auto& table : in.block_tables)
    for (const int32_t block : table)
      require(block >= 0 && block < kv_->shape().blocks, "step: KV block out of range");
  for (const int32_t row : in.logit_rows)
    require(row >= 0 && row < in.rows(), "step: logit row out of range");
}

void Executor::reserve(const StepInput& input) {
  for (Buffer& buffer : buffers_)
    buffer.reserve(buffer.space() == RowSpace::Tokens ? input.rows() : input.logits());
}

void Executor::step(const StepInput& input) {
  check(input);
  reserve(input);
  logit_rows_ = input.logits();
  const StepContext ctx = {input, kernels_, buffers_, kv_.get(), team_->size()};
  for (const auto& op : ops_) op->prepare(ctx);
  team_->run([&](int thread) {
    for (const auto& op : ops_)
      if (op->active(ctx)) op->run(ctx, thread);
  });
}

std::span<const float> Executor::logits(int64_t row) const {
  require(row >= 0 && row < logit_rows_, "logits: row out of range");
  return {buffers_[static_cast<std::size_t>(logits_)].row(row), static_cast<std::size_t>(vocab_size_)};
}

std::vector<int32_t> Executor::sample(std::span<Sampler* const> samplers) {
  require(static_cast<int64_t>(samplers.size()) == logit_rows_, "sample: one sampler for each logit row");
  std::vector<int32_t> ids(samplers.size(), -1);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    ids[i] = logits_op_->best(static_cast<int64_t>(i));
    if (ids[i] >= 0 && !samplers[i]->plain_greedy()) others.push_back(i);
  }
  std::exception_ptr error;
  std::atomic<bool> failed = false;
  std::atomic<std::size_t> next = 0;
  const auto draw = [&](int) {
    try {
      for (std::size_t i; (i = next.fetch_add(1)) < others.size();)
        ids[others[i]] = samplers[others[i]]->sample(logits(static_cast<int64_t>(others[i])));
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  if (others.size() == 1) {
    draw(0);
  } else if (!others.empty()) {
    team_->run(draw);
  }
  if (error) std::rethrow_exception(error);
  for (std::size_t i = 0; i < samplers.size(); ++i)
    if (ids[i] >= 0) samplers[i]->observe(ids[i]);
  return ids;
}

}  // namespace ferrite
