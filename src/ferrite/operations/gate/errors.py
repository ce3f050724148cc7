"""Error probe: wrong requests get the right status and OpenAI's error object, and harm nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrite.operations.answers import read_error
from ferrite.operations.client import Reply
from ferrite.operations.gate.prompts import CONTINUED, long_prompt
from ferrite.operations.gate.session import CHAT, COMPLETIONS, Session
from ferrite.operations.gate.settings import GateSettings

SECTION = "error"
_UNKNOWN_FIELD = "ferrite_gate_unknown"
_HUGE_BUDGET = 2**40
_JSON: Mapping[str, str] = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class BadRequest:
    """A request that must be refused, and how."""

    name: str
    body: bytes | None
    status: int
    param: str | None = None
    """The field that the error must name; None where the request has none to blame."""
    code: str | None = None
    """The code that the error must have; None takes any."""
    method: str = "POST"
    path: str = CHAT
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    answer_header: str | None = None
    """A header that the refusal must carry."""


def describe(_: GateSettings) -> list[str]:
    """Return what the section would send."""
    names = ", ".join(request.name for request in bad_requests("<model>", context_length=1))
    return [
        f"requests to be refused: {names}",
        "where the server needs a key: one without it, one with another",
    ]


def bad_requests(model_id: str, *, context_length: int | None) -> list[BadRequest]:
    """Return the wrong requests for a server with this model."""

    def chat(**changes: Any) -> bytes:
        messages = [{"role": "user", "content": CONTINUED}]
        body = {"model": model_id, "messages": messages, "max_tokens": 1, **changes}
        return json.dumps({name: value for name, value in body.items() if value is not None}).encode()

    requests = [
        BadRequest("bad JSON", b'{"model": ', 400),
        BadRequest("a body that is no object", b"[]", 400),
        BadRequest("unknown field", chat(**{_UNKNOWN_FIELD: 1}), 400, _UNKNOWN_FIELD),
        BadRequest("missing field", chat(messages=None), 400, "messages"),
        BadRequest("wrong model", chat(model=f"{model_id}-of-nobody"), 404, "model", "model_not_found"),
        BadRequest("too large max_tokens", chat(max_tokens=_HUGE_BUDGET), 400, "max_tokens"),
        BadRequest("value out of range", chat(temperature=3), 400, "temperature"),
        BadRequest(
            "wrong type in a message",
            chat(messages=[{"role": "user", "content": 5}]),
            400,
            "messages[0].content",
        ),
        BadRequest("a wrong stream", chat(stream=True, temperature=-1), 400, "temperature"),
        BadRequest("wrong content type", chat(), 415, headers={"content-type": "text/plain"}),
        BadRequest("wrong method", None, 405, method="GET", answer_header="allow"),
        BadRequest("unknown route", chat(), 404, path="/v1/ferrite_gate_unknown"),
    ]
    if context_length is not None:
        prompt = {"model": model_id, "prompt": long_prompt(context_length), "max_tokens": 1}
        body = json.dumps(prompt).encode()
        code = "context_length_exceeded"
        requests.append(BadRequest("too long a prompt", body, 400, "prompt", code, path=COMPLETIONS))
    return requests


async def probe_errors(session: Session, api_key: str | None) -> None:
    """Send every wrong request and look at its refusal; ``api_key`` is the one in use."""
    check = session.record.check
    usual = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    for request in bad_requests(session.model_id, context_length=session.context_length):
        reply = await session.client.send(
            request.method, request.path, request.body, {**request.headers, **usual}
        )
        problems = refusal_problems(reply, request)
        if request.param == _UNKNOWN_FIELD and dropped_by_option(reply):
            problems = []
        check(SECTION, request.name, passed=not problems, problems=problems, **_outline(reply))
    if session.context_length is None:
        check(
            SECTION,
            "too long a prompt",
            passed=None,
            problems=["the server does not tell its context length"],
        )
    if api_key is not None and (await session.client.send("GET", "/v1/models", None, {})).status != 200:
        await _probe_keys(session, api_key)
    await session.serves_as_before(SECTION)


def refusal_problems(reply: Reply, request: BadRequest) -> list[str]:
    """Return what is wrong with a refusal."""
    problems = []
    if reply.status != request.status:
        problems.append(f"status {reply.status} instead of {request.status}")
    if not reply.headers.get("content-type", "").startswith("application/json"):
        problems.append("not JSON")
    error = read_error(reply.body)
    if error is None:
        return [*problems, "no error object with message, type, param and code"]
    if not error.message or not error.type:
        problems.append("no message or no type")
    if error.param != request.param:
        problems.append(f"param {error.param!r} instead of {request.param!r}")
    if request.code is not None and error.code != request.code:
        problems.append(f"code {error.code!r} instead of {request.code!r}")
    if request.answer_header is not None and request.answer_header not in reply.headers:
        problems.append(f"no {request.answer_header} header")
    return problems


def dropped_by_option(reply: Reply) -> bool:
    """Return whether the server was told to drop unknown fields, and named the one it dropped."""
    return reply.status == 200 and _UNKNOWN_FIELD in reply.headers.get("x-ferrite-ignored", "")


async def _probe_keys(session: Session, api_key: str) -> None:
    for name, headers in (
        ("no API key", {}),
        ("another API key", {"authorization": f"Bearer {api_key}-of-nobody"}),
    ):
        # A body that would also be refused: who has no key learns nothing of the request's shape.
        request = BadRequest(name, b"{}", 401, headers={**_JSON, **headers}, answer_header="www-authenticate")
        reply = await session.client.send(request.method, request.path, request.body, request.headers)
        problems = refusal_problems(reply, request)
        session.record.check(SECTION, name, passed=not problems, problems=problems, **_outline(reply))


def _outline(reply: Reply) -> dict[str, Any]:
    error = read_error(reply.body)
    if error is None:
        return {"status": reply.status}
    return {"status": reply.status, "type": error.type, "param": error.param, "code": error.code}
