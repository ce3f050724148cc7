#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/exp.h"
#include "sampling/philox.h"

namespace ferrite {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kBan = -100.0f;

// The highest weight. kMaxVocab of them fit into 64 bits, and the tokens lost below one unit hold less of
// the probability than float32 exponentials lose by rounding: 2^-26 for 262,144 tokens.
constexpr float kUnit = 0x1p44f;
constexpr int32_t kMaxVocab = (1 << 20) - 1;
constexpr float kNegligible = -31.0f;  // exp(-31) is below one unit
constexpr size_t kSumChunk = 64;       // exponentials first, then their sum, so that the former vectorise

// Counts instead of leaving at the first one, so that the loop vectorises.
bool has_nan_or_infinity(std::span<const float> logits) {
  uint32_t bad = 0;
  for (const float logit : logits) bad += static_cast<uint32_t>(!(logit < kInfinity));
  return bad != 0;
}

// By way of a signed integer, for which x86 has an instruction.
uint64_t to_units(float share) {
  return static_cast<uint64_t>(static_cast<int64_t>(share * kUnit));
}

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

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt_tokens, int32_t vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  if (vocab_size < 1 || vocab_size > kMaxVocab) {
    throw std::invalid_argument("vocab_size: " + std::to_string(vocab_size) + " is not between 1 and " +
                                std::to_string(kMaxVocab));
  }
  for (const auto& [token, value] : params_.logit_bias) check_token(token, "logit_bias");
  for (const int32_t token : prompt_tokens) check_token(token, "prompt");
  const auto size = static_cast<size_t>(vocab_size);
  if (penalises()) seen_index_.assign(size, -1);
  if (penalises() || !params_.logit_bias.empty()) adjusted_.resize(size);
  if (params_.repetition_penalty != 1.0f) {
    for (const int32_t token : prompt_tokens) seen(token);
  }
}

bool Sampler::plain_greedy() const {
  return params_.temperature == 0.0f && adjusted_.empty();
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
}

int32_t Sampler::sample(std::span<const float> logits) {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    throw std::invalid_argument("sample: " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                                std::to_string(vocab_size_));
  }
  if (has_nan_or_infinity(logits)) return -1;
  ranking_.reset(adjusted_.empty() ? logits : adjusted(logits));
  if (ranking_.highest() == -kInfinity) return -1;
  return params_.temperature == 0.0f ? ranking_.argmax() : draw();
}

std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  for (const auto& [token, value] : params_.logit_bias) {
    float& logit = adjusted_[static_cast<size_t>(token)];
    logit = value <= kBan ? -kInfinity : logit + value;
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

// The probability of a token as a share of the highest one.
float Sampler::share(float logit) const {
  return exp_f32(std::max((logit - ranking_.highest()) / params_.temperature, kNegligible));
}

uint64_t Sampler::weight(float logit) const {
  return to_units(share(logit));
}

// The sum of the weights at or above `floor`.
uint64_t Sampler::mass(std::span<const float> logits, uint64_t floor) const {
  std::array<float, kSumChunk> shares;
  uint64_t sum = 0;
  for (size_t start = 0; start < logits.size(); start += kSumChunk) {
    const auto chunk = logits.subspan(start, std::min(kSumChunk, logits.size() - start));
    for (size_t i = 0; i < chunk.size(); ++i) shares[i] = share(chunk[i]);
    for (size_t i = 0; i < chunk.size(); ++i) {
      const uint64_t units = to_units(shares[i]);
      sum += units < floor ? 0 : units;
    }
  }
  return sum;
}

int32_t Sampler::draw() {
  if (params_.top_k > 0 && params_.top_k < vocab_size_) ranking_.keep(static_cast<size_t>(params_.top_k));

  const uint64_t floor = std::clamp<uint64_t>(to_units(params_.min_p), 1, weight(ranking_.highest()));
  uint64_t drawable = 0;  // what the draw chooses from: the weights at or above the floor
  if (params_.top_p >= 1.0f) {
    drawable = mass(ranking_.candidates(), floor);
  } else {
    const double total = static_cast<double>(mass(ranking_.candidates(), 1));
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
