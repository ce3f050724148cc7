"""Strings with an origin: every operation keeps text and origin in step."""

from hypothesis import given
from hypothesis import strategies as st

from ferrite.chat.text import Written, origin_of, replace, split, strip

written = st.text("ab \n<>", max_size=12).map(Written)


@given(written, st.text("ab \n", min_size=1, max_size=2), written)
def test_origins_follow_their_characters(text: Written, part: str, new: Written) -> None:
    marked = Written(text, bytes(character in "<>" for character in text))

    def consistent(piece: str) -> bool:
        return isinstance(piece, Written) and piece.origin == bytes(character in "<>" for character in piece)

    for name in ("split", "rsplit", "partition", "rpartition"):
        pieces = split(marked, name, part)
        assert pieces == list(getattr(str, name)(text, part))
        assert all(consistent(piece) for piece in pieces if piece and piece != part)
    for name in ("split", "splitlines"):
        assert split(marked, name) == getattr(str, name)(text)
        assert all(map(consistent, split(marked, name)))
    for name in ("strip", "lstrip", "rstrip"):
        assert strip(marked, name, part) == getattr(str, name)(text, part)
        assert consistent(strip(marked, name, part))
    swapped = replace(marked, part, new)
    assert swapped == str.replace(text, part, new)
    assert len(origin_of(swapped)) == len(swapped)
