#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "sampling/philox.h"
#include "sampling/weights.h"

namespace ferrite {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kBan = -100.0f;

constexpr size_t kMaskBits = 32;  // of a word of a mask
// Bits from a table, so that compilers choose a whole word's logits in vectors.
constexpr std::array<uint32_t, kMaskBits> kBit = [] {
  std::array<uint32_t, kMaskBits> bits = {};
  for (size_t i = 0; i < kMaskBits; ++i) bits[i] = 1U << i;
  return bits;
}();

// floor(a * b / 2^64)
uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xFFFFFFFF;
  const uint64_t a_high = a >> 32;
  const uint64_t b_low = b & 0xFFFFFFFF;
  const uint64_t b_high = b >> 32;
  const uint64_t cross = a_high * b_low + (a_low * b_low >> 32);
  return a_high * b_high + (cross >> 32) + ((a_low * b_high + (cross & 0xFFFFFFFF)) >> 32);
}

}  // namespace

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt_tokens, int32_t vocab_size,
                 std::shared_ptr<MaskSlot> mask)
    : params_(std::move(params)), vocab_size_(vocab_size), mask_(std::move(mask)) {
  if (vocab_size < 1 || vocab_size > kMaxVocab) {
    throw std::invalid_argument("vocab_size: " + std::to_string(vocab_size) + " is not between 1 and " +
                                std::to_string(kMaxVocab));
  }
  if (mask_ != nullptr && mask_->vocab_size() != vocab_size) {
    throw std::invalid_argument("mask: made for " + std::to_string(mask_->vocab_size()) +
                                " tokens, the vocabulary has " + std::to_string(vocab_size));
  }
  if (params_.top_logprobs > kMostTopLogprobs) {
    throw std::invalid_argument("top_logprobs: " + std::to_string(params_.top_logprobs) + " is above " +
                                std::to_string(kMostTopLogprobs));
  }
  for (const auto& [token, value] : params_.logit_bias) check_token(token, "logit_bias");
  for (const int32_t token : prompt_tokens) check_token(token, "prompt");
  const auto size = static_cast<size_t>(vocab_size);
  if (penalises()) seen_index_.assign(size, -1);
  if (mask_ != nullptr || penalises() || !params_.logit_bias.empty()) adjusted_.resize(size);
  if (params_.repetition_penalty != 1.0f) {
    for (const int32_t token : prompt_tokens) seen(token);
  }
}

bool Sampler::plain_greedy() const {
  return params_.temperature == 0.0f && adjusted_.empty() && params_.top_logprobs < 0;
}

bool Sampler::penalises() const {
  return params_.repetition_penalty != 1.0f || params_.frequency_penalty != 0.0f ||
         params_.presence_penalty != 0.0f;
}

void Sampler::check_token(int32_t token, const char* what) const {
  if (token >= 0 && token < vocab_size_) return;
  throw std::invalid_argument(std::string(what) + ": token " + std::to_string(token) +
                              " is outside the vocabulary of " + std::to_string(vocab_size_));
}

Sampler::SeenToken& Sampler::seen(int32_t token) {
  int32_t& index = seen_index_[static_cast<size_t>(token)];
  if (index < 0) {
    index = static_cast<int32_t>(seen_.size());
    seen_.push_back({token, 0});
  }
  return seen_[static_cast<size_t>(index)];
}

void Sampler::observe(int32_t token) {
  check_token(token, "observe");
  ++generated_;
  if (penalises()) ++seen(token).generated;
  if (mask_ != nullptr) mask_->clear();
}

int32_t Sampler::sample(std::span<const float> logits) {
  n_logprobs_ = 0;
  return sample_next(logits);
}

int32_t Sampler::sample_next(std::span<const float> logits) {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    throw std::invalid_argument("sample: " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                                std::to_string(vocab_size_));
  }
  if (!all_numbers(logits)) return -1;
  if (mask_ != nullptr && !mask_->wait()) return -1;
  const int32_t token = choose(logits);
  if (token >= 0 && params_.top_logprobs >= 0) {
    if (n_logprobs_ == logprobs_.size()) logprobs_.emplace_back();
    token_logprobs(logits, token, params_.top_logprobs, ranking_, logprobs_[n_logprobs_++]);
  }
  return token;
}

