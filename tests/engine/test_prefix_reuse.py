"""Cached prefixes in the engine: what is looked up, stored, reported, and that answers stay the same."""

from collections.abc import Iterator
from typing import Any

import pytest

from ferrite.engine import CacheTrace, GenerationRequest
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch, StepError
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import FakeRunner, expected_completion, request

PROMPT = tuple(range(30))
BLOCK_BYTES = 100


def caching(entries: int = 8, blocks: int = 40, **limits: Any) -> Bench:
    """Two sessions of 64 positions in blocks of 4, and ``blocks`` more for the cache."""
    runner = FakeRunner(n_blocks=2 * 16 + blocks, block_bytes=BLOCK_BYTES, context_length=64)
    return Bench(
        runner,
        **{
            "max_concurrent": 2,
            "inference_wait_seconds": 60.0,
            "prefix_cache": PrefixLimits(entries, blocks * BLOCK_BYTES),
            "cache_identity": "digest",
            **limits,
        },
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = caching()
    yield made
    made.close()


def keyed(prompt: tuple[int, ...], max_tokens: int = 5, namespace: str = "k") -> GenerationRequest:
    return request(prompt, max_tokens, cache_namespace=namespace)


def complete(bench: Bench, asked: GenerationRequest) -> Reader:
    """Run one request alone to its end; the answer must be that of the request without a cache."""
    reader = bench.submit(asked)
    bench.step(80)
    assert reader.token_ids == expected_completion(asked.prompt_tokens, asked.max_tokens)
    bench.check_idle()
    return reader


def trace(reader: Reader) -> CacheTrace:
    assert reader.finished is not None
    assert reader.finished.usage.cached_tokens == reader.finished.cache.cached_tokens
    assert reader.finished.usage.prompt_tokens == len(reader.asked.prompt_tokens)
    return reader.finished.cache


def test_a_stopped_generation_leaves_its_snapshot(bench: Bench) -> None:
    reader = bench.submit(keyed(PROMPT, max_tokens=20))
    bench.step(4)
    reader.generation.stop()
    bench.step()
    assert trace(reader) == CacheTrace("miss", stored=True, identity="digest")
    continued = (*PROMPT, *reader.token_ids, 7)
    assert trace(complete(bench, keyed(continued))).cached_tokens == len(continued) - 2


@pytest.mark.parametrize("length", [1, 15, 16, 17, 30])
def test_same_prompt_again_evaluates_only_its_last_position(bench: Bench, length: int) -> None:
    prompt = PROMPT[:length]
    assert trace(complete(bench, keyed(prompt))) == CacheTrace("miss", stored=True, identity="digest")
    before = bench.engine.batcher().prefill_tokens
    for _ in range(3):
        again = trace(complete(bench, keyed(prompt)))
        if length > 1:
            assert (again.outcome, again.cached_tokens, again.stored) == ("hit", length - 1, True)
            assert again.entry_tokens == length + 4
    assert bench.engine.batcher().prefill_tokens == before + 3
    assert length == 1 or bench.runner.batches[-5].positions.tolist() == [length - 1]


def test_every_turn_of_a_chat_reuses_the_one_before(bench: Bench) -> None:
    history = PROMPT[:9]
    known = 0
    for turn in range(5):
        reader = complete(bench, keyed(history, max_tokens=4))
        assert trace(reader).cached_tokens == known
        # All but the last token, which was sampled and never evaluated.
        known = len(history) + 3
        history = (*history, *reader.token_ids, 200 + turn, 7)
    assert bench.engine.batcher().prefill_tokens == 9 + 4 * 3


def test_prompt_that_differs_is_reused_up_to_the_difference(bench: Bench) -> None:
    complete(bench, keyed((*PROMPT, 100)))
    assert trace(complete(bench, keyed((*PROMPT, 101)))).cached_tokens == 30
    edited = (*PROMPT[:11], 99, *PROMPT[12:])
    assert trace(complete(bench, keyed(edited))).cached_tokens == 11
    assert trace(complete(bench, keyed(PROMPT[:6]))).cached_tokens == 5
    assert trace(complete(bench, keyed((99, *PROMPT)))).outcome == "miss"


def test_other_namespaces_and_no_namespace_share_nothing(bench: Bench) -> None:
    complete(bench, keyed(PROMPT, namespace="a"))
    assert trace(complete(bench, keyed(PROMPT, namespace="b"))).outcome == "miss"
    for _ in range(2):
        without = trace(complete(bench, keyed(PROMPT, namespace="")))
        assert without == CacheTrace("no_key", identity="digest")
    stats = bench.engine.prefix_stats()
    assert stats is not None
    assert (stats.entries, stats.hits, stats.misses) == (2, 0, 2)


def test_without_a_cache_the_namespace_does_nothing() -> None:
    with caching(prefix_cache=None) as bench:
        for _ in range(2):
            assert trace(complete(bench, keyed(PROMPT))) == CacheTrace("disabled", identity="digest")
        assert bench.engine.prefix_stats() is None
        assert bench.engine.batcher().prefill_tokens == 60


def test_prompt_is_stored_when_its_prefill_ends_and_serves_while_it_is_continued(bench: Bench) -> None:
    first = bench.submit(keyed(PROMPT, max_tokens=20))
    bench.step(3)
    second = bench.submit(keyed(PROMPT, max_tokens=20))
    bench.step(60)
    for reader in (first, second):
        assert reader.token_ids == expected_completion(PROMPT, 20)
    assert (trace(second).cached_tokens, trace(second).entry_tokens) == (29, 30)
    assert not trace(second).shared
    bench.check_idle()


def test_followers_say_what_their_leader_restored(bench: Bench) -> None:
    complete(bench, keyed(PROMPT[:20]))
    readers = [bench.submit(keyed(PROMPT)) for _ in range(2)]
    bench.step(20)
    for reader in readers:
        assert reader.token_ids == expected_completion(PROMPT, 5)
        assert trace(reader) == CacheTrace("hit", 20, 24, shared=True, stored=True, identity="digest")
    assert bench.engine.batcher().prefill_tokens == 20 + 10
    bench.check_idle()


def test_limits_hold_and_the_least_recently_used_goes() -> None:
    with caching(entries=2) as bench:
        for namespace in ("a", "b", "a", "c"):
            complete(bench, keyed(PROMPT, namespace=namespace))
        outcomes = [trace(complete(bench, keyed(PROMPT, namespace=name))).outcome for name in ("a", "b")]
        assert outcomes == ["hit", "miss"]
        stats = bench.engine.prefix_stats()
        assert stats is not None
        assert (stats.entries, stats.bytes) == (2, 2 * 9 * BLOCK_BYTES)


def test_prompt_too_large_for_the_cache_is_answered_and_pushes_nothing_out() -> None:
    with caching(blocks=6) as bench:
        complete(bench, keyed(PROMPT[:8]))
        assert not trace(complete(bench, keyed((5, *PROMPT)))).stored
        assert trace(complete(bench, keyed(PROMPT[:8]))).outcome == "hit"


def test_prompt_may_be_stored_where_its_completion_no_longer_fits() -> None:
    with caching(blocks=2) as bench:
        assert trace(complete(bench, keyed(PROMPT[:8]))).stored
        assert trace(complete(bench, keyed(PROMPT[:8]))).cached_tokens == 7


def test_lease_survives_the_eviction_of_its_entry() -> None:
    with caching(entries=1, prefill_chunk=4) as bench:
        complete(bench, keyed(PROMPT[:20]))
        reader = bench.submit(keyed(PROMPT))
        bench.step()
        complete_other = bench.submit(keyed((9, 8, 7), namespace="other"))
        bench.step(40)
        assert complete_other.finished is not None
        assert reader.token_ids == expected_completion(PROMPT, 5)
        assert trace(reader).cached_tokens == 20
        bench.check_idle()


class HeldBack:
    """A pace that lets no prompt row through beside a decoding sequence."""

    def prefill_rows(self, decoding: int) -> int:
        return 0 if decoding else 64

    def observe(self, seconds: float, *, decode_rows: int, prefill_rows: int) -> None:
        pass


def test_blocks_of_a_lease_count_as_held_from_the_start() -> None:
    with caching(blocks=9) as bench:
        bench.engine._batch._pace = HeldBack()  # type: ignore[assignment]
        complete(bench, keyed(PROMPT, max_tokens=1))
        bench.submit(keyed((9, 8, 7), max_tokens=4, namespace="other"))
        bench.step(3)
        # The other's last step neither grows nor copies, and its snapshot pushes out the leased entry.
        leased = bench.submit(keyed(PROMPT, max_tokens=1))
        bench.step(2)
        assert trace(leased).cached_tokens == 29
        assert bench.engine.batcher().kv_blocks_peak == 2 + 8
        bench.check_idle()


def test_cache_takes_no_more_than_the_blocks_beyond_the_sessions() -> None:
    with caching(blocks=3, prefix_cache=PrefixLimits(8, 1 << 40)) as bench:
        stats = bench.engine.prefix_stats()
        assert stats is not None
        assert stats.max_bytes == 3 * BLOCK_BYTES
        readers = [bench.submit(keyed((n, *range(50)), max_tokens=13)) for n in range(4)]
        bench.step(120)
        assert all(reader.finished for reader in readers)
        bench.check_idle()


def test_nothing_is_stored_of_what_failed_or_was_cancelled_in_its_prefill(bench: Bench) -> None:
    def fail(batch: StepBatch) -> None:
        raise StepError("planned")

    bench.runner.before_step = fail
    bench.submit(keyed(PROMPT))
    bench.step()
    bench.runner.before_step = lambda batch: None
    cancelled = bench.submit(keyed(PROMPT))
    cancelled.generation.cancel()
    bench.step()
    assert trace(complete(bench, keyed(PROMPT))).outcome == "miss"


def test_fault_after_a_hit_gives_the_lease_back(bench: Bench) -> None:
    complete(bench, keyed(PROMPT))
    copy = bench.runner.copy_block

    def broken(source: int, target: int) -> None:
        raise MemoryError

    bench.runner.copy_block = broken  # type: ignore[method-assign]
    reader = bench.submit(keyed(PROMPT))
    bench.step()
    assert "MemoryError" in str(reader.outcome)
    bench.check_idle()
    bench.runner.copy_block = copy  # type: ignore[method-assign]
    assert trace(complete(bench, keyed(PROMPT))).outcome == "hit"


def test_freed_blocks_are_returned_and_cached_ones_are_not(bench: Bench) -> None:
    complete(bench, keyed(PROMPT, namespace=""))
    assert sorted(block for blocks in bench.runner.returned for block in blocks) == list(range(9))
    bench.runner.returned.clear()
    complete(bench, keyed(PROMPT))
    kept = {block for blocks in bench.engine._batch._kv._prefixes.holders() for block in blocks}  # type: ignore[union-attr]
    returned = [block for blocks in bench.runner.returned for block in blocks]
    assert len(kept) == 9
    assert not kept & set(returned)
