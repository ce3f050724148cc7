"""Percentiles against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.operations.distribution import Distribution, distribution, quantile

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 1))
def test_quantiles_are_numpy_s(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), abs=1e-6)


@given(VALUES)
def test_percentiles_are_ordered(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p95 <= found.p99 <= found.max == max(values)


def test_known_numbers() -> None:
    assert distribution([3.0, 1.0]) == Distribution(count=2, mean=2.0, p50=2.0, p95=2.9, p99=2.98, max=3.0)


def test_nothing_measured_is_none() -> None:
    assert distribution([]) is None
