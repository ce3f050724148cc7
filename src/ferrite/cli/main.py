"""``ferrite``: run a prompt, inspect a file, measure, check bit parity, fetch models."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from ferrite.api import ModelLoadError
from ferrite.bench.peers import PeerError
from ferrite.bench.served import ParityError
from ferrite.catalogue import CatalogueError, console_report, resolve
from ferrite.chat import ChatTemplateError, TemplateRefusedError
from ferrite.cli.bench import bench
from ferrite.cli.bench_serve import ServeError
from ferrite.cli.inspect import inspect_json, inspect_text
from ferrite.cli.parity import parity
from ferrite.cli.pull import pull
from ferrite.cli.run import run
from ferrite.engine import GenerationFailed
from ferrite.gguf import GGUFError, open_gguf
from ferrite.program.runner import RunnerConfigError
from ferrite.program.step import StepError
from ferrite.tokenizer import TokenizerError

app = typer.Typer(
    name="ferrite",
    help="Local LLM inference: one GGUF model on the CPU.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(bench)
app.command()(parity)
app.command()(pull)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="GGUF file, or a name of the catalogue.")],
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a file's metadata, tensors, quantisation mix and memory need."""
    with console_report() as report:
        path = resolve(model, report=report)
    with open_gguf(path) as file:
        typer.echo(
            json.dumps(inspect_json(file), indent=1) if as_json else inspect_text(file, tensors=tensors)
        )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ferrite {version('ferrite-server')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Local LLM inference: one GGUF model on the CPU."""


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (
        CatalogueError,
        ChatTemplateError,
        GenerationFailed,
        GGUFError,
        ModelLoadError,
        ParityError,
        PeerError,
        RunnerConfigError,
        ServeError,
        StepError,
        TemplateRefusedError,
        TokenizerError,
    ) as error:
        sys.stderr.write(f"ferrite: {error}\n")
        raise SystemExit(1) from error
    except typer.TyperException as error:
        sys.stderr.write(f"ferrite: {' '.join(error.format_message().split())} (see --help)\n")
        raise SystemExit(error.exit_code) from error
    except BrokenPipeError:
        # The reader of our output has gone, which is not our error; nothing is left to write to.
        sys.stderr.close()
        raise SystemExit(141) from None
    except MemoryError as error:
        sys.stderr.write("ferrite: not enough memory for the model\n")
        raise SystemExit(1) from error
    except OSError as error:
        sys.stderr.write(f"ferrite: {error.filename or 'output'}: {error.strerror or error}\n")
        raise SystemExit(1) from error


def main() -> NoReturn:
    """Entry point of the command: status 2 for a wrong use, 1 for what fails later."""
    with _one_line_errors():
        raise SystemExit(app(prog_name="ferrite", standalone_mode=False))
