import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrite.kv import BlockAccountingError, BlockPool, BlockTable, OutOfBlocksError, blocks_for

BLOCK_TOKENS = 4
RUN_BLOCKS = 32
N_BLOCKS = RUN_BLOCKS + 6


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for(positions: int, blocks: int) -> None:
    assert blocks_for(positions, BLOCK_TOKENS) == blocks


def test_lowest_free_ids_come_first() -> None:
    pool = BlockPool(6)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.release([2, 0])
    assert pool.allocate(3) == [0, 2, 4]
    assert pool.allocate(1) == [5]


def test_blocks_go_on_behind_what_their_owner_has() -> None:
    pool = BlockPool(6)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(1, behind=3) == [4]
    assert pool.allocate(2, behind=1) == [2, 3]
    assert pool.allocate(1, behind=3) == [5], "the next one is taken"


def test_sequences_that_grow_side_by_side_have_runs_of_their_own() -> None:
    pool = BlockPool(3 * RUN_BLOCKS, run_blocks=RUN_BLOCKS)
    tables = [BlockTable(pool, 1) for _ in range(3)]
    for position in range(RUN_BLOCKS):
        for table in tables:
            table.prepare_write(position, position + 1)
    assert [table.blocks for table in tables] == [
        tuple(range(first, first + RUN_BLOCKS)) for first in range(0, 3 * RUN_BLOCKS, RUN_BLOCKS)
    ]
    tables[0].release()
    late = BlockTable(pool, 1)
    assert [tables[1].prepare_write(RUN_BLOCKS, RUN_BLOCKS + 1), tables[1].blocks[-1]] == [[], 0]
    late.prepare_write(0, 2)
    assert late.blocks == (1, 2), "no run is wholly free"


def test_a_run_may_be_shorter_at_the_end_of_the_store() -> None:
    pool = BlockPool(RUN_BLOCKS + 2, run_blocks=RUN_BLOCKS)
    assert pool.allocate(1) == [0]
    assert pool.allocate(3) == [RUN_BLOCKS, RUN_BLOCKS + 1, 1]


def test_a_copy_goes_on_behind_the_block_before_it() -> None:
    pool = BlockPool(2 * RUN_BLOCKS, run_blocks=RUN_BLOCKS)
    table = BlockTable(pool, 1)
    table.prepare_write(0, 2)
    other = table.share()
    assert other.prepare_write(1, 2) == [(1, RUN_BLOCKS)]
    assert other.prepare_write(2, 4) == []
    assert other.blocks == (0, RUN_BLOCKS, RUN_BLOCKS + 1, RUN_BLOCKS + 2)
    table.prepare_write(2, 3)
    assert table.blocks == (0, 1, 2)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(OutOfBlocksError, match="2 KV blocks wanted, 1 of 3 free"):
        pool.allocate(2)
    assert pool.n_free == 1


def test_free_blocks_can_be_neither_released_nor_shared() -> None:
    pool = BlockPool(1)
    with pytest.raises(BlockAccountingError, match="released"):
        pool.release([0])
    with pytest.raises(BlockAccountingError, match="shared"):
        pool.retain([0])


def test_shared_block_is_copied_before_a_write() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    assert pool.make_writable(block) == (block, None)
    pool.retain([block])
    assert pool.make_writable(block) == (1, block)
    assert [pool.references(b) for b in range(3)] == [1, 1, 0]


def test_copy_without_room_changes_nothing() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.retain([block])
    with pytest.raises(OutOfBlocksError):
        pool.make_writable(block)
    pool.audit([[block], [block]])


def test_audit_finds_a_lost_block_and_a_double_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    with pytest.raises(BlockAccountingError, match="block 0 has 1 references and 0 holders"):
        pool.audit([])
    with pytest.raises(BlockAccountingError, match="block 0 has 1 references and 2 holders"):
        pool.audit([[block], [block]])


def test_audit_finds_a_damaged_free_list() -> None:
    pool = BlockPool(2)
    pool._held[1] = 1
    with pytest.raises(BlockAccountingError, match="free KV blocks"):
        pool.audit([])
    pool._held[1] = 0
    pool._n_free -= 1
    with pytest.raises(BlockAccountingError, match="free KV blocks"):
        pool.audit([])


def test_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="n_blocks"):
        BlockPool(0)


@pytest.mark.parametrize("run_blocks", [0, 256])
def test_runs_have_a_block_and_are_counted_in_a_byte(run_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"run_blocks is {run_blocks}"):
        BlockPool(1, run_blocks=run_blocks)
    pool = BlockPool(255, run_blocks=255)
    assert pool.allocate(255) == list(range(255))


@pytest.mark.parametrize(("run_blocks", "begins"), [(1, [0, 1, 2]), (2, [0, 2, 4]), (3, [0, 3, 1])])
def test_sequences_begin_where_a_run_is_free(run_blocks: int, begins: list[int]) -> None:
    pool = BlockPool(6, run_blocks=run_blocks)
    assert [pool.allocate(1) for _ in begins] == [[block] for block in begins]


