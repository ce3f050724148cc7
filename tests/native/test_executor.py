"""The executor through the binding: the GIL, and arguments that are not what it takes."""

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ferrite import _native

VOCAB, HIDDEN, HEAD_DIM, BLOCK_TOKENS, BLOCKS = 32, 64, 32, 16, 4
F32 = 0


def weight(team: _native.Team, rows: int, cols: int) -> _native.Weight:
    values = np.random.default_rng(rows * cols).standard_normal((rows, cols)).astype(np.float32)
    return _native.Weight.pack(values.view(np.uint8).reshape(-1), F32, rows, cols, team)


class Model:
    """Embedding, ``layers`` attention layers and logits: as much work in one step as asked for."""

    def __init__(self, layers: int = 1, bad_token: int | None = None) -> None:
        """``bad_token`` has an embedding that is not finite, and so have the logits from it on."""
        self.team = _native.Team(1)
        self.kv = _native.KvStore(
            layers=1,
            kv_heads=2,
            head_dim=HEAD_DIM,
            block_tokens=BLOCK_TOKENS,
            blocks=BLOCKS,
            dtype="f16",
            backend="vec",
        )
        self.executor = executor = _native.Executor(self.team, "auto", self.kv)
        self.ones = np.ones(HIDDEN, np.float32)
        self.none = np.zeros(0, np.float32)
        self.table = weight(self.team, VOCAB, HIDDEN)
        self.matrix = weight(self.team, HIDDEN, HIDDEN)
        self.x, self.h, self.k, self.v = (executor.buffer(HIDDEN) for _ in range(4))
        self.angles = executor.buffer(HEAD_DIM)
        self.last = executor.buffer(HIDDEN, logits=True)
        self.out = executor.buffer(VOCAB, logits=True)
        executor.embed(self._embeddings(bad_token), self.x, 1.0)
        executor.angles([0.5**i for i in range(HEAD_DIM // 2)], self.angles)
        for _ in range(layers):
            executor.norm(self.x, self.ones, self.h, 1e-6)
            executor.linear(self.h, [self.matrix] * 2, [self.k, self.v], [self.none] * 2, accumulate=False)
            executor.rope(**self.rope())
            executor.attention(**self.attention())
            executor.add(self.x, self.h)
        executor.select_rows(self.x, self.last)
        executor.norm(self.last, self.ones, self.last, 1e-6)
        executor.logits(self.last, self.table, self.out)

    def _embeddings(self, bad_token: int | None) -> _native.Weight:
        if bad_token is None:
            return self.table
        values = np.ones((VOCAB, HIDDEN), np.float32)
        values[bad_token] = np.inf
        return _native.Weight.pack(values.view(np.uint8).reshape(-1), F32, VOCAB, HIDDEN, self.team)

    def rope(self) -> dict[str, Any]:
        ids = {"q": self.h, "k": self.k, "v": self.v, "angles": self.angles}
        shape = {"heads": 2, "kv_heads": 2, "head_dim": HEAD_DIM, "layer": 0}
        norms = {"q_norm": self.none, "k_norm": self.none, "eps": 1e-6}
        return {**ids, **shape, **norms, "adjacent": True, "q_scale": 0.2}

    def attention(self) -> dict[str, Any]:
        return {
            "q": self.h,
            "out": self.h,
            "heads": 2,
            "kv_heads": 2,
            "head_dim": HEAD_DIM,
            "layer": 0,
            "window": 0,
        }


def sampler() -> _native.Sampler:
    return _native.Sampler(VOCAB, 0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, [], 0, [])


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def step(n_rows: int = 3) -> dict[str, Any]:
    return {
        "tokens": np.arange(n_rows, dtype=np.int32) % VOCAB,
        "positions": np.arange(n_rows, dtype=np.int32),
        "sequences": np.zeros(n_rows, np.int32),
        "block_tables": [np.arange(BLOCKS, dtype=np.int32)],
        "logit_rows": ints(n_rows - 1),
    }


def test_a_step_gives_one_id_and_evaluate_one_row_for_each_logit_row() -> None:
    model = Model()
    logits = model.executor.evaluate(**step())
    assert logits.shape == (1, VOCAB)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    ids = model.executor.step(**step(), samplers=[sampler()])
    assert ids.dtype == np.int32
    assert ids.tolist() == [int(logits[0].argmax())]


def test_logits_stay_what_they_were_when_the_next_step_runs() -> None:
    model = Model()
    logits = model.executor.evaluate(**step())
    kept = logits.copy()
    model.executor.evaluate(**step() | {"tokens": ints(7, 8, 9)})
    np.testing.assert_array_equal(logits, kept)


@pytest.mark.parametrize("samples", [True, False])
def test_other_threads_run_during_a_step(samples: bool) -> None:
    model, arguments = Model(layers=50), step(BLOCKS * BLOCK_TOKENS)
    run = partial(model.executor.step, samplers=[sampler()]) if samples else model.executor.evaluate
    gate = threading.Lock()
    gate.acquire()
    ran = threading.Event()

    def wait_and_run() -> None:
        with gate:
            ran.set()

    thread = threading.Thread(target=wait_and_run)
    interval = sys.getswitchinterval()
    # From here on this thread gives the GIL away only where it is released on purpose.
    sys.setswitchinterval(1000)
    try:
        thread.start()
        gate.release()
        assert not ran.is_set()
        for _ in range(200):
            run(**arguments)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": ints(1, 2)},
        {"tokens": ints(1, 2, VOCAB)},
        {"tokens": ints(-1, 2, 3)},
        {"positions": ints(0, 2, 3)},
        {"positions": ints(BLOCK_TOKENS * BLOCKS - 1, BLOCK_TOKENS * BLOCKS, BLOCK_TOKENS * BLOCKS + 1)},
        {"positions": ints(-1, 0, 1)},
        {"sequences": ints(0, 0, 1)},
        {"sequences": ints(0, 0, -1)},
        {"block_tables": []},
        {"block_tables": [ints()]},
        {"block_tables": [ints(BLOCKS)]},
        {"block_tables": [ints(-1)]},
        {"logit_rows": ints(3)},
        {"logit_rows": ints(-1)},
        {"tokens": ints(), "positions": ints(), "sequences": ints(), "logit_rows": ints()},
    ],
)
def test_steps_that_do_not_fit_are_value_errors(change: dict[str, Any]) -> None:
    model = Model()
    with pytest.raises(ValueError, match="step: "):
        model.executor.evaluate(**step() | change)
    assert np.isfinite(model.executor.evaluate(**step())).all()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": None},
        {"tokens": "abc"},
        {"tokens": np.zeros((1, 3), np.int32)},
        {"positions": {}},
        {"block_tables": None},
        {"block_tables": [None]},
        {"block_tables": [["a"]]},
        {"logit_rows": 2},
    ],
)
def test_steps_of_other_types_are_type_errors(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Model().executor.evaluate(**step() | change)


@pytest.mark.parametrize("count", [0, 2])
def test_a_step_needs_one_sampler_for_each_logit_row(count: int) -> None:
    with pytest.raises(ValueError, match="sampler"):
        Model().executor.step(**step(), samplers=[sampler() for _ in range(count)])


@pytest.mark.parametrize("samplers", [None, [None], ["greedy"], "greedy", 1])
def test_samplers_of_other_types_are_refused(samplers: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Model().executor.step(**step(), samplers=samplers)


def scorer(*tokens: int, top: int = 0) -> _native.Scorer:
    return _native.Scorer(list(tokens), VOCAB, top)


@pytest.mark.parametrize("top", [0, 5])
def test_rows_score_given_tokens(top: int) -> None:
    model = Model()
    logits = model.executor.evaluate(**step(6) | {"logit_rows": np.arange(6, dtype=np.int32)})
    one, other = scorer(7, 31, 0, top=top), scorer(9)
    assert one.logprobs == [None, None, None]
    arguments = step(6) | {"logit_rows": ints(5)}
    ids = model.executor.step(**arguments, samplers=[sampler()], scored=[(1, one), (0, other)])
    assert ids.tolist() == [int(logits[5].argmax())]
    expected = [_native.token_logprobs(logits[1 + n], token, top) for n, token in enumerate((7, 31, 0))]
    assert one.logprobs == expected
    assert other.logprobs == [_native.token_logprobs(logits[0], 9, 0)]


def test_a_row_that_is_not_finite_scores_nothing_and_the_others_their_tokens() -> None:
    model = Model(bad_token=5)
    one = scorer(1, 2, 3)
    arguments = step(3) | {"tokens": ints(4, 5, 6), "logit_rows": ints()}
    assert model.executor.step(**arguments, samplers=[], scored=[(0, one)]).tolist() == []
    assert [found is None for found in one.logprobs] == [False, True, True]


@pytest.mark.parametrize("scored", [[(3, 1)], [(2, 2)], [(-1, 1)], [(2**31 - 1, 1)]])
def test_scored_rows_beyond_the_step_are_value_errors(scored: list[tuple[int, int]]) -> None:
    model = Model()
    scorers = [(row, scorer(*range(count))) for row, count in scored]
    with pytest.raises(ValueError, match="step: "):
        model.executor.step(**step(), samplers=[sampler()], scored=scorers)


SCORED: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "number": lambda: 3,
    "no pair": lambda: [None],
    "no scorer": lambda: [(0, None)],
    "no row": lambda: [("a", scorer(1))],
    "sampler": lambda: [(0, sampler())],
}


@pytest.mark.parametrize("scored", SCORED.values(), ids=SCORED)
def test_scorers_of_other_types_are_refused(scored: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Model().executor.step(**step(), samplers=[sampler()], scored=scored())


def test_a_scorer_refuses_what_it_cannot_score() -> None:
    for token in (-1, VOCAB):
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of {VOCAB}"):
            scorer(token)
    for top in (-1, 21):
        with pytest.raises(ValueError, match=f"top_logprobs: {top} is not between 0 and 20"):
            scorer(1, top=top)
    other_vocabulary = _native.Scorer([VOCAB], VOCAB + 1, 0)
    with pytest.raises(ValueError, match=f"{VOCAB} logits for a vocabulary of {VOCAB + 1}"):
        Model().executor.step(**step(), samplers=[sampler()], scored=[(0, other_vocabulary)])


CALLS: dict[str, Callable[[Model], object]] = {
    "team": lambda m: _native.Executor(None, "auto", m.kv),  # type: ignore[arg-type]
    "kv": lambda m: _native.Executor(m.team, "auto", None),  # type: ignore[arg-type]
    "provider": lambda m: _native.Executor(m.team, None, m.kv),  # type: ignore[arg-type]
    "buffer": lambda m: m.executor.buffer("64"),  # type: ignore[arg-type]
    "buffer kind": lambda m: m.executor.buffer(64, True),  # type: ignore[call-arg]
    "embed": lambda m: m.executor.embed(None, m.x, 1.0),  # type: ignore[arg-type]
    "norm": lambda m: m.executor.norm(m.x, None, m.h, 1e-6),  # type: ignore[arg-type]
    "linear": lambda m: m.executor.linear(m.h, [None], [m.x], [m.none], accumulate=False),  # type: ignore[list-item]
    "linear flag": lambda m: m.executor.linear(m.h, [], [], [], accumulate=None),  # type: ignore[arg-type]
    "angles": lambda m: m.executor.angles([None], m.angles),  # type: ignore[list-item]
    "rope": lambda m: m.executor.rope(**m.rope() | {"layer": 2**70}),
    "attention": lambda m: m.executor.attention(**m.attention() | {"heads": 1.5}),
    "gate": lambda m: m.executor.gate(3, m.x, m.h),  # type: ignore[arg-type]
    "logits": lambda m: m.executor.logits(m.last, None, m.out),  # type: ignore[arg-type]
    "weight": lambda m: _native.Weight.pack(None, F32, 1, 1, m.team),  # type: ignore[arg-type]
    "weight team": lambda m: _native.Weight.pack(np.zeros(4, np.uint8), F32, 1, 1, None),  # type: ignore[arg-type]
    "threads": lambda _: _native.Team("2"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments_of_other_types_are_refused(call: Callable[[Model], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        call(Model())


def test_arguments_out_of_range_are_value_errors() -> None:
    model = Model()
    for threads in (0, -1, 1025):
        with pytest.raises(ValueError, match="threads"):
            _native.Team(threads)
    with pytest.raises(ValueError, match="'abacus'"):
        _native.Executor(model.team, "abacus", model.kv)
    with pytest.raises(ValueError, match="'relu'"):
        model.executor.gate("relu", model.x, model.h)
    with pytest.raises(ValueError, match="pieces"):
        model.executor.linear(model.h, [model.matrix], [], [], accumulate=False)
    shape = {"layers": 1, "kv_heads": 1, "head_dim": 16, "block_tokens": 16, "dtype": "f16", "backend": "vec"}
    for change in ({"head_dim": 24}, {"dtype": "q4_0"}, {"backend": "malloc"}, {"dtype": "q8_0"}):
        with pytest.raises(ValueError, match="KV store"):
            _native.KvStore(**shape | change, blocks=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="KV store"):
            _native.kv_block_bytes(**shape | change)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        model.kv.copy_block(0, BLOCKS)
