#include "bindings_sampling.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings_arrays.h"
#include "sampling/logprobs.h"
#include "sampling/mask_slot.h"
#include "sampling/ranking.h"
#include "sampling/sampler.h"
#include "sampling/scorer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrite {
namespace {

const char* mask_state(const MaskSlot& slot) {
  switch (slot.state()) {
    case MaskSlot::State::Empty:
      return "empty";
    case MaskSlot::State::Pending:
      return "pending";
    case MaskSlot::State::Ready:
      return "ready";
    default:
      return "failed";
  }
}

TokenLogprobs logprobs_of(const Floats& logits, int32_t token, int32_t top) {
  const auto row = span(logits);
  if (token < 0 || static_cast<std::size_t>(token) >= row.size())
    throw std::invalid_argument("no such token");
  if (top < 0 || top > kMostTopLogprobs) throw std::invalid_argument("top must be between 0 and 20");
  nb::gil_scoped_release unlocked;
  if (!all_numbers(row)) throw std::invalid_argument("logits that are not finite");
  Ranking ranking;
  TokenLogprobs result;
  token_logprobs(row, token, top, ranking, result);
  return result;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  using Words = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;
  nb::class_<MaskSlot>(m, "MaskSlot")
      .def(nb::new_([](int32_t vocab_size) { return std::make_shared<MaskSlot>(vocab_size); }),
           "vocab_size"_a)
      .def_prop_ro("vocab_size", &MaskSlot::vocab_size)
      .def_prop_ro("words",
                   [](nb::object self) {
                     const auto words = nb::cast<MaskSlot&>(self).words();
                     return Words(words.data(), {words.size()}, self);
                   })
      .def_prop_ro("state", mask_state)
      .def("begin", &MaskSlot::begin)
      .def("publish", &MaskSlot::publish)
      .def("fail", &MaskSlot::fail)
      .def("wait", &MaskSlot::wait, nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "token_logprobs",
      [](const Floats& logits, int32_t token, int32_t top) {
        TokenLogprobs found = logprobs_of(logits, token, top);
        return std::make_pair(found.chosen, std::move(found.top));
      },
      "logits"_a, "token"_a, "top"_a);

  nb::class_<Sampler>(m, "Sampler")
      .def(
          "__init__",
          [](Sampler* self, int32_t vocab_size, float temperature, int32_t top_k, float top_p, float min_p,
             float repetition_penalty, float frequency_penalty, float presence_penalty,
             std::vector<std::pair<int32_t, float>> logit_bias, uint64_t seed,
             const std::vector<int32_t>& prompt_tokens, std::shared_ptr<MaskSlot> mask,
             int32_t top_logprobs) {
            new (self) Sampler({temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
                                presence_penalty, std::move(logit_bias), seed, top_logprobs},
                               prompt_tokens, vocab_size, std::move(mask));
          },
          "vocab_size"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a,
          "frequency_penalty"_a, "presence_penalty"_a, "logit_bias"_a, "seed"_a, "prompt_tokens"_a,
          "mask"_a = nb::none(), "top_logprobs"_a = -1)
      .def(
          "sample",
          [](Sampler& sampler, const Floats& logits) {
            const auto row = span(logits);
            nb::gil_scoped_release unlocked;
            return sampler.sample(row);
          },
          "logits"_a)
      .def_prop_ro("logprobs",
                   [](const Sampler& sampler) {
                     std::vector<std::pair<double, std::vector<std::pair<int32_t, double>>>> result;
                     for (const TokenLogprobs& found : sampler.logprobs())
                       result.emplace_back(found.chosen, found.top);
                     return result;
                   })
      .def("observe", &Sampler::observe, "token"_a);

  nb::class_<Scorer>(m, "Scorer")
      .def(nb::init<std::vector<int32_t>, int32_t, int32_t>(), "tokens"_a, "vocab_size"_a, "top_logprobs"_a)
      .def_prop_ro("logprobs", [](const Scorer& scorer) {
        std::vector<std::optional<std::pair<double, std::vector<std::pair<int32_t, double>>>>> result;
        for (const std::optional<TokenLogprobs>& found : scorer.logprobs()) {
          result.emplace_back();
          if (found) result.back().emplace(found->chosen, found->top);
        }
        return result;
      });
}

}  // namespace ferrite
