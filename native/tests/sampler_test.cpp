#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/exp.h"
#include "sampling/log.h"
#include "sampling/philox.h"
#include "tests/check.h"

namespace {

int64_t allocations = 0;

}  // namespace

// Counted, to show that a warm sampler allocates nothing.
void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace ferrite {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

using Logits = std::vector<float>;

// A test's own stream of numbers, apart from the ones a Sampler draws.
class Source {
 public:
  explicit Source(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return random_bits(seed_, counter_++); }
  size_t below(size_t n) { return static_cast<size_t>(bits() % n); }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  // Bell-shaped around 0, in steps of 1/64 so that equal logits are common.
  float logit() {
    float sum = 0.0f;
    for (int i = 0; i < 6; ++i) sum += uniform();
    return std::floor((sum - 3.0f) * 6.0f * 64.0f) / 64.0f;
  }
  Logits logits(size_t n) {
    Logits out(n);
    for (float& value : out) value = logit();
    return out;
  }
  template <typename T, size_t N>
  T pick(const T (&choices)[N]) {
    return choices[below(N)];
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

int32_t greedy(const Logits& logits, SamplingParams params = {}, std::vector<int32_t> prompt = {},
               const std::vector<int32_t>& generated = {}) {
  Sampler sampler(std::move(params), prompt, static_cast<int32_t>(logits.size()));
  for (const int32_t token : generated) sampler.observe(token);
  return sampler.sample(logits);
}

SamplingParams with_temperature(float temperature, uint64_t seed = 1) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

// The definition, with a full sort: what Sampler must equal for a row without bias and penalties.
int32_t defined_draw(const Logits& logits, const SamplingParams& params, uint64_t draw) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  const float highest = logits[static_cast<size_t>(order[0])];
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  std::vector<uint64_t> weights;
  for (const int32_t token : order) {
    const float exponent = (logits[static_cast<size_t>(token)] - highest) / params.temperature;
    weights.push_back(exponent > -31.0f ? static_cast<uint64_t>(exp_f32(exponent) * 0x1p44f) : 0);
  }
  if (params.top_p < 1.0f) {
    const auto total = static_cast<double>(std::accumulate(weights.begin(), weights.end(), uint64_t{0}));
    uint64_t reached = weights[0];
    size_t count = 1;
    while (static_cast<double>(reached) < total * static_cast<double>(params.top_p))
      reached += weights[count++];
    weights.resize(count);
  }
  for (uint64_t& weight : weights) {
    if (static_cast<float>(weight) < params.min_p * 0x1p44f) weight = 0;
  }
  __extension__ using Wide = unsigned __int128;
  const auto mass = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  auto target = static_cast<uint64_t>(Wide{random_bits(params.seed, draw)} * mass >> 64);
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    if (target < weights[rank]) return order[rank];
    target -= weights[rank];
  }
  return -1;
}

// Published test vectors of the Random123 distribution (kat_vectors).
void philox_equals_its_published_vectors() {
  CHECK(philox_4x32_10({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox_4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(random_bits(0, 0) == 0xe169c58d6627e8d5);
  CHECK(random_bits(uint64_t{1} << 32, 0) != random_bits(0, 0));
  CHECK(random_bits(0, uint64_t{1} << 32) != random_bits(0, 0));
}

void greedy_takes_the_highest_logit_and_the_lowest_id() {
  CHECK(greedy({0.0f}) == 0);
  CHECK(greedy({1.0f, 3.0f, 2.0f, 3.0f}) == 1);
  CHECK(greedy({-0.0f, 0.0f}) == 0);
  CHECK(greedy({-kInfinity, -5.0f, -kInfinity}) == 1);
  CHECK(greedy({-kLargest, kLargest}) == 1);
  for (const size_t n : {1U, 15U, 16U, 17U, 63U, 64U, 65U, 127U, 128U, 129U, 1000U}) {
    for (size_t at = 0; at < n; ++at) {
      Logits logits(n, -2.0f);
      logits[at] = -1.0f;
      if (at + 1 < n) logits[n - 1] = -1.0f;
      CHECK(greedy(logits) == static_cast<int32_t>(at));
    }
  }
}

void a_row_without_an_answer_gives_minus_one() {
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params = with_temperature(temperature);
    CHECK(greedy({1.0f, kNaN}, params) == -1);
    CHECK(greedy({kInfinity, 1.0f}, params) == -1);
    CHECK(greedy(Logits(100, -kInfinity), params) == -1);
    for (size_t at = 0; at < 70; ++at) {
      Logits logits(70, 0.5f);
      logits[at] = kNaN;
      CHECK(greedy(logits, params) == -1);
    }
    SamplingParams banned = params;
    banned.logit_bias = {{0, -100.0f}, {1, -100.0f}};
    CHECK(greedy({1.0f, 2.0f}, banned) == -1);
    CHECK(greedy({1.0f, kNaN}, banned) == -1);
  }
}

void plain_greedy_is_temperature_zero_and_nothing_else() {
  const auto is_plain = [](auto change) {
    SamplingParams params;
    change(params);
    return Sampler(params, {}, 8).plain_greedy();
  };
  CHECK(is_plain([](SamplingParams&) {}));
  CHECK(is_plain([](SamplingParams& p) { p.top_k = 3, p.top_p = 0.5f, p.min_p = 0.5f, p.seed = 9; }));
  CHECK(!is_plain([](SamplingParams& p) { p.temperature = 0.1f; }));
  CHECK(!is_plain([](SamplingParams& p) { p.repetition_penalty = 1.1f; }));
  CHECK(!is_plain([](SamplingParams& p) { p.frequency_penalty = -0.1f; }));
  CHECK(!is_plain([](SamplingParams& p) { p.presence_penalty = 0.1f; }));
  CHECK(!is_plain([](SamplingParams& p) { p.logit_bias = {{7, 0.0f}}; }));
  CHECK(!is_plain([](SamplingParams& p) { p.top_logprobs = 0; }));
  CHECK(!Sampler({}, {}, 8, std::make_shared<MaskSlot>(8)).plain_greedy());
}

void bias_bans_adds_and_comes_first() {
  SamplingParams params;
  params.logit_bias = {{1, -100.0f}};
  CHECK(greedy({1.0f, 1e6f, 2.0f}, params) == 2);
  params.logit_bias = {{0, 100.0f}};
  CHECK(greedy({-50.0f, 49.0f}, params) == 0);
  CHECK(greedy({-52.0f, 49.0f}, params) == 1);
  CHECK(greedy({-kInfinity, 49.0f}, params) == 1);
  // 4 - 5 is below zero, so the repetition penalty multiplies: -2 loses to -1.5; (4 / 2) - 5 would, too,
  // but the other way round 4 / 2 = 2, then +3 = 5 beats 4.5, and (4 + 3) / 2 = 3.5 does not.
  params.logit_bias = {{0, -5.0f}};
  params.repetition_penalty = 2.0f;
  CHECK(greedy({4.0f, -1.5f}, params, {0}) == 1);
  CHECK(greedy({4.0f, -2.5f}, params, {0}) == 0);
  params.logit_bias = {{0, 3.0f}};
  CHECK(greedy({4.0f, 4.5f}, params, {0}) == 1);
}

void penalties_follow_their_definitions() {
  SamplingParams repetition;
  repetition.repetition_penalty = 2.0f;
  CHECK(greedy({4.0f, 2.5f}, repetition) == 0);
  CHECK(greedy({4.0f, 2.5f}, repetition, {0}) == 1);
  CHECK(greedy({4.0f, 2.5f}, repetition, {0, 0, 1}) == 0);
  CHECK(greedy({4.0f, 2.5f}, repetition, {}, {0}) == 1);
  CHECK(greedy({-1.0f, -1.5f}, repetition, {0}) == 1);
  CHECK(greedy({0.0f, -0.5f}, repetition, {0}) == 0);

  SamplingParams frequency;
  frequency.frequency_penalty = 0.5f;
  CHECK(greedy({2.0f, 1.25f}, frequency, {0, 0, 0, 0}) == 0);
  CHECK(greedy({2.0f, 1.25f}, frequency, {}, {0}) == 0);
  CHECK(greedy({2.0f, 1.25f}, frequency, {}, {0, 0}) == 1);

  SamplingParams presence;
  presence.presence_penalty = 0.5f;
  CHECK(greedy({2.0f, 1.25f}, presence, {0}, {0, 0, 0, 0}) == 0);
  CHECK(greedy({2.0f, 1.6f}, presence, {}, {0}) == 1);
  presence.presence_penalty = -0.5f;
  CHECK(greedy({2.0f, 1.6f}, presence, {}, {1}) == 1);

  SamplingParams extreme;
  extreme.repetition_penalty = std::numeric_limits<float>::denorm_min();
  CHECK(greedy({2.0f, 1.0f}, extreme, {1}) == 1);
  extreme.repetition_penalty = kLargest;
  CHECK(greedy({-4.0f, -kInfinity}, extreme, {0, 1}) == 0);
}

void a_draw_depends_on_seed_and_observed_tokens_only() {
  Source source(11);
  const Logits logits = source.logits(500);
  Sampler a(with_temperature(1.0f, 7), {}, 500);
  Sampler b(with_temperature(1.0f, 7), std::vector<int32_t>{1, 2, 3}, 500);
  Sampler other_seed(with_temperature(1.0f, 8), {}, 500);
  int changes = 0;
  int differences = 0;
  int32_t previous = -1;
  for (int step = 0; step < 200; ++step) {
    const int32_t token = a.sample(logits);
    CHECK(token == a.sample(logits));
    CHECK(token == b.sample(logits));
    changes += token != previous;
    differences += token != other_seed.sample(logits);
    previous = token;
    a.observe(token);
    b.observe(step);
    other_seed.observe(step);
  }
  CHECK(changes > 150);
  CHECK(differences > 150);
}

void draws_equal_the_definition() {
  Source source(12);
  const size_t sizes[] = {1, 2, 3, 17, 63, 64, 65, 300, 1000, 5000, 20000};
  for (int round = 0; round < 600; ++round) {
    const size_t n = source.pick(sizes);
    Logits logits = source.logits(n);
    if (source.below(4) == 0) {
      for (size_t i = 1; i < n; i += 1 + source.below(3)) logits[i] = -kInfinity;
    }
    SamplingParams params = with_temperature(source.pick({1e-30f, 0.05f, 0.7f, 1.0f, 2.0f}), source.bits());
    params.top_k = source.pick({0, 0, 1, 2, 40, 255, 257, 4000, 1 << 30});
    params.top_p = source.pick({1.0f, 1.0f, 0.0f, 0.1f, 0.5f, 0.95f, 0.9999f, 0.99999994f});
    params.min_p = source.pick({0.0f, 0.0f, 1e-6f, 0.05f, 1.0f});
    Sampler sampler(params, {}, static_cast<int32_t>(n));
    for (uint64_t draw = 0; draw < 3; ++draw) {
      CHECK(sampler.sample(logits) == defined_draw(logits, params, draw));
      sampler.observe(0);
    }
  }
}

// The same seed gives the same tokens in every build. Written down from a run; a change here changes what
// users get for a seed, and belongs in the changelog.
void draws_equal_the_stored_ones() {
  Sampler sampler(with_temperature(0.8f, 42), {}, 1000);
  const Logits logits = Source(16).logits(1000);
  const std::vector<int32_t> stored = {630, 630, 491, 491, 574, 630, 953, 630, 518, 630, 491, 630};
  std::vector<int32_t> drawn;
  for (size_t i = 0; i < stored.size(); ++i) {
    drawn.push_back(sampler.sample(logits));
    sampler.observe(drawn.back());
  }
  CHECK(drawn == stored);
}

void a_large_flat_vocabulary_equals_the_definition() {
  Source source(13);
  const Logits logits = source.logits(262144);
  for (const float top_p : {1.0f, 0.9f}) {
    for (const int32_t top_k : {0, 40, 100000}) {
      SamplingParams params = with_temperature(2.0f, source.bits());
      params.top_p = top_p;
      params.top_k = top_k;
      CHECK(Sampler(params, {}, 262144).sample(logits) == defined_draw(logits, params, 0));
    }
  }
}

void adjusted_logits_are_what_is_drawn_from() {
  Source source(14);
  for (int round = 0; round < 100; ++round) {
    Logits logits = source.logits(400);
    SamplingParams params = with_temperature(1.0f, source.bits());
    params.top_k = 30;
    params.repetition_penalty = 1.25f;
    params.frequency_penalty = 0.25f;
    params.presence_penalty = 0.5f;
    params.logit_bias = {{3, 2.5f}, {4, -100.0f}};
    const std::vector<int32_t> prompt = {3, 5, 7, 7};
    Sampler sampler(params, prompt, 400);
    sampler.observe(7);
    sampler.observe(9);
    sampler.observe(9);
    const int32_t token = sampler.sample(logits);

    logits[3] += 2.5f;
    logits[4] = -kInfinity;
    for (const size_t seen : {3U, 5U, 7U, 9U})
      logits[seen] = logits[seen] > 0 ? logits[seen] / 1.25f : logits[seen] * 1.25f;
    logits[7] = logits[7] - 0.25f - 0.5f;
    logits[9] = logits[9] - 0.5f - 0.5f;
    CHECK(token == defined_draw(logits, params, 3));
  }
}

void draws_follow_the_probabilities() {
  const Logits logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  constexpr std::array<double, 4> kProbability = {0.5, 0.3, 0.15, 0.05};
  constexpr int kDraws = 20000;
  Sampler sampler(with_temperature(1.0f, 2024), {}, 4);
  std::array<int, 4> count{};
  for (int draw = 0; draw < kDraws; ++draw) {
    const int32_t token = sampler.sample(logits);
    ++count[static_cast<size_t>(token)];
    sampler.observe(token);
  }
  for (size_t token = 0; token < 4; ++token) {
    const double expected = kDraws * kProbability[token];
    CHECK(std::abs(count[token] - expected) < 4.0 * std::sqrt(expected * (1.0 - kProbability[token])));
  }
}

void a_banned_token_is_never_drawn() {
  SamplingParams params = with_temperature(2.0f, 3);
  params.logit_bias = {{0, -100.0f}, {2, -100.0f}};
  Sampler sampler(params, {}, 4);
  for (int step = 0; step < 500; ++step) {
    const int32_t token = sampler.sample(Logits{90.0f, 1.0f, 90.0f, 1.0f});
    CHECK(token == 1 || token == 3);
    sampler.observe(token);
  }
}

std::shared_ptr<MaskSlot> slot_allowing(int32_t vocab_size, const std::vector<int32_t>& tokens) {
  auto slot = std::make_shared<MaskSlot>(vocab_size);
  slot->begin();
  for (const int32_t token : tokens) {
    slot->words()[static_cast<size_t>(token) / 32] |= 1U << (static_cast<uint32_t>(token) % 32);
  }
  slot->publish();
  return slot;
}

void a_mask_comes_before_everything_else() {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params = with_temperature(temperature);
    const Logits logits = {9.0f, 1.0f, 8.0f, 2.0f};
    CHECK(Sampler(params, {}, 4, slot_allowing(4, {1})).sample(logits) == 1);
    params.logit_bias = {{0, 100.0f}, {1, 100.0f}};
    params.frequency_penalty = -2.0f;
    params.top_k = 1;
    CHECK(Sampler(params, {}, 4, slot_allowing(4, {2, 3})).sample(logits) == 2);
    // Bits past the vocabulary mean nothing, and a mask that allows nothing gives nothing.
    const auto tail = slot_allowing(4, {});
    tail->words()[0] = 0xFFFFFFF0;
    CHECK(Sampler(params, {}, 4, tail).sample(logits) == -1);
  }
}

void a_mask_wins_over_a_ban() {
  SamplingParams params;
  params.logit_bias = {{1, -100.0f}, {2, -100.0f}};
  const Logits logits = {9.0f, 1.0f, 8.0f, 2.0f};
  CHECK(Sampler(params, {}, 4, slot_allowing(4, {1, 2, 3})).sample(logits) == 3);
  CHECK(Sampler(params, {}, 4, slot_allowing(4, {1, 2})).sample(logits) == 2);
  CHECK(Sampler(params, {}, 4, slot_allowing(4, {})).sample(logits) == -1);
}

void a_mask_equals_a_ban_of_the_other_tokens() {
  Source source(21);
  for (int round = 0; round < 200; ++round) {
    const size_t n = source.pick({size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{64}, size_t{1000}});
    const Logits logits = source.logits(n);
    const uint64_t seed = source.bits();
    SamplingParams params = with_temperature(source.pick({0.0f, 0.7f, 2.0f}), seed);
    params.top_p = source.pick({1.0f, 0.8f});
    params.repetition_penalty = source.pick({1.0f, 1.5f});
    std::vector<int32_t> allowed = {static_cast<int32_t>(source.below(n))};
    SamplingParams banning = params;
    for (int32_t token = 0; token < static_cast<int32_t>(n); ++token) {
      if (token == allowed[0]) continue;
      if (source.below(2) == 0) {
        allowed.push_back(token);
      } else {
        banning.logit_bias.emplace_back(token, -100.0f);
      }
    }
    const auto size = static_cast<int32_t>(n);
    CHECK(Sampler(params, allowed, size, slot_allowing(size, allowed)).sample(logits) ==
          Sampler(banning, allowed, size).sample(logits));
  }
}

void a_mask_serves_one_token() {
  const auto slot = slot_allowing(4, {1});
  Sampler sampler({}, {}, 4, slot);
  const Logits logits = {9.0f, 1.0f, 8.0f, 2.0f};
  CHECK(sampler.sample(logits) == 1);
  CHECK(sampler.sample(logits) == 1);
  sampler.observe(1);
  CHECK(slot->state() == MaskSlot::State::Empty);
  CHECK(sampler.sample(logits) == -1);
  slot->begin();
  CHECK_THROWS(slot->begin(), std::logic_error);
  slot->fail();
  CHECK(sampler.sample(logits) == -1);
  slot->publish();  // too late
  CHECK(slot->state() == MaskSlot::State::Failed);
  slot->begin();
  slot->publish();
  CHECK(sampler.sample(logits) == 1);
}

void a_sampler_waits_for_its_mask() {
  const Logits logits = {9.0f, 1.0f, 8.0f, 2.0f};
  for (int round = 0; round < 200; ++round) {
    const auto slot = std::make_shared<MaskSlot>(4);
    Sampler sampler({}, {}, 4, slot);
    slot->begin();
    const bool fails = round % 4 == 3;
    std::thread writer([&] {
      slot->words()[0] = 2;
      fails ? slot->fail() : slot->publish();
    });
    CHECK(sampler.sample(logits) == (fails ? -1 : 1));
    writer.join();
  }
}

void log_is_the_logarithm() {
  CHECK(log_f64(1.0) == 0.0);
  Source source(31);
  double worst = 0.0;
  for (int i = 0; i < 20000; ++i) {
    const double x = std::ldexp(1.0 + static_cast<double>(source.bits() >> 12) * 0x1p-52,
                                static_cast<int>(source.below(120)) - 60);
    const double exact = std::log(x);
    worst = std::max(worst, std::abs(log_f64(x) - exact) / std::max(std::abs(exact), 1e-3));
  }
  CHECK(worst < 1e-13);
}

void logprobs_are_the_log_softmax_of_the_raw_logits() {
  Source source(32);
  for (int round = 0; round < 50; ++round) {
    const size_t n = source.pick({size_t{1}, size_t{2}, size_t{65}, size_t{5000}, size_t{151936}});
    const Logits logits = source.logits(n);
    double total = 0.0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    const auto exact = [&](int32_t token) {
      return static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(total);
    };
    const uint64_t seed = source.bits();
    SamplingParams params = with_temperature(source.pick({0.0f, 1.3f}), seed);
    params.top_logprobs = source.pick({0, 1, 5, 20});
    params.top_k = 3;
    params.presence_penalty = 1.0f;
    Sampler sampler(params, {}, static_cast<int32_t>(n));
    const int32_t token = sampler.sample(logits);
    const TokenLogprobs& found = sampler.logprobs()[0];
    CHECK(std::abs(found.chosen - exact(token)) < 1e-6 && found.chosen <= 0.0);
    CHECK(found.top.size() == std::min(static_cast<size_t>(params.top_logprobs), n));
    for (size_t rank = 0; rank < found.top.size(); ++rank) {
      const auto& [id, logprob] = found.top[rank];
      CHECK(std::abs(logprob - exact(id)) < 1e-6);
      if (id == token) CHECK(logprob == found.chosen);
      if (rank == 0) CHECK(id == greedy(logits));
      if (rank > 0) CHECK(logprob <= found.top[rank - 1].second);
      if (rank > 0 && logprob == found.top[rank - 1].second) CHECK(id > found.top[rank - 1].first);
    }
  }
}

// Fixed bits: whatever the compiler and the instruction set.
void logprobs_equal_the_stored_ones() {
  SamplingParams params;
  params.top_logprobs = 2;
  Sampler sampler(params, {}, 1000);
  sampler.sample(Source(33).logits(1000));
  const TokenLogprobs& found = sampler.logprobs()[0];
  CHECK(found.chosen == -0x1.9589d2f8089d3p+0);
  CHECK(found.top[1] == std::pair<int32_t, double>(36, -0x1.f589d2f8089d3p+0));
}

void impossible_tokens_have_no_probability() {
  SamplingParams params;
  params.top_logprobs = 3;
  Sampler sampler(params, {}, 3);
  CHECK(sampler.sample(Logits{-kInfinity, 2.0f, -kInfinity}) == 1);
  CHECK(sampler.logprobs()[0].chosen == 0.0);
  CHECK(sampler.logprobs()[0].top.size() == 1);
}

void a_warm_sampler_allocates_nothing() {
  Source source(15);
  const Logits logits = source.logits(20000);
  for (const float top_p : {1.0f, 0.99f}) {
    SamplingParams params = with_temperature(1.5f, 4);
    params.top_p = top_p;
    params.repetition_penalty = 1.1f;
    params.logit_bias = {{5, 1.0f}};
    params.top_logprobs = 5;
    const auto slot = std::make_shared<MaskSlot>(20000);
    std::ranges::fill(slot->words(), ~0U);
    Sampler sampler(params, {}, 20000, slot);
    const auto step = [&](int number) {
      sampler.observe(number % 16);
      slot->begin();
      slot->publish();
      CHECK(sampler.sample(logits) >= 0);
    };
    for (int number = 0; number < 50; ++number) step(number);
    const int64_t before = allocations;
    for (int number = 0; number < 20; ++number) step(number);
    CHECK(allocations == before);
  }
}

void wrong_arguments_throw() {
  SamplingParams params;
  CHECK_THROWS(Sampler(params, std::vector<int32_t>{0, 8}, 8), std::invalid_argument);
  CHECK_THROWS(Sampler(params, std::vector<int32_t>{-1}, 8), std::invalid_argument);
  CHECK_THROWS(Sampler(params, {}, 0), std::invalid_argument);
  CHECK_THROWS(Sampler(params, {}, 1 << 20), std::invalid_argument);
  params.logit_bias = {{8, 1.0f}};
  CHECK_THROWS(Sampler(params, {}, 8), std::invalid_argument);
  params = {};
  params.top_logprobs = kMostTopLogprobs + 1;
  CHECK_THROWS(Sampler(params, {}, 8), std::invalid_argument);
  CHECK_THROWS(Sampler({}, {}, 8, std::make_shared<MaskSlot>(9)), std::invalid_argument);
  CHECK_THROWS(MaskSlot(0), std::invalid_argument);
  Sampler sampler({}, {}, 8);
  CHECK_THROWS(sampler.observe(8), std::invalid_argument);
  CHECK_THROWS(sampler.observe(-1), std::invalid_argument);
  CHECK_THROWS(sampler.sample(Logits(7)), std::invalid_argument);
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  philox_equals_its_published_vectors();
  greedy_takes_the_highest_logit_and_the_lowest_id();
  a_row_without_an_answer_gives_minus_one();
  plain_greedy_is_temperature_zero_and_nothing_else();
  bias_bans_adds_and_comes_first();
  penalties_follow_their_definitions();
  a_draw_depends_on_seed_and_observed_tokens_only();
  draws_equal_the_definition();
  draws_equal_the_stored_ones();
  a_large_flat_vocabulary_equals_the_definition();
  adjusted_logits_are_what_is_drawn_from();
  draws_follow_the_probabilities();
  a_banned_token_is_never_drawn();
  a_mask_comes_before_everything_else();
  a_mask_wins_over_a_ban();
  a_mask_equals_a_ban_of_the_other_tokens();
  a_mask_serves_one_token();
  a_sampler_waits_for_its_mask();
  log_is_the_logarithm();
  logprobs_are_the_log_softmax_of_the_raw_logits();
  logprobs_equal_the_stored_ones();
  impossible_tokens_have_no_probability();
  a_warm_sampler_allocates_nothing();
  wrong_arguments_throw();
  return test::tally.finish();
}
