"""The measurements as a picture, PNG or SVG, by matplotlib."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ferrite.bench.breakdown import Breakdown
from ferrite.bench.compare import Comparison
from ferrite.bench.measure import Row

SUFFIXES = (".png", ".svg")
_PARTS = tuple(part.name for part in fields(Breakdown))
_SIZE = (10.0, 4.5)


class PlotError(ValueError):
    """A picture that cannot be made; one line that names its file."""


def check_plot(path: Path) -> None:
    """Raise ``PlotError`` where a picture could not be written later."""
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"{path}: there is no such folder")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError(f"{path}: pictures need matplotlib, which is not installed (pip install matplotlib)")


def plot_rows(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw the share of the floor of each row, and where its time went."""
    figure = _figure(title)
    shares, times = figure.subplots(1, 2, sharey=True)
    names = [_name(row.work, row.depth, row.streams) for row in rows]
    shares.barh(names, [row.floor_share for row in rows], color="tab:gray")
    for index, row in enumerate(rows):
        shares.text(0.01, index, f"{row.tokens_per_second:.0f} tokens/s", va="center", fontsize=7)
    shares.set(xlim=(0, 1), xlabel="share of the machine's limit")
    shares.tick_params(labelsize=7)
    left = [0.0] * len(rows)
    for part in _PARTS:
        widths = [float(getattr(row.time, part)) for row in rows]
        times.barh(names, widths, left=left, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    times.set(xlim=(0, 1), xlabel="share of the time")
    times.legend(fontsize=7, ncols=len(_PARTS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    times.invert_yaxis()
    _save(figure, path)


def plot_comparison(comparisons: Sequence[Comparison], title: str, path: Path) -> None:
    """Draw each engine's median rate, and the lowest and highest of the rounds."""
    figure = _figure(title)
    axes = figure.subplots()
    names = [_name(each.work, each.depth, each.streams) for each in comparisons]
    engines = [engine.engine for engine in comparisons[0].engines]
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        found = [each.engines[place] for each in comparisons]
        rates = [each.rate for each in found]
        below = [each.rate - min(each.rates) for each in found]
        above = [max(each.rates) - each.rate for each in found]
        at = [index + (place - (len(engines) - 1) / 2) * width for index in range(len(names))]
        axes.bar(at, rates, width, yerr=(below, above), capsize=2, label=engine)
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_ylabel("tokens/s")
    axes.legend()
    _save(figure, path)


def _figure(title: str) -> Any:
    # Not at the top: only who draws needs it.
    figure = importlib.import_module("matplotlib.figure").Figure(_SIZE, layout="constrained")
    figure.suptitle(title, fontsize=9)
    return figure


def _save(figure: Any, path: Path) -> None:
    # Without the date, the same numbers give the same file.
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _name(work: str, depth: int, streams: int) -> str:
    return f"prefill {depth}" if work == "prefill" else f"{streams} x decode at {depth}"
