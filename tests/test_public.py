"""The public face: one version everywhere, commands that import, and a stub that tells the truth."""

import ast
import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ferrite import _native

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_installed_version_is_the_project_s() -> None:
    assert version(PROJECT["name"]) == PROJECT["version"]


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.search(r"(?ms)^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text())
    assert newest is not None
    assert newest[1] == PROJECT["version"]


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_command_imports(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


Functions = dict[str, list[str]]
CONSTRUCTORS = ("__init__", "__new__")


def is_operator(name: str) -> bool:
    """Whether Python calls the method by itself: the names of its parameters are nobody's then."""
    return name.startswith("__") and name not in CONSTRUCTORS


def stub_functions() -> Functions:
    """Every function, method and constructor of the stub with the names of its parameters."""
    tree = ast.parse((ROOT / "src" / "ferrite" / "_native.pyi").read_text())
    found = {}
    for node in tree.body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for item in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(item, ast.FunctionDef):
                arguments = [] if is_operator(item.name) else [*item.args.args, *item.args.kwonlyargs]
                found[owner + item.name] = [it.arg for it in arguments if it.arg != "self"]
    return found


def parameters(function: Any) -> list[str]:
    """Parameter names of the last overload of a native function; a property has none."""
    signatures = getattr(function, "__nb_signature__", None)
    if signatures is None:
        return []
    names = re.findall(r"(\w+): ", re.sub(r"\[.*?\]", "", signatures[-1][0]))
    return [name for name in names if name not in ("self", "cls")]


def module_functions() -> Functions:
    """The same of the built module."""
    found = {}
    for name, value in vars(_native).items():
        if name.startswith("_"):
            continue
        if not isinstance(value, type):
            found[name] = parameters(value)
            continue
        for member, function in vars(value).items():
            if is_operator(member) and hasattr(function, "__nb_signature__"):
                found[f"{name}.{member}"] = []
            elif not member.startswith("_"):
                found[f"{name}.{member}"] = parameters(function)
        for constructor in CONSTRUCTORS:
            if constructor in vars(value) and parameters(vars(value)[constructor]):
                found[f"{name}.__init__"] = parameters(vars(value)[constructor])
    return found


def test_the_stub_is_the_face_of_the_native_module() -> None:
    assert stub_functions() == module_functions()


def test_the_comparison_sees_names_and_parameters() -> None:
    functions = module_functions()
    assert functions["Team.__init__"] == ["threads"]
    assert functions["KvStore.copy_block"] == ["source", "target"]
    assert functions["Executor.provider"] == []
    assert functions["Weight.row"] == ["row"]
