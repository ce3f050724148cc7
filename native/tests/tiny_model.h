// A two-layer decoder with random weights: every op of the executor once or more.
#pragma once

#include <memory>
#include <vector>

#include "runtime/executor.h"
#include "tests/random.h"

namespace ferrite::test {

struct TinyModel {
  static constexpr int64_t kVocab = 40, kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kInner = 96,
                           kLayers = 2;
  static constexpr int64_t kBlockTokens = 32, kBlocks = 24, kWindow = 40;

  TinyModel(const KernelTable& kernels, int threads, KvType type,
            Quantisation quantisation = Quantisation::Q8)
      : team(std::make_shared<Team>(threads)),
        kv(std::make_shared<KvStore>(KvShape{kLayers, kKvHeads, kHeadDim, kBlockTokens, kBlocks, type})),
        executor(team, kernels, kv, quantisation),
        random(77) {
    const auto buffer = [&](int64_t cols) { return executor.buffer(cols, RowSpace::Tokens); };
    const BufferId x = buffer(kHidden), h = buffer(kHidden), q = buffer(kHeads * kHeadDim),
                   k = buffer(kKvHeads * kHeadDim), v = buffer(kKvHeads * kHeadDim),
                   a = buffer(kHeads * kHeadDim), angles = buffer(kHeadDim), up = buffer(kInner),
                   gate = buffer(kInner);
    const BufferId last = executor.buffer(kHidden, RowSpace::Logits),
                   logits = executor.buffer(kVocab, RowSpace::Logits);
    const auto table = weight(quant::Type::Q8_0, kVocab, kHidden);
    executor.embed(table, x, 0.5F);
    executor.angles(frequencies(), angles);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      executor.norm(x, vector(kHidden), h, 1e-6F);
      std::vector<LinearPiece> inputs;
      inputs.push_back(
          {weight(quant::Type::Q4_0, kHeads * kHeadDim, kHidden), q, vector(kHeads * kHeadDim), false});
      inputs.push_back({weight(quant::Type::Q5_1, kKvHeads * kHeadDim, kHidden), k, {}, false});
      inputs.push_back({weight(quant::Type::F16, kKvHeads * kHeadDim, kHidden), v, {}, false});
      executor.linear(h, std::move(inputs));
      const RopeKind kind = layer == 0 ? RopeKind::Adjacent : RopeKind::Halves;
      const std::vector<float> norm = layer == 0 ? std::vector<float>() : vector(kHeadDim);
      executor.rope(
          {q, k, v, angles, kHeads, kKvHeads, kHeadDim, layer, kind, 0.18F, {norm, 1e-6F}, {norm, 1e-6F}});
      executor.attention({q, a, kHeads, kKvHeads, kHeadDim, layer, layer == 0 ? 0 : kWindow});
      add_linear(a, weight(quant::Type::Q5_0, kHidden, kHeads * kHeadDim), x);
      executor.norm(x, vector(kHidden), h, 1e-6F);
      std::vector<LinearPiece> inner;
      inner.push_back({weight(quant::Type::Q4_1, kInner, kHidden), gate, {}, false});
      inner.push_back({weight(quant::Type::BF16, kInner, kHidden), up, {}, false});
      executor.linear(h, std::move(inner));
      executor.gate(layer == 0 ? GateKind::Silu : GateKind::GeluTanh, gate, up);
      add_linear(gate, weight(quant::Type::Q8_0, kHidden, kInner), x);
      executor.add(x, h);
    }
    executor.select_rows(x, last);
    executor.norm(last, vector(kHidden), last, 1e-6F);
    executor.logits(last, table, logits);
  }

  static std::vector<double> frequencies() {
    std::vector<double> result;
    for (double f = 1.0; result.size() < kHeadDim / 2; f *= 0.5) result.push_back(f);
    return result;
  }
  std::vector<float> vector(int64_t count) { return random_floats(random, count, 1.0F); }
  std::shared_ptr<const Weight> weight(quant::Type type, int64_t rows, int64_t cols) {
    const quant::TypeInfo& info = quant::info(type);
    const std::vector<uint8_t> file = random_matrix(random, info, rows, cols, Numbers::Small);
    return std::make_shared<const Weight>(Weight::pack(file, info.ggml_type, rows, cols, *team));
  }
  void add_linear(BufferId in, std::shared_ptr<const Weight> matrix, BufferId out) {
    std::vector<LinearPiece> pieces;
    pieces.push_back({std::move(matrix), out, {}, true});
    executor.linear(in, std::move(pieces));
  }

  std::shared_ptr<Team> team;
  std::shared_ptr<KvStore> kv;
  Executor executor;
  Random random;
};

// Rows `from` to `to` (less one) of a sequence, as part of a step.
struct Part {
  std::vector<int32_t> tokens;
  std::vector<int32_t> table;
  int32_t from, to;
};

// Every row's logits of a step made of `parts`.
inline std::vector<std::vector<float>> evaluate(Executor& executor, const std::vector<Part>& parts) {
  std::vector<int32_t> tokens, positions, sequences, rows;
  StepInput input = {};
  for (std::size_t s = 0; s < parts.size(); ++s) {
    for (int32_t p = parts[s].from; p < parts[s].to; ++p) {
      rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(parts[s].tokens[static_cast<std::size_t>(p)]);
      positions.push_back(p);
      sequences.push_back(static_cast<int32_t>(s));
    }
    input.block_tables.emplace_back(parts[s].table);
  }
  input.tokens = tokens;
  input.positions = positions;
  input.sequences = sequences;
  input.logit_rows = rows;
  executor.step(input);
  std::vector<std::vector<float>> logits;
  for (int64_t row = 0; row < input.logits(); ++row) {
    const auto values = executor.logits(row);
    logits.emplace_back(values.begin(), values.end());
  }
  return logits;
}

}  // namespace ferrite::test
