"""Parity through the engine: equal digests for every way to serve, another one for any other answer."""

from dataclasses import replace
from pathlib import Path

import pytest

from ferrite.bench import served
from ferrite.bench.served import ParityError, Service, request_set, served_digest, services
from ferrite.kv import PrefixLimits
from tests.bench.test_parity import loaded
from tests.reference.tiny import write_tiny_model

PROMPTS = [[7], [1, 2, 3], [(13 * i) % 271 for i in range(230)]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", n_layers=1, n_embd=64, n_heads=2, n_kv_heads=1, head_size=32, n_ff=64)
    return path


def test_the_ways_cover_batches_hits_and_both_policies() -> None:
    ways = list(services())
    assert len(set(ways)) == len(ways) >= 6
    assert {way.backend for way in ways} == {"vec", "locus"}
    assert {way.cached for way in ways} == {True, False}
    assert any(way.streams > 1 and way.cached for way in ways)
    assert any(way.streams > 1 and not way.cached for way in ways)


def test_requests_are_greedy_and_sampled_and_one_shares_a_prefix() -> None:
    requests = request_set(PROMPTS, 271)
    assert {request.sampling.temperature for request in requests} == {0, 1}
    longest, related = requests[2].prompt_tokens, requests[3].prompt_tokens
    assert longest[: served.SHARED_TOKENS] == related[: served.SHARED_TOKENS]
    assert longest != related


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_every_way_gives_one_digest(path: Path, kv_dtype: str) -> None:
    model = loaded(path)
    requests = request_set(PROMPTS, model[0].vocab_size)
    ways = services(kv_dtype=kv_dtype)  # type: ignore[arg-type]
    digests = {served_digest(*model, requests, way) for way in ways}
    assert len(digests) == 1
    assert len(digests.pop()) == 16


def test_another_prompt_gives_another_digest(path: Path) -> None:
    model = loaded(path)
    requests = request_set(PROMPTS, model[0].vocab_size)
    before = served_digest(*model, requests, Service())
    changed = replace(requests[2], prompt_tokens=(5, *requests[2].prompt_tokens[1:]))
    assert before != served_digest(*model, [*requests[:2], changed, requests[3]], Service())
    assert before != served_digest(*model, requests[::-1], Service())
    assert before == served_digest(*model, requests, Service(streams=2))


def test_a_cache_that_never_hits_is_not_parity(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_CACHE", PrefixLimits(max_entries=1, max_bytes=1))
    model = loaded(path)
    with pytest.raises(ParityError, match="parity-1: 0 prompt tokens were cached"):
        served_digest(*model, request_set(PROMPTS, model[0].vocab_size), Service(cached=True))
