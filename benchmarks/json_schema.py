"""How much of JSON Schema the grammars decide right, on the public test suite of json-schema.org.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite   # MIT licence
    python benchmarks/json_schema.py JSON-Schema-Test-Suite --draft 2020-12
    python benchmarks/json_schema.py JSON-Schema-Test-Suite --peer-python PEER/bin/python --peer-model M.gguf

Every instance of the suite, with its properties in all orders, its numbers in two spellings, and with and
without a space behind commas and colons, is walked through the grammar of its schema, byte by byte. A valid
one is decided right when one of its spellings is allowed, an invalid one when none is. A refused schema
decides nothing, since the server answers 400 to it: it is counted apart, by keyword.

With a Python that has llama-cpp-python, the same is asked of llama.cpp's converter and grammars, in a
process of its own: what it refuses, crashes on or does not answer in time counts as refused.
"""

import argparse
import itertools
import json
import select
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ferrite.gguf import PackedBytes
from ferrite.grammar import ConstraintError, Grammar, GrammarCompiler, GrammarError
from ferrite.tokenizer import load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET

MAX_SPELLINGS = 120
PEER_SECONDS = 20.0
"""For one schema and all its instances."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A value of the suite, and its spellings without and with spaces."""

    description: str
    value: object
    is_valid: bool
    compact: list[str]
    spaced: list[str]


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the suite and its instances."""

    file: str
    description: str
    schema: object
    instances: list[Instance]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which texts the grammar of a schema has; none where it was refused."""

    allowed: list[bool]
    refusal: str | None = None


@dataclass(slots=True)
class Tally:
    """What came of all cases."""

    schemas: int = 0
    accepted: int = 0
    counts: Counter[tuple[bool, str]] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    """Valid instances of accepted schemas that are allowed without spaces, and with them."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → instances."""
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Case, verdict: Verdict) -> None:
        """Count one case."""
        self.schemas += 1
        if verdict.refusal is not None:
            self.refused[verdict.refusal] += len(case.instances)
            for instance in case.instances:
                self.counts[instance.is_valid, "refused"] += 1
            return
        self.accepted += 1
        allowed = iter(verdict.allowed)
        for instance in case.instances:
            compact = any(list(itertools.islice(allowed, len(instance.compact))))
            spaced = any(list(itertools.islice(allowed, len(instance.spaced))))
            right = (compact or spaced) == instance.is_valid
            self.counts[instance.is_valid, "right" if right else "wrong"] += 1
            if instance.is_valid:
                self.forms["compact"] += compact
                self.forms["spaced"] += spaced
            if not right:
                self.wrong.append(
                    f"{case.file}: {case.description}: {instance.description} {json.dumps(case.schema)} "
                    f"{json.dumps(instance.value)} {'valid' if instance.is_valid else 'invalid'}"
                )

    def lines(self, name: str) -> Iterator[str]:
        """Yield the report."""
        yield f"{name}: {self.accepted} of {self.schemas} schemas accepted"
        for is_valid in (True, False):
            right, wrong, refusals = (self.counts[is_valid, kind] for kind in ("right", "wrong", "refused"))
            kind = "valid" if is_valid else "invalid"
            share = right / max(right + wrong, 1)
            yield f"  {kind}: {right} of {right + wrong} decided right ({share:.1%}), {refusals} refused"
        forms = ", ".join(f"{count} {form}" for form, count in self.forms.items())
        yield f"  valid ones allowed: {forms}"
        refused = ", ".join(f"{reason} {count}" for reason, count in self.refused.most_common(20))
        yield f"  refused: {refused}"


class ByteVocabulary:
    """Metadata of a vocabulary of the 256 bytes and one end token."""

    VALUES: ClassVar[dict[str, Any]] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTE_ALPHABET.values(), "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 256,
    }

    def __contains__(self, key: str) -> bool:
        return key in self.VALUES

    def value(self, key: str) -> Any:
        return self.VALUES[key]

    def packed_strings(self, key: str) -> PackedBytes:
        return PackedBytes.of(map(str.encode, self.value(key)))

    string = integer = boolean = integers = numbers = value


