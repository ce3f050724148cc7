"""What one generation may say next."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ferrite.grammar.errors import ConstraintError
from ferrite.grammar.limits import MAX_OUTPUT_BYTES
from ferrite.grammar.nesting import Nesting, NestingLimit

Words = npt.NDArray[np.uint32]

JSON_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
"""Where a schema begins in the Lark text around it, which its author does not see"""


class MaskTarget(Protocol):
    """Where a mask goes: the native ``MaskSlot``, or anything like it."""

    @property
    def words(self) -> Words:
        """The bits to write: the same memory every time."""

    def begin(self) -> None:
        """Say that the mask is being made."""

    def publish(self) -> None:
        """Say that the mask can be read."""

    def fail(self) -> None:
        """Say that no mask will come."""


class Constraint:
    """One request's way through its grammar.

    ``fill`` or ``fill_mask``, a token sampled within the mask, ``accept``, and again until ``is_complete``.
    For one thread at a time; filling gives up the GIL while it works.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokens: Sequence[bytes],
        end_ids: frozenset[int],
        nesting: NestingLimit | None,
    ) -> None:
        """Made by ``Grammar.constraint``. ``nesting`` bounds an answer that is JSON."""
        self._matcher = matcher
        self._tokens = tokens
        self._end_ids = end_ids
        self._nesting_limit = nesting
        self._nesting = Nesting()
        self._n_words = (len(tokens) + 31) // 32
        self._bytes_left = MAX_OUTPUT_BYTES
        self._exhausted = False
        self._ended = False
        self._target: MaskTarget | None = None
        self._mask: _Mask | None = None
        """Of ``_target``: its memory is looked up once."""
        self._is_filled = False
        """The target has the mask of the next token."""
        self._behind: int | None = None
        """The last token, where the matcher does not know of it yet."""

    @property
    def is_complete(self) -> bool:
        """The grammar allows nothing more, or an end token was accepted: the generation ends here."""
        return self._ended or (self._behind is None and self._matcher.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """What was accepted is all of an answer, whether or not more may follow."""
        return self._ended or (self._behind is None and self._matcher.is_accepting())

    @property
    def is_exhausted(self) -> bool:
        """The last mask was empty: a bound of the output is reached, and the answer stays unfinished."""
        return self._exhausted

    def fill(self, target: MaskTarget) -> bool:
        """Write the mask of a target that takes those of this constraint only; otherwise as ``fill_mask``.

        The work for the last token is done here too, where the answer cannot end with it.
        """
        if self._mask is None or self._target is not target:
            self._target, self._mask = target, _Mask.of(target.words, self._n_words)
        self._is_filled = self._fill(self._mask)
        return self._is_filled

    def fill_mask(self, words: Words) -> bool:
        """Write which tokens may come next: ``i`` is bit ``i % 32`` of word ``i / 32``; False when none may.

        ``words`` may be longer than the vocabulary needs; the rest becomes zero. End tokens are allowed
        exactly where the answer may end. Raises ``ConstraintError`` when the grammar got too complex.
        """
        self._is_filled = False
        return self._fill(_Mask.of(words, self._n_words))

    def accept(self, token: int) -> None:
        """Go on with ``token``; raises ``ConstraintError`` unless the mask allowed it."""
        is_text = token not in self._end_ids
        after = self._nesting_after(token) if is_text else self._nesting
        if is_text and after.is_inside and self._is_allowed(token):
            self._behind = token
        else:
            self._catch_up()
            self._consume(token)
        self._is_filled = False
        if not is_text:
            self._ended = True
            return
        self._nesting = after
        self._bytes_left -= len(self._tokens[token])

    def _fill(self, mask: "_Mask") -> bool:
        self._catch_up()
        if self._bytes_left <= 0:
            mask.words[:] = 0
            self._exhausted = True
            return False
        self._matcher.unsafe_compute_mask_ptr(mask.address, mask.n_bytes)
        self._check()
        limit = self._nesting_limit
        # Before the limit takes some out, there is always a token.
        self._exhausted = (
            limit is not None and limit.apply(self._nesting, mask.words) and not mask.words.any()
        )
        return not self._exhausted

    def _nesting_after(self, token: int) -> Nesting:
        limit = self._nesting_limit
        known = limit is not None and 0 <= token < len(self._tokens)
        return limit.after(self._nesting, token) if limit is not None and known else self._nesting

    def _is_allowed(self, token: int) -> bool:
        """Whether the target's mask, if it is the last one, has the token."""
        if not self._is_filled or self._mask is None or not 0 <= token < len(self._tokens):
            return False
        return bool(int(self._mask.words[token // 32]) >> token % 32 & 1)

    def _catch_up(self) -> None:
        if self._behind is not None:
            token, self._behind = self._behind, None
            self._consume(token)

    def _consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError(f"token {token} is not of the grammar")

    def _check(self) -> None:
        # A matcher that failed would allow its end tokens.
        if self._matcher.is_error():
            raise ConstraintError(f"the grammar could not be followed: {one_line(self._matcher.get_error())}")


@dataclass(frozen=True, slots=True)
class _Mask:
    """Memory of a mask, as the grammar library takes it."""

    words: Words
    address: int
    n_bytes: int

    @classmethod
    def of(cls, words: Words, n_words: int) -> "_Mask":
        """Take the first words, and clear the others."""
        if words.dtype != np.uint32 or not words.flags.c_contiguous or len(words) < n_words:
            raise ValueError(f"a mask is at least {n_words} contiguous uint32 words")
        words[n_words:] = 0
        mask = words[:n_words]
        return cls(mask, mask.ctypes.data, mask.nbytes)


def one_line(text: str, limit: int = 200) -> str:
    """Return what a message of the grammar library says, without the grammar it quotes."""
    text = text.split("\n<non-verbose/>")[0].split("\n   1 | ")[0]
    if "\nerror: " in text:
        text = text.rpartition("\nerror: ")[2]
    text = " ".join(JSON_PLACE.sub("", text).split())
    return text if len(text) <= limit else text[:limit] + "…"
