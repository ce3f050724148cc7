from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrite.kv import (
    BlockPool,
    BlockTable,
    Match,
    PrefixCache,
    PrefixLimits,
    PrefixStats,
    blocks_for,
    prefix,
)

BLOCK_TOKENS = 4
BLOCK_BYTES = 1024


def cache_of(pool: BlockPool, *, max_entries: int = 8, max_blocks: int = 64) -> PrefixCache:
    limits = PrefixLimits(max_entries=max_entries, max_bytes=max_blocks * BLOCK_BYTES)
    return PrefixCache(pool, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, limits=limits)


def run(pool: BlockPool, cache: PrefixCache, tokens: Sequence[int], namespace: str = "k") -> tuple[int, ...]:
    """Evaluate ``tokens`` as the engine would, without reuse; returns the blocks, now only the cache's."""
    blocks = tuple(pool.allocate(blocks_for(len(tokens), BLOCK_TOKENS)))
    cache.insert(namespace, tokens, blocks)
    pool.release(blocks)
    return blocks


def matched(pool: BlockPool, cache: PrefixCache, tokens: Sequence[int], namespace: str = "k") -> int:
    """Reused tokens of one lookup whose lease ends at once."""
    match = cache.lookup(namespace, tokens)
    if match is None:
        return 0
    pool.release(match.blocks)
    return match.tokens


def test_a_hit_leases_the_blocks_of_the_common_prefix() -> None:
    pool = BlockPool(16)
    cache = cache_of(pool)
    blocks = run(pool, cache, range(10))
    match = cache.lookup("k", [0, 1, 2, 3, 4, 99, 98])
    assert match == Match(tokens=5, entry_tokens=10, blocks=blocks[:2])
    assert [pool.references(block) for block in blocks] == [2, 2, 1]
    pool.audit([*cache.holders(), match.blocks])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_the_last_position_is_always_left_to_evaluate(length: int) -> None:
    pool = BlockPool(16)
    cache = cache_of(pool)
    run(pool, cache, range(length))
    assert matched(pool, cache, range(length)) == length - 1
    assert matched(pool, cache, range(length + 1)) == length
    assert matched(pool, cache, range(length + 9)) == length


def test_an_edited_prompt_reuses_nothing_from_the_first_changed_token_on() -> None:
    pool = BlockPool(16)
    cache = cache_of(pool)
    prompt = list(range(40))
    run(pool, cache, prompt)
    for changed in range(40):
        edited = [*prompt[:changed], 77, *prompt[changed + 1 :]]
        assert matched(pool, cache, edited) == min(changed, 39)


def test_the_longest_of_several_entries_serves() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool)
    run(pool, cache, [1, 2, 3, 40, 41])
    run(pool, cache, [1, 2, 3, 4, 5, 60, 61])
    run(pool, cache, [1, 2, 70, 71])
    match = cache.lookup("k", [1, 2, 3, 4, 5, 6, 7])
    assert match is not None
    assert (match.tokens, match.entry_tokens) == (5, 7)


def test_namespaces_share_nothing_but_the_limits() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_entries=2)
    run(pool, cache, range(8), "a")
    assert matched(pool, cache, range(8), "b") == 0
    run(pool, cache, range(12), "b")
    assert len(cache.holders()) == 2
    run(pool, cache, range(4), "c")
    assert [matched(pool, cache, range(8), name) for name in "abc"] == [0, 7, 4]


def test_a_longer_entry_replaces_its_prefixes() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool)
    run(pool, cache, [1, 2, 3])
    run(pool, cache, [1, 2, 3, 4, 5])
    run(pool, cache, [1, 2, 9])
    run(pool, cache, [1, 2, 3], "other")
    assert [len(blocks) for blocks in cache.holders()] == [2, 1, 1]
    assert cache.stats().evictions == 0


def test_an_equal_or_shorter_prompt_only_refreshes() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_entries=2)
    first = run(pool, cache, range(8))
    run(pool, cache, [50, 51])
    again = pool.allocate(2)
    assert cache.insert("k", range(8), again)
    assert cache.insert("k", range(3), again)
    pool.release(again)
    assert cache.holders()[-1] == first
    run(pool, cache, [60, 61])
    assert matched(pool, cache, range(8)) == 7
    assert matched(pool, cache, [50, 51]) == 0


def test_the_least_recently_used_goes_first() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_entries=3)
    for name in (10, 20, 30):
        run(pool, cache, [name, name + 1])
    assert matched(pool, cache, [10, 11]) == 1
    run(pool, cache, [40, 41])
    assert [matched(pool, cache, [name, name + 1]) for name in (10, 20, 30, 40)] == [1, 0, 1, 1]
    assert cache.stats().evictions == 1


