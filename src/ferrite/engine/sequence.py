"""One request on its way: before it runs a ``Ticket``, while it runs a ``Sequence``."""

from dataclasses import dataclass, field, replace
from typing import Literal

from ferrite.engine.drafts import Drafter
from ferrite.engine.errors import GenerationFailed
from ferrite.engine.events import CacheTrace, Delta, Finished, Timings, TokenLogprob, Usage
from ferrite.engine.generation import Channel
from ferrite.engine.request import GenerationRequest
from ferrite.engine.text import TextStream
from ferrite.grammar import Constraint
from ferrite.kv import BlockTable
from ferrite.program.step import Logprobs, MaskSlot, Sampler, Scorer

NOT_FINITE = "the model produced non-finite logits"


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

    Sequences with equal prompts are evaluated once: the first one leads, the others wait with empty tables
    until its last prompt row gives all of them their logits.
    """

    ticket: Ticket
    sampler: Sampler
    table: BlockTable
    text: TextStream
    granted_at: float
    cache: CacheTrace
    guide: tuple[Constraint, MaskSlot] | None = None
    """The grammar that the answer follows, and where the sampler waits for its masks."""
    drafter: Drafter | None = None
    """Guesses what comes next; None for a sequence without drafts."""
    scorer: Scorer | None = None
    """Of the prompt rows in the running step, for a request that scores its prompt."""
    channel: Channel = field(init=False)
    """Where the events go: the ticket's."""
    prompt_length: int = field(init=False)
    """Tokens of the prompt."""
    tokens: list[int] = field(init=False)
    """Prompt, then completion."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the completion's tokens, if asked for."""
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    """Of the prompt's tokens that are scored; None for the first, and where logits were not finite."""
    computed: int = 0
    reported: int = field(init=False)
    first_token_at: float | None = None
    last_token_at: float | None = None
    reason: Literal["stop", "length"] | None = None
    """Why the generation ended; None while it runs."""
    leader: "Sequence | None" = None
    """Who evaluates this sequence's prompt; None when it does so itself, or has its first token."""
    followers: list["Sequence"] = field(default_factory=list)
    """Whose prompt this sequence evaluates beside its own, oldest first."""

    def __post_init__(self) -> None:
        self.channel = self.ticket.channel
        self.tokens = list(self.ticket.request.prompt_tokens)
        self.prompt_length = self.reported = len(self.tokens)

    @property
    def total(self) -> int:
        """Known tokens, prompt and completion."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Known tokens whose KV is not computed; at least 1 while the sequence runs."""
        return len(self.tokens) - self.computed

    @property
    def most_drafted(self) -> int:
        """Tokens that may come at once beside the next: within the request's budget and its reader's room."""
        left = self.ticket.request.max_tokens - (self.total - self.prompt_length)
        return max(min(left, self.channel.room) - 1, 0)

    @property
    def is_prefilling(self) -> bool:
        """Nothing was sampled yet."""
        return len(self.tokens) == self.prompt_length

    def restore(self, table: BlockTable, cached_tokens: int, entry_tokens: int) -> None:
        """Begin behind a cached prefix of the prompt, whose KV is in ``table``."""
        self.table = table
        self.computed = cached_tokens
        self.cache = replace(
            self.cache, outcome="hit", cached_tokens=cached_tokens, entry_tokens=entry_tokens
        )

    def follow(self, leader: "Sequence") -> None:
        """Leave the evaluation of the prompt to ``leader``, which has an equal one and no leader."""
        self.leader = leader
        leader.followers.append(self)
        self.cache = replace(leader.cache, shared=True)

    def part(self) -> None:
        """Leave the group. A leader hands what it has computed to its first follower, which goes on."""
        if self.leader is not None:
            self.leader.followers.remove(self)
            self.leader = None
        if self.followers:
            heir, *others = self.followers
            heir.leader, heir.followers, self.followers = None, others, []
            for other in others:
                other.leader = heir
            heir.table, self.table = self.table, heir.table
            heir.computed = self.computed

    def share_prefill(self) -> None:
        """Give every follower the KV of the prompt, which is computed. All go on by themselves."""
        for follower in self.followers:
            follower.leader = None
            follower.table = self.table.share()
            follower.computed = self.computed
        if self.followers:
            self.cache = replace(self.cache, shared=True)
            self.followers = []

    def note_stored(self) -> None:
        """Note that the cache keeps what this sequence has computed."""
        self.cache = replace(self.cache, stored=True)

    def advance(self, rows: int) -> None:
        """Note that the KV of ``rows`` more positions is in the store."""
        pending = len(self.tokens) - self.computed
        if not 0 < rows <= pending:
            raise ValueError(f"{rows} rows computed, {pending} pending")
        self.computed += rows
        if self.scorer is not None:
            for found in self.scorer.logprobs:
                token = self.tokens[len(self.prompt_logprobs)]
                self.prompt_logprobs.append(None if found is None else _token_logprob(token, found))
            self.scorer = None

    def accept(self, token: int, now: float, *, number: int = 0) -> Delta | None:
        """Append a sampled token; returns what it adds to the answer. Sets ``reason`` if this ends it.

        ``number``: how many tokens came before it in the same step.
        Raises ``ConstraintError`` when the grammar cannot go on with it.
        """
        request = self.ticket.request
        self.tokens.append(token)
        if request.top_logprobs is not None:
            self.logprobs.append(_token_logprob(token, self.sampler.logprobs[number]))
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        ended = token in request.end_ids and not request.ignore_end
        complete = ended
        if self.guide is not None:
            constraint, _ = self.guide
            constraint.accept(token)
            complete = ended or constraint.is_complete
        text = "" if token in request.end_ids else self.text.push(token)
        total = len(self.tokens)
        exhausted = total - self.prompt_length >= request.max_tokens
        if not complete and not exhausted and self.text.stop is None:
            return self._delta(text, total) if text else None
        return self._end(text, total - 1 if ended else total, "stop" if complete else "length")

    def scores(self) -> tuple[TokenLogprob | None, ...] | None:
        """Return how likely the prompt's tokens were, once all are evaluated; None unless asked for.

        Raises ``GenerationFailed`` when one of them could not be scored.
        """
        if not self._is_scored:
            return None
        if None in self.prompt_logprobs[1:]:
            raise GenerationFailed(NOT_FINITE)
        return tuple(self.prompt_logprobs)

    def end(self, reason: Literal["stop", "length"]) -> Delta | None:
        """End without another token; returns what was held back."""
        return self._end("", self.total, reason)

    def finished(self, now: float) -> Finished:
        """Return the last event of a generation that ended; raises as ``scores`` does."""
        if self.reason is None:
            raise ValueError("the generation has not ended")
        first_token_at = now if self.first_token_at is None else self.first_token_at
        last_token_at = now if self.last_token_at is None else self.last_token_at
        return Finished(
            reason=self.reason,
            usage=Usage(self.prompt_length, self.total - self.prompt_length, self.cache.cached_tokens),
            timings=Timings(
                queue_seconds=self.granted_at - self.ticket.submitted_at,
                prefill_seconds=first_token_at - self.granted_at,
                decode_seconds=last_token_at - first_token_at,
            ),
            token_ids=tuple(self.tokens[self.prompt_length : self.reported]),
            stop_string=self.text.stop,
            cache=self.cache,
            prompt_logprobs=self.scores(),
        )

    @property
    def _is_scored(self) -> bool:
        return self.ticket.request.prompt_logprobs and len(self.prompt_logprobs) == self.prompt_length

    def _end(self, text: str, visible: int, reason: Literal["stop", "length"]) -> Delta | None:
        if self.text.stop is None:
            text += self.text.finish()
        self.reason = reason if self.text.stop is None else "stop"
        return self._delta(text, visible) if text or self.reported < visible else None

    def _delta(self, text: str, stop: int) -> Delta:
        start, self.reported = self.reported, stop
        token_ids = tuple(self.tokens[start:stop])
        if not self.logprobs:
            return Delta(text, token_ids)
        first = start - self.prompt_length
        return Delta(text, token_ids, tuple(self.logprobs[first : first + len(token_ids)]))


def _token_logprob(token: int, found: Logprobs) -> TokenLogprob:
    logprob, top = found
    return TokenLogprob(token, logprob, tuple(top))
