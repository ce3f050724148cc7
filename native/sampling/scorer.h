// How likely the rows of a step find given tokens, such as those of the prompt itself.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sampling/logprobs.h"

namespace ferrite {

// Throws std::invalid_argument for a token outside the vocabulary and for more than kMostTopLogprobs.
class Scorer {
 public:
  Scorer(std::vector<int32_t> tokens, int32_t vocab_size, int32_t top)
      : tokens_(std::move(tokens)), vocab_size_(vocab_size), top_(top), logprobs_(tokens_.size()) {
    if (top < 0 || top > kMostTopLogprobs)
      throw std::invalid_argument("top_logprobs: " + std::to_string(top) + " is not between 0 and " +
                                  std::to_string(kMostTopLogprobs));
    for (const int32_t token : tokens_)
      if (token < 0 || token >= vocab_size)
        throw std::invalid_argument("scorer: token " + std::to_string(token) +
                                    " is outside the vocabulary of " + std::to_string(vocab_size));
  }

  std::size_t size() const { return tokens_.size(); }

  // Token `i` by its row of [vocab_size] logits, which are finite. Different tokens may be scored at once.
  void score(std::size_t i, std::span<const float> logits) {
    if (logits.size() != static_cast<std::size_t>(vocab_size_))
      throw std::invalid_argument("scorer: " + std::to_string(logits.size()) +
                                  " logits for a vocabulary of " + std::to_string(vocab_size_));
    Ranking ranking;
    token_logprobs(logits, tokens_[i], top_, ranking, logprobs_[i].emplace());
  }

  // By token; nothing where it was not scored.
  const std::vector<std::optional<TokenLogprobs>>& logprobs() const { return logprobs_; }

 private:
  std::vector<int32_t> tokens_;
  int32_t vocab_size_;
  int32_t top_;
  std::vector<std::optional<TokenLogprobs>> logprobs_;
};

}  // namespace ferrite