def test_of_equally_good_entries_the_most_recently_used_serves() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_entries=3)
    run(pool, cache, [1, 2, 30])
    run(pool, cache, [1, 2, 40])
    run(pool, cache, [9, 9, 9])
    assert matched(pool, cache, [1, 2, 50]) == 2
    run(pool, cache, [8, 8, 8])
    run(pool, cache, [7, 7, 7])
    assert matched(pool, cache, [1, 2, 40, 0]) == 3


def test_both_limits_hold_together() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_entries=3, max_blocks=5)
    for name in range(40):
        run(pool, cache, [name] * (1 + name % 9))
        seen = cache.stats()
        assert seen.entries <= 3
        assert seen.bytes <= 5 * BLOCK_BYTES
        assert seen.bytes == BLOCK_BYTES * sum(map(len, cache.holders()))
        assert pool.n_blocks - pool.n_free <= 5


def test_a_byte_limit_between_two_blocks_rounds_down() -> None:
    pool = BlockPool(8)
    limits = PrefixLimits(max_entries=8, max_bytes=3 * BLOCK_BYTES - 1)
    cache = PrefixCache(pool, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, limits=limits)
    assert not cache.insert("k", range(9), pool.allocate(3))
    assert cache.insert("k", range(8), pool.allocate(2))


def test_an_oversized_snapshot_is_not_kept_and_pushes_nothing_out() -> None:
    pool = BlockPool(64)
    cache = cache_of(pool, max_blocks=4)
    run(pool, cache, range(8))
    run(pool, cache, [50, 51])
    before = cache.holders()
    blocks = pool.allocate(5)
    assert not cache.insert("k", range(17), blocks)
    pool.release(blocks)
    assert cache.holders() == before
    assert cache.stats().evictions == 0
    assert matched(pool, cache, range(17)) == 8


def test_nothing_is_kept_of_nothing() -> None:
    pool = BlockPool(4)
    cache = cache_of(pool)
    assert not cache.insert("k", [], [])
    assert cache.holders() == []


def test_room_is_made_before_references_are_taken() -> None:
    calls: list[str] = []

    class Pool(BlockPool):
        def retain(self, blocks: Sequence[int]) -> None:  # type: ignore[override]
            calls.append("retain")
            super().retain(blocks)

        def release(self, blocks: Sequence[int]) -> None:  # type: ignore[override]
            calls.append("release")
            super().release(blocks)

    pool = Pool(8)
    cache = cache_of(pool, max_entries=2)
    for name in (1, 2, 3):
        cache.insert("k", [name], pool.allocate(1))
    cache.insert("k", [3, 4], pool.allocate(1))
    assert calls == ["retain", "retain", "release", "retain", "release", "retain"]


def test_a_lease_survives_eviction() -> None:
    pool = BlockPool(16)
    cache = cache_of(pool, max_entries=1)
    blocks = run(pool, cache, range(12))
    match = cache.lookup("k", range(12))
    assert match is not None
    run(pool, cache, [50])
    assert matched(pool, cache, range(12)) == 0
    assert match.blocks == blocks
    assert [pool.references(block) for block in blocks] == [1, 1, 1]
    pool.audit([*cache.holders(), match.blocks])
    pool.release(match.blocks)
    assert pool.n_free == 15


def test_clearing_gives_every_block_back_and_keeps_the_counts() -> None:
    pool = BlockPool(16)
    cache = cache_of(pool)
    run(pool, cache, range(12))
    run(pool, cache, range(12), "other")
    matched(pool, cache, range(12))
    cache.clear()
    assert cache.holders() == []
    assert pool.n_free == 16
    assert cache.stats() == PrefixStats(0, 0, 8, 64 * BLOCK_BYTES, 1, 0, 0, 11)


def test_stats_count_lookups_and_reused_tokens() -> None:
    pool = BlockPool(16)
    cache = cache_of(pool, max_entries=1)
    matched(pool, cache, range(9))
    run(pool, cache, range(9))
    matched(pool, cache, range(9))
    matched(pool, cache, [0, 1, 2, 99])
    matched(pool, cache, [99])
    run(pool, cache, [50])
    assert cache.stats() == PrefixStats(
        entries=1,
        bytes=BLOCK_BYTES,
        max_entries=1,
        max_bytes=64 * BLOCK_BYTES,
        hits=2,
        misses=2,
        evictions=1,
        reused_tokens=8 + 3,
    )


