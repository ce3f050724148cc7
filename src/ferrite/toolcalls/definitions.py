"""The functions that a request declares and its choice among them, checked against the limits."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_FUNCTIONS = 64
MAX_DESCRIPTION_BYTES = 4 << 10
MAX_PARAMETER_BYTES = 64 << 10
MAX_LEVELS = 32
MAX_NODES = 4096

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a request, and where: ``param`` is the JSON path as the client wrote it."""

    message: str
    param: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: _NO_PARAMETERS)
    """JSON Schema of the arguments, which are an object."""
    strict: bool = False
    """The arguments must follow ``parameters``."""

    def as_template_sees(self) -> dict[str, Any]:
        """The declaration in OpenAI's form, without what the template does not need."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may or must call, and what."""

    mode: Literal["none", "auto", "required"]
    functions: tuple[Function, ...]
    """Those that may be called; none in mode ``none``."""


def read_functions(tools: Sequence[object], *, flat: bool = False) -> tuple[Function, ...] | Problem:
    """Check the ``tools`` of a request.

    ``flat``: the form of ``/v1/responses``, whose fields stand beside ``type`` and not inside ``function``.
    """
    if len(tools) > MAX_FUNCTIONS:
        return Problem(f"At most {MAX_FUNCTIONS} functions can be declared, not {len(tools)}.", "tools")
    functions: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        read = _read_tool(tool, at, flat=flat)
        if isinstance(read, Problem):
            return read
        if read.name in functions:
            where = at if flat else f"{at}.function"
            return Problem(f"The function {read.name!r} is declared twice.", f"{where}.name")
        functions[read.name] = read
    return tuple(functions.values())


def read_choice(choice: object, functions: Sequence[Function], *, flat: bool = False) -> ToolChoice | Problem:
    """Check the ``tool_choice`` of a request; None is ``auto`` where functions are declared.

    Read are ``"none"``, ``"auto"``, ``"required"``, a function by name and OpenAI's ``allowed_tools``.
    """
    if choice is None:
        choice = "auto" if functions else "none"
    if choice == "none" or (choice == "auto" and not functions):
        return ToolChoice("none", ())
    if isinstance(choice, str) and choice not in ("auto", "required"):
        return Problem('`tool_choice` must be "none", "auto", "required" or an object.', "tool_choice")
    if not functions:
        return Problem(
            "`tool_choice` asks for a call, which needs `tools` that are not empty.", "tool_choice"
        )
    if choice == "auto":
        return ToolChoice("auto", tuple(functions))
    if choice == "required":
        return ToolChoice("required", tuple(functions))
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _read_allowed(choice, functions, flat=flat)
    named = _read_name(choice, "tool_choice", functions, flat=flat)
    return named if isinstance(named, Problem) else ToolChoice("required", (named,))


def _read_allowed(
    choice: Mapping[str, object], functions: Sequence[Function], *, flat: bool
) -> ToolChoice | Problem:
    at = "tool_choice" if flat else "tool_choice.allowed_tools"
    allowed = choice if flat else choice.get("allowed_tools")
    if not isinstance(allowed, Mapping):
        return Problem("`allowed_tools` must be an object.", at)
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode != "auto" and mode != "required":
        return Problem('`mode` must be "auto" or "required".', f"{at}.mode")
    if not isinstance(tools, list) or not tools:
        return Problem("`tools` must be a list that is not empty.", f"{at}.tools")
    chosen: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        named = _read_name(tool, f"{at}.tools[{index}]", functions, flat=flat)
        if isinstance(named, Problem):
            return named
        chosen[named.name] = named
    return ToolChoice("auto" if mode == "auto" else "required", tuple(chosen.values()))


def _read_name(tool: object, at: str, functions: Sequence[Function], *, flat: bool) -> Function | Problem:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return Problem('An object here must have the type "function".', at)
    holder = tool if flat else tool.get("function")
    name = holder.get("name") if isinstance(holder, Mapping) else None
    if not isinstance(name, str):
        return Problem("The name of a function is missing.", at)
    for function in functions:
        if function.name == name:
            return function
    return Problem(f"The function {name[:64]!r} is not declared in `tools`.", at)


def _read_tool(tool: object, at: str, *, flat: bool) -> Function | Problem:
    if not isinstance(tool, Mapping):
        return Problem("A tool must be an object.", at)
    if tool.get("type") != "function":
        return Problem('Only tools of the type "function" are supported.', f"{at}.type")
    if flat:
        return _read_function({key: value for key, value in tool.items() if key != "type"}, at)
    for key in tool:
        if key not in ("type", "function"):
            return Problem(f"Unknown field {key[:64]!r}.", f"{at}.{key[:64]}")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return Problem("A function must be an object.", f"{at}.function")
    return _read_function(function, f"{at}.function")


def _read_function(written: Mapping[str, object], at: str) -> Function | Problem:
    for key in written:
        if key not in _FUNCTION_KEYS:
            return Problem(f"Unknown field {key[:64]!r}.", f"{at}.{key[:64]}")
    name, description = written.get("name"), written.get("description")
    parameters, strict = written.get("parameters"), written.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return Problem("A function's name is 1 to 64 letters, digits, `_` or `-`.", f"{at}.name")
    if description is not None:
        if not isinstance(description, str):
            return Problem("A function's description must be a string.", f"{at}.description")
        if len(description.encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION_BYTES:
            return Problem(
                f"A function's description has at most {MAX_DESCRIPTION_BYTES} bytes.", f"{at}.description"
            )
    if strict is not None and not isinstance(strict, bool):
        return Problem("`strict` must be true or false.", f"{at}.strict")
    if parameters is None:
        return Function(name, description, strict=bool(strict))
    if not isinstance(parameters, Mapping):
        return Problem("A function's parameters must be an object.", f"{at}.parameters")
    problem = _check_parameters(parameters, f"{at}.parameters")
    return problem or Function(name, description, parameters, bool(strict))


def _check_parameters(parameters: Mapping[str, Any], at: str) -> Problem | None:
    if parameters.get("type", "object") != "object":
        return Problem('A function\'s parameters must have the type "object".', f"{at}.type")
    nodes = 0
    pending: list[tuple[Any, int]] = [(parameters, 1)]
    while pending:
        value, level = pending.pop()
        nodes += 1
        if level > MAX_LEVELS and isinstance(value, (Mapping, list)):
            return Problem(f"A function's parameters are nested at most {MAX_LEVELS} levels deep.", at)
        if nodes + len(pending) > MAX_NODES:
            return Problem(f"A function's parameters hold at most {MAX_NODES} values.", at)
        if isinstance(value, Mapping):
            pending += [(held, level + 1) for held in value.values()]
        elif isinstance(value, list):
            pending += [(held, level + 1) for held in value]
    size = len(
        json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    )
    if size > MAX_PARAMETER_BYTES:
        return Problem(
            f"A function's parameters take at most {MAX_PARAMETER_BYTES} bytes of JSON, not {size}.", at
        )
    return None
