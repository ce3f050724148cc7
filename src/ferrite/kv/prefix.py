"""The prefix cache: immutable snapshots of evaluated prompts that later requests continue from.

A snapshot is a list of token ids and one reference to each KV block that holds their positions. Nothing is
copied: whoever writes into a shared block copies it first (``BlockTable.prepare_write``).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrite.kv.blocks import BlockPool, blocks_for

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """Bounds of the cache; both hold together. Raises ``ValueError`` naming a bad field."""

    max_entries: int
    max_bytes: int
    """Logical bytes: the blocks of every entry, a block as often as entries name it.

    Entries share blocks, so the distinct blocks the cache keeps from being free are at most the logical ones:
    a store with ``max_bytes // block_bytes`` blocks to spare is never exhausted by the cache.
    """

    def __post_init__(self) -> None:
        if self.max_entries < 1:
            raise ValueError(f"max_entries is {self.max_entries}, must be at least 1")
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes is {self.max_bytes}, must be at least 1")


@dataclass(frozen=True, slots=True)
class Match:
    """A hit. Its blocks are a lease: the caller holds one reference to each and releases it."""

    tokens: int
    """Prompt tokens, from the first, whose KV is in the blocks; at least 1."""
    entry_tokens: int
    """Tokens of the entry that matched."""
    blocks: tuple[int, ...]
    """The blocks of the first ``tokens`` positions; the last may hold more positions, of other tokens."""


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Occupancy, limits and counts since the start."""

    entries: int
    bytes: int
    """Logical bytes of all entries."""
    max_entries: int
    max_bytes: int
    hits: int
    misses: int
    evictions: int
    """Entries dropped to make room; not those a longer entry replaced."""
    reused_tokens: int
    """Prompt tokens of all hits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    namespace: str
    tokens: TokenIds
    blocks: tuple[int, ...]


class PrefixCache:
    """Least recently used snapshots, found by the longest common prefix of token ids.

    One thread looks up and inserts; any thread may call ``stats``.
    """

    __slots__ = (
        "_block_bytes",
        "_block_tokens",
        "_entries",
        "_evictions",
        "_hits",
        "_limits",
        "_logical_blocks",
        "_misses",
        "_pool",
        "_reused_tokens",
    )

    def __init__(self, pool: BlockPool, *, block_tokens: int, block_bytes: int, limits: PrefixLimits) -> None:
        """``block_tokens`` positions and ``block_bytes`` bytes of KV are in one block of ``pool``."""
        self._pool = pool
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._limits = limits
        self._entries: OrderedDict[_Entry, None] = OrderedDict()
        """In the order of use, the most recent last."""
        self._logical_blocks = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._reused_tokens = 0

    def lookup(self, namespace: str, tokens: Sequence[int]) -> Match | None:
        """The longest common prefix of ``tokens`` with an entry of ``namespace``; ``None`` without one.

        An entry may match in part. At most ``len(tokens) - 1`` positions are reused, since the logits of the
        last have to be computed. Of equally good entries the most recently used one serves, so that the
        others can go. The entry becomes the most recently used.
        """
        prompt = _token_ids(tokens[:-1])
        common, best = 0, None
        for entry in reversed(self._entries):
            if entry.namespace == namespace and _may_share_more(entry.tokens, prompt, common):
                length = _common_prefix(entry.tokens, prompt)
                if length > common:
                    common, best = length, entry
        if best is None:
            self._misses += 1
            return None
        blocks = best.blocks[: blocks_for(common, self._block_tokens)]
        self._pool.retain(blocks)
        self._entries.move_to_end(best)
        self._hits += 1
        self._reused_tokens += common
        return Match(common, len(best.tokens), blocks)

    def insert(self, namespace: str, tokens: Sequence[int], blocks: Sequence[int]) -> bool:
        """Keep a snapshot of ``tokens``, whose KV is in the first of ``blocks``; True if it is there now.

        The cache takes references of its own; the caller keeps its own. An equal or longer entry that is
        there already is only refreshed. Entries that are a prefix of the new one go: it serves every lookup
        they would. Then the least recently used go until both limits hold, and only then are references
        taken. A snapshot that is larger than ``max_bytes`` by itself is not kept and changes nothing.
        Raises ``ValueError`` when the blocks do not cover the tokens.
        """
        needed = blocks_for(len(tokens), self._block_tokens)
        if len(blocks) < needed:
            raise ValueError(f"{len(tokens)} tokens need {needed} blocks, {len(blocks)} were given")
        if not 0 < needed <= self._block_limit:
            return False
        snapshot = _token_ids(tokens)
        replaced = []
        for entry in reversed(self._entries):
            if entry.namespace == namespace and _is_one_the_other_s_prefix(entry.tokens, snapshot):
                if len(entry.tokens) >= len(snapshot):
                    self._entries.move_to_end(entry)
                    return True
                replaced.append(entry)
        for entry in replaced:
            self._drop(entry)
        self._make_room(needed)
        kept = tuple(blocks[:needed])
        self._pool.retain(kept)
        self._entries[_Entry(namespace, snapshot, kept)] = None
        self._logical_blocks += needed
        return True

    def stats(self) -> PrefixStats:
        """Occupancy and counts at this moment."""
        return PrefixStats(
            entries=len(self._entries),
            bytes=self._logical_blocks * self._block_bytes,
            max_entries=self._limits.max_entries,
            max_bytes=self._limits.max_bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            reused_tokens=self._reused_tokens,
        )

    def holders(self) -> list[tuple[int, ...]]:
        """The blocks of each entry, for ``BlockPool.audit``."""
        return [entry.blocks for entry in self._entries]

    def clear(self) -> None:
        """Drop every entry; leases and counts stay."""
        for entry in tuple(self._entries):
            self._drop(entry)

    @property
    def _block_limit(self) -> int:
        return self._limits.max_bytes // self._block_bytes

    def _make_room(self, blocks: int) -> None:
        while (
            len(self._entries) >= self._limits.max_entries
            or self._logical_blocks + blocks > self._block_limit
        ):
            self._drop(next(iter(self._entries)))
            self._evictions += 1

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry]
        self._logical_blocks -= len(entry.blocks)
        self._pool.release(entry.blocks)


def _token_ids(tokens: Sequence[int]) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def _may_share_more(entry: TokenIds, prompt: TokenIds, common: int) -> bool:
    """Whether the two can have more than ``common`` tokens in common; looks at one token."""
    return common < min(len(entry), len(prompt)) and bool(entry[common] == prompt[common])


def _is_one_the_other_s_prefix(entry: TokenIds, snapshot: TokenIds) -> bool:
    shorter = min(len(entry), len(snapshot))
    if entry[shorter - 1] != snapshot[shorter - 1]:
        return False
    return bool((entry[:shorter] == snapshot[:shorter]).all())


def _common_prefix(entry: TokenIds, prompt: TokenIds) -> int:
    shorter = min(len(entry), len(prompt))
    differs = entry[:shorter] != prompt[:shorter]
    first = int(differs.argmax())
    return first if differs[first] else shorter
