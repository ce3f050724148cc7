"""Finish sources: the budget, a stop string, the model's own end token."""

from collections.abc import Sequence

from ferrite.operations.client import Exchange
from ferrite.operations.gate.conversation import Turn
from ferrite.operations.gate.prompts import END_QUESTIONS
from ferrite.operations.gate.session import CHAT, Session, outline
from ferrite.operations.gate.settings import FINISHES, GateSettings

SECTION = "finish"
TINY_BUDGET = 2
END_BUDGET = 64
_STOP_CHARACTERS = 4


def describe(settings: GateSettings) -> list[str]:
    """Return what the section would send."""
    required = ", ".join(name for name in FINISHES if name in settings.require_finish) or "none"
    return [
        f"1 chat of {TINY_BUDGET} tokens, to end by length",
        "1 streamed chat with a stop string taken from the middle of its known answer",
        f"up to {len(END_QUESTIONS)} chats of at most {END_BUDGET} tokens, until the model ends one itself",
        f"required to be seen: {required}",
    ]


async def check_finishes(session: Session, conversation: Sequence[Turn]) -> None:
    """Bring about each way to end, as far as the model goes along."""
    turns = [turn for turn in conversation if turn.exchange.ok]
    seen = {"length": False, "stop_string": False, "end_token": False}
    if turns:
        seen["length"] = await _by_length(session, turns[0])
        seen["stop_string"] = await _by_stop_string(session, turns)
        seen["end_token"] = await _by_end_token(session, turns)
    found = [name for name in FINISHES if seen[name]]
    session.record.remark(SECTION, f"seen: {', '.join(found) or 'none'}")
    for name in FINISHES:
        if name in session.settings.require_finish:
            session.record.check(SECTION, f"{name} was seen", passed=seen[name], seen=found)


def stop_string(text: str) -> str | None:
    """Return a piece of the middle of ``text`` to stop at; None where there is none to be had."""
    middle = len(text) // 2
    piece = text[middle : middle + _STOP_CHARACTERS]
    return piece if middle > 0 and piece.strip() and "\ufffd" not in piece else None


def ended_itself(exchange: Exchange) -> bool:
    """Return whether an answer without stop strings ended by the end token, which counts but has no id.

    Without ids nobody can tell: the server leaves them out where its template ends turns by stop strings.
    """
    answer, usage = exchange.answer, exchange.answer.usage
    if not exchange.ok or answer.finish_reason != "stop" or usage is None or answer.token_ids is None:
        return False
    return len(answer.token_ids) == usage.completion - 1


async def _by_length(session: Session, turn: Turn) -> bool:
    exchange = await session.ask(CHAT, messages=turn.messages, max_tokens=TINY_BUDGET)
    usage = exchange.answer.usage
    by_length = exchange.answer.finish_reason == "length"
    completion = 0 if usage is None else usage.completion
    passed = exchange.ok and (completion == TINY_BUDGET if by_length else 1 <= completion <= TINY_BUDGET)
    session.record.check(SECTION, "a tiny budget ends the answer", passed=passed, **outline(exchange))
    return by_length and passed


async def _by_stop_string(session: Session, turns: Sequence[Turn]) -> bool:
    for turn in turns:
        text = turn.exchange.answer.text
        stop = stop_string(text)
        if stop is None:
            continue
        exchange = await session.ask(
            CHAT,
            messages=turn.messages,
            max_tokens=session.settings.max_tokens,
            stop=[stop],
            stream=True,
            stream_options={"include_usage": True},
        )
        answer, usage = exchange.answer, exchange.answer.usage
        before = turn.exchange.answer.usage
        passed = (
            exchange.ok
            and answer.finish_reason == "stop"
            and answer.text == text[: text.index(stop)]
            and usage is not None
            and before is not None
            and usage.completion <= before.completion
        )
        session.record.check(
            SECTION, "a stop string ends the answer before it", passed=passed, **outline(exchange)
        )
        return passed
    return False


async def _by_end_token(session: Session, turns: Sequence[Turn]) -> bool:
    if any(ended_itself(turn.exchange) for turn in turns):
        return True
    budget = await session.accepted_budget(END_BUDGET)
    for text in END_QUESTIONS:
        exchange = await session.ask(CHAT, messages=[{"role": "user", "content": text}], max_tokens=budget)
        if ended_itself(exchange):
            return True
    return False
