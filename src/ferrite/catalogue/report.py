"""How a download tells its user what it does: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Report(Protocol):
    """What a download tells. Calls come from one thread."""

    def message(self, text: str) -> None:
        """Say one line."""

    def progress(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` bytes are there: about, until both are equal, which is the end."""


class SilentReport:
    """Tells nothing."""

    def message(self, text: str) -> None:
        """Drop the line."""

    def progress(self, done: int, total: int) -> None:
        """Drop the numbers."""


class LineReport:
    """Prints messages, and a line at each tenth of the way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tenths = 0

    def message(self, text: str) -> None:
        """Print the line."""
        self._console.print(text)

    def progress(self, done: int, total: int) -> None:
        """Print the share when another tenth is done."""
        tenths = 10 * done // total
        if tenths > self._tenths:
            self._console.print(f"{10 * tenths} % of {total / 1e6:.0f} MB")
            self._tenths = tenths


class BarReport:
    """Moves a progress bar and prints messages above it."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def message(self, text: str) -> None:
        """Print the line."""
        self._bar.console.print(text)

    def progress(self, done: int, total: int) -> None:
        """Move the bar; one that was full starts again."""
        if self._task is None:
            self._task = self._bar.add_task("fetching", total=total)
        self._bar.update(self._task, completed=done, total=total)
        if done == total:
            self._task = None


class LaterReport:
    """Opens the console's report when there is something to tell."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._report: Report | None = None

    def message(self, text: str) -> None:
        """Pass the line on."""
        self._on_console().message(text)

    def progress(self, done: int, total: int) -> None:
        """Pass the numbers on."""
        self._on_console().progress(done, total)

    def _on_console(self) -> Report:
        if self._report is None:
            self._report = self._opened.enter_context(_opened_console())
        return self._report


@contextmanager
def console_report() -> Iterator[Report]:
    """Report on standard error."""
    with ExitStack() as opened:
        yield LaterReport(opened)


@contextmanager
def _opened_console() -> Iterator[Report]:
    # Imported here, because a server whose model is there tells nothing and starts without them.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        yield LineReport(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        yield BarReport(bar)
