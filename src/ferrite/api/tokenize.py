"""``/v1/tokenize``, ``/v1/detokenize`` and ``/v1/chat/completions/render``: token ids without a generation.

They run in the prompt workers and need no permit of the engine. The names of fields are those of vLLM's and
SGLang's routes. A chat runs through the code of a chat request, so its count is the ``usage.prompt_tokens``
of that request.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrite.api import chat, errors
from ferrite.api.body import read_body
from ferrite.api.checks import check_model, check_token_ids, report_dropped
from ferrite.api.config import ServerConfig
from ferrite.api.context import RequestContext, context_of
from ferrite.api.model import LoadedModel
from ferrite.api.prompts import LARGE_BODY_BYTES
from ferrite.api.schema import BodyDecoder
from ferrite.api.services import Services
from ferrite.api.streams import run_while_connected
from ferrite.api.wire import ChatBody, TokenId, Wire

MAX_TEXT = 4 * 1024 * 1024
"""Characters that are tokenized, and bytes that are answered: twice the default largest body."""
MAX_PIECES = 128 * 1024
"""Tokens that one answer spells out; each takes a few hundred bytes of memory on its way."""


class TokenizeTextBody(Wire, kw_only=True):
    """``POST /v1/tokenize`` of a text."""

    model: str
    prompt: str
    add_special_tokens: bool | None = None
    """Put one beginning-of-sequence token in front if the model wants one; null is true."""
    parse_special: bool | None = None
    """Read control-token text as control tokens, as raw completions do; null is true."""
    with_pieces: bool | None = None


class TokenizeChatBody(ChatBody, kw_only=True):
    """``POST /v1/tokenize`` of a chat: the body of the chat request."""

    with_pieces: bool | None = None


class DetokenizeBody(Wire, kw_only=True):
    """``POST /v1/detokenize``."""

    model: str
    tokens: list[TokenId]
    skip_special_tokens: bool | None = None
    """Leave control tokens out, as generated text does; null is false and shows them as their text."""


class Piece(msgspec.Struct):
    """What one token stands for."""

    token: str
    """Its text, with U+FFFD for a part of a character."""
    bytes: list[int]


class TokenizeAnswer(msgspec.Struct):
    """The ids of a prompt."""

    tokens: list[int]
    count: int
    max_model_len: int
    """The ``context_length`` of the model: positions that prompt and answer have together."""
    pieces: list[Piece] | UnsetType = UNSET


class DetokenizeAnswer(msgspec.Struct):
    """The text of token ids."""

    text: str


class RenderAnswer(msgspec.Struct):
    """The prompt that a chat request makes."""

    prompt: str
    """As the model reads it, with control tokens as their text."""
    tokens: list[int]
    count: int
    max_model_len: int


BodyT = TypeVar("BodyT", bound=TokenizeTextBody | ChatBody | DetokenizeBody)


@dataclass(frozen=True, slots=True)
class Form(Generic[BodyT]):
    """One kind of body that a route takes."""

    body_type: type[BodyT]
    check: Callable[[BodyT], None]
    """Raises 400 for what the types of the body cannot say."""
    check_limits: Callable[[BodyT, ServerConfig], object]
    """Raises 400 for a body that asks for more than this server gives."""
    answer: Callable[[BodyT, LoadedModel], msgspec.Struct]
    """Does the work, in a worker thread; raises 400."""


Forms = Mapping[str, Form[Any]]
"""A route's kinds of body, each by the field that only it has."""
Work = Callable[[], bytes]
"""Makes the JSON of the answer."""


class TokenEndpoint:
    """ASGI application of one of these routes."""

    def __init__(self, forms: Forms, services: Services) -> None:
        self._forms = forms
        self._services = services
        self._config = services.config
        ignore_unknown = self._config.unknown_fields == "ignore"
        self._decoders: dict[str, BodyDecoder[Any]] = {
            field: BodyDecoder(form.body_type, ignore_unknown=ignore_unknown) for field, form in forms.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        context = context_of(scope)
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000 or None):
                data = await read_body(scope, receive, self._config.max_body_bytes, self._services.bodies)
                large = len(data) > LARGE_BODY_BYTES
                work = await self._checked_aside(context, data) if large else self._checked(context, data)
                del data
                workers = self._services.workers.large if large else self._services.workers.small
                # The place covers the sending too: an answer may be large, and its client slow.
                with self._services.counting.place():
                    await run_while_connected(receive, _reply(work, workers, scope, receive, send))
        except TimeoutError as error:
            raise errors.timed_out(self._config.request_timeout_ms) from error

    async def _checked_aside(self, context: RequestContext, data: bytes) -> Work:
        loop = asyncio.get_running_loop()
        with self._services.bodies.held(len(data)):
            return await loop.run_in_executor(self._services.workers.small, self._checked, context, data)

    def _checked(self, context: RequestContext, data: bytes) -> Work:
        field = self._deciding_field(data)
        form = self._forms[field]
        body, dropped = self._decoders[field].decode(data)
        report_dropped(context, dropped)
        form.check(body)
        check_model(body.model, self._config.model_id)
        form.check_limits(body, self._config)
        model = self._services.state.ready_model()
        return lambda: msgspec.json.encode(form.answer(body, model))

    def _deciding_field(self, data: bytes) -> str:
        """Return the field that says which kind of body this is."""
        first, *others = self._forms
        if not others:
            return first
        try:
            written = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            # Its decoder says what is wrong.
            return first
        given = [field for field in self._forms if field in written]
        names = " and ".join(f"`{field}`" for field in self._forms)
        if not given:
            raise errors.invalid(f"One of {names} is required.", first, "missing_field")
        if len(given) > 1:
            raise errors.invalid(f"The request has {names}; it takes one of them.", given[1])
        return given[0]


