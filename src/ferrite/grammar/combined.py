"""How many patterns one text must match at once."""

from ferrite.grammar.errors import GrammarError
from ferrite.grammar.limits import MAX_COMBINED_PATTERNS
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema


def check_combined(schema: CheckedSchema) -> None:
    """Raise ``GrammarError`` for too many: the automaton of all together grows with their product."""
    known: dict[int, int] = {}
    for node in schema.nodes():
        count = _combined(schema, node, known)
        if count > MAX_COMBINED_PATTERNS:
            raise GrammarError(
                f"{count} patterns and formats for one text, the limit is {MAX_COMBINED_PATTERNS}",
                keyword="pattern" if "pattern" in node else "allOf",
                path=schema.path(node),
            )


def _combined(schema: CheckedSchema, node: Node, known: dict[int, int]) -> int:
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = 0  # for a reference back to here
    count = ("pattern" in node) + ("format" in node)
    target = schema.target(node)
    count += 0 if target is None else _combined(schema, target, known)
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = node.get(keyword, [])
        assert isinstance(parts, list)
        counts = [_combined(schema, part, known) for part in parts]
        count += sum(counts) if keyword == "allOf" else max(counts, default=0)
    known[id(node)] = count
    return count
