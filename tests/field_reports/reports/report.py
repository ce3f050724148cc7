"""How a report is written down."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """One kind of failure: where it was seen, and the tests that would fail."""

    title: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """``path::function`` below ``tests/``."""


def report(title: str, sources: str, tests: str) -> Report:
    """``sources`` and ``tests`` stand with blanks between them."""
    return Report(title, tuple(sources.split()), tuple(tests.split()))
