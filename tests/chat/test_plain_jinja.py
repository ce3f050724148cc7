"""Ordinary templates render as in Jinja set up as transformers does it, failures included."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2.ext
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ferrite.chat import ChatTemplateError
from ferrite.chat.filters import FILTERS_FOR_PROMPTS, TESTS_FOR_PROMPTS
from ferrite.chat.guard import GenerationTag
from ferrite.chat.meter import Meter
from ferrite.chat.sandbox import CompiledTemplate

SNIPPETS = (Path(__file__).parent / "cases" / "plain.txt").read_text().splitlines()
WHITESPACE = (
    "{% raw %}{{ x }}{% endraw %}{# comment #}{{- ' a ' -}}  b  {%- if true %} c {% endif %}\n"
    "  {% if 1 %}\nd\n{% endif %}\n  {%+ if 1 %}e{% endif +%}\n"
    "{% for i in [1, 2] -%}\n  {{ i }}\n{% endfor %}\n"
)


def _messages() -> list[dict[str, str]]:
    return [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "General  Kenobi\n"},
        {"role": "user", "content": "<b>é</b>"},
    ]


def _as_transformers_does(text: str) -> str:
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False} | options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(text).render(messages=_messages())


def _outcome(render: Any) -> str:
    try:
        return f"renders {render()}"
    except ChatTemplateError as error:
        return "fails: " + error.message.removeprefix("the chat template failed: ")
    except Exception as error:
        return f"fails: {error}"


@pytest.mark.parametrize("text", [*SNIPPETS, WHITESPACE])
def test_ordinary_templates_render_as_in_plain_jinja(text: str) -> None:
    ours = _outcome(lambda: CompiledTemplate(text).render({"messages": _messages()}, Meter()))
    assert ours == _outcome(lambda: _as_transformers_does(text))


def test_every_filter_and_test_has_a_case() -> None:
    cases = " ".join(SNIPPETS)

    def used(pattern: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if not re.search(pattern.format(re.escape(name)), cases)]

    filters = [name for name in FILTERS_FOR_PROMPTS if name.isidentifier()]
    assert used(r"\| ?{}\b", filters) == []
    assert used(r"(is|'role',) '?{}[ ']", TESTS_FOR_PROMPTS) == []
