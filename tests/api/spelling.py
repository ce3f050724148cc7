"""A server whose tokenizer also spells its tokens, has control tokens and can leave BOS out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ferrite.tokenizer import Detokenizer
from tests.api.support import END, ByteTokenizer, Running, Script, running_server


class SpellingTokenizer(ByteTokenizer):
    """Bytes too, with a beginning token 2 and, like SentencePiece, a space in front where one is wanted."""

    def __init__(self, *, space: bool = False) -> None:
        self.space = " " if space else ""

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        text = text.replace("<end>", chr(END)) if parse_special else text
        return [*([2] if add_bos else []), *(self.space + text).encode()]

    def encode_segments(self, segments: Any, *, add_bos: bool) -> list[int]:
        return [2, *super().encode_segments(segments, add_bos=add_bos)]

    def is_control(self, token: int) -> bool:
        return token in (2, END)

    def token_bytes(self, token: int) -> bytes:
        return {2: b"<begin>", END: b"<end>"}.get(token) or super().token_bytes(token)


@contextmanager
def spelling_server(*, space: bool = False, **options: Any) -> Iterator[Running]:
    runner = Script("ok").runner(context_length=512)
    with running_server(runner, **options) as running:
        assert running.state.model is not None
        tokenizer = SpellingTokenizer(space=space)
        running.state.model = replace(
            running.state.model, tokenizer=tokenizer, detokenizer=lambda: Detokenizer(tokenizer)
        )
        yield running
