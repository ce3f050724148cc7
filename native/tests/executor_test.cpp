// A program's answers, whatever computes them, and what the executor refuses.
#include "runtime/executor.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "isa/dispatch.h"
#include "sampling/logprobs.h"
#include "sampling/scorer.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/tiny_model.h"

namespace ferrite {
namespace {

using test::Random;
using test::TinyModel;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<int32_t> random_tokens(Random& random, int32_t count) {
  std::vector<int32_t> tokens(static_cast<std::size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.between(0, TinyModel::kVocab - 1));
  return tokens;
}

bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// Long enough for two partitions, so that single rows take the split attention and many rows the whole one.
constexpr int32_t kLength = 280;
const std::vector<int32_t> kTable = {7, 3, 11, 0, 22, 5, 9, 14, 2};
const std::vector<int32_t> kOtherTable = {1, 4, 6, 8, 10, 12, 13, 15, 16};

void logits_have_the_same_bits_however_they_are_computed() {
  Random random(2);
  const std::vector<int32_t> tokens = random_tokens(random, kLength), others = random_tokens(random, kLength);
  // float32 cache with two-term activations, the others with one.
  for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8_0}) {
    const Quantisation quantisation = type == KvType::F32 ? Quantisation::Q8Residual : Quantisation::Q8;
    std::vector<std::vector<float>> expected;
    {
      TinyModel model(portable_kernels(), 1, type, quantisation);
      expected = test::evaluate(model.executor, {{tokens, kTable, 0, kLength}});
      CHECK(std::all_of(expected.begin(), expected.end(), finite));
      CHECK(expected.front() != expected.back());
    }
    for (const KernelTable* kernels : isa::available()) {
      // The portable kernels are slow under a sanitizer; where there are others, once was enough.
      if (kernels == &portable_kernels() && isa::available().size() > 1) continue;
      for (int threads = 1; threads <= 3; ++threads) {
        TinyModel model(*kernels, threads, type, quantisation);
        CHECK(test::evaluate(model.executor, {{tokens, kTable, 0, kLength}}) == expected);
        // The same cache again, one row a step: attention in partitions on several threads.
        for (int32_t p = 250; p < kLength; p += 8)
          CHECK(test::evaluate(model.executor, {{tokens, kTable, p, p + 1}})[0] ==
                expected[static_cast<std::size_t>(p)]);
        // In chunks, beside a shorter sequence, in blocks that hold another one's leftovers.
        CHECK(finite(test::evaluate(model.executor, {{others, kTable, 0, 70}}).back()));
        for (int32_t p = 0, q = 0; p < kLength; p += 70, q += 5) {
          const auto rows =
              test::evaluate(model.executor, {{others, kOtherTable, q, q + 5}, {tokens, kTable, p, p + 70}});
          CHECK(std::equal(rows.begin() + 5, rows.end(), expected.begin() + p));
        }
      }
    }
  }
}

void copied_blocks_continue_as_the_original() {
  Random random(3);
  const std::vector<int32_t> tokens = random_tokens(random, 60);
  for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8_0}) {
    TinyModel model(*isa::available().front(), 2, type);
    const auto expected = test::evaluate(model.executor, {{tokens, {4, 5}, 0, 60}});
    model.kv->copy_block(4, 9);
    const auto rows = test::evaluate(model.executor, {{tokens, {9, 2}, 32, 60}});
    CHECK(std::equal(rows.begin(), rows.end(), expected.begin() + 32));
  }
}

