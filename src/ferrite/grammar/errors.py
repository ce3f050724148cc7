"""What can be wrong with a grammar, and with following it."""

MAX_PATH_CHARS = 120
"""In a message"""


class GrammarError(ValueError):
    """A grammar that cannot be honoured; one line that names the keyword and where it stands."""

    def __init__(self, reason: str, *, keyword: str = "", path: str = "#") -> None:
        """``path`` is a JSON pointer to the schema with the ``keyword``, empty where all is at fault."""
        self.reason = reason
        self.keyword = keyword
        self.path = path
        place = path if len(path) <= MAX_PATH_CHARS else f"{path[:MAX_PATH_CHARS]}…"
        super().__init__(f"{keyword} at {place}: {reason}" if keyword else f"{place}: {reason}")


class ConstraintError(RuntimeError):
    """A grammar that could not be followed to its end: it grew too complex, or a token was not of it."""


def pointer(path: tuple[str | int, ...]) -> str:
    """Return a JSON pointer in fragment form: ``#/properties/a~1b/items``."""
    return "/".join(["#", *(str(part).replace("~", "~0").replace("/", "~1") for part in path)])


def quoted(text: str, limit: int = 80) -> str:
    """Return ``text`` for an error message: quoted, on one line, cut when long."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
