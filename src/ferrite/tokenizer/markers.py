"""Marker tokens (control, user-defined) cut out of text whole, before the rest of it is merged."""

import re
from collections.abc import Mapping


class MarkerSplitter:
    """Splits text at the texts of some tokens: the first marker found wins, the longest at that place.

    That is the rule of the published tokenizers. llama.cpp instead looks for the longest marker in the
    whole text first, which differs only where the tail of one marker is the head of a longer one.
    """

    def __init__(self, markers: Mapping[str, int]) -> None:
        self._markers = dict(markers)
        lengths: dict[str, set[int]] = {}
        for text in markers:
            lengths.setdefault(text[:2], set()).add(len(text))
        for head, found in lengths.items():
            if head[0] in markers:
                found.add(1)
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        first = "".join(sorted({re.escape(text[0]) for text in markers}))
        self._starts = re.compile(f"[{first}]") if markers else None

    def split(self, text: str) -> list[str | int]:
        """Return the markers of ``text`` as ids and the text between them, which is never empty."""
        if self._starts is None:
            return [text] if text else []
        pieces: list[str | int] = []
        done = 0
        for start in self._starts.finditer(text):
            at = start.start()
            if at < done:
                continue
            marker = self._longest_at(text, at)
            if marker is None:
                continue
            if done < at:
                pieces.append(text[done:at])
            pieces.append(self._markers[marker])
            done = at + len(marker)
        if done < len(text):
            pieces.append(text[done:])
        return pieces

    def _longest_at(self, text: str, at: int) -> str | None:
        head = text[at : at + 2]
        for length in self._lengths.get(head) or self._lengths.get(head[0]) or ():
            candidate = text[at : at + length]
            if candidate in self._markers:
                return candidate
        return None
