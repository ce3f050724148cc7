"""What the recipe ``make_llama_cpp.py`` measured and stored for each real model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.accuracy.divergence import Divergence, log_softmax
from tests.reference import Reference
from tests.reference.weights import Float32

DATA = Path(__file__).parent / "data"
TEXT = DATA / "text.txt"
_N_TOP = 8


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The likeliest tokens of each position, best first."""

    ids: npt.NDArray[np.int32]
    """[n, 8]"""
    log_probabilities: Float32
    """[n, 8] nats"""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One model's teacher-forced run over the text."""

    model_sha256: str
    token_ids: list[int]
    """llama.cpp's ids of the text, BOS included where the model asks for one."""
    llama_cpp_python: str
    """The version that was measured."""
    llama_cpp: Divergence
    """llama.cpp with its default settings against the reference."""

    def save(self, name: str) -> None:
        """Write ``data/<name>.json``."""
        text = json.dumps(asdict(self), indent=1)
        (DATA / f"{name}.json").write_text(text + "\n")

    @classmethod
    def load(cls, name: str) -> "StoredRun":
        """Read ``data/<name>.json``."""
        fields = json.loads((DATA / f"{name}.json").read_text())
        return cls(**{**fields, "llama_cpp": Divergence(**fields["llama_cpp"])})


def top_tokens(reference: Reference) -> TopTokens:
    """The reference's likeliest tokens at every position."""
    ids: list[npt.NDArray[np.int32]] = []
    for logits in reference.chunks():
        unordered = np.argpartition(-logits, _N_TOP, axis=-1)[:, :_N_TOP]
        order = np.argsort(-np.take_along_axis(logits, unordered, axis=-1), axis=-1, kind="stable")
        ids.append(np.take_along_axis(unordered, order, axis=-1).astype(np.int32))
    chosen = np.concatenate(ids)
    return TopTokens(chosen, log_probabilities(reference, chosen))


def log_probabilities(reference: Reference, ids: npt.NDArray[np.int32]) -> Float32:
    """The reference's log-probabilities of the tokens ``ids`` [n, k] at every position, [n, k]."""
    values: list[Float32] = []
    row = 0
    for logits in reference.chunks():
        wanted = ids[row : row + len(logits)]
        values.append(np.take_along_axis(log_softmax(logits), wanted, axis=-1).astype(np.float32))
        row += len(logits)
    return np.concatenate(values)


def save_top_tokens(name: str, top: TopTokens) -> None:
    """Write ``data/<name>.npz``."""
    np.savez_compressed(DATA / f"{name}.npz", ids=top.ids, log_probabilities=top.log_probabilities)


def load_top_tokens(name: str) -> TopTokens:
    """Read ``data/<name>.npz``."""
    with np.load(DATA / f"{name}.npz") as stored:
        return TopTokens(stored["ids"], stored["log_probabilities"])
