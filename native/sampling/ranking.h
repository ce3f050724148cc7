// The tokens of one row of logits in descending order, sorted only as far as somebody looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferrite {

// Consecutive ids whose highest logit is known: 262,144 logits leave 4,096 maxima to select from.
inline constexpr size_t kBlock = 64;

// Order: higher logit first, then lower id. Tokens at minus infinity are not ranked. Buffers are kept from
// row to row.
class Ranking {
 public:
  // Starts a new row. `logits` holds no NaN and must stay alive and unchanged until the next call.
  void reset(std::span<const float> logits);

  // The highest logit of the row, or minus infinity when no token can be chosen.
  float highest() const { return highest_; }

  // The lowest id that has the highest logit. Needs a finite highest().
  int32_t argmax() const;

  // Drops all but the `k` first tokens. Called at most once per row, before at().
  void keep(size_t k);

  // The token at rank `i`. Needs at least i + 1 ranked tokens.
  int32_t at(size_t i);
  float logit_at(size_t i) { return logits_[static_cast<size_t>(at(i))]; }

  // The highest logit of each kBlock candidates; empty after keep().
  std::span<const float> block_highest() const {
    return kept_ ? std::span<const float>() : std::span<const float>(block_max_);
  }

  // The logits that were kept, all of the row without keep(), in no particular order.
  std::span<const float> candidates() const { return kept_ ? std::span<const float>(kept_logits_) : logits_; }

 private:
  // Moves every token with `bound` <= logit < `below` into the pool.
  void collect(float bound, float below);
  // Fills the pool with a superset of the `count` first tokens.
  void collect_first(size_t count);
  void sort_more();

  std::span<const float> logits_;
  std::vector<float> block_max_;      // [ceil(vocab / kBlock)] highest logit per block of consecutive ids
  std::vector<float> bound_scratch_;  // the same values, reordered by selection
  std::vector<float> kept_logits_;    // [pool_.size()] after keep()
  std::vector<uint64_t> pool_;        // sort keys of the tokens at or above collected_, see make_key()
  size_t sorted_ = 0;                 // how many at the front of the pool are in their final place
  float collected_ = 0;               // every token at or above this logit is in the pool
  float highest_ = 0;
  bool kept_ = false;  // keep() was called: the pool is all there is
};

}  // namespace ferrite
