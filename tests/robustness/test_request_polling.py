"""Polling the finished requests through a burst: every request once, in order, or counted as missed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.api.support import Running, Script, completion_body, running_server
from tests.robustness.support import COMPLETIONS

BURST = 500
CALLERS = 16


@dataclass
class Poller:
    """Follows the cursor of ``/v1/requests``."""

    client: httpx.Client
    limit: int
    cursor: int = 0
    sequences: list[int] = field(default_factory=list)
    missed: int = 0
    polls: int = 0

    def poll(self) -> Any:
        page = self.client.get(f"/v1/requests?since={self.cursor}&limit={self.limit}").json()
        assert len(page["rows"]) <= self.limit
        self.sequences += [row["sequence"] for row in page["rows"]]
        self.missed += page["missed"]
        self.cursor = page["next_cursor"]
        self.polls += 1
        # At every moment nothing is lost and nothing told twice.
        assert len(self.sequences) + self.missed == self.cursor <= page["recorded_total"]
        assert self.sequences == sorted(set(self.sequences))
        return page

    def poll_to_the_end(self) -> Any:
        while (page := self.poll())["rows"]:
            pass
        return page


@pytest.fixture
def server() -> Iterator[Running]:
    with running_server(Script("Hi").runner(), max_concurrent_inferences=CALLERS) as running:
        yield running


def test_rows_and_missed_are_the_total(server: Running) -> None:
    ended = threading.Event()
    with server.client() as client, ThreadPoolExecutor(CALLERS + 2) as threads:
        pollers = [Poller(client, limit) for limit in (200, 7)]

        def follow(poller: Poller) -> Any:
            while not ended.is_set():
                poller.poll()
            return poller.poll_to_the_end()

        following = [threads.submit(follow, poller) for poller in pollers]

        def one(number: int) -> int:
            body = completion_body("x", max_tokens=1, stream=number % 3 == 0)
            return client.post(
                COMPLETIONS, json=body, headers={"x-request-id": f"burst-{number}"}
            ).status_code

        statuses = list(threads.map(one, range(BURST)))
        ended.set()
        pages = [future.result() for future in following]
        assert statuses == [200] * BURST
        for poller, page in zip(pollers, pages, strict=True):
            assert page["recorded_total"] == poller.cursor == BURST
            assert len(poller.sequences) + poller.missed == BURST
            assert poller.polls > 1
        late = Poller(client, 60)
        late.poll_to_the_end()
        assert (late.missed, late.sequences) == (BURST - 200, list(range(BURST - 200, BURST)))
        rows = client.get("/v1/requests").json()["rows"]
        assert {row["request_id"].partition("-")[0] for row in rows} == {"burst"}
        assert client.get("/v1/stats").json()["completed"] == BURST
