"""What one HTTP request carries through the server: its id, its deadline, and what the log will say."""

import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SCOPE_KEY = "ferrite.request"


@dataclass(slots=True)
class RequestContext:
    """One request, from its first byte to its log line."""

    request_id: str
    started: float
    """Reading of ``time.monotonic``."""
    status: int | None = None
    """Of the answer, once its headers have gone out."""
    answer_headers: dict[str, str] = field(default_factory=dict)
    """Added to the headers of the answer, whatever it is."""
    log_fields: dict[str, object] = field(default_factory=dict)
    """Added to the log line; never prompt or generated text."""


def new_request_id() -> str:
    """Return an id that no other request has."""
    return f"req-{uuid.uuid4().hex}"


def open_context(scope: Scope) -> RequestContext:
    """Start the context of a request: the caller's ``x-request-id`` if it is sane, else a new id."""
    given = Headers(scope=scope).get("x-request-id", "")
    request_id = given if _SANE_ID.fullmatch(given) else new_request_id()
    context = RequestContext(request_id, time.monotonic())
    context.answer_headers["x-request-id"] = request_id
    scope[_SCOPE_KEY] = context
    return context


def context_of(scope: Scope) -> RequestContext:
    """Return the context that ``open_context`` put into the scope."""
    context: RequestContext = scope[_SCOPE_KEY]
    return context
