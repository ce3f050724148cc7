"""A way through a grammar: masks, ends and bounds."""

import json

import numpy as np
import numpy.typing as npt
import pytest
from llguidance import LLParserLimits

from ferrite.grammar import Constraint, ConstraintError, GrammarCompiler, GrammarError
from ferrite.grammar import compiler as compiler_module
from ferrite.grammar import constraint as constraint_module
from ferrite.grammar.limits import MAX_OUTPUT_LEVELS
from tests.grammar.support import WORDS, allows, compiler, follows, next_tokens, of_schema, spelt, tokenizer
from tests.tokenizer.metadata import CONTROL, bytelevel, bytelevel_values

OBJECT = compiler().compile_json_object()
PERSON = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def after(text: str, constraint: Constraint | None = None) -> Constraint:
    constraint = constraint or OBJECT.constraint()
    for token in spelt(text):
        constraint.accept(token)
    return constraint


def ends(constraint: Constraint) -> frozenset[int]:
    return tokenizer().end_ids & set(next_tokens(constraint))


@pytest.mark.parametrize(
    "text", ["{}", '{"a":[1,-2.5e3,true,null,"\\u0007é"],"b":{}}', '{ "a": 1,\n    "b":\n\t2\n}']
)
def test_json_objects_are_allowed(text: str) -> None:
    assert allows(OBJECT, text)


@pytest.mark.parametrize(
    "text", ["", "[]", "1", '{"a"}', "{a:1}", '{"a":01}', '{"a":1,}', '{"a":"\n"}', '{"a":1', "{}{}"]
)
def test_other_texts_are_not(text: str) -> None:
    assert not allows(OBJECT, text)


def test_whitespace_between_json_tokens_is_bounded_and_never_outside() -> None:
    for blanks in (" ", "\n", "\n" + " " * 20, "\n\t\t"):
        assert allows(
            OBJECT, f'{{{blanks}"a"{blanks}:{blanks}[{blanks}1{blanks},{blanks}2{blanks}]{blanks}}}'
        )
    for blanks in ("  ", "\n\n", "\n" + " " * 21, " \n", "\r\n"):
        assert not follows(OBJECT, spelt(f"{{{blanks}"))
    assert not follows(OBJECT, spelt(" {"))
    assert not follows(OBJECT, spelt("{} "))
    assert not follows(OBJECT, spelt("{}\n"))


def test_whoever_likes_blanks_best_comes_to_an_end() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}},
        "required": ["a", "b"],
    }
    constraint = of_schema({**schema, "additionalProperties": False}).constraint()
    liked = [*b" \n\t", *(256 + WORDS.index(word) for word in ("  ", "    ", "\n  ")), *b"}"]
    steps = 0
    while not constraint.is_complete:
        possible = next_tokens(constraint)
        constraint.accept(next((token for token in liked if token in possible), possible[0]))
        steps += 1
        assert steps < 200


def test_a_complete_answer_allows_end_tokens_only() -> None:
    constraint = after('{"a":1}')
    assert constraint.is_complete
    assert set(next_tokens(constraint)) == tokenizer().end_ids
    constraint.accept(min(tokenizer().end_ids))
    assert constraint.is_complete
    assert constraint.is_accepting


def test_an_answer_that_may_go_on_allows_both() -> None:
    constraint = of_schema({"type": "integer"}).constraint()
    assert not ends(constraint)
    constraint.accept(*b"4")
    assert not constraint.is_complete
    assert constraint.is_accepting
    assert ends(constraint) == tokenizer().end_ids
    assert set(b"0123456789") < set(next_tokens(constraint))
    constraint.accept(max(tokenizer().end_ids))
    assert constraint.is_complete


