"""Drafts of what a sequence says next: copied from where it looked the same before. Pure."""

SHORTEST = 2
"""Tokens that must match before the next is copied."""
LONGEST = 16
"""Tokens up to which a match is measured."""
MOST_CANDIDATES = 8
"""Earlier places of the same two tokens that are looked at, the latest first."""
FIRST_RATES = (0.15, 0.3, 0.5, 0.85)
"""How often the copied token is believed to come behind a match of 2, 3, 4 to 7, and more tokens."""
RESUMED = 3
"""Behind a token that differs, as in an edited copy, the place is kept, and its match counts a third."""
LEAST_CHANCE = 0.05
"""Of a token at the end of a draft."""


class Drafter:
    """Finds the earlier place in a sequence that looks like its end. Constant time and memory for a token."""

    __slots__ = (
        "_indexed",
        "_latest",
        "_match",
        "_previous",
        "_prompt_length",
        "_rates",
        "_source",
        "_tokens",
        "balance",
    )

    def __init__(self, tokens: list[int]) -> None:
        """``tokens``: the prompt, to which its owner appends what is generated."""
        self._tokens = tokens
        self._prompt_length = len(tokens)
        self._indexed = 0
        self._latest: dict[tuple[int, int], int] = {}
        """The position behind the latest place of two tokens."""
        self._previous = [0]
        """By position: the one behind the place before of the same two tokens; 0 when it was the first."""
        self._source = 0
        """The position whose token comes next, if the sequence goes on as before; 0 for none."""
        self._match = 0
        """Tokens before ``_source`` that are also the last ones, up to ``LONGEST``."""
        self._rates = list(FIRST_RATES)
        self.balance = 0.0
        """Tokens that drafts have brought beyond what they have cost, in step times."""

    def draft(self, most: int) -> tuple[list[int], list[float]]:
        """Return at most ``most`` tokens that may come next, and the chance of each that it is reached."""
        self._catch_up()
        tokens, drafted = self._tokens, list[int]()
        chances: list[float] = []
        chance = 1.0
        if self._source:
            for ahead in range(most):
                chance *= self._rates[_kind(self._match + ahead)]
                if chance < LEAST_CHANCE:
                    break
                position = self._source + ahead
                # What repeats itself is copied from the draft.
                known = position < len(tokens)
                drafted.append(tokens[position] if known else drafted[position - len(tokens)])
                chances.append(chance)
        return drafted, chances

    def _catch_up(self) -> None:
        tokens = self._tokens
        for end in range(self._indexed, len(tokens)):
            if end >= self._prompt_length and self._source:
                self._follow(tokens[end])
            before = self._index(end)
            if end >= self._prompt_length - 1 and self._match < LONGEST:
                self._search(before, end + 1)
        self._indexed = len(tokens)

    def _follow(self, token: int) -> None:
        """Take note whether what would have been drafted came, and go on from there."""
        hit = self._tokens[self._source] == token
        kind = _kind(self._match)
        self._rates[kind] += (hit - self._rates[kind]) / 8
        self._match = min(self._match + 1, LONGEST) if hit else self._match // RESUMED
        self._source = self._source + 1 if self._match >= SHORTEST else 0
        if not self._source:
            self._match = 0

    def _index(self, end: int) -> int:
        """Note the place of the two tokens up to ``end``; returns the position behind the one before."""
        before = 0
        if end:
            pair = (self._tokens[end - 1], self._tokens[end])
            before = self._latest.get(pair, 0)
            self._latest[pair] = end + 1
        self._previous.append(before)
        return before

    def _search(self, candidate: int, end: int) -> None:
        """Find a longer match of what ends before ``end`` than the present one."""
        for _ in range(MOST_CANDIDATES):
            if not candidate:
                break
            match = self._length(candidate, end)
            if match > self._match:
                self._source, self._match = candidate, match
                if match == LONGEST:
                    break
            candidate = self._previous[candidate]

    def _length(self, source: int, end: int) -> int:
        tokens, match = self._tokens, SHORTEST
        most = min(LONGEST, source)
        while match < most and tokens[source - match - 1] == tokens[end - match - 1]:
            match += 1
        return match


def _kind(match: int) -> int:
    """Return the place of a match among ``FIRST_RATES``."""
    if match < 4:
        return match - SHORTEST
    return 2 if match < 8 else 3
