"""Patterns of ECMA 262 in the compiler's syntax."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.grammar import GrammarError
from ferrite.grammar.patterns import translate
from tests.grammar.support import allows, generate, of_schema


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        (r"^a\!b$", r"^a\!b$"),
        (r"a\/b", "a/b"),
        (r"\cA\0", r"\x01\x00"),
        ("{a}", r"\{a\}"),
        ("a{2}b{3,}c{4,5}d{,6}", r"a{2}b{3,}c{4,5}d\{,6\}"),
        (r"\p{L}\u{e9}", r"\p{L}\u{e9}"),
        ("[[a]", r"[\[a]"),
        ("[a-z&&[b]", r"[a-z\&\&\[b]"),
        ("[+--]", r"[+-\-]"),
        (r"[\b\/]", r"[\x08/]"),
        ("[]a[^]", r"[^\s\S]a[\s\S]"),
        (r"\Aa\Z", "^a$"),
        ("a.b", r"a[^\n\r\u2028\u2029]b"),
        ("[.]", "[.]"),
        ("(?:a)(?<n>b)(?P<m>c)", "(?:a)(?<n>b)(?P<m>c)"),
    ],
)
def test_translations(pattern: str, translated: str) -> None:
    assert translate(pattern) == translated


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("^(?=.{3,9}$)[a-z]+$", r"look-around \(\?="),
        ("a(?!b)", r"look-around \(\?!"),
        ("(?<=a)b", r"look-around \(\?<="),
        ("(?<!a)b", r"look-around \(\?<!"),
        (r"(a)\1", "back-references"),
        (r"(?<x>a)\k<x>", "back-references"),
        (r"\bfoo", r"word boundary \\b"),
        ("(?i)a", r"the group \(\?i"),
        ("a[b", "has no end"),
        ("a\\", r"ends with a '\\'"),
        ("(" * 65 + ")" * 65, "deeper than 64"),
        ("(" * 5000, "5000 characters, the limit is 2048"),
    ],
)
def test_what_cannot_be_enforced_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translate(pattern)
    with pytest.raises(GrammarError, match=reason) as caught:
        of_schema({"type": "array", "items": {"type": "string", "pattern": pattern}})
    assert (caught.value.keyword, caught.value.path) == ("pattern", "#/items")


ANCHORED = [
    r"^(\d+|id:[a-z-]+)$",
    r"^a\!b$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    r"^(a$|b$)",
    r"^[^\s\d]{2,5}$",
    r"^{\w}$",
    r"^(?:[A-F0-9]{2}:){3}[A-F0-9]{2}$",
    r"^é{1,2}$",
    r"^(|ab)$",
    r"^.?$",
]
PATTERNS = [*ANCHORED, r"\S", "x.?y", "a|^b$", "^(a$|b)", r"[.]"]


@pytest.mark.parametrize("pattern", ANCHORED)
def test_what_a_pattern_generates_matches_it(pattern: str) -> None:
    grammar = of_schema(
        {
            "type": "object",
            "properties": {
                "v": {
                    "type": "array",
                    "items": {"pattern": pattern, "type": "string"},
                    "minItems": 2,
                    "maxItems": 4,
                }
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    )
    for seed in range(3):
        for text in json.loads(generate(grammar, seed, wander=20))["v"]:
            assert re.search(pattern, text), (pattern, text)


@given(st.text(st.sampled_from("ab@.-:id1 é\n"), max_size=8), st.sampled_from(PATTERNS))
def test_a_text_is_allowed_exactly_when_it_matches(text: str, pattern: str) -> None:
    grammar = of_schema({"type": "string", "pattern": pattern})
    # Of ECMA 262, whose $ does not look past a last line break.
    matches = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    assert allows(grammar, json.dumps(text, ensure_ascii=False)) == matches
