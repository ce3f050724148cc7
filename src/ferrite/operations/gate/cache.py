"""Cache accounting: ``cached_tokens`` says what was really reused, and reuse changes no answer."""

from collections.abc import Sequence
from typing import Any

from ferrite.operations.gate.conversation import Turn, same_answer
from ferrite.operations.gate.session import CHAT, Session, outline
from ferrite.operations.gate.settings import GateSettings

SECTION = "cache"


def describe(settings: GateSettings) -> list[str]:
    """Return what the section would send."""
    if settings.prompt_cache_key is None:
        return ["nothing more: without --prompt-cache-key no turn may report cached tokens"]
    return [
        f"both conversations carry a new prompt_cache_key each, {settings.prompt_cache_key}-<random>",
        "1 chat: the last turn without a key, which must give the same answer with no cached token",
    ]


async def check_cache(session: Session, runs: Sequence[Sequence[Turn]]) -> None:
    """Check what the turns of each conversation (one namespace each) reported."""
    check = session.record.check
    enabled = (await session.counters()).prefix_cache
    words = {True: "on", False: "off", None: "not told"}
    session.record.remark(SECTION, f"the server's prefix cache is {words[enabled]}")
    if session.settings.prompt_cache_key is None:
        enabled = False
    for run, turns in zip(("whole", "streamed"), runs, strict=True):
        counts = cache_counts(turns)
        if enabled is None:
            problems, passed = ["/v1/stats does not tell whether there is a cache"], None
        else:
            problems = cache_problems(counts, enabled=enabled)
            passed = not problems
        check(SECTION, f"cached tokens of the {run} turns", passed=passed, turns=counts, problems=problems)
    last = runs[0][-1] if runs[0] else None
    if session.settings.prompt_cache_key is None or last is None or not last.exchange.ok:
        return
    cold = await session.ask(CHAT, messages=last.messages, max_tokens=session.settings.max_tokens)
    usage = cold.answer.usage
    passed = cold.ok and same_answer(cold, last.exchange) and usage is not None and not usage.cached
    check(SECTION, "the last turn without a key is the same answer, computed", passed=passed, **outline(cold))


def cache_counts(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return prompt, completion and cached tokens of each turn; None where the answer does not say."""
    counts = []
    for turn in turns:
        usage = turn.exchange.answer.usage
        counts.append(
            {
                "prompt": None if usage is None else usage.prompt,
                "completion": None if usage is None else usage.completion,
                "cached": None if usage is None else usage.cached,
            }
        )
    return counts


def cache_problems(counts: Sequence[dict[str, Any]], *, enabled: bool) -> list[str]:
    """Return what is wrong with the turns of one conversation whose namespace was new."""
    problems = []
    known = 0
    for number, row in enumerate(counts, 1):
        prompt, completion, cached = row["prompt"], row["completion"], row["cached"]
        if prompt is None or completion is None:
            problems.append(f"turn {number} has no usage")
        elif not enabled:
            if cached:
                problems.append(f"turn {number} reports {cached} cached tokens, and there is no cache to use")
        elif cached is None:
            problems.append(f"turn {number} does not say how many tokens were cached")
        elif number == 1 and cached != 0:
            problems.append(f"turn 1 reports {cached} cached tokens under a new key")
        elif number > 1 and not 0 < cached <= min(prompt - 1, known):
            most = min(prompt - 1, known)
            problems.append(f"turn {number} reports {cached} cached tokens, right is 1 to {most}")
        known = (prompt or 0) + (completion or 0)
    return problems