// One column short of a tile, so that a fault could hide in a buffer's padding.
void a_step_that_is_not_finite_leaves_no_trace() {
  constexpr int64_t kCols = 24;
  const auto team = std::make_shared<Team>(1);
  const auto kv = std::make_shared<KvStore>(KvShape{1, 1, 16, 16, 1, KvType::F16});
  Random random(4);
  const auto weight = [&](std::vector<float> values, int64_t rows) {
    std::vector<uint8_t> file(values.size() * 4);
    std::memcpy(file.data(), values.data(), file.size());
    return std::make_shared<const Weight>(Weight::pack(file, 0, rows, kCols, *team));
  };
  std::vector<float> embeddings = test::random_floats(random, 2 * kCols, 1.0F);
  const auto clean = embeddings;
  embeddings[kCols + 5] = kInfinity;
  const std::vector<float> square = test::random_floats(random, kCols * kCols, 1.0F);
  const std::vector<float> ones(kCols, 1.0F);
  Executor executor(team, *isa::available().front(), kv);
  const BufferId x = executor.buffer(kCols, RowSpace::Tokens), h = executor.buffer(kCols, RowSpace::Tokens);
  const BufferId last = executor.buffer(kCols, RowSpace::Logits),
                 logits = executor.buffer(2, RowSpace::Logits);
  executor.embed(weight(embeddings, 2), x, 1.0F);
  executor.norm(x, ones, h, 1e-6F);
  std::vector<LinearPiece> pieces;
  pieces.push_back({weight(square, kCols), x, {}, true});
  executor.linear(h, std::move(pieces));
  executor.norm(x, ones, h, 1e-6F);
  executor.select_rows(h, last);
  executor.logits(last, weight(clean, 2), logits);
  const auto evaluate = [&](int32_t token) { return test::evaluate(executor, {{{token}, {0}, 0, 1}})[0]; };
  const std::vector<float> before = evaluate(0);
  CHECK(finite(before));
  CHECK(!finite(evaluate(1)));
  CHECK(evaluate(0) == before);
}

void sampling_follows_the_logits() {
  Random random(5);
  const std::vector<int32_t> tokens = random_tokens(random, 20);
  TinyModel model(*isa::available().front(), 3, KvType::F16);
  const auto rows = test::evaluate(model.executor, {{tokens, kTable, 0, 20}});
  std::vector<Sampler> samplers;
  std::vector<Sampler*> pointers;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SamplingParams params;
    if (i % 2 == 1) params.top_k = 1, params.temperature = 1.0F;
    samplers.emplace_back(params, std::vector<int32_t>{}, static_cast<int32_t>(TinyModel::kVocab));
  }
  for (Sampler& sampler : samplers) pointers.push_back(&sampler);
  const std::vector<int32_t> ids = model.executor.sample(pointers);
  for (std::size_t i = 0; i < rows.size(); ++i)
    CHECK(ids[i] == std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin());
  pointers.pop_back();
  CHECK_THROWS(model.executor.sample(pointers), std::invalid_argument);
  CHECK_THROWS(model.executor.logits(20), std::invalid_argument);
  CHECK_THROWS(model.executor.logits(-1), std::invalid_argument);
}

// Every thread is in an op, or waits, for as long as a step lasts; and recording changes no bit.
void recorded_times_add_up() {
  Random random(12);
  const std::vector<int32_t> tokens = random_tokens(random, kLength);
  for (const int threads : {1, 3}) {
    TinyModel model(*isa::available().front(), threads, KvType::F16);
    const auto expected = test::evaluate(model.executor, {{tokens, kTable, 0, kLength}});
    CHECK_THROWS(model.executor.recorded_times(), std::logic_error);
    model.executor.record_times();
    CHECK(test::evaluate(model.executor, {{tokens, kTable, 0, kLength}}) == expected);
    CHECK(test::evaluate(model.executor, {{tokens, kTable, 279, 280}})[0] == expected.back());
    const OpTimes times = model.executor.recorded_times();
    double sum = times.wait;
    for (const double work : times.work) {
      CHECK(work > 0.0);
      sum += work;
    }
    CHECK(times.steps == 2 && times.seconds > 0.0 && times.span_seconds >= times.seconds);
    CHECK(times.wait >= 0.0 && std::abs(sum - threads * times.seconds) < 1e-6);
    CHECK_THROWS(model.executor.recorded_times(), std::logic_error);
    test::evaluate(model.executor, {{tokens, kTable, 0, 1}});
    model.executor.record_times();
    CHECK(model.executor.recorded_times().steps == 0);
  }
}

