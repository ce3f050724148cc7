"""Going down: what is running ends, what comes is refused, and the exit status says how it went."""

import threading
from collections.abc import Callable

import httpx
import pytest

from ferrite.api import Address
from ferrite.api.serving import bind_listener
from tests.api.support import (
    WAIT_SECONDS,
    Running,
    Script,
    chat_body,
    eventually,
    gated_server,
    running_server,
)

CHAT = "/v1/chat/completions"


def on_loop(running: Running, action: Callable[[], None]) -> None:
    loop = running.server._loop
    assert loop is not None
    loop.call_soon_threadsafe(action)


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    with gated_server() as (running, gate), running.client() as client:
        with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=5)) as held:
            gate.wait_until_reached()
            on_loop(running, running.server.begin_drain)
            eventually(lambda: running.state.draining)
            health = client.get("/health")
            assert (health.status_code, health.json()["ready"]) == (200, False)
            assert health.json()["reason"] == "draining"
            refused = client.post(CHAT, json=chat_body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            gate.open()
            text = held.read().decode()
        assert text.count('"content":"z"') == 5
        assert text.endswith("data: [DONE]\n\n")
        eventually(lambda: running.server.should_exit)
        assert running.server.exit_status == 0


def test_what_does_not_end_in_time_is_ended_with_an_error() -> None:
    with gated_server(drain_timeout_ms=50) as (running, gate), running.client() as client:
        with client.stream("POST", CHAT, json=chat_body(stream=True)) as held:
            gate.wait_until_reached()
            on_loop(running, running.server.begin_drain)
            eventually(lambda: running.engine._stopping)
            gate.open()
            text = held.read().decode()
        assert "event: error" in text
        eventually(lambda: running.server.should_exit)
        assert running.server.exit_status == 0


def test_a_prompt_that_is_not_ready_in_time_is_a_503() -> None:
    answers: list[httpx.Response] = []
    with running_server(drain_timeout_ms=50) as running:

        def call() -> None:
            with running.client() as client:
                answers.append(client.post(CHAT, json=chat_body("hold on")))

        caller = threading.Thread(target=call)
        caller.start()
        eventually(lambda: bool(running.conversations.seen))
        on_loop(running, running.server.begin_drain)
        caller.join(WAIT_SECONDS)
    (answer,) = answers
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    assert answer.headers["x-request-id"]


def test_a_second_signal_stops_at_once() -> None:
    with gated_server() as (running, gate):
        answers: list[httpx.Response | httpx.HTTPError] = []

        def call() -> None:
            with running.client() as client:
                try:
                    answers.append(client.post(CHAT, json=chat_body()))
                except httpx.HTTPError as error:
                    answers.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        gate.wait_until_reached()
        running.server.handle_exit(15, None)
        eventually(lambda: running.state.draining)
        assert not running.server.should_exit
        running.server.handle_exit(15, None)
        eventually(lambda: running.server.force_exit)
        gate.open()
        caller.join(WAIT_SECONDS)
        assert len(answers) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_is_told_and_ends_the_process_with_1() -> None:
    runner = Script("ok").runner()

    def die(_: object) -> None:
        raise SystemExit("the engine thread cannot go on")

    runner.before_step = die
    with running_server(runner) as running, running.client() as client:
        answer = client.post(CHAT, json=chat_body())
        assert answer.status_code == 500
        assert running.state.unready_reason == "engine_failed"
        eventually(lambda: running.server.should_exit)
        assert running.server.exit_status == 1


def test_ipv6_is_bound_and_written_in_brackets() -> None:
    with running_server(bind=Address("::1", 0)) as running, running.client() as client:
        assert running.url.startswith("http://[::1]:")
        assert client.get("/health").json()["ready"] is True


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_is_none_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r"^[^\n]+$"):
        bind_listener(Address(host, 0))