def test_tokens_across_the_borders_of_json_are_allowed() -> None:
    ids = {word: 256 + index for index, word in enumerate(WORDS)}
    assert {ids['{"'], ids['{"a":{']} < set(next_tokens(OBJECT.constraint()))
    assert follows(
        OBJECT, [ids['{"a":{'], ids["\n  "], *b'"b', ids['":'], ids["[["], *b"1", ids["]]"], *b"}}"]
    )
    assert follows(OBJECT, [ids['{"'], ids["ab"], ids['":'], ids["true"], ids[", "], *b'"'])


def test_control_and_unused_tokens_never_come_and_user_defined_ones_are_text() -> None:
    tokens = tokenizer().vocabulary.ids
    inside = set(next_tokens(after('{"a":"')))
    assert tokens["<tool>"] in inside
    assert not inside & {tokens["<|end|>"], tokens["<|im_end|>"], tokens["[unused]"]}
    assert follows(OBJECT, spelt('{"a":"<|end|>'))


def test_masks_fill_longer_buffers_and_refuse_others() -> None:
    n_words = (tokenizer().vocab_size + 31) // 32
    words = np.full(n_words + 2, 0xFFFFFFFF, dtype=np.uint32)
    assert OBJECT.constraint().fill_mask(words)
    assert words[n_words:].tolist() == [0, 0]
    wrong = [
        np.zeros(n_words - 1, np.uint32),
        np.zeros(n_words, np.int32),
        np.zeros(2 * n_words, np.uint32)[::2],
    ]
    for other in wrong:
        with pytest.raises(ValueError, match="uint32 words"):
            OBJECT.constraint().fill_mask(other)  # type: ignore[arg-type]


class Target:
    """Memory for masks, which is asked for as often as ``asked`` says."""

    def __init__(self, n_words: int) -> None:
        self.asked = 0
        self._words = np.full(n_words, 0xFFFFFFFF, dtype=np.uint32)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        self.asked += 1
        return self._words

    def allowed(self) -> list[int]:
        return np.nonzero(np.unpackbits(self._words.view(np.uint8), bitorder="little"))[0].tolist()

    def begin(self) -> None: ...
    def publish(self) -> None: ...
    def fail(self) -> None: ...


