"""The one error of the reader, and the quoting that keeps its message on one line."""

from pathlib import Path

MAX_QUOTED_CHARS = 80
"""Names come from the file and may be 64 KiB long; this much identifies them in a log line."""


class GGUFError(ValueError):
    """A model file that cannot be used. The message is one line: the file, what is wrong, and where."""


def gguf_error(path: Path, problem: str, offset: int | None = None) -> GGUFError:
    """Build the error for ``problem`` in ``path``; ``offset`` is a byte offset in that file."""
    where = "" if offset is None else f" (at byte {offset})"
    return GGUFError(f"{display(str(path))}: {problem}{where}")


def quoted(name: str | bytes) -> str:
    """Quote a name from the file: printable ASCII only, at most ``MAX_QUOTED_CHARS`` characters of it."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return ascii(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "...")


def display(text: str) -> str:
    """Return ``text`` for a terminal: unchanged when printable, otherwise with the rest escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )
