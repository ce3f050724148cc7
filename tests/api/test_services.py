"""Bounds on what is on its way to the engine."""

from contextlib import ExitStack

import pytest

from ferrite.api import ServerConfig, ServerState
from ferrite.api.body import BodyMemory
from ferrite.api.errors import ApiError
from ferrite.api.services import MAX_ARRIVING_BODIES, MAX_PREPARING, Preparation, build_services


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
    services = build_services(config, ServerState(None))
    with ExitStack() as held:
        for _ in range(500 + MAX_PREPARING):
            held.enter_context(services.preparation.place())
        with pytest.raises(ApiError):
            held.enter_context(services.preparation.place())
    with pytest.raises(ApiError):
        services.bodies.take(MAX_ARRIVING_BODIES * config.max_body_bytes + 1)
    services.workers.shut_down()
