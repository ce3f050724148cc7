"""Faults injected at every stage: who meets one gets an error, everybody else the right tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ferrite.kv import BlockPool, OutOfBlocksError, PrefixCache
from ferrite.program.step import StepBatch, StepError
from ferrite.sampling import SamplingParams
from tests.api.support import ByteTokenizer, completion_body
from tests.engine.fakes import ByteDetokenizer, FakeRunner, FakeSampler, next_token
from tests.robustness.support import COMPLETIONS, bench, call, expected

MARKED = (99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87)
"""The prompt that meets the fault."""
OTHERS = [(10, 11, 12), (20, 21, 22, 23, 24, 25, 26, 27, 28)]
COUNT = 9
KEY = "cache"
CODE = 200
"""A token that no other request samples."""

Plant = Callable[[pytest.MonkeyPatch, FakeRunner], None]


def of_the_marked(history: Sequence[int]) -> bool:
    return tuple(history[: len(MARKED)]) == MARKED


def sampler_creation(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> None:
    create = runner.sampler

    def failing(
        params: SamplingParams, prompt_tokens: Sequence[int], *arguments: Any, **options: Any
    ) -> FakeSampler:
        if of_the_marked(prompt_tokens):
            raise MemoryError
        return create(params, prompt_tokens, *arguments, **options)

    monkeypatch.setattr(runner, "sampler", failing)


def non_finite_logits_after(count: int) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> None:
        def sample(history: tuple[int, ...]) -> int:
            marked = of_the_marked(history) and len(history) == len(MARKED) + count
            return -1 if marked else next_token(history)

        monkeypatch.setattr(runner, "sample", sample)

    return plant


def detokenizer_after(count: int) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> None:
        push = ByteDetokenizer.push

        def sample(history: tuple[int, ...]) -> int:
            marked = of_the_marked(history) and len(history) == len(MARKED) + count
            return CODE if marked else next_token(history)

        def failing(self: ByteDetokenizer, token_id: int) -> str:
            if token_id == CODE:
                raise UnicodeError("planned")
            return push(self, token_id)

        monkeypatch.setattr(runner, "sample", sample)
        monkeypatch.setattr(ByteDetokenizer, "push", failing)

    return plant


def cache_lookup(monkeypatch: pytest.MonkeyPatch, _: FakeRunner) -> None:
    lookup = PrefixCache.lookup

    def failing(self: PrefixCache, namespace: str, tokens: Sequence[int]) -> Any:
        if of_the_marked(tokens):
            raise MemoryError
        return lookup(self, namespace, tokens)

    monkeypatch.setattr(PrefixCache, "lookup", failing)


def cache_insertion(monkeypatch: pytest.MonkeyPatch, _: FakeRunner) -> None:
    insert = PrefixCache.insert

    def failing(self: PrefixCache, namespace: str, tokens: Sequence[int], blocks: Sequence[int]) -> bool:
        if of_the_marked(tokens):
            raise MemoryError
        return insert(self, namespace, tokens, blocks)

    monkeypatch.setattr(PrefixCache, "insert", failing)


FAULTS: dict[str, Plant] = {
    "sampler creation": sampler_creation,
    "first logits": non_finite_logits_after(0),
    "later logits": non_finite_logits_after(5),
    "detokenizer at first": detokenizer_after(0),
    "detokenizer later": detokenizer_after(5),
    "cache lookup": cache_lookup,
    "cache insertion": cache_insertion,
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_request_is_its_own(
    monkeypatch: pytest.MonkeyPatch, fault: str, streamed: bool
) -> None:
    with bench() as served:
        FAULTS[fault](monkeypatch, served.runner)
        others = [served.submit(OTHERS[0], COUNT, stream=True)]
        failing = served.submit(MARKED, COUNT, stream=streamed, prompt_cache_key=KEY)
        others.append(served.submit(OTHERS[1], COUNT, stream=False))
        served.gate.open()
        outcome = failing.result()
        assert outcome.failed_cleanly, outcome
        whole = expected(MARKED, COUNT, streamed=streamed)
        assert outcome.token_ids == whole.token_ids[: len(outcome.token_ids)]
        assert others[0].result() == expected(OTHERS[0], COUNT, streamed=True)
        assert others[1].result() == expected(OTHERS[1], COUNT, streamed=False)
        served.check_idle()
        monkeypatch.undo()
        assert call(served.client, MARKED, COUNT, stream=streamed, prompt_cache_key=KEY) == whole
        served.check_idle()


def test_a_copy_that_fails_is_that_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(source: int, target: int) -> None:
        raise MemoryError

    prompt = (*MARKED, 86, 85)
    with bench() as served:
        warm = served.submit(prompt, 1, prompt_cache_key=KEY)
        served.gate.wait_until_reached()
        served.gate.pass_one()
        assert warm.result().error is None
        monkeypatch.setattr(served.runner, "copy_block", failing)
        other = served.submit(OTHERS[0], COUNT)
        # The last of its 14 cached tokens stand in a block that the cache holds too.
        hit = served.submit(prompt, COUNT, prompt_cache_key=KEY)
        served.gate.open()
        assert hit.result().failed_cleanly
        assert other.result() == expected(OTHERS[0], COUNT, streamed=False)
        served.check_idle()
        monkeypatch.undo()
        again = call(served.client, prompt, COUNT, prompt_cache_key=KEY)
        assert again == expected(prompt, COUNT, streamed=False)
        served.check_idle()


@pytest.mark.parametrize("at", range(2, 12))
def test_a_pool_that_is_empty_once_costs_one_request(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    allocate, calls = BlockPool.allocate, iter(range(1, 10_000))

    def failing(self: BlockPool, count: int, *, behind: int | None = None) -> list[int]:
        if next(calls) == at:
            raise OutOfBlocksError("planned")
        return allocate(self, count, behind=behind)

    monkeypatch.setattr(BlockPool, "allocate", failing)
    with bench() as served:
        prompts = [*OTHERS, MARKED]
        running = [served.submit(prompt, COUNT) for prompt in prompts]
        served.gate.open()
        outcomes = [outcome.result() for outcome in running]
        assert sum(outcome.failed_cleanly for outcome in outcomes) == 1
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            assert outcome.failed_cleanly or outcome == expected(prompt, COUNT, streamed=False)
        served.check_idle()
        assert call(served.client, MARKED, COUNT) == expected(MARKED, COUNT, streamed=False)


def test_the_first_of_equal_prompts_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    push, calls = ByteDetokenizer.push, iter(range(1000))

    def failing(self: ByteDetokenizer, token_id: int) -> str:
        # The blocker's first token, then the leader's.
        if next(calls) == 1:
            raise UnicodeError("planned")
        return push(self, token_id)

    monkeypatch.setattr(ByteDetokenizer, "push", failing)
    with bench() as served:
        blocker = served.submit(OTHERS[0], 1)
        served.gate.wait_until_reached()
        equal = [served.submit(MARKED, COUNT) for _ in range(3)]
        served.gate.open()
        outcomes = [outcome.result() for outcome in equal]
        assert blocker.result().error is None
        assert outcomes[0].failed_cleanly
        assert outcomes[1:] == [expected(MARKED, COUNT, streamed=False)] * 2
        rows = sum(list(batch.token_ids).count(MARKED[0]) for batch in served.runner.batches)
        assert rows == 1
        served.check_idle()


@pytest.mark.parametrize("error", [StepError("planned"), MemoryError(), RuntimeError("planned")], ids=repr)
@pytest.mark.parametrize("stage", ["prefill", "prefill and decode", "decode"])
def test_a_step_that_fails_takes_its_own_requests_only(error: Exception, stage: str) -> None:
    def is_planned(batch: StepBatch) -> bool:
        mixed = len(batch.token_ids) > len(batch.block_tables)
        return (mixed, len(batch.block_tables)) == (stage != "decode", 1 if stage == "prefill" else 2)

    failures: list[StepBatch] = []

    def fault(batch: StepBatch) -> None:
        if not failures and is_planned(batch):
            failures.append(batch)
            raise error

    with bench(streams=2) as served:
        served.fault = fault
        first = served.submit(OTHERS[0], COUNT, stream=True)
        served.gate.wait_until_reached()
        second = served.submit(OTHERS[1], COUNT)
        later = [served.submit(MARKED, COUNT, stream=True), served.submit(OTHERS[0], COUNT)]
        served.gate.open()
        assert first.result().failed_cleanly
        if stage == "prefill":
            assert second.result() == expected(OTHERS[1], COUNT, streamed=False)
        else:
            assert second.result().failed_cleanly
        wanted = [expected(MARKED, COUNT, streamed=True), expected(OTHERS[0], COUNT, streamed=False)]
        assert [outcome.result() for outcome in later] == wanted
        served.check_idle()
        assert served.client.get("/v1/stats").json()["failed"] == len(failures[0].block_tables)
        assert call(served.client, MARKED, COUNT) == expected(MARKED, COUNT, streamed=False)


def test_memory_that_is_not_returned_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(blocks: Sequence[int]) -> None:
        raise OSError("planned")

    with bench() as served:
        monkeypatch.setattr(served.runner, "return_blocks", failing)
        served.gate.open()
        for prompt in (*OTHERS, MARKED, *OTHERS):
            assert call(served.client, prompt, COUNT) == expected(prompt, COUNT, streamed=False)
        served.check_idle()


def test_a_tokenizer_that_fails_is_a_500_beside_a_running_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ByteTokenizer.encode

    def failing(self: ByteTokenizer, text: str, **options: bool) -> list[int]:
        if text == "break":
            raise RuntimeError("planned")
        return encode(self, text, **options)

    monkeypatch.setattr(ByteTokenizer, "encode", failing)
    with bench() as served:
        running = served.submit(OTHERS[0], COUNT, stream=True)
        for stream in (False, True):
            answer = served.client.post(COMPLETIONS, json=completion_body("break", stream=stream))
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert "planned" not in answer.text
        served.gate.open()
        assert running.result() == expected(OTHERS[0], COUNT, streamed=True)
        served.check_idle()
