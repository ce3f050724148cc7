#include "runtime/executor.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <utility>

#include "runtime/float_mode.h"

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

const Buffer& Executor::tokens_at(BufferId id, int64_t cols, const char* what) const {
  const Buffer& buffer = at(id, what);
  require(buffer.cols() == cols && buffer.space() == RowSpace::Tokens,
          std::string(what) + ": shape of a buffer");
  return buffer;
}

void Executor::written(BufferId id, bool quantises) {
  quantises_[static_cast<std::size_t>(id)] = quantises;
}

void Executor::read_quantised(BufferId id, const Weight& weight) {
  if (!weight.type().quantised) return;
  require(quantises_[static_cast<std::size_t>(id)],
          "a quantised matrix needs a norm, a gate, an attention or a selection as its input");
  require(!stepped_, "a program cannot be added to after its first step");
  buffers_[static_cast<std::size_t>(id)].want(quantisation_);
}

BufferId Executor::buffer(int64_t cols, RowSpace space) {
  require(cols > 0, "buffer: no columns");
  buffers_.emplace_back(cols, space, Quantisation::None);
  quantises_.push_back(false);
  return static_cast<BufferId>(buffers_.size()) - 1;
}

void Executor::embed(std::shared_ptr<const Weight> table, BufferId out, float scale) {
  tokens_at(out, table->cols(), "embed");
  vocab_size_ = table->rows();
  written(out, false);
  ops_.push_back(std::make_unique<EmbedOp>(std::move(table), out, scale));
}

void Executor::select_rows(BufferId in, BufferId out) {
  tokens_at(in, at(out, "select").cols(), "select");
  require(at(out, "select").space() == RowSpace::Logits, "select: rows");
  written(out, true);
  ops_.push_back(std::make_unique<SelectRowsOp>(in, out));
}

void Executor::norm(BufferId in, const std::vector<float>& weight, BufferId out, float eps) {
  const Buffer &source = at(in, "norm"), &target = at(out, "norm");
  require(source.cols() == static_cast<int64_t>(weight.size()), "norm: width");
  require(source.cols() == target.cols() && source.space() == target.space(), "norm: shapes");
  written(out, true);
  ops_.push_back(std::make_unique<NormOp>(in, padded(weight), out, eps));
}

