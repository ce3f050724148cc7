// Natural logarithms of the probabilities that a row of logits stands for.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sampling/ranking.h"

namespace ferrite {

inline constexpr int32_t kMostTopLogprobs = 20;

struct TokenLogprobs {
  double chosen = 0.0;  // of the token asked for
  std::vector<std::pair<int32_t, double>>
      top;  // (token, logprob), likeliest first, the lowest id among equals
};

// The log-softmax of `logits` at `token` and at the `top` likeliest tokens; all are at most 0, and a logit of
// -infinity gives -infinity. Within 1e-6 of the exact value; bits do not depend on the instruction set.
//
// `logits` hold no NaN and no +infinity, and one is finite; `top` is at most kMostTopLogprobs. `ranking` is
// scratch.
void token_logprobs(std::span<const float> logits, int32_t token, int32_t top, Ranking& ranking,
                    TokenLogprobs& out);

// Whether each logit is a number below +infinity.
bool all_numbers(std::span<const float> logits);

}  // namespace ferrite
