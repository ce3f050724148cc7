// From one row of logits to one token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sampling/logprobs.h"
#include "sampling/mask_slot.h"
#include "sampling/ranking.h"

namespace ferrite {

struct SamplingParams {
  float temperature = 0.0f;         // 0: the highest logit, the lowest id among equals
  int32_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // 1: off
  float min_p = 0.0f;               // 0: off
  float repetition_penalty = 1.0f;  // on prompt and generated tokens; above 0
  float frequency_penalty = 0.0f;   // on generated tokens, times their count
  float presence_penalty = 0.0f;    // on generated tokens, once
  // (token, value) added to the logits. -100 is a ban whatever the logit is; +100 is an ordinary addition,
  // as large as the OpenAI API allows.
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int32_t top_logprobs = -1;  // log-probabilities of that many tokens besides the chosen one; -1: none at all
};

// One request's sampling state: its parameters, its random stream and the tokens it has seen.
//
// Order: mask; logit bias; repetition, frequency and presence penalties; then argmax at temperature 0, else
// temperature, top-k, top-p (the smallest set that reaches p), min-p and one draw. Probabilities are
// integers in units of 2^-44 of the highest one, so that sums are exact in any order; a token below one
// unit is never drawn. The draw is a function of (seed, number of observed tokens): sample() changes
// nothing that a second sample() could see. Bits do not depend on the instruction set.
//
// With a mask slot, every token is one that its mask allows: a sampler waits for the mask, uses it for one
// token and gives none without it. A mask wins over a bias: where bans leave nothing that it allows, they
// only weaken.
//
// Not for concurrent use. Throws std::invalid_argument for a token outside the vocabulary, which has fewer
// than 2^20 tokens, and for a mask of another vocabulary.
class Sampler {
 public:
  Sampler(SamplingParams params, std::span<const int32_t> prompt_tokens, int32_t vocab_size,
          std::shared_ptr<MaskSlot> mask = nullptr);

  // True when the argmax of the raw logits is always the answer, and all of it.
  bool plain_greedy() const;

  // True when every token waits for a mask.
  bool masked() const { return mask_ != nullptr; }

  // The next token for [vocab_size] logits, or -1 when one is NaN or +infinity, or none can be chosen.
  // A logit of -infinity masks its token. Throws std::invalid_argument for another number of logits.
  int32_t sample(std::span<const float> logits);

  // sample() in the same step, for the row behind a token that has been observed.
  int32_t sample_next(std::span<const float> logits);

  // Of the token that sample() gave and those that sample_next() gave since, by the logits as they came:
  // before mask, bias, penalties and temperature. Empty without top_logprobs.
  std::span<const TokenLogprobs> logprobs() const { return {logprobs_.data(), n_logprobs_}; }

  // Records a generated token and ends the use of the mask.
  void observe(int32_t token);

 private:
  struct SeenToken {
    int32_t id;
    int32_t generated;  // how often it was generated; 0 for a token of the prompt only
  };

  bool penalises() const;
  void check_token(int32_t token, const char* what) const;
  SeenToken& seen(int32_t token);
  int32_t choose(std::span<const float> logits);
  std::span<const float> adjusted(std::span<const float> logits, float ban);
  void copy_allowed(std::span<const float> logits);
  int32_t draw();
  uint64_t weight(float logit) const;

  SamplingParams params_;
  int32_t vocab_size_;
  std::shared_ptr<MaskSlot> mask_;
  uint64_t generated_ = 0;
  std::vector<SeenToken> seen_;
  std::vector<int32_t> seen_index_;  // [vocab_size] index into seen_ or -1; empty without penalties
  std::vector<float> adjusted_;      // [vocab_size] logits after mask, bias and penalties; empty without them
  Ranking ranking_;
  std::vector<TokenLogprobs> logprobs_;  // the first n_logprobs_ count, the others keep their memory
  size_t n_logprobs_ = 0;
};

}  // namespace ferrite
