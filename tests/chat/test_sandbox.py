"""FR-47: a template from a model file runs no code and stays within its work and memory."""

import ast
from datetime import datetime
from pathlib import Path

import pytest

import ferrite
from ferrite.chat import ChatTemplate, ChatTemplateError, Message, TemplateRefusedError
from ferrite.chat.meter import MAX_TEXT, WORK_LIMIT, Meter
from ferrite.chat.sandbox import CompiledTemplate, StrftimeNow
from tests.chat.templates import CHATML_WITH_TOOLS, Marked

NOW = datetime(2026, 2, 3)
MESSAGES = [
    Message("user", "Hello there"),
    Message("assistant", "General  Kenobi\n"),
    Message("user", "<b>é</b>"),
]

GROW = "{% set ns = namespace(x=SEED) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
DAG = GROW.replace("SEED", "[1]").replace("STEP", "[ns.x, ns.x]")
TUPLES = GROW.replace("SEED", "(1,)").replace("STEP", "(ns.x, ns.x)")


def _render(text: str, units: int = WORK_LIMIT) -> str:
    messages = [{"role": message.role, "content": message.content} for message in MESSAGES]
    variables = {"messages": messages, "strftime_now": StrftimeNow(NOW)}
    return str(CompiledTemplate(text).render(variables, Meter(units)))


@pytest.mark.parametrize(
    "expression",
    [
        "cycler.__init__.__globals__",
        "cycler.__init__.__globals__.os.popen('id').read()",
        "''.__class__.__mro__",
        "''['__class__']",
        "[].__class__.__base__.__subclasses__()",
        "(1).__class__",
        "(1).to_bytes(9, 'big')",
        "1.5.hex()",
        "messages.__init__",
        "messages[0].__class__",
        "messages[0].pop('role')",
        "messages[0].update(role='x')",
        "messages[0].setdefault('x', 1)",
        "messages[0].clear()",
        "messages.append(1)",
        "messages.extend([1])",
        "messages.sort()",
        "messages.reverse()",
        "raise_exception.__globals__",
        "raise_exception.__code__",
        "strftime_now.now",
        "strftime_now.__class__",
        "range.__globals__",
        "dict.fromkeys([1])",
        "dict.mro()",
        "namespace.__init__",
        "namespace(a=1).__class__",
        "joiner('x').sep",
        "cycler(1).items",
        "self.__init__",
        "self._TemplateReference__context",
        "loop.__init__",
        "caller.__globals__",
        "'{0.__class__}'.format(1)",
        "'{0[x]}'.format(messages[0])",
        "'{a.b}'.format(a=1)",
        "'%s'.format_map(messages[0])",
        "'x'.encode()",
        "'x'.translate({120: 'y'})",
        "'x'.maketrans('a', 'b')",
        "messages | map('attr', '__class__') | list",
        "messages | map(attribute='__class__.__mro__') | list | string | upper",
        "[''] | map(attribute='__class__') | map('string') | list",
        "messages | selectattr('__class__') | map(attribute='__class__') | map('string') | list",
        "[''] | groupby('__class__') | string",
        "lipsum(1)",
        "lipsum.__globals__",
        "messages[0].items().__class__",
        "namespace",
        "{'a': cycler}",
    ],
)
def test_nothing_escapes(expression: str) -> None:
    before = list(MESSAGES)
    with pytest.raises((ChatTemplateError, TemplateRefusedError)):
        _render("{{ " + expression + " }}")
    assert before == MESSAGES


