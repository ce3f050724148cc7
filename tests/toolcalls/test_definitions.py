"""Declared functions and the choice among them: limits and the paths of refusals."""

from typing import Any

import pytest

from ferrite.toolcalls import Function, Problem, ToolChoice, read_choice, read_functions


def _tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


F, G = Function("f"), Function("g", "Tells.", {"type": "object", "properties": {"a": {}}}, strict=True)


def test_functions_are_read() -> None:
    tools = [
        _tool(description=None, parameters=None, strict=None),
        _tool("g", description="Tells.", parameters=dict(G.parameters), strict=True),
    ]
    assert read_functions(tools) == (F, G)
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    assert read_functions(flat, flat=True) == (F, G)
    assert read_functions([]) == ()
    assert read_functions([_tool(strict=False)]) == (F,)


def test_templates_see_the_declaration_and_nothing_else() -> None:
    assert F.as_template_sees() == {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    }
    assert G.as_template_sees()["function"] == {
        "name": "g",
        "description": "Tells.",
        "parameters": G.parameters,
    }


AT_LIMIT: list[dict[str, Any]] = [
    _tool("a" * 64),
    _tool("b", description="é" * 2048),
    _tool("c", parameters=_nested(32)),
    _tool("d", parameters={"enum": [0] * 4094}),
    _tool("e", parameters={"a": "x" * ((64 << 10) - len('{"a":""}'))}),
]


def test_what_is_at_its_limit_is_accepted() -> None:
    read = read_functions(AT_LIMIT)
    assert isinstance(read, tuple)
    assert len(read) == 5
    assert isinstance(read_functions([_tool(f"f{index}") for index in range(64)]), tuple)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("x", "tools[1]"),
        ({"type": "web_search"}, "tools[1].type"),
        ({}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": [], "x": 1}, "tools[1].x"),
        (_tool(None), "tools[1].function.name"),
        (_tool(""), "tools[1].function.name"),
        (_tool("a b"), "tools[1].function.name"),
        (_tool("é"), "tools[1].function.name"),
        (_tool("a\n"), "tools[1].function.name"),
        (_tool("a" * 65), "tools[1].function.name"),
        (_tool("first"), "tools[1].function.name"),
        (_tool(description=3), "tools[1].function.description"),
        (_tool(description="é" * 2048 + "x"), "tools[1].function.description"),
        (_tool(strict=1), "tools[1].function.strict"),
        (_tool(opts={}), "tools[1].function.opts"),
        (_tool(parameters=[]), "tools[1].function.parameters"),
        (_tool(parameters={"type": "string"}), "tools[1].function.parameters.type"),
        (_tool(parameters=_nested(33)), "tools[1].function.parameters"),
        (_tool(parameters=_nested(20_000)), "tools[1].function.parameters"),
        (_tool(parameters={"enum": [0] * 4095}), "tools[1].function.parameters"),
        (_tool(parameters={"a": "x" * (64 << 10)}), "tools[1].function.parameters"),
    ],
)
def test_refusals_name_the_place(tool: Any, param: str) -> None:
    problem = read_functions([_tool("first"), tool])
    assert isinstance(problem, Problem)
    assert problem.param == param
    assert problem.message.endswith(".")
    assert "\n" not in problem.message


def test_too_many_functions_are_refused() -> None:
    problem = read_functions([_tool(f"f{index}") for index in range(65)])
    assert problem == Problem("At most 64 functions can be declared, not 65.", "tools")


def test_flat_refusals_have_flat_paths() -> None:
    tools: list[Any] = [{"type": "function", "name": "f"}, {"type": "function", "name": "f"}]
    for second, param in (
        (tools[1], "tools[1].name"),
        ({"type": "web_search"}, "tools[1].type"),
        ({"type": "function", "name": "g", "function": {}}, "tools[1].function"),
    ):
        problem = read_functions([tools[0], second], flat=True)
        assert isinstance(problem, Problem)
        assert problem.param == param


NAMED_G = {"type": "function", "function": {"name": "g"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED_G]}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto", (F, G))),
        ("auto", ToolChoice("auto", (F, G))),
        ("none", ToolChoice("none", ())),
        ("required", ToolChoice("required", (F, G))),
        (NAMED_G, ToolChoice("required", (G,))),
        (ALLOWED, ToolChoice("required", (G,))),
    ],
)
def test_choices(choice: object, expected: ToolChoice) -> None:
    assert read_choice(choice, (F, G)) == expected


def test_flat_choices() -> None:
    named = {"type": "function", "name": "g"}
    assert read_choice(named, (F, G), flat=True) == ToolChoice("required", (G,))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [named]}
    assert read_choice(allowed, (F, G), flat=True) == ToolChoice("auto", (G,))


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_no_functions_and_nothing_asked_for(choice: object) -> None:
    assert read_choice(choice, ()) == ToolChoice("none", ())


@pytest.mark.parametrize(
    ("choice", "functions", "param"),
    [
        ("required", (), "tool_choice"),
        (NAMED_G, (), "tool_choice"),
        (NAMED_G, (F,), "tool_choice"),
        ("maybe", (F,), "tool_choice"),
        (3, (F,), "tool_choice"),
        ({"type": "function"}, (F,), "tool_choice"),
        ({"type": "custom", "custom": {"name": "f"}}, (F,), "tool_choice"),
        (ALLOWED, (F,), "tool_choice.allowed_tools.tools[0]"),
        ({"type": "allowed_tools"}, (F,), "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "x"}}, (F,), "tool_choice.allowed_tools.mode"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            (F,),
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_choices_that_cannot_be_honoured(choice: object, functions: tuple[Function, ...], param: str) -> None:
    problem = read_choice(choice, functions)
    assert isinstance(problem, Problem)
    assert problem.param == param