// A draft of what follows: its tokens are those of the samplers, or not, as in steps of their own.
void drafts_give_the_tokens_of_single_steps() {
  Random random(10);
  const auto vocab = static_cast<int32_t>(TinyModel::kVocab);
  for (const int threads : {1, 3}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const float presence : {0.0f, 2.0f}) {
        TinyModel model(*isa::available().front(), threads, KvType::F16);
        const std::vector<int32_t> tokens = random_tokens(random, 12);
        const auto rows = test::evaluate(model.executor, {{tokens, kTable, 0, 12}});
        SamplingParams params;
        params.temperature = temperature;
        params.presence_penalty = presence;
        params.top_logprobs = presence == 0.0f ? -1 : 1;
        // What a sampler says to the rows from the first on, if nothing stops it.
        std::vector<int32_t> alone;
        std::vector<double> chosen;
        Sampler steps(params, {}, vocab);
        for (std::size_t i = 0; i < 6; ++i) {
          alone.push_back(steps.sample(rows[i]));
          steps.observe(alone.back());
          if (!steps.logprobs().empty()) chosen.push_back(steps.logprobs()[0].chosen);
        }
        for (std::size_t right = 0; right < 6; ++right) {
          std::vector<int32_t> draft(alone.begin(), alone.begin() + 5);
          if (right < 5) draft[right] = (draft[right] + 1) % vocab;
          Sampler drafted(params, {}, vocab), plain(params, {}, vocab), whole(params, {}, vocab);
          Sampler* const samplers[] = {&drafted, &plain, &whole};
          const std::vector<int32_t> rest(5, -1);
          const std::span<const int32_t> drafts[] = {draft, {}, rest};
          test::evaluate(model.executor, {{tokens, kTable, 0, 12}});
          CHECK_THROWS(model.executor.sample(samplers, {}, drafts), std::invalid_argument);
          test::evaluate(model.executor, {{tokens, kTable, 0, 6}});
          Sampler* const one[] = {&drafted};
          const std::vector<int32_t> ids = model.executor.sample(one, {}, {drafts, 1});
          CHECK(ids.size() == 6);
          const std::size_t given = std::min<std::size_t>(right + 1, 6);
          for (std::size_t i = 0; i < 6; ++i) CHECK(ids[i] == (i < given ? alone[i] : -1));
          if (!chosen.empty()) {
            CHECK(drafted.logprobs().size() == given);
            for (std::size_t i = 0; i < given; ++i) CHECK(drafted.logprobs()[i].chosen == chosen[i]);
          }
          // It goes on like one that has observed these and no others.
          for (std::size_t i = 0; i < given; ++i) plain.observe(alone[i]);
          CHECK(drafted.sample(rows[11]) == plain.sample(rows[11]));
        }
      }
    }
  }
}

