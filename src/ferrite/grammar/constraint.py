"""What one generation may say next."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ferrite.grammar.errors import ConstraintError
from ferrite.grammar.limits import MAX_OUTPUT_BYTES
from ferrite.grammar.nesting import Nesting, NestingLimit

Words = npt.NDArray[np.uint32]

JSON_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
"""Where a schema begins in the Lark text around it, which its author does not see"""


class Constraint:
    """One request's way through its grammar.

    ``fill_mask``, a token sampled within the mask, ``accept``, and again until ``is_complete``. For one
    thread at a time; ``fill_mask`` gives up the GIL while it works.
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

    @property
    def is_complete(self) -> bool:
        """The grammar allows nothing more, or an end token was accepted: the generation ends here."""
        return self._ended or self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """What was accepted is all of an answer, whether or not more may follow."""
        return self._ended or self._matcher.is_accepting()

    @property
    def is_exhausted(self) -> bool:
        """The last mask was empty: a bound of the output is reached, and the answer stays unfinished."""
        return self._exhausted

    def fill_mask(self, words: Words) -> bool:
        """Write which tokens may come next: ``i`` is bit ``i % 32`` of word ``i / 32``; False when none may.

        ``words`` may be longer than the vocabulary needs; the rest becomes zero. End tokens are allowed
        exactly where the answer may end. Raises ``ConstraintError`` when the grammar got too complex.
        """
        if words.dtype != np.uint32 or not words.flags.c_contiguous or len(words) < self._n_words:
            raise ValueError(f"a mask is at least {self._n_words} contiguous uint32 words")
        mask = words[: self._n_words]
        words[self._n_words :] = 0
        if self._bytes_left <= 0:
            mask[:] = 0
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._check()
            if self._nesting_limit is not None:
                self._nesting_limit.apply(self._nesting, mask)
        self._exhausted = not mask.any()
        return not self._exhausted

    def accept(self, token: int) -> None:
        """Go on with ``token``; raises ``ConstraintError`` unless the mask allowed it."""
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError(f"token {token} is not of the grammar")
        if token in self._end_ids:
            self._ended = True
            return
        text = self._tokens[token]
        self._bytes_left -= len(text)
        if self._nesting_limit is not None:
            self._nesting = self._nesting.after(text)

    def _check(self) -> None:
        # A matcher that failed would allow its end tokens.
        if self._matcher.is_error():
            raise ConstraintError(f"the grammar could not be followed: {one_line(self._matcher.get_error())}")


def one_line(text: str, limit: int = 200) -> str:
    """Return what a message of the grammar library says, without the grammar it quotes."""
    text = text.split("\n<non-verbose/>")[0].split("\n   1 | ")[0]
    if "\nerror: " in text:
        text = text.rpartition("\nerror: ")[2]
    text = " ".join(JSON_PLACE.sub("", text).split())
    return text if len(text) <= limit else text[:limit] + "…"
