"""Every report has tests, every test that is named exists, and none is left out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.field_reports.reports import KINDS, REPORTS

TESTS = Path(__file__).parent.parent
HERE = Path(__file__).parent.name


@cache
def functions(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the test functions of a file by name, which must be different ones."""
    tree = ast.parse((TESTS / file).read_text())
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len({node.name for node in found}) == len(found), file
    return {node.name: node for node in found}


def leaves_out(written: str) -> bool:
    """Whether code skips a test, or takes its failure for granted, whatever the circumstances."""
    return bool(re.search(r"\bmark\.skip\b|\bmark\.xfail\b|\bskipif\(\s*True\b", written))


@cache
def module_leaves_out(file: str) -> bool:
    tree = ast.parse((TESTS / file).read_text())
    return any(
        leaves_out(ast.unparse(node))
        or re.match(r"pytest\.(skip|xfail|importorskip)\(", ast.unparse(node)) is not None
        for node in tree.body
        if isinstance(node, ast.Assign | ast.Expr)
    )


def test_there_are_sixty() -> None:
    assert list(REPORTS) == [f"FR-{number:02}" for number in range(1, 61)]
    assert sum(len(kind.REPORTS) for kind in KINDS) == 60
    assert len({report.title for report in REPORTS.values()}) == 60


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_held_by_tests_that_exist_and_run(name: str) -> None:
    report = REPORTS[name]
    assert report.sources
    for source in report.sources:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#[1-9]\d*", source), source
    assert len(set(report.tests)) == len(report.tests) > 0
    for test in report.tests:
        file, _, function = test.partition("::")
        assert function in functions(file), test
        node = functions(file)[function]
        assert not any(leaves_out(ast.unparse(decorator)) for decorator in node.decorator_list), test
        assert not module_leaves_out(file), test
        first = next(
            (each for each in node.body if ast.get_docstring(node) is None or each is not node.body[0]), None
        )
        assert first is not None, test
        assert not re.match(r"pytest\.(skip|xfail)\(", ast.unparse(first)), test


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_does_not_need_a_model_that_must_be_fetched(name: str) -> None:
    """Some test of each runs wherever the suite does."""

    def needs_a_model(test: str) -> bool:
        file, _, function = test.partition("::")
        decorators = [ast.unparse(each) for each in functions(file)[function].decorator_list]
        module = (TESTS / file).read_text()
        return "pytest.mark.model" in decorators or "\npytestmark = pytest.mark.model" in module

    assert not all(map(needs_a_model, REPORTS[name].tests))


def test_the_tests_of_this_folder_name_their_reports() -> None:
    for path in sorted(Path(__file__).parent.glob("test_fr_*.py")):
        file = f"{HERE}/{path.name}"
        for function, node in functions(file).items():
            named = set(re.findall(r"FR-\d\d", ast.get_docstring(node) or ""))
            listed = {name for name, report in REPORTS.items() if f"{file}::{function}" in report.tests}
            assert named == listed, function
            assert named, function


@pytest.mark.parametrize(
    "code",
    [
        "@pytest.mark.skip(reason='x')\ndef test_a(): assert 1",
        "@pytest.mark.skipif(True, reason='x')\ndef test_a(): assert 1",
        "@pytest.mark.xfail\ndef test_a(): assert 1",
    ],
)
def test_what_is_left_out_is_noticed(code: str) -> None:
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.FunctionDef)
    assert leaves_out(ast.unparse(node.decorator_list[0]))