// Rows behind those that are sampled score given tokens, on any number of threads as one by one.
void rows_score_given_tokens_beside_samplers() {
  Random random(9);
  const std::vector<int32_t> tokens = random_tokens(random, 20);
  const auto vocab = static_cast<int32_t>(TinyModel::kVocab);
  for (const int threads : {1, 3}) {
    TinyModel model(*isa::available().front(), threads, KvType::F16);
    const auto rows = test::evaluate(model.executor, {{tokens, kTable, 0, 20}});
    SamplingParams params;
    params.top_logprobs = 1;
    Sampler first(params, {}, vocab), second({}, {}, vocab);
    Scorer one({tokens.begin() + 3, tokens.end()}, vocab, 2), none({}, vocab, 0), last({0}, vocab, 0);
    Sampler* const samplers[] = {&first, &second};
    Scorer* const scorers[] = {&one, &none, &last};
    const std::vector<int32_t> ids = model.executor.sample(samplers, scorers);
    CHECK(ids.size() == 2 && first.logprobs()[0].top[0].first == ids[0]);
    Ranking ranking;
    TokenLogprobs expected;
    for (std::size_t i = 0; i < one.size(); ++i) {
      token_logprobs(rows[i + 2], tokens[i + 3], 2, ranking, expected);
      CHECK(one.logprobs()[i]->chosen == expected.chosen && one.logprobs()[i]->top == expected.top);
    }
    token_logprobs(rows[19], 0, 0, ranking, expected);
    CHECK(last.logprobs()[0]->chosen == expected.chosen && last.logprobs()[0]->top.empty());
    CHECK_THROWS(model.executor.sample(samplers), std::invalid_argument);
    CHECK_THROWS(model.executor.sample({}, scorers), std::invalid_argument);
    CHECK_THROWS(Scorer({0}, vocab + 1, 0).score(0, rows[0]), std::invalid_argument);
  }
}

// Two terms carry about 15 bits, so logits move towards those of float32 activations; one term must differ.
void residual_activations_change_the_answer_a_little() {
  Random random(6);
  const std::vector<int32_t> tokens = random_tokens(random, 8);
  TinyModel one(portable_kernels(), 1, KvType::F32),
      two(portable_kernels(), 1, KvType::F32, Quantisation::Q8Residual);
  const auto logits = test::evaluate(one.executor, {{tokens, kTable, 0, 8}})[7];
  const auto residual = test::evaluate(two.executor, {{tokens, kTable, 0, 8}})[7];
  float difference = 0.0F;
  for (std::size_t i = 0; i < logits.size(); ++i)
    difference = std::max(difference, std::abs(logits[i] - residual[i]));
  CHECK(difference > 0.0F && difference < 0.1F);
}

// One row, several samplers: each draws from the row's logits as if it were alone.
void a_row_serves_several_samplers() {
  Random random(7);
  const std::vector<int32_t> tokens = random_tokens(random, 5);
  const auto draw = [&](const std::vector<int32_t>& rows, const std::vector<uint64_t>& seeds) {
    TinyModel model(*isa::available().front(), 2, KvType::F16);
    std::vector<Sampler> samplers;
    std::vector<Sampler*> pointers;
    for (const uint64_t seed : seeds) {
      SamplingParams params;
      params.temperature = seed == 0 ? 0.0F : 2.0F;
      params.seed = seed;
      samplers.emplace_back(params, std::vector<int32_t>{}, static_cast<int32_t>(TinyModel::kVocab));
    }
    for (Sampler& sampler : samplers) pointers.push_back(&sampler);
    const std::vector<int32_t> positions = {0, 1, 2, 3, 4}, sequences(5), table = {0};
    model.executor.step({tokens, positions, sequences, {table}, rows});
    return model.executor.sample(pointers);
  };
  const std::vector<int32_t> together = draw({4, 2, 4, 4, 2}, {1, 2, 3, 0, 0});
  const int32_t rows[] = {4, 2, 4, 4, 2};
  for (std::size_t i = 0; i < together.size(); ++i)
    CHECK(draw({rows[i]}, {uint64_t{i < 3 ? i + 1 : 0}})[0] == together[i]);
}