def test_entries_that_share_blocks_count_them_twice_but_hold_them_once() -> None:
    pool = BlockPool(8)
    cache = cache_of(pool)
    shared = run(pool, cache, [*range(8), 90])
    match = cache.lookup("k", [*range(8), 91])
    assert match is not None
    blocks = [*match.blocks, *pool.allocate(1)]
    cache.insert("k", [*range(8), 91], blocks)
    pool.release(blocks)
    assert cache.stats().bytes == 6 * BLOCK_BYTES
    assert pool.n_blocks - pool.n_free == 4
    assert pool.references(shared[0]) == 2


def test_a_snapshot_takes_the_first_blocks_of_a_longer_table() -> None:
    pool = BlockPool(8)
    cache = cache_of(pool)
    blocks = pool.allocate(4)
    assert cache.insert("k", range(5), blocks)
    assert cache.holders() == [tuple(blocks[:2])]


def test_blocks_that_do_not_cover_the_tokens_are_refused() -> None:
    pool = BlockPool(8)
    with pytest.raises(ValueError, match="9 tokens need 3 blocks, 2 were given"):
        cache_of(pool).insert("k", range(9), pool.allocate(2))


def test_a_snapshot_does_not_follow_the_caller_s_lists() -> None:
    pool = BlockPool(8)
    cache = cache_of(pool)
    tokens, blocks = [1, 2, 3], pool.allocate(1)
    cache.insert("k", tokens, blocks)
    tokens[1] = 9
    blocks[0] = 7
    assert matched(pool, cache, [1, 2, 3]) == 2
    assert cache.holders() == [(0,)]


@pytest.mark.parametrize("field", ["max_entries", "max_bytes"])
def test_limits_must_allow_something(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        PrefixLimits(**{"max_entries": 1, "max_bytes": 1, field: 0})


def test_a_lookup_among_hundreds_of_long_entries_compares_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = BlockPool(300)
    cache = PrefixCache(
        pool, block_tokens=4096, block_bytes=1, limits=PrefixLimits(max_entries=300, max_bytes=300)
    )
    system = list(range(1000))
    for name in range(300):
        cache.insert("k", [*system, 5000 + name, *range(3000)], pool.allocate(1))
    compared: list[int] = []

    def compare(entry: prefix.TokenIds, prompt: prefix.TokenIds) -> int:
        compared.append(len(entry))
        return common_prefix(entry.tolist(), prompt.tolist())

    monkeypatch.setattr(prefix, "_common_prefix", compare)
    match = cache.lookup("k", [*system, 5100, *range(2999), 7])
    assert match is not None
    assert match.tokens == 4000
    assert len(compared) == 2


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@dataclass(frozen=True)
class Snapshot:
    namespace: str
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


class NaiveCache:
    """The oracle: a list of entries in order of use, searched token by token."""

    def __init__(self, max_entries: int, max_blocks: int) -> None:
        self.entries: list[Snapshot] = []
        self.max_entries, self.max_blocks = max_entries, max_blocks
        self.hits = self.misses = self.evictions = self.reused = 0

    def use(self, entry: Snapshot) -> None:
        self.entries = [it for it in self.entries if it is not entry] + [entry]

    def lookup(self, namespace: str, tokens: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]] | None:
        best, length = None, 0
        for entry in self.entries:
            common = common_prefix(entry.tokens, tokens[:-1])
            if entry.namespace == namespace and common >= max(length, 1):
                best, length = entry, common
        if best is None:
            self.misses += 1
            return None
        self.hits += 1
        self.reused += length
        self.use(best)
        return length, len(best.tokens), best.blocks[: blocks_for(length, BLOCK_TOKENS)]

    def insert(self, new: Snapshot) -> bool:
        if not 0 < len(new.blocks) <= self.max_blocks:
            return False
        for entry in reversed(self.entries):
            if entry.namespace == new.namespace and entry.tokens[: len(new.tokens)] == new.tokens:
                self.use(entry)
                return True
        self.entries = [
            entry
            for entry in self.entries
            if entry.namespace != new.namespace or new.tokens[: len(entry.tokens)] != entry.tokens
        ]
        self.entries.append(new)
        while len(self.entries) > self.max_entries or self.n_blocks > self.max_blocks:
            self.entries.pop(0)
            self.evictions += 1
        return True

    @property
    def n_blocks(self) -> int:
        return sum(len(entry.blocks) for entry in self.entries)


class Running:
    """A sequence of the machine below."""

    def __init__(self, namespace: str, tokens: tuple[int, ...], table: BlockTable, computed: int) -> None:
        self.namespace, self.tokens, self.table, self.computed = namespace, tokens, table, computed


MAX_RUNNING = 3
MAX_POSITIONS = 22
MAX_ENTRIES = 4
CACHE_BLOCKS = 9

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=MAX_POSITIONS).map(tuple)