def spellings(value: object, space: str = "") -> Iterator[str]:
    """Yield ways to write a value as JSON: properties in every order, whole numbers without a fraction."""
    comma, colon = f",{space}", f":{space}"
    match value:
        case dict():
            for names in itertools.permutations(value):
                parts = [
                    [
                        f"{json.dumps(name, ensure_ascii=False)}{colon}{text}"
                        for text in spellings(value[name], space)
                    ]
                    for name in names
                ]
                yield from ("{" + comma.join(chosen) + "}" for chosen in itertools.product(*parts))
        case list():
            parts = [list(spellings(part, space)) for part in value]
            yield from ("[" + comma.join(chosen) + "]" for chosen in itertools.product(*parts))
        case float() if value.is_integer() and abs(value) <= 2**53:
            yield from (str(int(value)), json.dumps(value))
        case _:
            yield json.dumps(value, ensure_ascii=False)


def load_cases(suite: Path, draft: str) -> Iterator[Case]:
    """Yield the suite's schemas with their instances."""
    for file in sorted((suite / "tests" / f"draft{draft}").glob("*.json")):
        for group in json.loads(file.read_text()):
            instances = []
            for test in group["tests"]:
                compact, spaced = (
                    list(itertools.islice(spellings(test["data"], space), MAX_SPELLINGS))
                    for space in ("", " ")
                )
                instances.append(Instance(test["description"], test["data"], test["valid"], compact, spaced))
            yield Case(file.name, group["description"], group["schema"], instances)


class Ferrite:
    """Our grammars."""

    def __init__(self) -> None:
        self._compiler = GrammarCompiler(load_tokenizer(ByteVocabulary()))

    def decide(self, schema: object, texts: list[str]) -> Verdict:
        """Compile the schema and walk the texts through it."""
        as_object = schema if isinstance(schema, dict) else {"allOf": [schema]}
        try:
            grammar = self._compiler.compile_json_schema(as_object, strict=False)
        except GrammarError as error:
            return Verdict([], error.keyword or error.reason)
        return Verdict([_allows(grammar, text) for text in texts])


def _allows(grammar: Grammar, text: str) -> bool:
    constraint = grammar.constraint()
    words = np.zeros(9, dtype=np.uint32)
    try:
        for token in [*text.encode(), 256]:
            if not constraint.fill_mask(words) or not words[token // 32] >> token % 32 & 1:
                return False
            constraint.accept(token)
    except ConstraintError:
        return False
    return True


class LlamaCpp:
    """llama.cpp's converter and grammars, in another process, which may crash."""

    def __init__(self, python: Path, model: Path) -> None:
        self._command = [str(python), str(Path(__file__).with_name("gbnf_worker.py")), str(model)]
        self._process: subprocess.Popen[bytes] | None = None

    def decide(self, schema: object, texts: list[str]) -> Verdict:
        """Ask the process, and start another one when it is gone or too slow."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        try:
            process.stdin.write(json.dumps({"schema": schema, "texts": texts}).encode() + b"\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], PEER_SECONDS)[0]:
                line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self.close()
            return Verdict([], "crashed or took too long")
        answer = json.loads(line)
        refusal = answer["refusal"]
        return Verdict(answer["allowed"], None if refusal is None else refusal.partition(":")[0])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Print shares and what is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("--draft", default="2020-12", help="2020-12, 2019-09, 7, 6 or 4")
    parser.add_argument("--wrong", action="store_true", help="list the instances decided wrong")
    parser.add_argument("--peer-python", type=Path, help="Python that has llama-cpp-python")
    parser.add_argument("--peer-model", type=Path, help="GGUF file whose vocabulary llama.cpp uses")
    arguments = parser.parse_args()
    if (arguments.peer_python is None) != (arguments.peer_model is None):
        parser.error("--peer-python and --peer-model go together")
    deciders: dict[str, Callable[[object, list[str]], Verdict]] = {"ferrite": Ferrite().decide}
    peer = None
    if arguments.peer_python is not None:
        peer = LlamaCpp(arguments.peer_python, arguments.peer_model)
        deciders["llama.cpp"] = peer.decide
    tallies = {name: Tally() for name in deciders}
    for case in load_cases(arguments.suite, arguments.draft):
        texts = [text for instance in case.instances for text in (*instance.compact, *instance.spaced)]
        for name, decide in deciders.items():
            tallies[name].add(case, decide(case.schema, texts))
    if peer is not None:
        peer.close()
    for name, tally in tallies.items():
        print("\n".join(tally.lines(name)))
        if arguments.wrong:
            print("\n".join(tally.wrong))


if __name__ == "__main__":
    main()
