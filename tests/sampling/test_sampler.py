"""The native sampler against its definition in float64 NumPy."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite._native import Sampler
from ferrite.sampling import SamplingParams
from tests.sampling.oracle import philox, possible

Logits = npt.NDArray[np.float32]


def make_sampler(params: SamplingParams, prompt: list[int], vocab_size: int) -> Sampler:
    assert params.seed is not None
    return Sampler(
        vocab_size=vocab_size,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=list(params.logit_bias),
        seed=params.seed,
        prompt_tokens=prompt,
    )


def draw_logits(seed: int, vocab_size: int, step: float) -> Logits:
    """Bell-shaped logits in multiples of ``step``, so that equal ones are common."""
    values = np.random.default_rng(seed).normal(0, 3, vocab_size)
    return (np.round(values / step) * step).astype(np.float32)


penalties = st.sampled_from([-2.0, -0.25, 0.0, 0.5, 2.0])
vocab_sizes = st.sampled_from([1, 2, 63, 64, 65, 500, 20_000])


@st.composite
def parameters(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    biases = st.sampled_from([-100.0, -1.0, 2.5])
    # One token less than there are, so that a ban leaves something.
    bias = draw(st.dictionaries(st.integers(0, vocab_size - 1), biases, max_size=min(3, vocab_size - 1)))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.25, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 40, 300])),
        top_p=draw(st.sampled_from([1.0, 0.01, 0.5, 0.95])),
        min_p=draw(st.sampled_from([0.0, 0.01, 0.3])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 2.0])),
        frequency_penalty=draw(penalties),
        presence_penalty=draw(penalties),
        logit_bias=tuple(bias.items()),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@given(st.data())
def test_draws_follow_the_definition(data: st.DataObject) -> None:
    vocab_size = data.draw(vocab_sizes, label="vocab_size")
    params = data.draw(parameters(vocab_size), label="params")
    tokens = st.lists(st.integers(0, vocab_size - 1), max_size=6)
    prompt = data.draw(tokens, label="prompt")
    generated = data.draw(tokens, label="generated")
    logits = draw_logits(data.draw(st.integers(0, 1000), label="logits"), vocab_size, 1 / 64)
    sampler = make_sampler(params, prompt, vocab_size)
    for token in generated:
        sampler.observe(token)
    for _ in range(3):
        token = sampler.sample(logits)
        assert token in possible(logits, params, prompt, generated)
        sampler.observe(token)
        generated.append(token)


def test_the_oracle_leaves_little_choice() -> None:
    sizes = []
    for seed in range(300):
        params = SamplingParams(temperature=1.0, top_p=0.9, min_p=0.01, seed=seed)
        sizes.append(len(possible(draw_logits(seed, 500, 1 / 64), params, [], [])))
    assert np.mean(sizes) < 1.05


def test_the_oracles_generator_is_philox() -> None:
    assert philox((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("vocab_size", [49_152, 151_936, 262_144])
def test_banned_tokens_never_come_and_a_forced_one_does(vocab_size: int) -> None:
    logits = draw_logits(3, vocab_size, 1 / 64)
    banned = np.argsort(-logits, kind="stable")[:20].tolist()
    bias = tuple((token, -100.0) for token in banned)
    hot = make_sampler(SamplingParams(temperature=1.0, logit_bias=bias, seed=5), [], vocab_size)
    drawn = []
    for _ in range(50):
        drawn.append(hot.sample(logits))
        hot.observe(drawn[-1])
    assert not set(drawn) & set(banned)
    assert len(set(drawn)) > 10
    forced = SamplingParams(temperature=2.0, logit_bias=((vocab_size - 1, 100.0),), seed=5)
    assert make_sampler(forced, [], vocab_size).sample(logits) == vocab_size - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_give_minus_one(temperature: float, bad: float) -> None:
    sampler = make_sampler(SamplingParams(temperature=temperature, seed=1), [], 100)
    logits = draw_logits(1, 100, 1 / 64)
    assert sampler.sample(logits) >= 0
    logits[99] = bad
    assert sampler.sample(logits) == -1
    assert sampler.sample(np.full(100, -np.inf, dtype=np.float32)) == -1


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**64 - 1])
def test_a_seed_fixes_the_tokens(seed: int) -> None:
    logits = draw_logits(8, 1000, 1 / 64)

    def run(seed: int) -> list[int]:
        sampler = make_sampler(SamplingParams(temperature=1.5, seed=seed), [], 1000)
        tokens = []
        for _ in range(20):
            tokens.append(sampler.sample(logits))
            sampler.observe(tokens[-1])
        return tokens

    assert run(seed) == run(seed)
    assert run(seed) != run(seed ^ 2)


@pytest.mark.parametrize("token", [-1, 100])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"prompt: token {token} is outside the vocabulary of 100"):
        make_sampler(SamplingParams(seed=1), [token], 100)
    with pytest.raises(ValueError, match=f"logit_bias: token {token} is outside"):
        make_sampler(SamplingParams(seed=1, logit_bias=((token, 1.0),)), [], 100)
    sampler = make_sampler(SamplingParams(seed=1), [], 100)
    with pytest.raises(ValueError, match=f"observe: token {token} is outside"):
        sampler.observe(token)
    with pytest.raises(ValueError, match="99 logits for a vocabulary of 100"):
        sampler.sample(np.zeros(99, dtype=np.float32))
