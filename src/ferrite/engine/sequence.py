"""One request on its way: before it runs a ``Ticket``, while it runs a ``Sequence``."""

from dataclasses import dataclass, field

from ferrite.engine.events import Delta, Event, Finished, Timings, Usage
from ferrite.engine.generation import Channel
from ferrite.engine.request import GenerationRequest
from ferrite.engine.text import TextStream
from ferrite.kv import BlockTable
from ferrite.program.step import Sampler


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A submitted request and where its events go. Compared by identity."""

    request: GenerationRequest
    channel: Channel
    submitted_at: float


@dataclass(slots=True, eq=False)
class Sequence:
    """A running request. Only the engine thread touches it.

    The state is three positions: ``computed`` (KV is in the store for all before it), ``reported`` (all
    completion tokens before it went out in a delta) and ``total``, the number of known tokens;
    ``0 <= computed <= total`` and ``prompt length <= reported <= total``.
    """

    ticket: Ticket
    sampler: Sampler
    table: BlockTable
    text: TextStream
    granted_at: float
    tokens: list[int] = field(init=False)
    """Prompt, then completion."""
    computed: int = 0
    reported: int = field(init=False)
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.ticket.request.prompt_tokens)
        self.reported = len(self.tokens)

    @property
    def channel(self) -> Channel:
        """Where the events go."""
        return self.ticket.channel

    @property
    def total(self) -> int:
        """Known tokens, prompt and completion."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Known tokens whose KV is not computed; at least 1 while the sequence runs."""
        return self.total - self.computed

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.ticket.request.prompt_tokens)

    @property
    def is_prefilling(self) -> bool:
        """Nothing was sampled yet."""
        return self.total == self.prompt_length

    def advance(self, rows: int) -> None:
        """Note that the KV of ``rows`` more positions is in the store."""
        if not 0 < rows <= self.pending:
            raise ValueError(f"{rows} rows computed, {self.pending} pending")
        self.computed += rows

    def accept(self, token: int, now: float) -> list[Event]:
        """Append a sampled token; returns what to tell the reader, a ``Finished`` last if this ends it."""
        request = self.ticket.request
        self.tokens.append(token)
        if self.first_token_at is None:
            self.first_token_at = now
        ended = token in request.end_ids and not request.ignore_end
        text = "" if token in request.end_ids else self.text.push(token)
        completed = self.total - self.prompt_length
        if not ended and self.text.stop is None and completed < request.max_tokens:
            return [self._delta(text, self.total)] if text else []
        if self.text.stop is None:
            text += self.text.finish()
        visible = self.total - 1 if ended else self.total
        finished = Finished(
            reason="stop" if ended or self.text.stop is not None else "length",
            usage=Usage(self.prompt_length, completed),
            timings=Timings(
                queue_seconds=self.granted_at - self.ticket.submitted_at,
                prefill_seconds=self.first_token_at - self.granted_at,
                decode_seconds=now - self.first_token_at,
            ),
            token_ids=tuple(self.tokens[self.prompt_length : visible]),
            stop_string=self.text.stop,
        )
        if text or self.reported < visible:
            return [self._delta(text, visible), finished]
        return [finished]

    def _delta(self, text: str, stop: int) -> Delta:
        token_ids = tuple(self.tokens[self.reported : stop])
        self.reported = stop
        return Delta(text, token_ids)
