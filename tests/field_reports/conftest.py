"""A tiny complete model, and servers of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.field_reports.serving import Served, serving
from tests.gguf.build import BOOL, STRING
from tests.models.files import Parts, take_apart
from tests.reference.tiny import write_served_model

MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, every byte as a token, ChatML, a context of 4,096."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_served_model(path, context_length=4096)
    return path


@pytest.fixture(scope="session")
def parts(tiny: Path) -> Parts:
    return take_apart(tiny)


@pytest.fixture
def make_model(parts: Parts, tmp_path: Path) -> MakeModel:
    """Write the tiny model with another template, splitting rule (None: none) or beginning."""

    def make(*, template: str | None = None, pre: str | None = "gpt-2", add_bos: bool = False) -> Path:
        changed = parts.copy()
        if template is not None:
            changed.set("tokenizer.chat_template", STRING, template)
        if pre is None:
            del changed.pairs["tokenizer.ggml.pre"]
        else:
            changed.set("tokenizer.ggml.pre", STRING, pre)
        changed.set("tokenizer.ggml.add_bos_token", BOOL, add_bos)
        return changed.write(tmp_path / "model.gguf")

    return make


@pytest.fixture(scope="session")
def served(tiny: Path) -> Iterator[Served]:
    """Batching of four streams, with the prefix cache."""
    with serving(
        tiny,
        hard_max_tokens=1024,
        experimental_batched_decode=True,
        max_batch_streams=4,
        max_batch_queue=16,
        experimental_prefix_cache=True,
    ) as running:
        yield running
