"""Imports go the way the table in docs/architecture.md says, and no other."""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
ROW = re.compile(r"^\| `ferrite\.(?P<package>\w+)` \|[^|]*\|(?P<imports>[^|]*)\|$", re.MULTILINE)

Table = Mapping[str, frozenset[str]]


def read_table(text: str) -> Table:
    """Each package with those it may import."""
    rows = {row["package"]: set(re.findall(r"\w+", row["imports"])) for row in ROW.finditer(text)}
    return {
        package: frozenset(set(rows) - {package} | {"_native"} if imports == {"everything"} else imports)
        for package, imports in rows.items()
    }


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the absolute dotted names a module of ``package`` imports, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def violations(sources: Path, table: Table) -> list[str]:
    """One line for each import below ``sources``/ferrite that the table does not allow."""
    packages = {path.stem for path in (sources / "ferrite").iterdir()} | {"_native"}
    found = []
    for path in sorted((sources / "ferrite").rglob("*.py")):
        place = path.relative_to(sources)
        if len(place.parts) < 3:
            importer, allowed = "ferrite", frozenset[str]()
        else:
            importer, allowed = place.parts[1], table.get(place.parts[1], frozenset())
        for name, line in imported_modules(ast.parse(path.read_text()), place.parent.parts):
            parts = name.split(".")
            if parts[0] != "ferrite" or len(parts) < 2 or parts[1] not in packages:
                continue
            if parts[1] != importer and parts[1] not in allowed:
                found.append(f"{place}:{line}: {importer} imports {parts[1]}")
    return found


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table((ROOT / "docs" / "architecture.md").read_text())


def test_the_table_names_every_package(table: Table) -> None:
    packages = {path.parent.name for path in (SOURCES / "ferrite").glob("*/__init__.py")}
    assert packages == set(table)


def test_the_table_has_no_cycle(table: Table) -> None:
    order = list(TopologicalSorter(table).static_order())
    assert order.index("engine") < order.index("api") < order.index("cli")


def test_imports_follow_the_table(table: Table) -> None:
    assert violations(SOURCES, table) == []


def test_the_check_sees_every_form_of_import(tmp_path: Path) -> None:
    for name in ("", "kv", "api", "engine"):
        folder = tmp_path / "ferrite" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    (tmp_path / "ferrite" / "engine" / "loop.py").write_text(
        "import ferrite.kv\nfrom ferrite import __version__\n"
    )
    (tmp_path / "ferrite" / "kv" / "blocks.py").write_text(
        "import os\n"
        "import ferrite.engine.loop\n"
        "from ferrite import api\n"
        "from ferrite.api import server\n"
        "from . import __init__\n"
        "from .. import engine\n"
        "from ..api.server import run\n"
        "def late():\n"
        "    from ferrite import _native\n"
    )
    rows = (
        "| `ferrite.kv` | blocks | |\n| `ferrite.engine` | loop | kv |\n| `ferrite.api` | routes | engine |\n"
    )
    assert violations(tmp_path, read_table(rows)) == [
        f"ferrite/kv/blocks.py:{line}: kv imports {name}"
        for line, name in [(2, "engine"), (3, "api"), (4, "api"), (6, "engine"), (7, "api"), (9, "_native")]
    ]
