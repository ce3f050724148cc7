"""What a server says about itself: its model, and whether it is ready."""

import msgspec

from ferrite.operations.answers import read_error
from ferrite.operations.client import Client, Reply


class ToolError(Exception):
    """A tool that cannot do its work; the message is one line."""


class _Model(msgspec.Struct):
    id: str
    context_length: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


async def find_model(client: Client, asked: str | None) -> tuple[str, int | None]:
    """Return the id to name in requests and its context length where the server tells one.

    Raises ``ToolError`` when the server has not exactly one model and none was ``asked`` for, and
    ``TransportError`` when it does not answer.
    """
    reply = await client.get("/v1/models")
    if reply.status != 200:
        raise ToolError(f"GET /v1/models: {describe(reply)}")
    try:
        models = msgspec.json.decode(reply.body, type=_Models).data
    except msgspec.MsgspecError:
        raise ToolError("GET /v1/models: the answer is not a list of models") from None
    if asked is not None:
        found = [model.context_length for model in models if model.id == asked]
        return asked, found[0] if found else None
    if len(models) != 1:
        raise ToolError(f"the server has {len(models)} models: name one with --model-id")
    return models[0].id, models[0].context_length


def describe(reply: Reply) -> str:
    """Return the status of a refusal and what the server said of it."""
    error = read_error(reply.body)
    return f"status {reply.status}" + (f": {error.message}" if error is not None else "")
