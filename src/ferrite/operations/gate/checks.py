"""Checks with their evidence, and the proof log that keeps them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. Evidence holds numbers, codes and digests, never generated text."""

    section: str
    name: str
    outcome: Outcome
    evidence: Mapping[str, Any]


class Record:
    """All checks of one run, written to the proof log as they are made."""

    def __init__(self, log: TextIO | None = None) -> None:
        """``log`` gets one JSON object a line."""
        self._log = log
        self.checks: list[Check] = []
        self.remarks: list[tuple[str, str]] = []
        """Sections, and what a person should know of them besides the outcome."""

    def note(self, event: str, **fields: Any) -> None:
        """Write a line that is no check."""
        if self._log is not None:
            self._log.write(json.dumps({"event": event, **fields}) + "\n")
            # What was proven before a crash must be in the file.
            self._log.flush()

    def remark(self, section: str, text: str) -> None:
        """Keep something that was found out and is neither right nor wrong."""
        self.remarks.append((section, text))
        self.note("remark", section=section, text=text)

    def check(self, section: str, name: str, *, passed: bool | None, **evidence: Any) -> bool:
        """Keep a check; ``passed`` None is inconclusive. Returns whether it passed."""
        outcome: Outcome = "inconclusive" if passed is None else "passed" if passed else "failed"
        self.checks.append(Check(section, name, outcome, evidence))
        self.note("check", section=section, name=name, outcome=outcome, evidence=evidence)
        return outcome == "passed"

    def outcome(self, section: str) -> Outcome | None:
        """Return the worst outcome of a section's checks; None when there were none."""
        outcomes = {check.outcome for check in self.checks if check.section == section}
        for worst in ("failed", "inconclusive", "passed"):
            if worst in outcomes:
                return worst
        return None

    def sections(self) -> Iterator[str]:
        """Yield the sections in the order of their first checks."""
        yield from dict.fromkeys(check.section for check in self.checks)


def verdict(record: Record, require_probes: frozenset[str]) -> list[str]:
    """Return why the gate fails, one line each; nothing when it passes."""
    problems = [
        f"{check.section}: {check.name}: {check.outcome}"
        for check in record.checks
        if check.outcome != "passed"
    ]
    missing = [probe for probe in sorted(require_probes) if record.outcome(probe) is None]
    problems += [f"{probe}: required, but did not run" for probe in missing]
    return problems or ([] if record.checks else ["nothing was checked"])
