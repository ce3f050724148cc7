"""The allocator of KV blocks and the block table of one sequence. Block ids only; the memory is native."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

BlockIds = npt.NDArray[np.int32]


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free."""


class BlockAccountingError(RuntimeError):
    """References and holders do not add up; the store can no longer be trusted."""


def blocks_for(positions: int, block_tokens: int) -> int:
    """Number of blocks of ``block_tokens`` positions that cover ``positions``."""
    return -(-positions // block_tokens)


class BlockPool:
    """Hands out block ids ``0 .. n_blocks - 1`` and counts the references to each.

    A sequence gets neighbours as long as there are any, and begins where a whole run is free: what attention
    reads then lies together, also of sequences that grow side by side. Among equals the lowest id is handed
    out first: the choice depends on nothing but the calls made, and the memory that was ever touched stays
    small.
    """

    __slots__ = ("_freed", "_held", "_held_in_run", "_n_free", "_references", "_run_blocks")

    def __init__(self, n_blocks: int, *, run_blocks: int = 1) -> None:
        """``run_blocks``: how many make a run; the first begins at block 0, the last may be shorter."""
        if n_blocks < 1:
            raise ValueError(f"n_blocks is {n_blocks}, must be at least 1")
        if not 1 <= run_blocks <= 255:
            # The blocks held in a run are counted in a byte.
            raise ValueError(f"run_blocks is {run_blocks}, must be between 1 and 255")
        self._run_blocks = run_blocks
        self._references = [0] * n_blocks
        self._n_free = n_blocks
        self._held = bytearray(n_blocks)
        """By block: 1 while somebody holds it, so that a free one is found at the speed of memory."""
        self._held_in_run = bytearray(blocks_for(n_blocks, run_blocks))
        self._freed: set[int] = set()

    @property
    def n_blocks(self) -> int:
        """Blocks in the store."""
        return len(self._references)

    @property
    def n_free(self) -> int:
        """Blocks nobody holds."""
        return self._n_free

    def references(self, block: int) -> int:
        """Number of holders of ``block``; 0 when it is free."""
        return self._references[block]

    def allocate(self, count: int, *, behind: int | None = None) -> list[int]:
        """Take ``count`` free blocks, each with one reference; they go on ``behind`` a block if they can.

        Raises ``OutOfBlocksError``, taking none, when fewer are free.
        """
        if count > self._n_free:
            raise OutOfBlocksError(f"{count} KV blocks wanted, {self._n_free} of {self.n_blocks} free")
        blocks = []
        for _ in range(count):
            behind = self._free_block(behind)
            self._references[behind] = 1
            self._held[behind] = 1
            self._held_in_run[behind // self._run_blocks] += 1
            self._freed.discard(behind)
            blocks.append(behind)
        self._n_free -= count
        return blocks

    def _free_block(self, behind: int | None) -> int:
        """Return the next block for whoever has ``behind``, or none yet; one is free."""
        if behind is not None and behind + 1 < self.n_blocks and not self._held[behind + 1]:
            return behind + 1
        run = self._held_in_run.find(0)
        return self._held.find(0) if run < 0 else run * self._run_blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; all must be held already."""
        for block in blocks:
            if self._references[block] == 0:
                raise BlockAccountingError(f"KV block {block} was shared while it was free")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; those without any become free."""
        for block in blocks:
            if self._references[block] == 0:
                raise BlockAccountingError(f"KV block {block} was released while it was free")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._held[block] = 0
                self._held_in_run[block // self._run_blocks] -= 1
                self._n_free += 1
                self._freed.add(block)

    def take_freed(self) -> list[int]:
        """Return the blocks that became free since the last call and are still free, ascending."""
        freed = sorted(self._freed)
        self._freed.clear()
        return freed

    def make_writable(self, block: int, *, behind: int | None = None) -> tuple[int, int | None]:
        """Exchange the caller's reference to ``block`` for a block that only the caller holds.

        Returns ``(block, None)`` when it already is, else ``(copy, block)``: the caller must copy the
        contents before it writes. ``behind`` is what the caller has before the block. Raises
        ``OutOfBlocksError``, changing nothing, when a copy has no room.
        """
        if self._references[block] == 1:
            return block, None
        (copy,) = self.allocate(1, behind=behind)
        self.release([block])
        return copy, block

    def audit(self, holders: Iterable[Sequence[int]]) -> None:
        """Check the counts against the block lists of all holders; raises ``BlockAccountingError``.

        Takes time in proportion to the blocks held, not to the store, as long as everything is right.
        """
        held = Counter(chain.from_iterable(holders))
        agrees = all(self._references[block] == count for block, count in held.items())
        n_free = self.n_blocks - len(held)
        if agrees and self._n_free == self._held.count(0) == n_free:
            return
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise BlockAccountingError(
                    f"KV block {block} has {references} references and {held[block]} holders"
                )
        raise BlockAccountingError("the free KV blocks differ from the blocks without references")


class BlockTable:
    """The blocks of one sequence: entry ``i`` holds its positions ``i * block_tokens`` onwards."""

    __slots__ = ("_array", "_block_tokens", "_blocks", "_pool")

    def __init__(self, pool: BlockPool, block_tokens: int, blocks: Iterable[int] = ()) -> None:
        """``blocks`` hold the first positions; the caller's reference to each passes to the table."""
        self._pool = pool
        self._block_tokens = block_tokens
        self._blocks: list[int] = list(blocks)
        self._array: BlockIds | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block ids in position order."""
        return tuple(self._blocks)

    @property
    def array(self) -> BlockIds:
        """Block ids in position order; the same read-only array until the table changes."""
        if self._array is None:
            self._array = np.array(self._blocks, dtype=np.int32)
            self._array.flags.writeable = False
        return self._array

    def share(self) -> "BlockTable":
        """Return a second table of the same blocks; whichever writes to one first gets a copy of it."""
        self._pool.retain(self._blocks)
        return BlockTable(self._pool, self._block_tokens, self._blocks)

    def prepare_write(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Make positions ``start .. stop - 1`` writable: grow to cover them and unshare their blocks.

        Positions before ``start`` are covered already. Returns ``(source, target)`` pairs of blocks whose
        contents must be copied before the write. Raises ``OutOfBlocksError`` when the pool is empty; the
        table stays valid.
        """
        copies = []
        for index in range(start // self._block_tokens, len(self._blocks)):
            before = self._blocks[index - 1] if index else None
            block, copied_from = self._pool.make_writable(self._blocks[index], behind=before)
            if copied_from is not None:
                self._blocks[index] = block
                self._array = None
                copies.append((copied_from, block))
        missing = blocks_for(stop, self._block_tokens) - len(self._blocks)
        if missing > 0:
            self._blocks += self._pool.allocate(missing, behind=self._blocks[-1] if self._blocks else None)
            self._array = None
        return copies

    def release(self) -> None:
        """Give every block back."""
        self._pool.release(self._blocks)
        self._blocks.clear()
        self._array = None
