"""Checks and reports that every route with a body makes in the same way."""

from collections.abc import Sequence
from urllib.parse import quote

from ferrite.api.context import RequestContext
from ferrite.api.errors import invalid, not_found

_HEADER_CHARACTERS = 2048


def check_model(asked: str, served: str) -> None:
    """Raise 404 unless the request names the model that is served."""
    if asked != served:
        message = f"The model {asked[:256]!r} does not exist; this server has {served!r}."
        raise not_found(message, param="model", code="model_not_found")


def check_token_ids(tokens: Sequence[int], param: str, vocab_size: int) -> None:
    """Raise 400 naming the first of ``tokens`` that is no token of the model."""
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            message = f"{token} is not a token id of this model (0 to {vocab_size - 1})."
            raise invalid(message, f"{param}[{index}]")


def report_dropped(context: RequestContext, dropped: Sequence[str]) -> None:
    """Name the fields that were dropped from the body in a header of the answer and in the log line."""
    if not dropped:
        return
    names = (name[:_HEADER_CHARACTERS] for name in dropped[:_HEADER_CHARACTERS])
    header = ", ".join(quote(name, safe="[]._-") for name in names)
    if len(header) > _HEADER_CHARACTERS:
        header = header[:_HEADER_CHARACTERS].rpartition(", ")[0] + ", ..."
    context.answer_headers["x-ferrite-ignored"] = header
    context.log_fields["ignored"] = header
