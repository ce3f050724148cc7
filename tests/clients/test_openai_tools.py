"""Loops of calls and results by the official client.

The installed one (openai 3.57) runs tools on Responses, with ``openai.lib.responses_tool_runner``. It has no
runner for chat completions, so the loop there is written by hand, as its documentation does.
"""

import asyncio
from typing import Any

import openai
import pytest
from openai.lib import pydantic_responses_function_tool
from openai.lib.responses_tool_runner import (
    AsyncRegisteredFunction,
    AsyncResponsesToolRunner,
    RegisteredFunction,
    ResponsesToolCheckpoint,
    ResponsesToolLedger,
    ResponsesToolRunner,
    ToolRunnerError,
)
from openai.types.responses import Response, ResponseFunctionToolCall
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from tests.api.scripted import Scripted
from tests.api.support import MODEL_ID, Running
from tests.clients.support import HI, Sum, Weather, async_client, call, client

TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Sum)]
FLAT_WEATHER, FLAT_SUM = pydantic_responses_function_tool(Weather), pydantic_responses_function_tool(Sum)
ASKED: ResponseCreateParamsNonStreaming = {"model": MODEL_ID, "input": "Hi"}
RESULTS = {"Weather": "rain", "Sum": "3.5"}
ANSWER = "It rains; it is 3.5."
CALLED = [
    ("Weather", '{"city":"Oslo","days":-3}'),
    ("Sum", '{"numbers":[1,2.5]}'),
    ("Sum", '{"numbers":[]}'),
]
HISTORY = ["user", "assistant", "tool", "tool", "assistant", "tool"]


def registered(made: list[Any]) -> list[RegisteredFunction]:
    """Functions for a runner that note with what they are called."""

    def run(arguments: Any) -> str:
        made.append(arguments)
        return RESULTS[type(arguments).__name__]

    return [RegisteredFunction.from_tool(tool, execute=run) for tool in (FLAT_WEATHER, FLAT_SUM)]


MADE: list[Any] = [Weather(city="Oslo", days=-3), Sum(numbers=[1, 2.5]), Sum(numbers=[])]


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_on_chat_completions(caller: Running, *, stream: bool) -> None:
    messages: list[Any] = [*HI]
    made = []
    with client(caller.url) as sdk:
        while True:
            if stream:
                with sdk.chat.completions.stream(model=MODEL_ID, messages=messages, tools=TOOLS) as events:
                    (choice,) = events.get_final_completion().choices
            else:
                (choice,) = sdk.chat.completions.parse(model=MODEL_ID, messages=messages, tools=TOOLS).choices
            if choice.finish_reason != "tool_calls":
                break
            messages.append(choice.message)
            for each in choice.message.tool_calls or []:
                made.append((each.function.name, each.function.arguments))
                result = RESULTS[each.function.name]
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
    assert (choice.finish_reason, choice.message.content) == ("stop", ANSWER)
    assert made == CALLED
    last = caller.conversations.seen[-1]
    assert [message.role for message in last] == HISTORY
    assert [made.name for made in last[1].tool_calls] == ["Weather", "Sum"]
    assert (last[1].content or "").strip() == "Let me see."


def test_the_events_of_a_streamed_call(caller: Running) -> None:
    with (
        client(caller.url) as sdk,
        sdk.chat.completions.stream(model=MODEL_ID, messages=HI, tools=TOOLS) as stream,
    ):
        events = [event for event in stream if event.type != "chunk"]
    kinds = list(dict.fromkeys((event.type, getattr(event, "index", None)) for event in events))
    assert kinds == [
        ("content.delta", None),
        ("tool_calls.function.arguments.delta", 0),
        ("content.done", None),
        ("tool_calls.function.arguments.delta", 1),
        ("tool_calls.function.arguments.done", 0),
        ("tool_calls.function.arguments.done", 1),
    ]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == CALLED[:2]
    assert [event.parsed_arguments for event in done] == MADE[:2]
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    for index, (_, arguments) in enumerate(CALLED[:2]):
        pieces = [event.arguments_delta for event in deltas if event.index == index]
        assert "".join(pieces) == arguments
        assert len(pieces) > len(arguments) / 2


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"stream": True, "eager": True}])
def test_the_tool_runner_of_the_client(caller: Running, options: Any) -> None:
    made: list[Any] = []
    with client(caller.url) as sdk:
        response = ResponsesToolRunner(functions=registered(made)).run(sdk, ASKED, **options)
    assert response.output_text == ANSWER
    assert made == MADE
    assert [message.role for message in caller.conversations.seen[-1]] == HISTORY


def test_the_asynchronous_tool_runner(caller: Running) -> None:
    made: list[Any] = []

    async def run(arguments: Any) -> str:
        made.append(arguments)
        return RESULTS[type(arguments).__name__]

    async def ask() -> Response:
        runner = AsyncResponsesToolRunner(
            functions=[
                AsyncRegisteredFunction.from_tool(FLAT_WEATHER, execute=run),
                AsyncRegisteredFunction.from_tool(FLAT_SUM, execute=run),
            ]
        )
        async with async_client(caller.url) as sdk:
            return await runner.run(sdk, ASKED, stream=True)

    assert asyncio.run(ask()).output_text == ANSWER
    assert made == MADE


def test_a_run_goes_on_from_a_checkpoint(caller: Running) -> None:
    """What the runner keeps of a run is what the server understands as its history."""
    saved: list[ResponsesToolCheckpoint] = []
    made: list[Any] = []
    with client(caller.url) as sdk:
        runner = ResponsesToolRunner(functions=registered(made))
        runner.run(sdk, ASKED, ledger=ResponsesToolLedger("run", saved.append))
        kept = next(each for each in saved if each["phase"] == "boundary" and len(each["history"]) == 6)
        again = ResponsesToolLedger("run", saved.append, resume_from=kept)
        response = ResponsesToolRunner(functions=registered(made)).run(sdk, ASKED, ledger=again)
    assert response.output_text == ANSWER
    roles = [message.role for message in caller.conversations.seen[-1]]
    assert roles == [*HISTORY[:4], "user", *HISTORY[4:]]


def test_a_run_within_a_budget(caller: Running) -> None:
    with client(caller.url) as sdk:
        runner = ResponsesToolRunner(functions=registered([]))
        response = runner.run(sdk, ASKED, context_budget={"max_input_bytes": 9999, "max_input_images": 0})
    assert response.output_text == ANSWER


def test_a_cut_call_stops_the_runner(writer: Scripted) -> None:
    writer.writes(call("Weather", '{"city":"Oslo","days":-3}'))
    made: list[Any] = []
    with client(writer.running.url) as sdk, pytest.raises(ToolRunnerError, match="did not complete"):
        ResponsesToolRunner(functions=registered(made)).run(sdk, {**ASKED, "max_output_tokens": 60})
    assert made == []


def test_a_call_is_answered_by_hand_on_responses(caller: Running) -> None:
    given: list[Any] = [{"role": "user", "content": "Hi"}]
    with client(caller.url) as sdk:
        while True:
            response = sdk.responses.parse(model=MODEL_ID, input=given, tools=[FLAT_WEATHER, FLAT_SUM])
            calls: list[ResponseFunctionToolCall] = [
                item for item in response.output if item.type == "function_call"
            ]
            if not calls:
                break
            given += response.output
            given += [
                {"type": "function_call_output", "call_id": each.call_id, "output": RESULTS[each.name]}
                for each in calls
            ]
    assert response.output_text == ANSWER
    assert [message.role for message in caller.conversations.seen[-1]] == HISTORY