def test_table_grows_by_position_and_unshares_only_what_is_written() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_TOKENS)
    assert table.prepare_write(0, 9) == []
    assert list(table.blocks) == [0, 1, 2]
    assert table.prepare_write(9, 12) == []
    assert list(table.blocks) == [0, 1, 2]
    pool.retain(table.blocks)
    assert table.prepare_write(10, 13) == [(2, 3)]
    assert list(table.blocks) == [0, 1, 3, 4]
    pool.release([0, 1, 2])
    table.release()
    pool.audit([])
    assert pool.n_free == 8


def test_shared_table_keeps_its_blocks_until_somebody_writes() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_TOKENS)
    table.prepare_write(0, 6)
    other = table.share()
    assert other.blocks == table.blocks == (0, 1)
    assert other.prepare_write(6, 7) == [(1, 2)]
    assert (table.blocks, other.blocks) == ((0, 1), (0, 2))
    assert table.prepare_write(6, 7) == []
    pool.audit([table.blocks, other.blocks])
    table.release()
    assert other.blocks == (0, 2)
    other.release()
    pool.audit([])


def test_table_takes_over_the_references_of_its_first_blocks() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_TOKENS, pool.allocate(2))
    assert table.prepare_write(8, 9) == []
    assert (table.blocks, len(table)) == ((0, 1, 2), 3)
    table.release()
    pool.audit([])


def test_array_is_rebuilt_only_when_the_table_changes() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_TOKENS)
    table.prepare_write(0, 3)
    first = table.array
    table.prepare_write(3, 4)
    assert table.array is first
    table.prepare_write(4, 5)
    assert (first.tolist(), table.array.tolist()) == ([0], [0, 1])
    pool.retain([1])
    table.prepare_write(5, 6)
    assert table.array.tolist() == [0, 2]
    assert table.array.dtype == first.dtype == "int32"
    with pytest.raises(ValueError, match="read-only"):
        table.array[0] = 7
    table.release()
    assert table.array.tolist() == []


def test_freed_blocks_are_told_once_and_only_while_they_are_free() -> None:
    pool = BlockPool(6)
    pool.allocate(5)
    pool.retain([4])
    pool.release([3, 1, 2, 4])
    pool.allocate(1)
    assert pool.take_freed() == [2, 3]
    assert pool.take_freed() == []
    pool.release([4])
    assert pool.take_freed() == [4]


class Tables(RuleBasedStateMachine):
    """Tables that grow, share and go, against a pool whose counts must always add up."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(N_BLOCKS, run_blocks=RUN_BLOCKS)
        self.returned = set(range(N_BLOCKS))
        self.tables: list[BlockTable] = []
        self.lengths: list[int] = []
        self.snapshots: list[tuple[int, ...]] = []

    def holders(self) -> list[tuple[int, ...]]:
        return [table.blocks for table in self.tables] + self.snapshots

    @rule()
    def open_table(self) -> None:
        self.tables.append(BlockTable(self.pool, BLOCK_TOKENS))
        self.lengths.append(0)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), rows=st.integers(1, 3 * BLOCK_TOKENS))
    def write(self, data: st.DataObject, rows: int) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, start = self.tables[index], self.lengths[index]
        before = table.blocks
        try:
            copies = table.prepare_write(start, start + rows)
        except OutOfBlocksError:
            return
        self.lengths[index] = start + rows
        assert len(table.blocks) == max(len(before), blocks_for(start + rows, BLOCK_TOKENS))
        first_written = start // BLOCK_TOKENS
        assert all(self.pool.references(block) == 1 for block in table.blocks[first_written:])
        assert table.blocks[:first_written] == before[:first_written]
        replaced = [(old, new) for old, new in zip(before, table.blocks, strict=False) if old != new]
        assert copies == replaced

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.tables)).blocks
        self.pool.retain(blocks)
        self.snapshots.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.tables.append(self.tables[index].share())
        self.lengths.append(self.lengths[index])

    @rule()
    def take_freed(self) -> None:
        """What is told, and what was told before and not handed out since, is all that is free."""
        free = set(range(N_BLOCKS)) - {block for blocks in self.holders() for block in blocks}
        self.returned = (self.returned & free) | set(self.pool.take_freed())
        assert self.returned == free

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.snapshots) - 1))
        self.pool.release(self.snapshots.pop(index))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close_table(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.tables.pop(index).release()
        self.lengths.pop(index)

    @invariant()
    def counts_add_up(self) -> None:
        self.pool.audit(self.holders())
        held = {block for blocks in self.holders() for block in blocks}
        assert all(table.array.tolist() == list(table.blocks) for table in self.tables)
        self.returned -= held
        assert self.pool.n_free == N_BLOCKS - len(held)

    def teardown(self) -> None:
        for table in self.tables:
            table.release()
        for blocks in self.snapshots:
            self.pool.release(blocks)
        self.pool.audit([])
        assert self.pool.n_free == N_BLOCKS


TestTables = Tables.TestCase
