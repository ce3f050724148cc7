"""Loading, roles, contents, tools and refusals of chat templates."""

from datetime import datetime
from typing import Any

import pytest

from ferrite.chat import (
    ChatTemplate,
    ChatTemplateError,
    Message,
    Segments,
    TemplateRefusedError,
    ToolCall,
)
from tests.chat.templates import CHATML_WITH_TOOLS, GEMMA, Marked

NOW = datetime(2026, 2, 3, 4, 5)
TOKENIZER = Marked()


def _render(text: str | None, messages: list[Message], **rest: Any) -> Segments:
    return ChatTemplate(text, TOKENIZER, eos_id=3).render_prompt(messages, now=NOW, **rest)


def test_metadata_gives_template_and_eos() -> None:
    metadata = {"tokenizer.chat_template": "{{ eos_token }}x", "tokenizer.ggml.eos_token_id": 3}
    template = ChatTemplate.from_metadata(metadata, TOKENIZER)
    assert template.render_prompt([], now=NOW) == [3, "x"]
    assert not template.is_fallback


def test_fallback_labels_the_roles() -> None:
    template = ChatTemplate.from_metadata({}, TOKENIZER)
    messages = [
        Message("developer", "Be brief."),
        Message("user", "<s>hi"),
        Message("assistant", "Hello."),
        Message("user", "Bye."),
    ]
    assert template.is_fallback
    assert not template.uses_tools
    assert template.render_prompt(messages, now=NOW) == [
        "System: Be brief.\n\nUser: <s>hi\n\nAssistant: Hello.\n\nUser: Bye.\n\nAssistant:"
    ]
    assert template.render_prompt(messages[:1], now=NOW, add_generation_prompt=False) == [
        "System: Be brief.\n\n"
    ]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_template_is_none(text: str) -> None:
    keys = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
    template = ChatTemplate.from_metadata(dict.fromkeys(keys, text), TOKENIZER)
    assert template.is_fallback
    assert template.render_prompt([Message("user", "hi")], now=NOW) == ["User: hi\n\nAssistant:"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% if %}", "line 1: "),
        ("a\n{{ x", "line 2: "),
        ("{{ x | no_such }}", "line 1: No filter named 'no_such'."),
        ("{{ x | attr('y') }}", "No filter named 'attr'."),
        ("{{ x is no_such }}", "No test named 'no_such'."),
        ("{% include 'other' %}", "line 1: include is not supported"),
        ("{% import 'other' as o %}", "import is not supported"),
        ("{% extends 'other' %}", "extends is not supported"),
        ("{% block b %}{% endblock %}", "block is not supported"),
        ("{% autoescape true %}{% endautoescape %}", "is not supported"),
        ("{% for a in b recursive %}{{ loop(a) }}{% endfor %}", "recursive loops are not supported"),
        ("{% no_such %}", "Encountered unknown tag 'no_such'"),
        ("x" * (65536 + 1), "longer than 65536 bytes"),
        ("é" * 32769, "longer than 65536 bytes"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested too deeply"),
        ("{{ " + "9" * 10_000 + " }}", "too long"),
        ("{% if a %}" * 300 + "{% endif %}" * 300, "nested too deeply"),
    ],
)
def test_a_bad_template_is_refused_at_load_by_name(text: str, reason: str) -> None:
    with pytest.raises(TemplateRefusedError) as refusal:
        ChatTemplate.from_metadata({"tokenizer.chat_template": text}, TOKENIZER)
    assert str(refusal.value).startswith("tokenizer.chat_template: ")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(TemplateRefusedError, match=r"tokenizer.chat_template: not a string"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 3}, TOKENIZER)


def test_a_template_of_exactly_the_limit_loads() -> None:
    assert _render("x" * 65536, []) == ["x" * 65536]


@pytest.mark.parametrize(
    "roles", [["user", "user"], ["assistant", "user"], ["system", "assistant"], ["user", "user", "system"]]
)
def test_role_order_is_refused_in_the_templates_own_sentence(roles: list[Any]) -> None:
    with pytest.raises(ChatTemplateError) as refusal:
        _render(GEMMA, [Message(role, "x") for role in roles])
    assert refusal.value.message == "Conversation roles must alternate user/assistant/user/assistant/..."
    assert str(refusal.value) == refusal.value.message
    assert type(refusal.value.message) is str
    assert refusal.value.__cause__ is None
    # The template goes on with the next request.
    assert _render(GEMMA, [Message("user", "x")])[0] == 1


