"""The two functions that real models are given, and what their calls must be."""

import json
from typing import Any

import jsonschema

WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALCULATE: Any = {
    "name": "calculate",
    "description": "Evaluate an arithmetic expression",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "pattern": "^[0-9+*/(). -]{1,40}$"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [{"type": "function", "function": each} for each in (WEATHER, CALCULATE)]
PARAMETERS = {each["name"]: each["parameters"] for each in (WEATHER, CALCULATE)}
NAMED: Any = {"type": "function", "function": {"name": "calculate"}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def comparable(choice: Any) -> Any:
    """What a streamed choice and a whole one must have in common; ids of calls are of one answer only."""
    calls = [(made.function.name, made.function.arguments) for made in choice.message.tool_calls or ()]
    return choice.finish_reason, choice.message.content, calls


def called(choice: Any) -> list[tuple[str, Any]]:
    """The calls of a choice, which follow their schemas."""
    assert choice.finish_reason == "tool_calls"
    calls = [(made.function.name, json.loads(made.function.arguments)) for made in choice.message.tool_calls]
    for name, arguments in calls:
        jsonschema.validate(arguments, PARAMETERS[name])
    return calls