@pytest.mark.parametrize(
    "text", ['{"a": [1, "\\"x]", {}], "b": "c"}', '"a\\\\b"', "[[], -1.5e3, null]", "12"]
)
def test_masks_of_a_target_are_those_of_any_buffer(text: str) -> None:
    grammar = of_schema({})
    target, filled, other = (
        Target((tokenizer().vocab_size + 31) // 32 + 1),
        grammar.constraint(),
        grammar.constraint(),
    )
    for token in spelt(text):
        assert filled.fill(target)
        assert target.allowed() == next_tokens(other)
        for constraint in (filled, other):
            constraint.accept(token)
        assert filled.is_complete == other.is_complete
        assert filled.is_accepting == other.is_accepting
    assert filled.is_accepting
    assert target.asked == 1


def test_a_token_outside_the_mask_of_a_target_is_an_error() -> None:
    for begun, wrong in (("", b"["), ('{"a":', b"}"), ('{"a":"', b"\n")):
        constraint, target = after(begun), Target((tokenizer().vocab_size + 31) // 32)
        assert constraint.fill(target)
        with pytest.raises(ConstraintError):
            constraint.accept(*wrong)
        with pytest.raises(ConstraintError):
            constraint.fill(target)


def test_tokens_may_follow_each_other_without_a_mask_between_them() -> None:
    constraint, target = OBJECT.constraint(), Target((tokenizer().vocab_size + 31) // 32)
    for text in ('{"a', 'b":', "1"):
        assert constraint.fill(target)
        for token in spelt(text):
            constraint.accept(token)
    with pytest.raises(ConstraintError):
        constraint.accept(*b"x")


def test_a_token_outside_the_mask_is_an_error_that_stays() -> None:
    constraint = OBJECT.constraint()
    with pytest.raises(ConstraintError):
        constraint.accept(*b"[")
    with pytest.raises(ConstraintError):
        next_tokens(constraint)
    assert allows(OBJECT, "{}")


def test_an_answer_nests_up_to_the_limit() -> None:
    opened = '{"a":' + "[" * (MAX_OUTPUT_LEVELS - 1)
    constraint = after(opened)
    ids = {word: 256 + index for index, word in enumerate(WORDS)}
    possible = set(next_tokens(constraint))
    assert not possible & {*b"[{", ids["[["], ids['{"'], ids['["'], ids["[[[["]}
    assert {*b"]1", ids["]]"]} <= possible
    constraint.accept(*b'"')
    assert {*b"[{", ids["[["], ids['{"'[:1] + '"']} <= set(next_tokens(constraint))
    assert ids['["'] in next_tokens(constraint)  # a bracket, then the string's end
    earlier = set(next_tokens(after(opened[:-2])))
    assert {*b"[{", ids["[["]} <= earlier
    assert ids["[[[["] not in earlier
    text = opened + "]" * (MAX_OUTPUT_LEVELS - 1) + "}"
    assert allows(OBJECT, text)
    assert json.loads(text)


def test_a_schema_that_needs_more_levels_ends_unfinished() -> None:
    schema: dict[str, object] = {"type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 1}
    inner = {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#/$defs/A"}, schema["items"]]}}
    grammar = of_schema({**schema, "$defs": {"A": {"anyOf": [{"type": "null"}, inner]}}})
    constraint = grammar.constraint()
    for _ in range(MAX_OUTPUT_LEVELS):
        constraint.accept(*b"[")
    assert set(b"n") <= set(next_tokens(constraint))


def test_an_answer_has_a_greatest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_module, "MAX_OUTPUT_BYTES", 12)
    constraint = after('{"a":"12345')
    assert next_tokens(constraint)
    assert not constraint.is_exhausted
    constraint.accept(*b"6")
    assert not next_tokens(constraint)
    assert constraint.is_exhausted
    assert not constraint.is_complete


def test_a_grammar_too_complex_to_follow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    few = LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr(compiler_module, "parser_limits", lambda: few)
    constraint = after('"secret', of_schema({"type": "string", "maxLength": 5000}).constraint())

    def write_on() -> None:
        for token in b"x" * 1000:
            next_tokens(constraint)
            constraint.accept(token)

    with pytest.raises(ConstraintError, match=r"could not be followed: .*too many states") as caught:
        write_on()
    assert "secret" not in str(caught.value)


def test_lark_grammars_hold_checked_schemas() -> None:
    source = compiler().schema_source(PERSON, strict=True)
    grammar = compiler().compile_lark(f'start: "call " (one | "<tool>")\none: %json {source}\n')
    for text in ('call {"n": 1}', "call <tool>"):
        constraint = after(text, grammar.constraint())
        assert constraint.is_complete
    assert not follows(grammar, spelt('call {"n":  '))
    with pytest.raises(GrammarError) as caught:
        compiler().schema_source({"type": "object", "properties": {"a": {"contains": {}}}}, strict=True)
    assert (caught.value.keyword, caught.value.path) == ("contains", "#/properties/a")
    with pytest.raises(GrammarError):
        compiler().schema_source({"type": "string", "minLength": 3, "maxLength": 2}, strict=True)
    with pytest.raises(GrammarError) as caught:
        compiler().compile_lark("start: missing\n")
    assert "missing" in str(caught.value)
    with pytest.raises(GrammarError, match="the limit is"):
        compiler().compile_lark("#" * (1 << 21))


def test_a_model_without_an_end_token_has_no_grammars() -> None:
    values = bytelevel_values(eos_token_id=None)
    tokens = [text for text in values["tokens"] if text != "<|im_end|>"]  # type: ignore[attr-defined]
    kinds = [1] * 259 + [CONTROL] * (len(tokens) - 259)
    unending = bytelevel(tokens=tokens, token_type=kinds, eos_token_id=None)
    with pytest.raises(ValueError, match="no token that ends"):
        GrammarCompiler(unending).compile_json_object()