async def _reply(work: Work, workers: Executor, scope: Scope, receive: Receive, send: Send) -> None:
    answer = await asyncio.get_running_loop().run_in_executor(workers, work)
    await Response(answer, media_type="application/json")(scope, receive, send)


def _no_check(*_: object) -> None:
    """The types of the body say everything."""


def _check_text(body: TokenizeTextBody, _: ServerConfig) -> None:
    _check_length(len(body.prompt), "prompt")


def _tokenize_text(body: TokenizeTextBody, model: LoadedModel) -> TokenizeAnswer:
    parse_special, add_bos = body.parse_special is not False, body.add_special_tokens is not False
    tokens = model.tokenizer.encode(body.prompt, parse_special=parse_special, add_bos=add_bos)
    return _counted(tokens, "prompt", model, with_pieces=body.with_pieces is True)


def _tokenize_chat(body: TokenizeChatBody, model: LoadedModel) -> TokenizeAnswer:
    return _counted(_chat_tokens(body, model), "messages", model, with_pieces=body.with_pieces is True)


def _render(body: ChatBody, model: LoadedModel) -> RenderAnswer:
    tokens = _chat_tokens(body, model)
    prompt = b"".join(map(model.tokenizer.token_bytes, tokens)).decode(errors="replace")
    return RenderAnswer(prompt, tokens, len(tokens), model.context_length)


def _detokenize(body: DetokenizeBody, model: LoadedModel) -> DetokenizeAnswer:
    check_token_ids(body.tokens, "tokens", model.tokenizer.vocab_size)
    is_text = cache(partial(_is_text, model))
    text = bytearray()
    in_front = True
    for token in body.tokens:
        if body.skip_special_tokens and not is_text(token):
            continue
        piece = model.tokenizer.token_bytes(token)
        if in_front and is_text(token):
            in_front = False
            piece = piece.removeprefix(_space_in_front(model))
        text += piece
        if len(text) > MAX_TEXT:
            raise errors.invalid(f"The text has more than {MAX_TEXT} bytes.", "tokens")
    return DetokenizeAnswer(text.decode(errors="replace"))


def _is_text(model: LoadedModel, token: int) -> bool:
    """Whether generated text shows the token, which it does not with control tokens."""
    detokenizer = model.detokenizer()
    return bool(detokenizer.push(token) + detokenizer.finish())


def _space_in_front(model: LoadedModel) -> bytes:
    """Return what the tokenizer itself puts before a text: SentencePiece's space, or nothing."""
    tokens = model.tokenizer.encode("a", parse_special=False, add_bos=False)
    return b"".join(map(model.tokenizer.token_bytes, tokens)).removesuffix(b"a")


def _chat_tokens(body: ChatBody, model: LoadedModel) -> list[int]:
    (prompt,) = chat.ROUTE.prepare(body, model).prompts
    _check_length(prompt.n_characters, prompt.param)
    return list(prompt.encode())


def _check_length(n_characters: int, param: str) -> None:
    if n_characters > MAX_TEXT:
        raise errors.invalid(f"The prompt has {n_characters} characters, the most is {MAX_TEXT}.", param)


def _counted(tokens: list[int], param: str, model: LoadedModel, *, with_pieces: bool) -> TokenizeAnswer:
    answer = TokenizeAnswer(tokens, len(tokens), model.context_length)
    if with_pieces:
        if len(tokens) > MAX_PIECES:
            message = f"The prompt has {len(tokens)} tokens, `with_pieces` takes at most {MAX_PIECES}."
            raise errors.invalid(message, param)
        spelt = map(model.tokenizer.token_bytes, tokens)
        answer.pieces = [Piece(piece.decode(errors="replace"), list(piece)) for piece in spelt]
    return answer


TOKENIZE: Forms = MappingProxyType(
    {
        "prompt": Form(TokenizeTextBody, _no_check, _check_text, _tokenize_text),
        "messages": Form(TokenizeChatBody, chat.ROUTE.check_body, chat.ROUTE.check_limits, _tokenize_chat),
    }
)
DETOKENIZE: Forms = MappingProxyType({"tokens": Form(DetokenizeBody, _no_check, _no_check, _detokenize)})
RENDER: Forms = MappingProxyType(
    {"messages": Form(ChatBody, chat.ROUTE.check_body, chat.ROUTE.check_limits, _render)}
)
