"""Finished requests for the tests."""

from typing import Any

from ferrite.telemetry import FinishedRequest


def request(request_id: str = "r", **measured: Any) -> FinishedRequest:
    return FinishedRequest(
        request_id=request_id, endpoint="/v1/completions", started_at=1_700_000_000.0, **measured
    )