def test_other_failures_are_one_sentence() -> None:
    with pytest.raises(ChatTemplateError, match=r"^the chat template failed: 'nobody' is undefined$"):
        _render("{{ nobody.name }}", [])
    with pytest.raises(ChatTemplateError, match=r"^the chat template failed: division by zero$"):
        _render("{{ 1 / 0 }}", [])
    with pytest.raises(ChatTemplateError) as refusal:
        _render("{{ raise_exception('a' * 5000) }}", [])
    assert len(refusal.value.message) == 1000


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    messages = [Message("developer", "x")]
    assert _render("{{ messages[0].role }}", messages) == ["system"]
    assert _render("{{ messages[0].role }}{# developer #}", messages) == ["developer"]


def test_function_is_tool_where_the_template_does_not_know_it() -> None:
    messages = [Message("function", "x", name="f")]
    reads_tools = "{% if tools %}{% endif %}"
    assert _render(f"{reads_tools}{{{{ messages[0].role }}}}{{{{ messages[0].name }}}}", messages) == [
        "toolf"
    ]
    other = "{{ x.type == 'function' if x }}"
    assert _render(f"{reads_tools}{{{{ messages[0].role }}}}{other}", messages) == ["tool"]
    for known in ("messages[0].role == 'function'", "messages[0]['role'] in ['tool', 'function']"):
        text = f"{reads_tools}{{{{ messages[0].role }}}}{{{{ 'k' if {known} }}}}"
        assert _render(text, messages) == ["functionk"]


@pytest.mark.parametrize("template", [CHATML_WITH_TOOLS, None])
def test_no_content_and_empty_content_are_one_prompt(template: str | None) -> None:
    def prompt(**content: str | None) -> Segments:
        call = ToolCall("c1", "echo", {"text": "x"})
        messages = [
            Message("user", "Say x"),
            Message("assistant", tool_calls=[call], **content),
            Message("tool", "result", tool_call_id="c1"),
        ]
        return _render(template, messages)

    shown = TOKENIZER.joined(prompt())
    assert prompt() == prompt(content=None) == prompt(content="")
    assert "echo" in shown
    assert '{"text": "x"}' in shown
    assert "result" in shown


def test_messages_have_only_the_keys_they_need() -> None:
    full = Message(
        "assistant", "c", name="n", tool_calls=[ToolCall("i", "f", {"a": 1})], reasoning_content="r"
    )
    assert _render("{{ messages[0] | tojson }}", [Message("user", "x")]) == [
        '{"role": "user", "content": "x"}'
    ]
    assert _render("{% if tools %}{% endif %}{{ messages[0] | tojson }}", [full]) == [
        '{"role": "assistant", "content": "c", "reasoning_content": "r", "thinking": "r", "name": "n", '
        '"tool_calls": [{"id": "i", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}'
    ]
    shown = _render(
        "{% if tools %}{% endif %}{{ messages[0].tool_call_id }}", [Message("tool", tool_call_id="t")]
    )
    assert shown == ["t"]


def test_tools_reach_the_template_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<é> & 'x'", "parameters": {}}}
    text = '{"type": "function", "function": {"name": "f", "description": "<é> & \'x\'", "parameters": {}}}'
    assert _render("{{ tools[0] | tojson }}", [], tools=[tool]) == [text]
    assert _render("{{ tools }} {{ documents }}", []) == ["None None"]
    assert _render("{{ tools is none }}", [], tools=[]) == ["True"]
    assert ChatTemplate(CHATML_WITH_TOOLS, TOKENIZER).uses_tools
    assert not ChatTemplate(GEMMA, TOKENIZER).uses_tools


def test_the_clock_is_given() -> None:
    assert _render("{{ strftime_now('%d %b %Y, %H:%M') }}", []) == ["03 Feb 2026, 04:05"]
    with pytest.raises(ChatTemplateError, match="more than 100 characters"):
        _render("{{ strftime_now('%d' * 51) }}", [])


@pytest.mark.parametrize(
    ("text", "bos"), [("{{ bos_token }}<s>", [1, 1]), ("{{ bos_token }}x", [1]), ("x", [])]
)
def test_bos_is_what_the_template_writes(text: str, bos: list[int]) -> None:
    assert [piece for piece in _render(text, [Message("user", "<s>")]) if isinstance(piece, int)] == bos


def test_a_model_without_bos_has_an_empty_bos_text() -> None:
    assert ChatTemplate("{{ bos_token }}|{{ eos_token }}", Marked(bos_id=None)).render_prompt(
        [], now=NOW
    ) == ["|"]


def test_equal_requests_render_equally_and_leave_no_trace() -> None:
    template = ChatTemplate(
        "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ x }}", TOKENIZER
    )
    assert [template.render_prompt([], now=NOW) for _ in range(3)] == [["1"]] * 3
