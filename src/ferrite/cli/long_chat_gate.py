"""``ferrite-long-chat-gate``: checks of a running server that end in one verdict."""

import argparse
import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, TextIO

from ferrite.operations.gate.checks import Record
from ferrite.operations.gate.run import GateResult, plan_lines, run_gate
from ferrite.operations.gate.settings import FINISHES, PROBES, GateSettings
from ferrite.operations.options import (
    ToolParser,
    UsageError,
    add_server_options,
    count,
    run_program,
    seconds,
    target_of,
    text,
)

PROGRAM = "ferrite-long-chat-gate"
USAGE_ERROR = 2
TIMEOUT_SECONDS = 120.0
_MAX_KEY_CHARACTERS = 400
"""The server takes 512; the run adds what makes the key new."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every option."""
    usual = GateSettings()
    parser = ToolParser(
        PROGRAM,
        "Check a running Ferrite server: multi-turn chats, finish sources, cache accounting, and how it "
        "takes errors, lost clients and overload. Without --execute it only says what it would send.",
    )
    add_server_options(parser, timeout_seconds=TIMEOUT_SECONDS)
    add = parser.add_argument
    add("--execute", action="store_true", help="send the requests")
    add(
        "--turns",
        metavar="N",
        type=count(1, 64),
        default=usual.turns,
        help="turns of the conversation (default: %(default)s)",
    )
    add(
        "--max-tokens",
        metavar="N",
        type=count(1, 4096),
        default=usual.max_tokens,
        help="token budget of a turn (default: %(default)s)",
    )
    add(
        "--prompt-cache-key",
        metavar="KEY",
        type=text,
        help="check the prefix cache; each run adds a random end, so that its keys are new",
    )
    add(
        "--require-finish",
        metavar="LIST",
        type=names(FINISHES),
        default=usual.require_finish,
        help=f"fail unless these ways to end were seen: {','.join(FINISHES)}",
    )
    for probe in PROBES:
        add(f"--{probe}-probe", action="store_true", help=f"run the {probe} probe")
    add(
        "--require-probes",
        metavar="LIST",
        type=names(PROBES),
        default=usual.require_probes,
        help=f"fail unless these probes ran and passed: {','.join(PROBES)}",
    )
    add(
        "--settle-seconds",
        metavar="SECONDS",
        type=seconds,
        default=usual.settle_seconds,
        help="how long the server may take to be idle behind a probe (default: %(default)s)",
    )
    add("--proof-log", metavar="FILE", help="write every check with its evidence, one JSON object a line")
    return parser


def names(known: Sequence[str]) -> Callable[[str], frozenset[str]]:
    """Read names separated by commas."""

    def read(written: str) -> frozenset[str]:
        found = [name.strip() for name in written.split(",")]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return frozenset(found)

    return read


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the gate; 0 when it passes, 1 when not, 2 for a wrong command line."""
    try:
        options = build_parser().parse_args(arguments)
        if options.version:
            sys.stdout.write(f"{PROGRAM} {version('ferrite-server')}\n")
            return 0
        target = target_of(options, environ)
        settings = _settings(options)
        if not options.execute:
            sys.stdout.write("".join(f"{line}\n" for line in plan_lines(settings)))
            sys.stdout.write(f"nothing was sent: --execute sends it to {target.base_url}\n")
            return 0
        with _proof_log(options.proof_log) as log:
            record = Record(log)
            record.note("gate", version=version("ferrite-server"), started_at=time.time())
            work = run_gate(target, options.model_id, settings, record, secrets.token_hex(8))
            result = asyncio.run(work)
    except UsageError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return USAGE_ERROR
    sys.stdout.write("".join(f"{line}\n" for line in summary_lines(result)))
    return 1 if result.problems else 0


def summary_lines(result: GateResult) -> list[str]:
    """Return what a person reads: a line for each section, what did not pass, the verdict."""
    record = result.record
    lines = []
    for section in record.sections():
        checks = [check for check in record.checks if check.section == section]
        passed = sum(check.outcome == "passed" for check in checks)
        lines.append(f"{section:14}{record.outcome(section):14}{passed} of {len(checks)} checks passed")
        lines += [f"  {text}" for about, text in record.remarks if about == section]
        lines += [
            f"  {check.outcome}: {check.name}: {dict(check.evidence)}"
            for check in checks
            if check.outcome != "passed"
        ]
    lines += [problem for problem in result.problems if problem.endswith("did not run")]
    verdict = "FAIL" if result.problems else "PASS"
    return [*lines, f"{verdict} in {result.seconds:.1f} s"]


def main() -> NoReturn:
    """Entry point of the command."""
    run_program(run)


def _settings(options: argparse.Namespace) -> GateSettings:
    key: str | None = options.prompt_cache_key
    if key is not None and len(key) > _MAX_KEY_CHARACTERS:
        raise UsageError(f"--prompt-cache-key is longer than {_MAX_KEY_CHARACTERS} characters")
    return GateSettings(
        turns=options.turns,
        max_tokens=options.max_tokens,
        prompt_cache_key=key,
        require_finish=options.require_finish,
        probes=frozenset(probe for probe in PROBES if getattr(options, f"{probe}_probe")),
        require_probes=options.require_probes,
        settle_seconds=options.settle_seconds,
    )


@contextmanager
def _proof_log(path: str | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(Path(path).open("w", encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--proof-log {path}: {error.strerror or error}") from None
        yield log


if __name__ == "__main__":
    main()
