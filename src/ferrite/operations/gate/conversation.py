"""Multi-turn continuity: the whole history is sent again each turn, and the server keeps nothing else.

A conversation is held twice, once with whole answers and once streamed. What a turn costs is measured
apart, in a short conversation with the same last two messages, so that a history that was cut, doubled or
remembered shows in ``prompt_tokens`` without a tokenizer on this side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite.operations.client import Exchange
from ferrite.operations.gate.prompts import SYSTEM, question
from ferrite.operations.gate.session import CHAT, Session, outline
from ferrite.operations.gate.settings import GateSettings

SECTION = "conversation"
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: all that was sent, and the answer."""

    messages: tuple[Message, ...]
    exchange: Exchange

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of everything that was sent."""
        usage = self.exchange.answer.usage
        return None if usage is None else usage.prompt

    @property
    def reply(self) -> Message:
        """The answer as it stands in the history."""
        return {"role": "assistant", "content": self.exchange.answer.text}


def describe(settings: GateSettings) -> list[str]:
    """Return what the section would send."""
    return [
        f"{settings.turns} chat turns of at most {settings.max_tokens} tokens, whole answers",
        f"system message: {SYSTEM}",
        *(f"turn {index + 1}: {question(index)}" for index in range(settings.turns)),
        f"the same {settings.turns} turns again, streamed: same ids, text and usage",
        f"{max(settings.turns - 2, 0)} requests of 1 token that measure what each turn adds to the prompt",
    ]


async def converse(session: Session, *, stream: bool, cache_key: str | None) -> list[Turn]:
    """Hold the conversation; it ends early at a turn that fails."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    turns: list[Turn] = []
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    if cache_key is not None:
        options["prompt_cache_key"] = cache_key
    for index in range(session.settings.turns):
        messages.append({"role": "user", "content": question(index)})
        exchange = await session.ask(
            CHAT, messages=messages, max_tokens=session.settings.max_tokens, **options
        )
        turns.append(Turn(tuple(messages), exchange))
        if not exchange.ok:
            break
        messages.append(turns[-1].reply)
    return turns


async def check_conversation(session: Session, whole: Sequence[Turn], streamed: Sequence[Turn]) -> None:
    """Check both runs of the conversation."""
    check = session.record.check
    for number, turn in enumerate(whole, 1):
        problems = answer_problems(turn.exchange, session.settings.max_tokens)
        check(
            SECTION,
            f"turn {number} is answered",
            passed=not problems,
            problems=problems,
            **outline(turn.exchange),
        )
    if len(whole) < session.settings.turns:
        return
    for number in range(2, len(whole) + 1):
        before, turn = whole[number - 2], whole[number - 1]
        grown = difference(turn.prompt_tokens, before.prompt_tokens)
        measured = await _pair_tokens(session, whole[0], before, turn)
        passed = grown is not None and grown == measured and grown > 0
        check(
            SECTION,
            f"turn {number} adds its messages to the prompt",
            passed=passed,
            grown=grown,
            measured=measured,
        )
    for number, turn in enumerate(whole, 1):
        again = streamed[number - 1].exchange if number <= len(streamed) else None
        same = again is not None and again.ok and same_answer(turn.exchange, again)
        evidence = {} if again is None else outline(again)
        check(SECTION, f"turn {number} streamed is the same answer", passed=same, **evidence)


def answer_problems(exchange: Exchange, budget: int) -> list[str]:
    """Return what is wrong with an answer, in short words."""
    answer, usage = exchange.answer, exchange.answer.usage
    if not exchange.ok:
        return ["no answer"]
    if usage is None:
        return ["no usage"]
    problems = []
    if not answer.text.strip():
        problems.append("empty text")
    if answer.finish_reason not in ("stop", "length"):
        problems.append("unknown finish reason")
    if not 1 <= usage.completion <= budget:
        problems.append("completion tokens outside the budget")
    if answer.finish_reason == "length" and usage.completion != budget:
        problems.append("ended by length before the budget")
    if usage.prompt < 1 or usage.total != usage.prompt + usage.completion:
        problems.append("usage does not add up")
    # The end token counts and is not among the ids.
    hidden = 1 if answer.finish_reason == "stop" else 0
    ids = answer.token_ids
    if ids is not None and not usage.completion - hidden <= len(ids) <= usage.completion:
        problems.append("ids and completion tokens differ")
    return problems


def same_answer(one: Exchange, other: Exchange) -> bool:
    """Return whether two answers have the same text, ids, end and counts; what was cached may differ."""
    first, second = one.answer, other.answer
    if first.usage is None or second.usage is None:
        return False
    return (
        first.text == second.text
        and first.token_ids == second.token_ids
        and first.finish_reason == second.finish_reason
        and first.usage.prompt == second.usage.prompt
        and first.usage.completion == second.usage.completion
    )


def difference(later: int | None, earlier: int | None) -> int | None:
    """Return ``later - earlier``; None where one is not known."""
    return None if later is None or earlier is None else later - earlier


async def _pair_tokens(session: Session, first: Turn, before: Turn, turn: Turn) -> int | None:
    """Return what the last answer and the next question cost behind the first turn instead."""
    short = [*first.messages, before.reply, turn.messages[-1]]
    exchange = (
        turn.exchange
        if tuple(short) == turn.messages
        else await session.ask(CHAT, messages=short, max_tokens=1)
    )
    usage = exchange.answer.usage
    return difference(None if usage is None else usage.prompt, first.prompt_tokens)
