"""Bounds on what is on its way to the engine."""

from contextlib import ExitStack

import pytest

from ferrite.api import ServerConfig, ServerState, services
from ferrite.api.body import BodyMemory
from ferrite.api.errors import ApiError
from ferrite.api.services import MAX_ARRIVING_BODIES, MAX_PREPARING, Preparation, build_services
from tests.api.support import batching, chat_body, running_server


def test_places_are_given_back() -> None:
    preparation = Preparation(1)
    for _ in range(2):
        with preparation.place(), pytest.raises(ApiError) as refused, preparation.place():
            raise AssertionError
        assert refused.value.status == 429
    with pytest.raises(KeyError), preparation.place():
        raise KeyError
    with preparation.place():
        pass


def test_bodies_that_wait_count_like_those_that_arrive() -> None:
    memory = BodyMemory(10)
    with memory.held(6):
        with pytest.raises(ApiError) as refused:
            memory.take(5)
        assert refused.value.status == 429
        memory.take(4)
    memory.take(6)


def test_there_are_places_for_all_that_the_engine_would_take() -> None:
    config = ServerConfig(experimental_batched_decode=True, max_batch_streams=100, max_batch_queue=400)
    shared = build_services(config, ServerState(None))
    with ExitStack() as held:
        for _ in range(500 + MAX_PREPARING):
            held.enter_context(shared.preparation.place())
        with pytest.raises(ApiError):
            held.enter_context(shared.preparation.place())
    with pytest.raises(ApiError):
        shared.bodies.take(MAX_ARRIVING_BODIES * config.max_body_bytes + 1)
    shared.workers.shut_down()


@pytest.mark.parametrize(("bound", "limit"), [("MAX_PREPARING", -2), ("MAX_ARRIVING_BODIES", 0)])
def test_whom_a_full_server_turns_away_before_its_queue_counts_as_rejected(
    monkeypatch: pytest.MonkeyPatch, bound: str, limit: int
) -> None:
    monkeypatch.setattr(services, bound, limit)
    with running_server(**batching(1, 1)) as running, running.client() as http:
        for _ in range(3):
            assert http.post("/v1/chat/completions", json=chat_body()).status_code == 429
        assert http.get("/admin/stats").json()["batcher"]["queue_rejected"] == 3
        assert "\nferrite_queue_rejected_total 3.0\n" in http.get("/metrics").text
        # Counts of tokens have no place in that queue.
        http.post("/v1/tokenize", json=chat_body())
        assert http.get("/admin/stats").json()["batcher"]["queue_rejected"] == 3
