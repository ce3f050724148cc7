"""Check a parsed template and rewrite it, so that all it does goes through the metered operations.

Rewritten: texts the template writes become constants that know their origin; loops and macro bodies
pay for each run; ``~``, comparisons, slices and dict keys become filters of ours. Jinja's sandbox
already hands us calls, arithmetic, attributes and subscripts.
"""

from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from ferrite.chat.filters import COMPARE, CONCAT, CUT, ITERATE, KEY, RUN
from ferrite.chat.messages import TemplateRefusedError
from ferrite.chat.meter import CHARACTERS_PER_UNIT
from ferrite.chat.text import Written

TEXT = "ferrite:text"

_STATEMENTS: tuple[type[nodes.Node], ...] = (
    nodes.Assign,
    nodes.AssignBlock,
    nodes.Break,
    nodes.CallBlock,
    nodes.Continue,
    nodes.FilterBlock,
    nodes.For,
    nodes.If,
    nodes.Macro,
    nodes.Output,
    nodes.Scope,
    nodes.Template,
    nodes.With,
)
_EXPRESSIONS: tuple[type[nodes.Node], ...] = (
    nodes.BinExpr,
    nodes.Call,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Filter,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Keyword,
    nodes.Literal,
    nodes.Name,
    nodes.NSRef,
    nodes.Operand,
    nodes.Pair,
    nodes.Slice,
    nodes.Test,
    nodes.UnaryExpr,
)
_BODIES = (nodes.For, nodes.Macro, nodes.CallBlock)


class GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  the class attribute Jinja reads

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to ``{% endgeneration %}``."""
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


def check(tree: nodes.Template) -> None:
    """Refuse what no prompt needs and no budget covers: other templates, blocks, recursive loops."""
    for node in _walk(tree):
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)):
            raise TemplateRefusedError(f"line {node.lineno}: {type(node).__name__.lower()} is not supported")
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateRefusedError(f"line {node.lineno}: recursive loops are not supported")


def compared_roles(tree: nodes.Template) -> frozenset[str]:
    """Texts that the template compares with something named ``role``."""
    return frozenset(
        constant.value
        for comparison in tree.find_all(nodes.Compare)
        if any(_named(node) == "role" for node in _walk(comparison))
        for constant in comparison.find_all(nodes.Const)
        if isinstance(constant.value, str)
    )


def variables(tree: nodes.Template) -> frozenset[str]:
    """Names of the variables that the template mentions."""
    return frozenset(node.name for node in tree.find_all(nodes.Name))


def rewrite(tree: nodes.Template, environment: Environment) -> tuple[Written, ...]:
    """Rewrite in place; returns the constants that ``TEXT`` numbers."""
    rewriter = _Rewriter()
    rewriter.visit(tree)
    tree.set_environment(environment)
    return tuple(rewriter.constants)


def _walk(node: nodes.Node) -> Iterable[nodes.Node]:
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.iter_child_nodes())


def _named(node: nodes.Node) -> object:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value
    return node.name if isinstance(node, nodes.Name) else None


def _filter(name: str, value: nodes.Node, *args: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


def _weight(parts: Iterable[nodes.Node]) -> int:
    """Nodes that one run visits. Inner loops and macros pay for their own bodies."""
    total = 0
    for node in parts:
        total += 1
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            total += len(node.value) // CHARACTERS_PER_UNIT
        total += _weight(node.iter_child_nodes(exclude=("body",) if isinstance(node, _BODIES) else ()))
    return total


class _Rewriter(NodeTransformer):
    def __init__(self) -> None:
        self.constants: list[Written] = []

    def _text(self, text: str, lineno: int) -> nodes.Filter:
        self.constants.append(Written(text))
        return _filter(TEXT, nodes.Const(len(self.constants) - 1, lineno=lineno))

    def _paid_body(self, node: Any) -> None:
        weight = nodes.Const(_weight(node.body), lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_filter(RUN, weight)], lineno=node.lineno))

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return self._text(node.data, node.lineno)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        return self._text(node.value, node.lineno) if isinstance(node.value, str) else node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        per_value = 1 + (_weight([node.test]) if node.test is not None else 0)
        self._paid_body(node)
        node.iter = _filter(ITERATE, node.iter, nodes.Const(per_value, lineno=node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self._paid_body(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self._paid_body(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(CONCAT, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        signs = " ".join(operand.op for operand in node.ops)
        operands = nodes.List([node.expr, *(operand.expr for operand in node.ops)], lineno=node.lineno)
        return _filter(COMPARE, operands, nodes.Const(signs, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        if isinstance(node.arg, nodes.Const):
            node.node = self.visit(node.node)
            return node
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        nothing = nodes.Const(None, lineno=node.lineno)
        bounds = [bound or nothing for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _filter(CUT, node.node, *bounds)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filter(KEY, node.key)
        return node
