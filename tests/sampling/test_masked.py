"""Masks and log-probabilities of the native sampler, from Python."""

import threading

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite._native import MaskSlot, Sampler, token_logprobs
from ferrite.sampling import SamplingParams
from tests.sampling.oracle import possible
from tests.sampling.test_sampler import draw_logits, parameters, vocab_sizes


def masked_sampler(params: SamplingParams, slot: MaskSlot, *, top_logprobs: int = -1) -> Sampler:
    return Sampler(
        vocab_size=slot.vocab_size,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=list(params.logit_bias),
        seed=params.seed or 0,
        prompt_tokens=[],
        mask=slot,
        top_logprobs=top_logprobs,
    )


def publish(slot: MaskSlot, allowed: npt.NDArray[np.bool_]) -> None:
    slot.begin()
    bits = np.packbits(allowed, bitorder="little")
    slot.words.view(np.uint8)[: len(bits)] = bits
    slot.publish()


@given(st.data())
def test_a_masked_draw_is_a_draw_of_the_allowed_tokens(data: st.DataObject) -> None:
    vocab_size = data.draw(vocab_sizes, label="vocab_size")
    params = data.draw(parameters(vocab_size), label="params")
    logits = draw_logits(data.draw(st.integers(0, 1000), label="logits"), vocab_size, 1 / 64)
    chosen = np.random.default_rng(data.draw(st.integers(0, 99), label="mask"))
    allowed = chosen.random(vocab_size) < data.draw(st.sampled_from([0.001, 0.5, 0.99]), label="share")
    allowed[chosen.integers(vocab_size)] = True
    banned = {token for token, value in params.logit_bias if value <= -100}
    slot = MaskSlot(vocab_size)
    publish(slot, allowed)
    token = masked_sampler(params, slot).sample(logits)
    assert allowed[token]
    if set(np.nonzero(allowed)[0].tolist()) - banned:
        masked = np.where(allowed, logits, -np.inf).astype(np.float32)
        assert token in possible(masked, params, [], [])


def test_a_slot_goes_through_its_states() -> None:
    slot = MaskSlot(70)
    assert slot.words.dtype == np.uint32
    assert (len(slot.words), slot.state) == (3, "empty")
    slot.begin()
    assert slot.state == "pending"
    with pytest.raises(RuntimeError, match="being filled"):
        slot.begin()
    slot.publish()
    assert slot.wait()
    slot.begin()
    slot.fail()
    assert not slot.wait()
    slot.publish()
    assert not slot.wait()
    words = slot.words
    del slot
    words[:] = 1  # keeps the slot alive
    with pytest.raises(ValueError, match="vocab_size: 0 is not positive"):
        MaskSlot(0)
    with pytest.raises(ValueError, match="mask: made for 70 tokens, the vocabulary has 71"):
        Sampler(71, 0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, [], 0, [], MaskSlot(70))


def test_a_sampler_that_waits_leaves_the_interpreter_to_others() -> None:
    slot = MaskSlot(64)
    sampler = masked_sampler(SamplingParams(), slot)
    slot.begin()

    def fill() -> None:
        slot.words[:] = [0, 1 << 5]
        slot.publish()

    writer = threading.Thread(target=fill)
    writer.start()
    assert sampler.sample(np.zeros(64, dtype=np.float32)) == 37
    writer.join()


@given(vocab_sizes, st.integers(0, 1000), st.sampled_from([1 / 64, 1e-4, 2.0]))
def test_logprobs_are_the_log_softmax(vocab_size: int, seed: int, step: float) -> None:
    logits = draw_logits(seed, vocab_size, step)
    exact = logits.astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    order = np.lexsort((np.arange(vocab_size), -logits))
    token = seed % vocab_size
    chosen, top = token_logprobs(logits, token, 20)
    assert abs(chosen - exact[token]) < 1e-6
    assert [found for found, _ in top] == order[:20].tolist()
    assert np.allclose([logprob for _, logprob in top], exact[order[:20]], rtol=0, atol=1e-6)
    assert all(logprob <= 0 for _, logprob in top)


def test_the_probabilities_of_a_row_sum_to_one() -> None:
    logits = draw_logits(5, 3000, 1 / 64)
    total = sum(np.exp(token_logprobs(logits, token, 0)[0]) for token in range(3000))
    assert abs(total - 1) < 1e-6


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.1])
def test_logprobs_are_those_before_anything_changes_the_logits(temperature: float, top_p: float) -> None:
    logits = draw_logits(9, 500, 1 / 64)
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        frequency_penalty=1.5,
        logit_bias=((7, -100.0), (9, 3.0)),
        seed=4,
    )
    slot = MaskSlot(500)
    sampler = masked_sampler(params, slot, top_logprobs=5)
    for _ in range(5):
        publish(slot, np.arange(500) % 3 == 0)
        token = sampler.sample(logits)
        sampler.observe(token)
        assert sampler.logprobs == [token_logprobs(logits, token, 5)]


def test_wrong_logprob_arguments_are_refused() -> None:
    logits = np.zeros(10, dtype=np.float32)
    for token in (-1, 10):
        with pytest.raises(ValueError, match="no such token"):
            token_logprobs(logits, token, 1)
    for top in (-1, 21):
        with pytest.raises(ValueError, match="top must be between 0 and 20"):
            token_logprobs(logits, 0, top)
    with pytest.raises(ValueError, match="not finite"):
        token_logprobs(np.full(10, np.nan, dtype=np.float32), 0, 1)
    with pytest.raises(ValueError, match="top_logprobs: 21 is above 20"):
        masked_sampler(SamplingParams(), MaskSlot(10), top_logprobs=21)
