"""Opening a model for the commands that run it themselves, without the engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from ferrite.catalogue import DEFAULT_MODEL, console_report, resolve
from ferrite.gguf import GGUFFile, open_gguf
from ferrite.models import trace_model
from ferrite.program.ops import Program
from ferrite.program.weights import LoadedWeights, load_weights

ModelOption: TypeAlias = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="GGUF file, or a name of the catalogue.")
]
ThreadsOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--threads", min=0, max=1024, envvar="FERRITE_THREADS", help="Inference workers; 0 = all cores."
    ),
]

__all__ = ["DEFAULT_MODEL", "ModelOption", "OpenedModel", "ThreadsOption", "opened"]


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A file, its traced program and its packed weights."""

    file: GGUFFile
    program: Program
    weights: LoadedWeights


@contextmanager
def opened(model: str, *, threads: int) -> Iterator[OpenedModel]:
    """Resolve, open, trace and pack a model."""
    with console_report() as report:
        path = resolve(model, report=report)
    with open_gguf(path) as file:
        program = trace_model(file)
        yield OpenedModel(file, program, load_weights(file, program, threads=threads))