// A foreign library may have left the thread that steps with another rounding.
void a_step_rounds_to_nearest_whatever_the_thread_does() {
  Random random(8);
  const std::vector<int32_t> tokens = random_tokens(random, 40);
  TinyModel model(*isa::available().front(), 1, KvType::Q8_0);
  const auto expected = test::evaluate(model.executor, {{tokens, kTable, 0, 40}});
  std::fesetround(FE_UPWARD);
  const auto rows = test::evaluate(model.executor, {{tokens, kTable, 0, 40}});
  CHECK(std::fegetround() == FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  CHECK(rows == expected);
}

// Buffers and weights of many shapes; a call that names the wrong one must throw and leave the program as it
// was.
struct Parts {
  std::shared_ptr<Team> team = std::make_shared<Team>(1);
  std::shared_ptr<KvStore> kv = std::make_shared<KvStore>(KvShape{2, 2, 32, 16, 4, KvType::F16});
  Executor executor{team, portable_kernels(), kv};
  BufferId x = executor.buffer(64, RowSpace::Tokens), other = executor.buffer(64, RowSpace::Tokens),
           wide = executor.buffer(96, RowSpace::Tokens), q = executor.buffer(128, RowSpace::Tokens),
           angles = executor.buffer(32, RowSpace::Tokens), few = executor.buffer(64, RowSpace::Logits),
           few_wide = executor.buffer(96, RowSpace::Logits), few_q = executor.buffer(128, RowSpace::Logits),
           few_angles = executor.buffer(32, RowSpace::Logits), logits = executor.buffer(40, RowSpace::Logits);

  std::shared_ptr<const Weight> weight(int64_t rows, int64_t cols) {
    const std::vector<uint8_t> file(static_cast<std::size_t>(rows * cols * 4));
    return std::make_shared<const Weight>(Weight::pack(file, 0, rows, cols, *team));
  }
  void linear(BufferId in, std::shared_ptr<const Weight> matrix, BufferId out, std::vector<float> bias) {
    std::vector<LinearPiece> pieces;
    pieces.push_back({std::move(matrix), out, std::move(bias), false});
    executor.linear(in, std::move(pieces));
  }
  RopeOp::Config rope() {
    return {q, x, other, angles, 4, 2, 32, 0, RopeKind::Halves, 1.0F, {{}, 1e-6F}, {{}, 1e-6F}};
  }
  AttentionConfig attention() { return {q, q, 4, 2, 32, 0, 0}; }
};

void mismatched_ops_are_refused() {
  constexpr BufferId kNone = 99;
  Parts p;
  Executor& e = p.executor;
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  const std::vector<float> ones(64, 1.0F);

  CHECK(refused([&] { e.buffer(0, RowSpace::Tokens); }));
  CHECK(refused([&] { e.buffer(-16, RowSpace::Tokens); }));

  CHECK(refused([&] { e.logits(p.few, p.weight(40, 64), p.logits); }));  // before any embedding
  CHECK(refused([&] { e.embed(p.weight(40, 64), p.wide, 1.0F); }));
  CHECK(refused([&] { e.embed(p.weight(40, 64), kNone, 1.0F); }));
  CHECK(refused([&] { e.embed(p.weight(40, 64), -1, 1.0F); }));
  CHECK(refused([&] { e.embed(p.weight(40, 64), p.few, 1.0F); }));
  e.embed(p.weight(40, 64), p.x, 1.0F);

  CHECK(refused([&] { e.select_rows(p.wide, p.few); }));
  CHECK(refused([&] { e.select_rows(p.x, p.other); }));
  CHECK(refused([&] { e.select_rows(p.few, p.few); }));
  CHECK(refused([&] { e.select_rows(kNone, p.few); }));

  CHECK(refused([&] { e.norm(p.wide, ones, p.wide, 1e-6F); }));
  CHECK(refused([&] { e.norm(p.x, ones, p.wide, 1e-6F); }));
  CHECK(refused([&] { e.norm(p.x, ones, p.few, 1e-6F); }));
  CHECK(refused([&] { e.norm(p.x, ones, kNone, 1e-6F); }));

  CHECK(refused([&] { p.linear(p.wide, p.weight(96, 64), p.wide, {}); }));
  CHECK(refused([&] { p.linear(p.x, p.weight(96, 64), p.q, {}); }));
  CHECK(refused([&] { p.linear(p.x, p.weight(96, 64), p.few_wide, {}); }));
  CHECK(refused([&] { p.linear(p.x, p.weight(64, 64), p.x, {}); }));
  CHECK(refused([&] { p.linear(p.x, p.weight(96, 64), p.wide, ones); }));
  CHECK(refused([&] { p.linear(p.x, p.weight(96, 64), kNone, {}); }));

  CHECK(refused([&] { e.angles(std::vector<double>(15, 1.0), p.angles); }));
  CHECK(refused([&] { e.angles(std::vector<double>(16, 1.0), p.few_angles); }));

  const auto rope_refused = [&](const std::function<void(RopeOp::Config&)>& change) {
    RopeOp::Config config = p.rope();
    change(config);
    return refused([&] { e.rope(config); });
  };
  CHECK(rope_refused([&](RopeOp::Config& c) { c.q = p.x; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.k = p.q; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.v = p.q; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.angles = p.x; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.q = p.few_q; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.k = p.few; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.v = p.few; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.angles = p.few_angles; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.q = kNone; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.kv_heads = 1; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.heads = 2, c.kv_heads = 1, c.head_dim = 64; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.layer = 2; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.layer = -1; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.q_norm.weight = ones; }));
  CHECK(rope_refused([&](RopeOp::Config& c) { c.k_norm.weight = ones; }));

  const auto attention_refused = [&](const std::function<void(AttentionConfig&)>& change) {
    AttentionConfig config = p.attention();
    change(config);
    return refused([&] { e.attention(config); });
  };
  CHECK(attention_refused([&](AttentionConfig& c) { c.q = p.x; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.out = p.x; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.q = p.few_q; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.out = p.few_q; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.out = kNone; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.kv_heads = 3; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.kv_heads = 0; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.kv_heads = 1; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.heads = 2, c.head_dim = 64; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.layer = 2; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.layer = -1; }));
  CHECK(attention_refused([&](AttentionConfig& c) { c.window = -1; }));

  CHECK(refused([&] { e.gate(GateKind::Silu, p.x, p.wide); }));
  CHECK(refused([&] { e.gate(GateKind::Silu, p.x, p.few); }));
  CHECK(refused([&] { e.gate(GateKind::Silu, kNone, p.x); }));
  CHECK(refused([&] { e.add(p.x, p.wide); }));
  CHECK(refused([&] { e.add(p.few, p.x); }));
  CHECK(refused([&] { e.add(p.x, kNone); }));

  CHECK(refused([&] { e.logits(p.few_wide, p.weight(40, 64), p.logits); }));
  CHECK(refused([&] { e.logits(p.few, p.weight(64, 64), p.logits); }));
  CHECK(refused([&] { e.logits(p.few, p.weight(64, 64), p.few_wide); }));
  CHECK(refused([&] { e.logits(p.x, p.weight(40, 64), p.logits); }));
  CHECK(refused([&] { e.logits(p.few, p.weight(64, 64), p.few); }));

  StepInput input = {};
  CHECK_THROWS(e.step(input), std::invalid_argument);
  e.rope(p.rope());
  e.attention(p.attention());
  e.select_rows(p.x, p.few);
  e.logits(p.few, p.weight(40, 64), p.logits);
  CHECK(test::evaluate(e, {{{1, 2}, {0}, 0, 2}}).size() == 2);
}

// A matrix with int8 activations reads what an op before it quantised; an embedding leaves floats only.
void a_quantised_matrix_needs_a_quantising_op_before_it() {
  Parts p;
  const std::vector<uint8_t> file(64 * 2 * 34);
  const auto matrix = std::make_shared<const Weight>(Weight::pack(file, 8, 64, 64, *p.team));
  p.executor.embed(p.weight(40, 64), p.x, 1.0F);
  CHECK_THROWS(p.linear(p.x, matrix, p.other, {}), std::invalid_argument);
  p.executor.norm(p.x, std::vector<float>(64, 1.0F), p.x, 1e-6F);
  p.linear(p.x, matrix, p.other, {});
}

struct StepRows {
  std::vector<int32_t> tokens = {1, 2, 3, 4}, positions = {0, 1, 5, 6}, sequences = {0, 0, 1, 1},
                       logit_rows = {1, 3};
  std::vector<std::vector<int32_t>> tables = {{2}, {3, 4}};
};

void steps_that_do_not_fit_are_refused() {
  TinyModel model(portable_kernels(), 2, KvType::F16);
  const auto refused = [&](const std::function<void(StepRows&)>& change) {
    StepRows rows;
    change(rows);
    StepInput input = {rows.tokens, rows.positions, rows.sequences, {}, rows.logit_rows};
    for (const auto& table : rows.tables) input.block_tables.emplace_back(table);
    try {
      model.executor.step(input);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(!refused([](StepRows&) {}));
  CHECK(!refused([](StepRows& r) { r.logit_rows = {}; }));
  CHECK(!refused([](StepRows& r) { r.logit_rows = {3, 3, 0}; }));
  CHECK(!refused([](StepRows& r) { r.positions = {30, 31, 62, 63}; }));
  CHECK(refused([](StepRows& r) { r.tokens = {}, r.positions = {}, r.sequences = {}, r.logit_rows = {}; }));
  CHECK(refused([](StepRows& r) { r.positions.pop_back(); }));
  CHECK(refused([](StepRows& r) { r.sequences.pop_back(); }));
  CHECK(refused([](StepRows& r) { r.tokens.pop_back(); }));
  CHECK(refused([](StepRows& r) { r.tokens[2] = TinyModel::kVocab; }));
  CHECK(refused([](StepRows& r) { r.tokens[2] = -1; }));
  CHECK(refused([](StepRows& r) { r.sequences[3] = 2; }));
  CHECK(refused([](StepRows& r) { r.sequences[0] = -1; }));
  CHECK(refused([](StepRows& r) { r.sequences = {1, 1, 0, 0}; }));
  CHECK(refused([](StepRows& r) { r.sequences = {0, 1, 0, 1}; }));
  CHECK(refused([](StepRows& r) { r.positions = {0, 2, 5, 6}; }));
  CHECK(refused([](StepRows& r) { r.positions = {1, 0, 5, 6}; }));
  CHECK(refused([](StepRows& r) { r.positions = {0, 0, 5, 6}; }));
  CHECK(refused([](StepRows& r) { r.positions = {-1, 0, 5, 6}; }));
  CHECK(refused([](StepRows& r) { r.positions = {31, 32, 5, 6}; }));
  CHECK(refused([](StepRows& r) { r.positions = {0, 1, 63, 64}; }));
  CHECK(refused([](StepRows& r) { r.positions[1] = std::numeric_limits<int32_t>::max(); }));
  CHECK(refused([](StepRows& r) { r.tables[1][0] = TinyModel::kBlocks; }));
  CHECK(refused([](StepRows& r) { r.tables[0][0] = -1; }));
  CHECK(refused([](StepRows& r) { r.tables[0].clear(); }));
  CHECK(refused([](StepRows& r) { r.logit_rows[0] = 4; }));
  CHECK(refused([](StepRows& r) { r.logit_rows[0] = -1; }));
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  logits_have_the_same_bits_however_they_are_computed();
  copied_blocks_continue_as_the_original();
  a_step_that_is_not_finite_leaves_no_trace();
  sampling_follows_the_logits();
  recorded_times_add_up();
  a_row_serves_several_samplers();
  rows_score_given_tokens_beside_samplers();
  drafts_give_the_tokens_of_single_steps();
  a_step_rounds_to_nearest_whatever_the_thread_does();
  residual_activations_change_the_answer_a_little();
  mismatched_ops_are_refused();
  a_quantised_matrix_needs_a_quantising_op_before_it();
  steps_that_do_not_fit_are_refused();
  return test::tally.finish();
}
