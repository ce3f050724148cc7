#include "sampling/logprobs.h"

#include <algorithm>
#include <limits>

#include "sampling/log.h"
#include "sampling/weights.h"

namespace ferrite {

bool all_numbers(std::span<const float> logits) {
  // Counts instead of leaving at the first one, so that the loop vectorises.
  uint32_t bad = 0;
  for (const float logit : logits) {
    bad += static_cast<uint32_t>(!(logit < std::numeric_limits<float>::infinity()));
  }
  return bad == 0;
}

void token_logprobs(std::span<const float> logits, int32_t token, int32_t top, Ranking& ranking,
                    TokenLogprobs& out) {
  ranking.reset(logits);
  const float highest = ranking.highest();
  const auto sum = static_cast<double>(sum_of_weights(logits, {}, highest, 1.0F, 1));
  // The highest token alone is 2^44 units, so this is not negative.
  const double log_total = log_f64(sum * 0x1p-44);
  const auto logprob = [&](float logit) {
    return static_cast<double>(logit) - static_cast<double>(highest) - log_total;
  };
  out.chosen = logprob(logits[static_cast<std::size_t>(token)]);
  out.top.clear();
  const auto finite = static_cast<std::size_t>(std::count_if(logits.begin(), logits.end(), [](float logit) {
    return logit > -std::numeric_limits<float>::infinity();
  }));
  const std::size_t count = std::min(static_cast<std::size_t>(top), finite);
  for (std::size_t rank = 0; rank < count; ++rank) {
    out.top.emplace_back(ranking.at(rank), logprob(ranking.logit_at(rank)));
  }
}

}  // namespace ferrite
