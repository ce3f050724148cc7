"""The same numbers as JSON and as lines."""

import json

from ferrite.operations.report import as_json, as_lines

REPORT = {
    "passed": True,
    "seconds": 1.23456,
    "model": "a/b c",
    "ttft_ms": None,
    "statuses": {"200": 2},
    "errors": {},
    "stability": ({"prompt": 0, "verdict": "stable"}, {"prompt": 1, "verdict": "unknown"}),
}


def test_json() -> None:
    assert json.loads(as_json(REPORT)) == {**REPORT, "seconds": 1.235, "stability": list(REPORT["stability"])}  # type: ignore[call-overload]


def test_lines() -> None:
    assert as_lines(REPORT).splitlines() == [
        "passed=true",
        "seconds=1.235",
        "model=a/b c",
        "ttft_ms=null",
        "statuses.200=2",
        "stability.0.prompt=0",
        "stability.0.verdict=stable",
        "stability.1.prompt=1",
        "stability.1.verdict=unknown",
    ]
