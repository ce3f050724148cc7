"""Pictures: both formats, both kinds, and the same file for the same numbers."""

from pathlib import Path

import pytest

from ferrite.bench.breakdown import Breakdown
from ferrite.bench.compare import Comparison, EngineRates
from ferrite.bench.measure import Row
from ferrite.bench.plot import PlotError, check_plot, plot_comparison, plot_rows

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml"}
ROWS = [
    Row("prefill", 512, 1, 900.0, 850.0, 950.0, 0.5, Breakdown(0.6, 0.1, 0.1, 0.1, 0.05, 0.05)),
    Row("decode", 32, 8, 300.0, 290.0, 310.0, 0.7, Breakdown(0.8, 0.05, 0.05, 0.05, 0.04, 0.01)),
]
COMPARISONS = [
    Comparison("decode", 32, 1, (EngineRates("ferrite", (9, 8), (1, 1)), EngineRates("peer", (3, 4), (3, 2))))
]


@pytest.mark.parametrize("suffix", STARTS)
def test_rows_and_comparisons_are_drawn_in_both_formats(tmp_path: Path, suffix: str) -> None:
    rows, compared = tmp_path / f"rows{suffix}", tmp_path / f"compared{suffix}"
    plot_rows(ROWS, "a model", rows)
    plot_comparison(COMPARISONS, "a model", compared)
    assert rows.read_bytes().startswith(STARTS[suffix])
    assert compared.read_bytes().startswith(STARTS[suffix])
    assert rows.read_bytes() != compared.read_bytes()


def test_what_cannot_be_drawn_is_refused_by_its_name(tmp_path: Path) -> None:
    check_plot(tmp_path / "a.PNG")
    with pytest.raises(PlotError, match=r"a\.jpg: expected a name that ends in \.png or \.svg"):
        check_plot(tmp_path / "a.jpg")
    with pytest.raises(PlotError, match=r"a\.png: there is no such folder"):
        check_plot(tmp_path / "no" / "a.png")
