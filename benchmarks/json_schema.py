"""How much of JSON Schema the grammars decide right, on the public test suite of json-schema.org.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite   # MIT licence
    python benchmarks/json_schema.py JSON-Schema-Test-Suite --draft 2020-12

Every instance of the suite, with its properties in all orders and its numbers in two spellings, is walked
through the grammar of its schema, byte by byte. A valid one is decided right when one of its spellings is
allowed, an invalid one when none is. A refused schema decides nothing, since the server answers 400 to
it: it is counted apart, by keyword.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ferrite.grammar import ConstraintError, Grammar, GrammarCompiler, GrammarError
from ferrite.tokenizer import load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET

MAX_SPELLINGS = 120


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

    string = integer = boolean = strings = byte_strings = integers = numbers = value


def spellings(value: object) -> Iterator[str]:
    """Yield ways to write a value as JSON: properties in every order, whole numbers without a fraction."""
    match value:
        case dict():
            for names in itertools.permutations(value):
                parts = [
                    [f"{json.dumps(name, ensure_ascii=False)}:{text}" for text in spellings(value[name])]
                    for name in names
                ]
                yield from ("{" + ",".join(chosen) + "}" for chosen in itertools.product(*parts))
        case list():
            yield from ("[" + ",".join(chosen) + "]" for chosen in itertools.product(*map(spellings, value)))
        case float() if value.is_integer() and abs(value) < 2**53:
            yield from (str(int(value)), json.dumps(value))
        case _:
            yield json.dumps(value, ensure_ascii=False)


def allows(grammar: Grammar, text: str) -> bool:
    """Whether the text is an answer of the grammar."""
    constraint = grammar.constraint()
    words = np.zeros(9, dtype=np.uint32)
    for token in [*text.encode(), 256]:
        if not constraint.fill_mask(words) or not words[token // 32] >> token % 32 & 1:
            return False
        constraint.accept(token)
    return True


def main() -> None:
    """Print shares and what is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("--draft", default="2020-12", help="2020-12, 2019-09, 7, 6 or 4")
    parser.add_argument("--wrong", action="store_true", help="list the instances decided wrong")
    arguments = parser.parse_args()
    compiler = GrammarCompiler(load_tokenizer(ByteVocabulary()))
    counts: Counter[tuple[bool, str]] = Counter()
    refused: Counter[str] = Counter()
    for file in sorted((arguments.suite / "tests" / f"draft{arguments.draft}").glob("*.json")):
        for group in json.loads(file.read_text()):
            try:
                schema = group["schema"]
                as_object = schema if isinstance(schema, dict) else {"allOf": [schema]}
                grammar = compiler.compile_json_schema(as_object, strict=False)
            except GrammarError as error:
                for test in group["tests"]:
                    counts[test["valid"], "refused"] += 1
                refused[error.keyword or error.reason] += len(group["tests"])
                continue
            for test in group["tests"]:
                try:
                    texts = itertools.islice(spellings(test["data"]), MAX_SPELLINGS)
                    right = any(allows(grammar, text) for text in texts) == test["valid"]
                except ConstraintError:
                    right = False
                counts[test["valid"], "right" if right else "wrong"] += 1
                if arguments.wrong and not right:
                    case = f"{file.name}: {group['description']}: {test['description']}"
                    print(case, json.dumps(group["schema"]), json.dumps(test["data"]), test["valid"])
    for valid in (True, False):
        right, wrong, refusals = (counts[valid, outcome] for outcome in ("right", "wrong", "refused"))
        decided = right + wrong
        kind = "valid" if valid else "invalid"
        print(
            f"{kind}: {right} of {decided} decided right ({right / max(decided, 1):.1%}), {refusals} refused"
        )
    print("refused:", ", ".join(f"{keyword} {count}" for keyword, count in refused.most_common()))


if __name__ == "__main__":
    main()
