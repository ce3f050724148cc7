"""From a server's options to a loaded model, or to one line that says why not."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.api.memory import MemoryCeiling, resident_bytes
from ferrite.chat import ChatTemplate
from ferrite.cli.load import cache_identity, load_model
from ferrite.engine import RequestTooLarge
from ferrite.gguf import open_gguf
from ferrite.telemetry import SpeculationStats
from ferrite.tokenizer import load_tokenizer
from tests.gguf.build import I32, STRING
from tests.models.files import Parts, take_apart
from tests.reference.tiny import vocabulary


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[LoadedModel]:
    model = load_model(ServerConfig(**{"model": str(path), "threads": 1, **options}))
    try:
        yield model
    finally:
        model.engine.stop()


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(ServerConfig(**{"model": str(path), "threads": 1, **options}))
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_model_says_what_was_loaded(tiny: Path) -> None:
    with loaded(tiny, model_id="maker/tiny", kernel_provider="portable") as model:
        assert (model.id, model.architecture, model.kernel_provider) == ("maker/tiny", "llama", "portable")
        assert model.context_length == 512
        assert model.quantisation == "Q8_0"
        assert model.n_params == 271 * 64 * 2 + 3 * 64 + 64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 64
        assert model.tokenizer.vocab_size == 271


def test_the_context_may_be_shorter_than_the_model_s_but_not_longer(tiny: Path) -> None:
    with loaded(tiny, ctx_size=100) as model:
        assert model.context_length == 100
    message = refusal(tiny, ctx_size=513)
    assert message == f"--ctx-size 513 is above the 512 positions of --model {tiny}"


@pytest.fixture
def parts(tiny: Path) -> Parts:
    return take_apart(tiny)


KV_BYTES = 512 * 2 * 32 * 2
"""Of a full session of the tiny model: positions, keys and values, head size, float16."""


def ceiling(path: Path, **options: Any) -> MemoryCeiling:
    with loaded(path, **options) as model:
        assert model.memory is not None
        return model.memory


def test_the_memory_ceiling_is_the_sum_of_its_parts(tiny: Path) -> None:
    one = ceiling(tiny)
    assert (one.session_bytes, one.sessions, one.prefix_cache_bytes) == (KV_BYTES, 1, 0)
    assert one.model_bytes > 271 * 64
    assert one.server_bytes > 32 * 2 * 1024 * 1024
    assert one.total_bytes == one.model_bytes + one.session_bytes + one.server_bytes
    three = ceiling(tiny, max_concurrent_inferences=3)
    assert three.parts()["sessions"] == 3 * KV_BYTES
    assert ceiling(tiny, kv_dtype="f32").session_bytes == 2 * KV_BYTES
    assert ceiling(tiny, kv_dtype="q8_0").session_bytes == KV_BYTES * 17 // 32


def test_prefix_snapshots_have_memory_of_their_own(tiny: Path) -> None:
    both = {"experimental_batched_decode": True, "max_batch_streams": 2}
    memory = ceiling(tiny, experimental_prefix_cache=True, prefix_cache_max_mib=1, **both)
    assert (memory.parts()["sessions"], memory.prefix_cache_bytes) == (2 * KV_BYTES, 1 << 20)


def test_the_ceiling_in_words() -> None:
    memory = MemoryCeiling(3 << 20, 1 << 19, 4, 64 << 20, 100 << 20)
    assert str(memory) == (
        "169.0 MiB: model 3.0 MiB, KV cache of 4 x 0.5 MiB, prefix cache 64.0 MiB, server 100.0 MiB"
    )
    assert "prefix" not in str(MemoryCeiling(3 << 20, 1 << 19, 4, 0, 0))


def test_resident_memory_is_measured() -> None:
    assert (resident_bytes() or 0) > 1 << 20


def test_locus_limits_a_session(tiny: Path) -> None:
    locus = {"kv_backend": "locus", "kv_max_tokens": 100}
    with loaded(tiny, **locus, kv_tokens_per_block=32, max_concurrent_inferences=3) as model:
        assert model.context_length == 100
        batcher = model.engine.batcher()
        assert (batcher.kv_block_size, batcher.kv_blocks_total, batcher.kv_blocks_free) == (32, 12, 12)
        with pytest.raises(RequestTooLarge) as caught:
            model.engine.check_size(101)
        assert (caught.value.bound, caught.value.limit) == ("session", 100)
    with loaded(tiny, kv_backend="locus", kv_max_tokens=4096) as model:
        assert model.context_length == 512
        with pytest.raises(RequestTooLarge) as caught:
            model.engine.check_size(513)
        assert caught.value.bound == "context"
    with loaded(tiny) as model:
        assert model.engine.batcher().kv_blocks_total == 0


def test_drafts_are_made_where_they_are_asked_for(tiny: Path) -> None:
    with loaded(tiny, speculate="ngram") as model:
        assert model.engine.speculation_stats() == SpeculationStats(0, 0)
    with loaded(tiny) as model:
        assert model.engine.speculation_stats() is None


def test_the_prefix_cache_has_its_limits(tiny: Path) -> None:
    with loaded(tiny, experimental_prefix_cache=True) as model:
        stats = model.engine.prefix_stats()
        assert stats is not None
        assert (stats.max_entries, stats.max_bytes, stats.entries) == (8, 64 << 20, 0)
    with loaded(tiny, experimental_prefix_cache=True, prefix_cache_max_entries=3) as model:
        stats = model.engine.prefix_stats()
        assert stats is not None
        assert stats.max_entries == 3
    with loaded(tiny) as model:
        assert model.engine.prefix_stats() is None


def identity(path: Path, **options: Any) -> str:
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        return cache_identity(ServerConfig(**options), file, tokenizer, template)


def test_the_cache_identity_is_that_of_all_a_prefix_depends_on(parts: Parts, tmp_path: Path) -> None:
    path = parts.write(tmp_path / "m.gguf")
    plain = identity(path)
    assert re.fullmatch(r"[0-9a-f]{16}", plain)
    assert identity(path, threads=3, model_id="other") == plain
    others = [
        identity(path, kv_dtype="q8_0"),
        identity(path, kv_backend="locus", kv_max_tokens=64),
        identity(path, kv_backend="locus", kv_max_tokens=64, kv_tokens_per_block=32),
        identity(path, kernel_provider="portable"),
        identity(path, experimental_residual_q8_activation_matvec=True),
    ]
    os.utime(path, ns=(0, 1))
    others.append(identity(path))
    parts.set("tokenizer.chat_template", STRING, "{{ messages }}")
    other_template = parts.write(tmp_path / "t.gguf")
    os.utime(other_template, ns=(0, 1))
    others.append(identity(other_template))
    assert len({plain, *others}) == 1 + len(others)


def test_more_context_than_a_process_can_address_is_refused(tiny: Path) -> None:
    message = refusal(tiny, max_concurrent_inferences=10**9)
    assert message.startswith(f"{tiny}: a KV cache for 1000000000 sequences of 512 positions")


def test_tokens_and_logits_must_agree(parts: Parts, tmp_path: Path) -> None:
    parts.set_array("tokenizer.ggml.tokens", STRING, [*vocabulary(), "one more"])
    parts.set_array("tokenizer.ggml.token_type", I32, [1] * 272)
    message = refusal(parts.write(tmp_path / "m.gguf"))
    assert "key 'tokenizer.ggml.tokens' holds 272 tokens, but the embedding has 271 rows" in message


@pytest.mark.parametrize(
    "key",
    ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "llama.block_count"],
)
def test_a_missing_key_is_named(parts: Parts, tmp_path: Path, key: str) -> None:
    del parts.pairs[key]
    assert key in refusal(parts.write(tmp_path / "m.gguf"))


def test_a_template_that_is_none_is_refused(parts: Parts, tmp_path: Path) -> None:
    parts.set("tokenizer.chat_template", STRING, "{% for")
    path = parts.write(tmp_path / "m.gguf")
    assert refusal(path).startswith(f"{path}: tokenizer.chat_template: line 1: ")


def test_an_unknown_splitting_rule_is_refused(parts: Parts, tmp_path: Path) -> None:
    parts.set("tokenizer.ggml.pre", STRING, "no-such-rule")
    path = parts.write(tmp_path / "m.gguf")
    assert refusal(path) == f"{path}: tokenizer.ggml.pre 'no-such-rule' is not a supported pre-tokenizer rule"


def test_an_unsupported_kind_of_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(b"tjgg" + bytes(64))
    assert "older GGJT format" in refusal(path)
