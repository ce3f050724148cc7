"""Tiny random models of every architecture and quantisation, and llama.cpp's divergence on each."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from tests.accuracy.divergence import Divergence
from tests.reference.tiny import Architecture, Quantisation, vocabulary, write_tiny_model

CASES: dict[str, tuple[Architecture, Quantisation]] = {
    f"{architecture}-{quantisation}": (architecture, quantisation)
    for architecture in get_args(Architecture)
    for quantisation in get_args(Quantisation)
}
TINY_TOKEN_IDS = [(101 * i + i * i // 7) % len(vocabulary()) for i in range(192)]
_STORED = Path(__file__).parent / "data" / "tiny.json"


def write_case(path: Path, case: str) -> None:
    """Write the model of one case."""
    architecture, quantisation = CASES[case]
    n_layers = 7 if architecture == "gemma3" else 2
    write_tiny_model(path, architecture, seed=7, quantisation=quantisation, n_layers=n_layers)


def save_llama_cpp(measured: dict[str, Divergence]) -> None:
    """Write ``data/tiny.json``."""
    _STORED.write_text(json.dumps({case: asdict(d) for case, d in measured.items()}, indent=1) + "\n")


def load_llama_cpp() -> dict[str, Divergence]:
    """Read ``data/tiny.json``."""
    return {case: Divergence(**fields) for case, fields in json.loads(_STORED.read_text()).items()}