int32_t Sampler::choose(std::span<const float> logits) {
  ranking_.reset(adjusted_.empty() ? logits : adjusted(logits, -kInfinity));
  if (ranking_.highest() == -kInfinity && mask_ != nullptr) ranking_.reset(adjusted(logits, kBan));
  if (ranking_.highest() == -kInfinity) return -1;
  return params_.temperature == 0.0f ? ranking_.argmax() : draw();
}

// `ban` is what a banning bias adds.
std::span<const float> Sampler::adjusted(std::span<const float> logits, float ban) {
  if (mask_ == nullptr) {
    std::copy(logits.begin(), logits.end(), adjusted_.begin());
  } else {
    copy_allowed(logits);
  }
  for (const auto& [token, value] : params_.logit_bias) {
    adjusted_[static_cast<size_t>(token)] += value <= kBan ? ban : value;
  }
  for (const auto& [token, generated] : seen_) {
    float& logit = adjusted_[static_cast<size_t>(token)];
    if (logit == -kInfinity) continue;
    float value = logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (generated > 0) {
      value -= static_cast<float>(generated) * params_.frequency_penalty;
      value -= params_.presence_penalty;
    }
    logit = std::clamp(value, -kLargest, kLargest);  // an extreme penalty must neither mask nor fail
  }
  return adjusted_;
}

// Logits of the tokens that the mask allows, -infinity for the others.
void Sampler::copy_allowed(std::span<const float> logits) {
  const std::span<const uint32_t> words = mask_->words();
  const size_t whole = logits.size() / kMaskBits;
  for (size_t word = 0; word < whole; ++word) {
    const float* from = logits.data() + word * kMaskBits;
    float* to = adjusted_.data() + word * kMaskBits;
    const uint32_t bits = words[word];
    if (bits == 0) {
      std::fill_n(to, kMaskBits, -kInfinity);
    } else {
      for (size_t i = 0; i < kMaskBits; ++i) to[i] = (bits & kBit[i]) != 0 ? from[i] : -kInfinity;
    }
  }
  for (size_t i = whole * kMaskBits; i < logits.size(); ++i)
    adjusted_[i] = (words[whole] & kBit[i % kMaskBits]) != 0 ? logits[i] : -kInfinity;
}

uint64_t Sampler::weight(float logit) const {
  return to_units(share_of(logit, ranking_.highest(), params_.temperature));
}

int32_t Sampler::draw() {
  if (params_.top_k > 0 && params_.top_k < vocab_size_) ranking_.keep(static_cast<size_t>(params_.top_k));

  const uint64_t floor = std::clamp<uint64_t>(to_units(params_.min_p), 1, weight(ranking_.highest()));
  uint64_t drawable = 0;  // what the draw chooses from: the weights at or above the floor
  if (params_.top_p >= 1.0f) {
    drawable = sum_of_weights(ranking_.candidates(), ranking_.block_highest(), ranking_.highest(),
                              params_.temperature, floor);
  } else {
    const double total = static_cast<double>(sum_of_weights(ranking_.candidates(), ranking_.block_highest(),
                                                            ranking_.highest(), params_.temperature, 1));
    const double nucleus = static_cast<double>(params_.top_p) * total;
    uint64_t reached = 0;
    for (size_t rank = 0; rank == 0 || static_cast<double>(reached) < nucleus; ++rank) {
      const uint64_t units = weight(ranking_.logit_at(rank));
      reached += units;
      drawable += units < floor ? 0 : units;
    }
  }

  uint64_t target = multiply_high(random_bits(params_.seed, generated_), drawable);
  for (size_t rank = 0;; ++rank) {
    const uint64_t units = weight(ranking_.logit_at(rank));
    if (units < floor) continue;
    if (target < units) return ranking_.at(rank);
    target -= units;
  }
}

}  // namespace ferrite
