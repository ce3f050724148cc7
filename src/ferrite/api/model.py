"""What the API needs of a loaded model, and whether the server can generate now."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ferrite.api.errors import not_ready
from ferrite.api.memory import MemoryCeiling
from ferrite.api.structured import Grammars
from ferrite.chat import Message
from ferrite.engine.events import Event
from ferrite.engine.request import GenerationRequest
from ferrite.engine.text import Detokenizer
from ferrite.kv.prefix import PrefixStats
from ferrite.telemetry import BatcherSnapshot, EngineMeters, SpeculationStats
from ferrite.toolcalls import AnswerFormat


class GenerationHandle(Protocol):
    """One submitted request (``ferrite.engine.Generation``)."""

    async def admitted(self) -> None:
        """Return when the request may run; raises ``EngineBusy``, ``EngineStopped``, ``GenerationFailed``."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events."""

    def stop(self) -> None:
        """End it as if it had ended by itself, with its ``Finished`` to come."""

    def cancel(self) -> None:
        """Drop the request; nothing happens when it has ended."""


class GenerationEngine(Protocol):
    """The engine as the API uses it (``ferrite.engine.Engine``)."""

    @property
    def healthy(self) -> bool:
        """False when the engine cannot go on."""

    @property
    def active(self) -> int:
        """Requests that generate."""

    @property
    def waiting(self) -> int:
        """Requests in the waiting line."""

    @property
    def meters(self) -> EngineMeters:
        """What the engine counts; read only."""

    def batcher(self) -> BatcherSnapshot:
        """Return the counters and gauges of this moment."""

    def speculation_stats(self) -> SpeculationStats | None:
        """Return what drafts came to; None when there are none."""

    def prefix_stats(self) -> PrefixStats | None:
        """Return the state of the prefix cache; None without one."""

    def check_size(self, positions: int) -> None:
        """Raise ``RequestTooLarge``, and count it, for what can never run."""

    def check_room(self) -> None:
        """Raise ``EngineBusy``, and count it, when a request could neither run nor wait."""

    def submit(self, request: GenerationRequest, *, continues: bool = False) -> GenerationHandle:
        """Hand in a group of one."""

    def submit_group(
        self, requests: Sequence[GenerationRequest], *, continues: bool = False
    ) -> Sequence[GenerationHandle]:
        """Hand in requests that start together.

        Raises ``EngineBusy``, ``EngineStopped``, ``RequestTooLarge``.
        ``continues``: a later prompt of an HTTP request whose first has run; it goes to the head of the line.
        """

    async def drain(self, timeout: float) -> None:
        """Refuse new requests; return when all others have ended, or were ended after ``timeout`` seconds."""

    def stop(self) -> None:
        """End the engine's thread."""


class PromptTokenizer(Protocol):
    """The tokenizer as the API uses it (``ferrite.tokenizer.Tokenizer``)."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids; valid ids are below it."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a generation."""

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        """Turn text into ids; ``parse_special`` reads control-token text as control tokens.

        ``add_bos`` puts one beginning-of-sequence token in front if the model wants one.
        """

    def encode_segments(self, segments: Sequence[str | int], *, add_bos: bool) -> list[int]:
        """Turn a rendered template into ids: text is text, numbers are control tokens."""

    def token_bytes(self, token: int, /) -> bytes:
        """Return what the token stands for; of a control token its text."""


class ConversationTemplate(Protocol):
    """The chat template as the API uses it (``ferrite.chat.ChatTemplate``)."""

    def option_problem(self, options: Mapping[str, object]) -> tuple[str, str] | None:
        """Return message and name of the first template option that is not honoured."""

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        now: datetime,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        tools_as_text: bool = False,
    ) -> list[str | int]:
        """Render up to the assistant's next words; raises ``ChatTemplateError``. ``now`` is local time.

        ``tools_as_text``: tell ``tools``, calls and results in ordinary turns, whatever the template can.
        """


class ModelLoadError(Exception):
    """A model that cannot be served; the message is one line that names the file or option."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model, ready to generate."""

    id: str
    engine: GenerationEngine
    tokenizer: PromptTokenizer
    chat_template: ConversationTemplate
    grammar: Grammars
    """Makes what an answer must follow."""
    answer_format: AnswerFormat
    """How the model writes calls and reasoning."""
    detokenizer: Callable[[], Detokenizer]
    """Makes the state of one generation's text, as the engine does."""
    context_length: int
    """Positions one request may use, prompt and answer together."""
    n_params: int
    quantisation: str
    architecture: str
    created: int
    """Unix time of the model file."""
    kernel_provider: str
    """``auto`` or ``portable``, or the name of the kernels that ``auto`` chose."""
    cpu_features: tuple[str, ...]
    longest_token: int | None = None
    """Most characters of text that one token stands for; None where text can vanish without a token."""
    turn_stops: tuple[str, ...] = ()
    """What ends an assistant's turn where the prompt format has no token for it."""
    memory: MemoryCeiling | None = None
    """None where nobody has computed it."""


@dataclass(slots=True)
class ServerState:
    """What changes while the server runs."""

    model: LoadedModel | None
    draining: bool = False

    @property
    def unready_reason(self) -> str | None:
        """Why the server cannot generate, in one word for machines; None when it can."""
        if self.model is not None and not self.model.engine.healthy:
            return "engine_failed"
        if self.draining:
            return "draining"
        return "no_model" if self.model is None else None

    def ready_model(self) -> LoadedModel:
        """Return the model; raises the 503 ``ApiError`` when the server cannot generate."""
        reason = self.unready_reason
        if reason is not None or self.model is None:
            raise not_ready(reason or "no_model")
        return self.model
