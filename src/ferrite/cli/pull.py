"""``ferrite pull``: fetch models of the catalogue into the cache."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from ferrite.catalogue import CATALOGUE, CatalogueError, console_report, lookup, obtain


def pull(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=f"One of: {', '.join(CATALOGUE)}.")],
    offline: Annotated[
        bool, typer.Option("--offline", envvar="FERRITE_OFFLINE", help="Download nothing; fail when absent.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read cached files for their SHA-256, not their size only.")
    ] = False,
) -> None:
    """Fetch models of the catalogue, check them, and print the path of each file."""
    try:
        for entry in [lookup(name) for name in names]:
            with _clean_termination(), console_report() as report:
                path = obtain(entry, offline=offline, verify=verify, report=report)
            typer.echo(path)
    except CatalogueError as error:
        typer.echo(f"ferrite pull: {error}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def _clean_termination() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that a download takes its files and its pip process with it."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
