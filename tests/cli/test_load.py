"""From a server's options to a loaded model, or to one line that says why not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.cli.load import load_model
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


def test_the_memory_bound_grows_with_the_kv_type_and_the_requests_at_once(tiny: Path) -> None:
    def bound(**options: Any) -> int:
        with loaded(tiny, **options) as model:
            assert model.memory_bound_bytes is not None
            return model.memory_bound_bytes

    kv_bytes = 512 * 2 * 32 * 2
    one = bound()
    assert bound(max_concurrent_inferences=3) == one + 2 * kv_bytes
    assert bound(kv_dtype="f32") == one + kv_bytes


def test_more_context_than_a_process_can_address_is_refused(tiny: Path) -> None:
    message = refusal(tiny, max_concurrent_inferences=10**9)
    assert message.startswith(f"{tiny}: a KV cache for 1000000000 sequences of 512 positions")


@pytest.fixture
def parts(tiny: Path) -> Parts:
    return take_apart(tiny)


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
    assert "template" in refusal(parts.write(tmp_path / "m.gguf"))


def test_an_unsupported_kind_of_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(b"tjgg" + bytes(64))
    assert "older GGJT format" in refusal(path)
