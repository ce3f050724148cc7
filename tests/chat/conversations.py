"""Conversations that the stored cases and the tests share, as plain JSON values in the OpenAI shape."""

from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells the weather: "now" & <soon>, in °C.',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "東京"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


PLAIN: dict[str, list[dict[str, Any]]] = {
    "one user turn": [_turn("user", "Hi")],
    "system and user": [_turn("system", "Be brief."), _turn("user", "What is the capital of France?")],
    "three turns": [
        _turn("user", "  two  spaces\n\nand lines\t"),
        _turn("assistant", "naïve café — 👩‍🚀"),
        _turn("user", "東京 {{ not }} {% a %} template & <b>"),
    ],
    "empty user text": [_turn("user", "")],
}
OTHER_ORDERS: dict[str, list[dict[str, Any]]] = {
    "late system turn": [
        _turn("user", "a"),
        _turn("assistant", "b"),
        _turn("system", "c"),
        _turn("user", "d"),
    ],
    "two user turns": [_turn("user", "a"), _turn("user", "b")],
}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "tools declared": [_turn("user", "Weather in Oslo?")],
    "tools declared, system text": [_turn("system", "Be brief."), _turn("user", "Weather in Oslo?")],
    "call and result": [
        _turn("user", "Weather in Oslo?"),
        _turn("assistant", "", tool_calls=[_call("c1", "weather", {"city": "Oslo", "days": 2})]),
        _turn("tool", '{"t": -3}', tool_call_id="c1"),
    ],
    "text, two calls, two results": [
        _turn("user", "Weather and time?"),
        _turn(
            "assistant",
            "I look.",
            tool_calls=[_call("c1", "weather", {"city": "東京"}), _call("c2", "clock", {})],
        ),
        _turn("tool", "rain", tool_call_id="c1"),
        _turn("tool", "12:00", tool_call_id="c2"),
        _turn("assistant", "Rain at noon."),
        _turn("user", "Thanks"),
    ],
}
