"""Fixtures shared by all tests: real models, and Hypothesis without time limits."""

from pathlib import Path

import hypothesis
import pytest

from ferrite.catalogue import CatalogueError, resolve

# A busy machine is no reason for a test to fail.
hypothesis.settings.register_profile("ferrite", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ferrite")


def _model(name: str) -> Path:
    """Return the cached file, downloading it when absent; a model that cannot be had fails the test."""
    try:
        return resolve(name)
    except CatalogueError as error:
        pytest.fail(f'{error} (without models: pytest -m "not model")', pytrace=False)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, architecture llama."""
    return _model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, architecture qwen2."""
    return _model("qwen2.5-coder-0.5b-instruct")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma-3-270M, Q4_K_M, architecture gemma3."""
    return _model("gemma3-270m")