void Executor::linear(BufferId in, std::vector<LinearPiece> pieces) {
  const Buffer& source = at(in, "linear");
  for (std::size_t i = 0; i < pieces.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      require(pieces[i].out != pieces[j].out, "linear: two pieces write one buffer");
  for (LinearPiece& piece : pieces) {
    const Buffer& out = at(piece.out, "linear");
    require(piece.weight->cols() == source.cols() && piece.weight->rows() == out.cols(), "linear: shapes");
    require(out.space() == source.space() && piece.out != in, "linear: buffers");
    require(piece.bias.empty() || static_cast<int64_t>(piece.bias.size()) == out.cols(), "linear: bias");
    if (!piece.bias.empty()) piece.bias = padded(piece.bias);
    read_quantised(in, *piece.weight);
  }
  for (const LinearPiece& piece : pieces) written(piece.out, false);
  ops_.push_back(std::make_unique<LinearOp>(in, std::move(pieces)));
}

void Executor::angles(std::vector<double> frequencies, BufferId out) {
  tokens_at(out, 2 * static_cast<int64_t>(frequencies.size()), "angles");
  written(out, false);
  ops_.push_back(std::make_unique<AnglesOp>(std::move(frequencies), out));
}

void Executor::check_attention(BufferId q, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t layer,
                               const char* what) const {
  const KvShape& shape = kv_->shape();
  require(shape.kv_heads == kv_heads && shape.head_dim == head_dim && layer >= 0 && layer < shape.layers,
          std::string(what) + ": KV shape");
  require(heads > 0 && heads % kv_heads == 0 && heads <= INT32_MAX,
          std::string(what) + ": heads do not divide by kv heads");
  tokens_at(q, heads * head_dim, what);
}

void Executor::rope(RopeOp::Config c) {
  check_attention(c.q, c.heads, c.kv_heads, c.head_dim, c.layer, "rope");
  tokens_at(c.k, c.kv_heads * c.head_dim, "rope");
  tokens_at(c.v, c.kv_heads * c.head_dim, "rope");
  require(at(c.angles, "rope").cols() <= c.head_dim, "rope: more pairs than the head has");
  tokens_at(c.angles, at(c.angles, "rope").cols(), "rope");
  for (HeadNorm* norm : {&c.q_norm, &c.k_norm})
    require(norm->weight.empty() || static_cast<int64_t>(norm->weight.size()) == c.head_dim,
            "rope: norm width");
  written(c.q, false);
  written(c.k, false);
  ops_.push_back(std::make_unique<RopeOp>(std::move(c)));
}

void Executor::attention(const AttentionConfig& c) {
  check_attention(c.q, c.heads, c.kv_heads, c.head_dim, c.layer, "attention");
  require(c.group() * c.head_dim % 32 == 0,
          "attention: a kv head's query heads must be a multiple of 32 wide");
  require(c.window >= 0, "attention: negative window");
  tokens_at(c.out, c.heads * c.head_dim, "attention");
  written(c.out, true);
  auto op = std::make_unique<AttentionOp>(c);
  auto join = std::make_unique<JoinOp>(*op);
  ops_.push_back(std::move(op));
  ops_.push_back(std::move(join));
}

void Executor::gate(GateKind kind, BufferId gate, BufferId up) {
  const Buffer &target = at(gate, "gate"), &factor = at(up, "gate");
  require(target.cols() == factor.cols() && target.space() == factor.space(), "gate: shapes");
  written(gate, true);
  ops_.push_back(std::make_unique<GateOp>(kind, gate, up));
}

void Executor::add(BufferId y, BufferId x) {
  const Buffer &target = at(y, "add"), &source = at(x, "add");
  require(target.cols() == source.cols() && target.space() == source.space(), "add: shapes");
  written(y, false);
  ops_.push_back(std::make_unique<AddOp>(y, x));
}

void Executor::logits(BufferId in, std::shared_ptr<const Weight> weight, BufferId out) {
  const Buffer &source = at(in, "logits"), &target = at(out, "logits");
  require(source.cols() == weight->cols() && target.cols() == weight->rows(), "logits: shapes");
  require(source.space() == RowSpace::Logits && target.space() == RowSpace::Logits && in != out,
          "logits: buffers");
  require(weight->rows() == vocab_size_,
          "logits: the output matrix has another vocabulary than the embedding");
  read_quantised(in, *weight);
  written(out, false);
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

void Executor::step(const StepInput& input, const std::function<void()>& begun) {
  check(input);
  reserve(input);
  logit_rows_ = input.logits();
  stepped_ = true;
  const StepContext ctx = {input, kernels_, buffers_, kv_.get(), team_->size()};
  timer_ == nullptr ? run(ctx, begun) : run_timed(ctx, begun);
}

void Executor::run(const StepContext& ctx, const std::function<void()>& begun) {
  for (const auto& op : ops_) op->prepare(ctx);
  const auto body = [&](int thread) {
    for (const auto& op : ops_)
      if (op->active(ctx)) op->run(ctx, thread);
  };
  team_->run(body, begun);
}

void Executor::run_timed(const StepContext& ctx, const std::function<void()>& begun) {
  using Clock = OpTimer::Clock;
  const OpTimer::Time begin = Clock::now();
  timer_->begin(begin);
  for (const auto& op : ops_) op->prepare(ctx);
  const OpTimer::Time prepared = Clock::now();
  std::vector<OpTimer::Time> left(static_cast<std::size_t>(ctx.threads));
  const auto body = [&](int thread) {
    OpTimer::Time at = Clock::now();
    timer_->idle(at - (thread == 0 ? prepared : begin));
    for (const auto& op : ops_) {
      if (!op->active(ctx)) continue;
      op->run(ctx, thread);
      const OpTimer::Time now = Clock::now();
      timer_->add(op->op_class(), now - at);
      at = now;
    }
    left[static_cast<std::size_t>(thread)] = at;
  };
  team_->run(body, begun);
  const OpTimer::Time end = Clock::now();
  timer_->add(OpClass::Other, prepared - begin);
  for (const OpTimer::Time at : left) timer_->idle(end - at);
  timer_->end(end);
}

void Executor::record_times() {
  timer_ = std::make_unique<OpTimer>();
  for (const auto& op : ops_) op->count_waits(timer_->waited(op->op_class()));
}

OpTimes Executor::recorded_times() {
  if (timer_ == nullptr) throw std::logic_error("no times are recorded");
  for (const auto& op : ops_) op->count_waits(nullptr);
  return std::exchange(timer_, nullptr)->times();
}

std::span<const float> Executor::logits(int64_t row) const {
  require(row >= 0 && row < logit_rows_, "logits: row out of range");
  return {buffers_[static_cast<std::size_t>(logits_)].row(row), static_cast<std::size_t>(vocab_size_)};
}

std::vector<int32_t> Executor::sample(std::span<Sampler* const> samplers, std::span<Scorer* const> scorers,
                                      std::span<const std::span<const int32_t>> drafts) {
  require(drafts.empty() || drafts.size() == samplers.size(), "sample: one draft for each sampler");
  std::vector<std::size_t> first(samplers.size() + 1);  // by sampler: its first row
  for (std::size_t i = 0; i < samplers.size(); ++i)
    first[i + 1] = first[i] + 1 + (drafts.empty() ? 0 : drafts[i].size());
  const std::size_t sampled = first.back();
  std::vector<std::pair<Scorer*, std::size_t>> scores;
  for (Scorer* scorer : scorers)
    for (std::size_t i = 0; i < scorer->size(); ++i) scores.emplace_back(scorer, i);
  require(static_cast<int64_t>(sampled + scores.size()) == logit_rows_,
          "sample: one sampler for each logit row that is not scored");
  std::vector<int32_t> ids(sampled, -1);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    ids[first[i]] = logits_op_->best(static_cast<int64_t>(first[i]));
    if (ids[first[i]] >= 0 && !samplers[i]->plain_greedy()) others.push_back(i);
  }
  // Whoever may have to wait for a mask comes last.
  std::stable_partition(others.begin(), others.end(), [&](std::size_t i) { return !samplers[i]->masked(); });

  const FloatMode mode;
  std::exception_ptr error;
  std::atomic<bool> failed = false;
  std::atomic<std::size_t> next = 0;
  const auto score = [&](std::size_t i) {
    const auto row = static_cast<int64_t>(sampled + i);
    if (logits_op_->best(row) >= 0) scores[i].first->score(scores[i].second, logits(row));
  };
  // Goes on from row to row of sampler i while its ids are those of the draft.
  const auto follow = [&](std::size_t i, const auto& id_of) {
    for (std::size_t row = first[i]; ids[row] >= 0; ++row) {
      samplers[i]->observe(ids[row]);
      if (row + 1 == first[i + 1] || ids[row] != drafts[i][row - first[i]]) return;
      const int32_t best = logits_op_->best(static_cast<int64_t>(row + 1));
      ids[row + 1] = best < 0 ? -1 : id_of(row + 1, best);
    }
  };
  const auto draw = [&](std::size_t i) {
    ids[first[i]] = samplers[i]->sample(logits(static_cast<int64_t>(first[i])));
    follow(i, [&](std::size_t row, int32_t) {
      return samplers[i]->sample_next(logits(static_cast<int64_t>(row)));
    });
  };
  const auto work = [&](int) {
    try {
      for (std::size_t i; (i = next.fetch_add(1)) < scores.size() + others.size();)
        i < scores.size() ? score(i) : draw(others[i - scores.size()]);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  if (scores.size() + others.size() == 1) {
    work(0);
  } else if (!scores.empty() || !others.empty()) {
    team_->run(work);
  }
  if (error) std::rethrow_exception(error);
  for (std::size_t i = 0; i < samplers.size(); ++i)
    if (samplers[i]->plain_greedy()) follow(i, [](std::size_t, int32_t best) { return best; });
  return ids;
}

}  // namespace ferrite