class CachedSequences(RuleBasedStateMachine):
    """Sequences that start from the cache, write, leave snapshots and go, in a store just large enough.

    ``memory`` holds in each position of a block the tokens that its KV depends on: all up to its own.
    """

    def __init__(self) -> None:
        super().__init__()
        per_sequence = blocks_for(MAX_POSITIONS, BLOCK_TOKENS)
        self.pool = BlockPool(MAX_RUNNING * per_sequence + CACHE_BLOCKS)
        self.cache = cache_of(self.pool, max_entries=MAX_ENTRIES, max_blocks=CACHE_BLOCKS)
        self.naive = NaiveCache(MAX_ENTRIES, CACHE_BLOCKS)
        self.memory: list[list[tuple[int, ...]]] = [[()] * BLOCK_TOKENS for _ in range(self.pool.n_blocks)]
        self.running: list[Running] = []

    def compute(self, sequence: Running) -> None:
        start, stop = sequence.computed, len(sequence.tokens)
        for source, target in sequence.table.prepare_write(start, stop):
            self.memory[target] = list(self.memory[source])
        for position in range(start, stop):
            block = sequence.table.blocks[position // BLOCK_TOKENS]
            self.memory[block][position % BLOCK_TOKENS] = sequence.tokens[: position + 1]
        sequence.computed = stop

    def holds(self, blocks: Sequence[int], tokens: tuple[int, ...]) -> bool:
        places = ((blocks[at // BLOCK_TOKENS], at % BLOCK_TOKENS) for at in range(len(tokens)))
        return all(
            self.memory[block][offset] == tokens[: at + 1] for at, (block, offset) in enumerate(places)
        )

    @precondition(lambda self: len(self.running) < MAX_RUNNING)
    @rule(namespace=st.sampled_from("ab"), tokens=prompts)
    def start(self, namespace: str, tokens: tuple[int, ...]) -> None:
        expected = self.naive.lookup(namespace, tokens)
        match = self.cache.lookup(namespace, tokens)
        if match is None:
            assert expected is None
            table, computed = BlockTable(self.pool, BLOCK_TOKENS), 0
        else:
            assert (match.tokens, match.entry_tokens, match.blocks) == expected
            assert 0 < match.tokens < len(tokens)
            table, computed = BlockTable(self.pool, BLOCK_TOKENS, match.blocks), match.tokens
        self.running.append(Running(namespace, tokens, table, computed))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def prefill(self, data: st.DataObject) -> None:
        self.compute(data.draw(st.sampled_from(self.running)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def decode(self, data: st.DataObject, more: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        sequence.tokens = (*sequence.tokens, *more)[:MAX_POSITIONS]
        self.compute(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        tokens = sequence.tokens[: sequence.computed]
        blocks = sequence.table.blocks[: blocks_for(len(tokens), BLOCK_TOKENS)]
        expected = self.naive.insert(Snapshot(sequence.namespace, tokens, blocks))
        assert self.cache.insert(sequence.namespace, tokens, sequence.table.blocks) is expected

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.running.remove(sequence)
        sequence.table.release()

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.naive.entries.clear()

    @invariant()
    def blocks_are_conserved(self) -> None:
        holders = self.cache.holders() + [sequence.table.blocks for sequence in self.running]
        self.pool.audit(holders)
        held = {block for blocks in holders for block in blocks}
        assert self.pool.n_free == self.pool.n_blocks - len(held)

    @invariant()
    def the_cache_is_as_the_naive_one(self) -> None:
        assert self.cache.holders() == [entry.blocks for entry in self.naive.entries]
        assert self.cache.stats() == PrefixStats(
            entries=len(self.naive.entries),
            bytes=self.naive.n_blocks * BLOCK_BYTES,
            max_entries=MAX_ENTRIES,
            max_bytes=CACHE_BLOCKS * BLOCK_BYTES,
            hits=self.naive.hits,
            misses=self.naive.misses,
            evictions=self.naive.evictions,
            reused_tokens=self.naive.reused,
        )

    @invariant()
    def both_limits_hold(self) -> None:
        assert len(self.naive.entries) <= MAX_ENTRIES
        assert self.naive.n_blocks <= CACHE_BLOCKS

    @invariant()
    def nobody_s_memory_changes(self) -> None:
        assert all(self.holds(entry.blocks, entry.tokens) for entry in self.naive.entries)
        for sequence in self.running:
            assert self.holds(sequence.table.blocks, sequence.tokens[: sequence.computed])

    def teardown(self) -> None:
        for sequence in self.running:
            sequence.table.release()
        self.cache.clear()
        self.pool.audit([])
        assert self.pool.n_free == self.pool.n_blocks


TestCachedSequences = CachedSequences.TestCase
