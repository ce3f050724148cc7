"""Which keyword of a schema a refusal is about, when the grammar library does not say where."""

import re
import time
from collections.abc import Callable

from ferrite.grammar.errors import GrammarError
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema, subschemas

SEARCH_SECONDS = 0.5

REASONS = (
    (
        "oneOf constraints",
        "the alternatives may overlap; use anyOf, or a required constant that differs in each",
    ),
    ("circular references with sibling", "a recursive reference cannot have other keywords beside it"),
    ("Schema intersection stack level", "recursive schemas cannot be combined"),
    ("schema too large", "its combinations are too many"),
    ("Unable to determine if regex", "together with the other limits of the text it is too complex"),
)
"""How a message of the library begins, and what we say"""

Refuses = Callable[[Node], str | None]
"""Compiles a document of a checked schema and returns what is wrong with it"""


def find_culprit(checked: CheckedSchema, error: GrammarError, refuses: Refuses) -> GrammarError:
    """Return the error with keyword and place: those of the innermost schema that is refused by itself.

    Its keyword is the last one that the refusal names, or else without which it is not refused.
    """
    probes = _Probes(checked, refuses)
    node, reason = checked.root, error.reason
    while True:
        inner = next(((part, found) for part in probes.parts(node) if (found := probes.refusal(part))), None)
        if inner is None:
            break
        node, reason = inner
    named = (keyword for keyword in reversed(node) if re.search(rf"\b{re.escape(keyword)}\b", reason))
    freeing = (keyword for keyword in reversed(node) if probes.passes_without(node, keyword))
    keyword = checked.origins.get(id(node)) or next(named, None) or next(freeing, "")
    if keyword == "allOf":
        parts = list(subschemas({keyword: node[keyword]}))
        keyword = next((checked.origins[id(part)] for part in parts if id(part) in checked.origins), keyword)
    return GrammarError(_reworded(reason), keyword=keyword, path=checked.path(node))


def _reworded(reason: str) -> str:
    reason = reason.removeprefix("Unsatisfiable schema: ")
    return next((ours for theirs, ours in REASONS if reason.startswith(theirs)), reason)


class _Probes:
    def __init__(self, checked: CheckedSchema, refuses: Refuses) -> None:
        self._checked = checked
        self._refuses = refuses
        self._deadline = time.monotonic() + SEARCH_SECONDS
        self._seen: set[int] = {id(checked.root)}

    def parts(self, node: Node) -> list[Node]:
        """Return the schemas within ``node``, and what it refers to, that were not looked at before.

        ``false`` is left out: the fault is that it is asked for.
        """
        target = self._checked.target(node)
        parts = [*subschemas(node), *([] if target is None else [target])]
        fresh = [part for part in parts if id(part) not in self._seen and part != {"enum": []}]
        self._seen.update(map(id, fresh))
        return fresh

    def refusal(self, node: Node) -> str | None:
        """Return why ``node`` is refused by itself; None also when the time for the search is over."""
        if time.monotonic() > self._deadline:
            return None
        definitions = self._checked.definitions
        return self._refuses({**node, "$defs": definitions} if definitions else node)

    def passes_without(self, node: Node, keyword: str) -> bool:
        """Whether ``node`` is not refused without one of its keywords."""
        return self.refusal({name: value for name, value in node.items() if name != keyword}) is None
