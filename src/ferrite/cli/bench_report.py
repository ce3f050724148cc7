"""What ``ferrite bench`` prints: tables for people, JSON for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ferrite.bench.compare import Comparison
from ferrite.bench.measure import Limits, Row


def row_lines(rows: Sequence[Row], limits: Limits) -> Iterator[str]:
    """Tabulate rates beside the limits, and where the time went in per cent of all threads' time."""
    yield (
        f"read bandwidth {limits.read_gb_s:.1f} GB/s, "
        f"int8 peak {limits.int8_gmac_s:.0f} G multiply-adds/s; where the time went in %"
    )
    yield (
        f"{'work':8} {'depth':>6} {'streams':>7} {'tokens/s':>9} {'lowest':>8} {'highest':>8} {'of limit':>8}"
        f" | {'linear':>6} {'attn':>6} {'norm':>6} {'other':>6} {'wait':>6} {'outside':>7}"
    )
    for row in rows:
        time = row.time
        parts = [time.linear, time.attention, time.norm, time.other, time.wait]
        yield (
            f"{row.work:8} {row.depth:6} {row.streams:7} {row.tokens_per_second:9.1f} {row.lowest:8.1f} "
            f"{row.highest:8.1f} {row.floor_share:8.2f} | "
            f"{' '.join(f'{100 * part:6.1f}' for part in parts)} {100 * time.outside:7.1f}"
        )


def comparison_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Tabulate every engine's rate, and ours as a multiple of it."""
    yield (
        f"{'work':8} {'depth':>6} {'streams':>7} {'engine':14} {'tokens/s':>9} {'lowest':>8} {'highest':>8}"
        f" {'ferrite is':>10}  round by round"
    )
    for each in comparisons:
        for engine in each.engines:
            ours = engine is each.engines[0]
            ratio = "" if ours else f"{engine.ratio:9.2f}x"
            every = "" if ours else " ".join(f"{ratio:.2f}" for ratio in engine.ratios)
            line = (
                f"{each.work:8} {each.depth:6} {each.streams:7} {engine.engine:14} {engine.rate:9.1f} "
                f"{min(engine.rates):8.1f} {max(engine.rates):8.1f} {ratio:>10}  {every}"
            )
            yield line.rstrip()


def rows_json(rows: Sequence[Row], limits: Limits) -> dict[str, Any]:
    """Return the rows and the limits for JSON."""
    return {**asdict(limits), "rows": [asdict(row) for row in rows]}


def comparison_json(comparisons: Sequence[Comparison], missing: Sequence[str]) -> dict[str, Any]:
    """Return the comparison for JSON; ratios are our rate ÷ the engine's."""
    return {
        "missing": list(missing),
        "rows": [
            {
                "work": each.work,
                "depth": each.depth,
                "streams": each.streams,
                "engines": [
                    {**asdict(engine), "tokens_per_second": engine.rate, "ratio": engine.ratio}
                    for engine in each.engines
                ],
            }
            for each in comparisons
        ],
    }
