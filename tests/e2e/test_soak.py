"""A short soak: after a mix of everything the idle server holds what it held before."""

from pathlib import Path

import pytest

from benchmarks.soak import Plan, soak

MOST_GROWTH = 1.05
"""Far above the noise of an allocator, far below what a hundred lost requests would hold."""


@pytest.mark.model
def test_a_mix_of_requests_leaves_nothing_behind(smollm2_path: Path) -> None:
    plan = Plan(requests=100, warm_up=40)
    result = soak(smollm2_path, plan)
    assert result.is_clean, list(result.lines())
    assert result.outcomes.total() == plan.requests
    assert all(result.outcomes[kind] > 5 for kind in ("completed", "left", "rejected"))
    assert result.serving["prefix_cache"]["hits"] > 0
    # Streams that were left before their end were stopped, and not generated to it.
    assert result.batcher["aborted"] > 5
    assert result.last.written_and_swapped < result.first.written_and_swapped * MOST_GROWTH
