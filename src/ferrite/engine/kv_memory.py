"""The KV memory of the running sequences: their blocks, and the snapshots that later prompts begin with."""

import logging
from collections.abc import Iterable
from itertools import chain

from ferrite.engine.config import EngineConfig
from ferrite.engine.errors import one_line
from ferrite.engine.events import CacheTrace
from ferrite.engine.scheduler import Chunk
from ferrite.engine.sequence import Sequence
from ferrite.kv import BlockPool, BlockTable, PrefixCache, PrefixLimits, PrefixStats, blocks_for
from ferrite.program.step import Runner

logger = logging.getLogger(__name__)


class KvMemory:
    """The blocks of a runner's store and the sequences that hold them. For one thread.

    Raises ``OutOfBlocksError`` where more blocks are needed than are free, and ``BlockAccountingError`` when
    the store can no longer be trusted.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._identity = config.cache_identity
        self._pool = BlockPool(runner.n_blocks, run_blocks=runner.run_blocks)
        self._prefixes = _prefix_cache(self._pool, runner, config)
        self._recount = False
        """Some sequence got a block since the blocks held were counted."""

    def prefix_stats(self) -> PrefixStats | None:
        """What the prefix cache holds and did; None without one. For any thread."""
        return None if self._prefixes is None else self._prefixes.stats()

    def new_table(self) -> BlockTable:
        """Return the table of a sequence that has no block yet."""
        return BlockTable(self._pool, self._runner.block_tokens)

    def new_trace(self) -> CacheTrace:
        """Return what the prefix cache did for a sequence that was not looked up."""
        return CacheTrace(identity=self._identity)

    def restore(self, sequence: Sequence) -> None:
        """Let a new sequence begin behind what the prefix cache has of its prompt."""
        if self._prefixes is None:
            return
        request = sequence.ticket.request
        if not request.cache_namespace:
            sequence.cache = CacheTrace("no_key", identity=self._identity)
            return
        sequence.cache = CacheTrace("miss", identity=self._identity)
        match = self._prefixes.lookup(request.cache_namespace, request.prompt_tokens)
        if match is not None:
            table = BlockTable(self._pool, self._runner.block_tokens, match.blocks)
            sequence.restore(table, match.tokens, match.entry_tokens)
            self._recount = True

    def store(self, sequence: Sequence) -> None:
        """Keep a snapshot of what ``sequence`` has computed, for later prompts that begin with it."""
        namespace = sequence.ticket.request.cache_namespace
        if self._prefixes is None or not namespace or sequence.ticket.request.prompt_logprobs:
            return
        tokens, table = sequence.tokens[: sequence.computed], sequence.table
        if self._prefixes.insert(namespace, tokens, table.blocks):
            sequence.note_stored()

    def make_writable(self, chunk: Chunk) -> None:
        """Give the sequence of ``chunk`` the blocks of its rows, none of which another one reads."""
        table = chunk.sequence.table
        held = len(table)
        copies = table.prepare_write(chunk.start, chunk.stop)
        if copies or len(table) > held:
            self._recount = True
        for source, target in copies:
            self._runner.copy_block(source, target)

    def count_held(self, sequences: Iterable[Sequence]) -> int | None:
        """Return the distinct blocks of ``sequences``; None when none was given out since the last call."""
        if not self._recount:
            return None
        self._recount = False
        return len(set(chain.from_iterable(sequence.table.blocks for sequence in sequences)))

    def return_freed(self) -> None:
        """Tell the runner which blocks became free."""
        freed = self._pool.take_freed()
        if not freed:
            return
        try:
            self._runner.return_blocks(freed)
        except Exception as error:
            # They are free and will be used again; only their memory stays with the process.
            logger.error("%d free KV blocks were not returned: %s", len(freed), one_line(error))

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Check every block's references against its holders; raises ``BlockAccountingError``."""
        cached = [] if self._prefixes is None else self._prefixes.holders()
        self._pool.audit(chain(cached, (sequence.table.blocks for sequence in sequences)))


def session_blocks(runner: Runner, config: EngineConfig) -> int:
    """Return the KV blocks that admitted requests may hold together; the store's others are the cache's."""
    positions = min(runner.context_length, config.session_positions or runner.context_length)
    return min(config.max_concurrent * blocks_for(positions, runner.block_tokens), runner.n_blocks)


def _prefix_cache(pool: BlockPool, runner: Runner, config: EngineConfig) -> PrefixCache | None:
    if config.prefix_cache is None:
        return None
    # Requests hold at most the sessions' blocks and the cache at most the others, even when a shared block
    # counts once for each of its holders: together never more than there are.
    spare_bytes = (runner.n_blocks - session_blocks(runner, config)) * runner.block_bytes
    limits = PrefixLimits(
        max_entries=config.prefix_cache.max_entries,
        max_bytes=max(min(config.prefix_cache.max_bytes, spare_bytes), 1),
    )
    return PrefixCache(pool, block_tokens=runner.block_tokens, block_bytes=runner.block_bytes, limits=limits)