@pytest.mark.parametrize(
    "expression", ["'x'.format.__self__", "'x'.upper.__globals__", "(messages | map('upper')).gi_frame"]
)
def test_what_is_not_there_prints_as_nothing(expression: str) -> None:
    assert _render("{{ " + expression + " }}") == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | map('string') | select('in', 'x') }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f() %}{% for i in range(9) %}{{ caller() }}{% endfor %}{% endmacro %}"
        + "{% call f() %}" * 15
        + "{% endcall %}" * 15,
        "{{ 'a' * 10 ** 10 }}",
        "{{ ['a'] * 10 ** 10 }}",
        "{{ 10 ** 10 * 'a' }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a'.center(10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a'.rjust(10 ** 10) }}",
        "{{ 'a'.zfill(10 ** 10) }}",
        "{{ 'a\tb'.expandtabs(10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%.9999999999f' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%9999999999s' | format('a') }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ '%9999999999d' is odd }}",
        "{{ '%9999999999d' is divisibleby(3) }}",
        "{{ ('a' * 9000000) | replace('a', 'b' * 9000000) }}",
        "{{ ('a' * 9000000).replace('', 'b' * 9000000) }}",
        "{{ ('a' * 9000000).join(('b' * 9000) | list) }}",
        "{{ range(99999) | join('a' * 99999) }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{{ 'a' | indent(10 ** 10, true) }}",
        "{{ ('\n' * 9000000) | indent('a' * 999) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{{ range(99999) | list | tojson(separators=('a' * 99999, ':')) }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 2 ** -(10 ** 10) }}",
        "{{ 1.5 | round(10 ** 9) }}",
        "{{ '9' | round(9, 'ceil') }}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        "{{ ('1' * 100000) | int(base=2) * 3 }}",
        GROW.replace("SEED", "'a'").replace("STEP", "ns.x + ns.x"),
        GROW.replace("SEED", "'a'").replace("STEP", "ns.x ~ ns.x"),
        GROW.replace("SEED", "'a'").replace("STEP", "ns.x * 9"),
        GROW.replace("SEED", "'a'").replace("STEP", "'%s%s' % (ns.x, ns.x)"),
        GROW.replace("SEED", "'a'").replace("STEP", "'{0}{0}'.format(ns.x)"),
        GROW.replace("SEED", "'a'").replace("STEP", "[ns.x, ns.x] | join"),
        GROW.replace("SEED", "'a'").replace("STEP", "ns.x | replace('a', 'aa')"),
        GROW.replace("SEED", "[1]").replace("STEP", "ns.x + ns.x"),
        GROW.replace("SEED", "3").replace("STEP", "ns.x * ns.x"),
        GROW.replace("SEED", "3").replace("STEP", "ns.x ** 9"),
        DAG + "{{ ns.x }}",
        DAG + "{{ ns.x ~ '' }}",
        DAG + "{{ ns.x | string }}",
        DAG + "{{ ns.x | upper }}",
        DAG + "{{ ns.x | tojson }}",
        DAG + "{{ ns.x | join }}",
        DAG + "{{ [ns.x, ns.x] | sort }}",
        DAG + "{{ [ns.x, ns.x] | max }}",
        DAG + "{{ '%s' % [ns.x] }}",
        DAG + "{{ '{}'.format(ns.x) }}",
        DAG + "{{ raise_exception(ns.x) }}",
        DAG + "{{ raise_exception(message=ns.x) }}",
        DAG + "{{ ns.x is upper }}{{ ns.x == (ns.x | list) }}",
        DAG + "{% set y = ns.x %}" + DAG + "{{ ns.x == y }}",
        DAG + "{% set y = ns.x %}" + DAG + "{{ ns.x is eq y }}",
        DAG + "{% set y = ns.x %}" + DAG + "{{ ns.x in [y] }}",
        DAG + "{% set y = ns.x %}" + DAG + "{{ [y] | select('eq', ns.x) | list }}",
        DAG + "{% set y = ns.x %}" + DAG + "{{ [y].index(ns.x) }}",
        DAG + "{% set y = ns.x %}" + DAG + "{% for a in [y, ns.x] %}{{ loop.changed(a) }}{% endfor %}",
        DAG + "{{ namespace(x=ns.x) }}",
        TUPLES + "{{ {ns.x: 1} }}",
        TUPLES + "{{ {'a': 1}[ns.x] }}",
        TUPLES + "{{ {'a': 1}.get(ns.x) }}",
        TUPLES + "{{ ns.x in {'a': 1} }}",
        TUPLES + "{{ [ns.x, ns.x] | unique | list }}",
        TUPLES + "{{ dict([(ns.x, 1)]) }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
        "{% set a = 'a' * 9000000 %}{% for i in range(99999) %}{{ a | upper | length }}{% endfor %}",
        "{% set a = 'a' * 9000000 %}{% for i in range(99999) %}{{ a[1:] | length }}{% endfor %}",
        "{% set a = 'a' * 20000 %}{% for i in range(99999) %}{{ (a ~ 'b') in a }}{% endfor %}",
        "{% set a = 'a' * 9000000 %}{{ a.rfind('b' ~ a[:4000000]) }}",
        "{% set a = 'a' * 9000000 %}{{ a.rsplit('b' ~ a[:4000000]) }}",
        "{% set a = 'a' * 9000000 %}{{ a.strip('b' * 4000000 ~ 'a') }}",
        "{% set a = 'a' * 16000000 %}{{ a }}{{ a }}",
        "{% set a = 'é' * 16000000 %}{{ a }}",
        "{% for i in range(99999) %}" + "{% if messages %}{% endif %}" * 2000 + "{% endfor %}",
        "{% for i in range(99999) %}{% set a = '" + "a" * 60_000 + "' %}{% endfor %}",
        "{{ '\\ud800' }}",
    ],
)
def test_hostile_work_is_stopped(template: str) -> None:
    with pytest.raises(ChatTemplateError) as refusal:
        _render(template, 50_000)
    assert "\n" not in refusal.value.message
    assert len(refusal.value.message) <= 1100


def test_the_budget_counts_loop_bodies_before_they_run() -> None:
    meter = Meter(10)
    meter.spend(10)
    with pytest.raises(ChatTemplateError, match="more work"):
        meter.spend(1)
    with pytest.raises(ChatTemplateError, match="more work"):
        Meter().weigh(["x" * 100] * WORK_LIMIT)
    with pytest.raises(ChatTemplateError, match="16 MiB"):
        Meter().make(MAX_TEXT + 1)


def test_a_long_real_conversation_is_far_below_the_budget() -> None:
    template = ChatTemplate(CHATML_WITH_TOOLS, Marked())
    segments = template.render_prompt([Message("user", "word " * 1000)] * 1000, now=NOW)
    assert len(segments) == 1 + 4 * 1000 + 2


def test_exactly_one_place_compiles_templates() -> None:
    package = Path(ferrite.__file__).parent
    users, compilers = set(), set()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2"):
                users.add(path.parent.relative_to(package).as_posix())
                if {"Template", "SandboxedEnvironment", "ImmutableSandboxedEnvironment"} & {
                    alias.name for alias in node.names
                }:
                    compilers.add(path.name)
            if isinstance(node, ast.Import) and any(alias.name.startswith("jinja2") for alias in node.names):
                compilers.add(path.name)
            if isinstance(node, ast.Attribute) and node.attr in ("from_string", "from_code", "get_template"):
                compilers.add(path.name)
    assert users == {"chat"}
    assert compilers == {"sandbox.py"}


def test_templates_share_no_state() -> None:
    template = CompiledTemplate("{% set ns = namespace(a=[]) %}{{ ns.a }}{{ x }}")
    assert template.render({"x": 1}, Meter()) == "[]1"
    assert template.render({}, Meter()) == "[]"
