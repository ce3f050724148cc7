"""Which KV blocks a sequence holds: allocation, reference counts, block tables and cached prefixes.

Block ids only; the memory is native.
"""

from ferrite.kv.blocks import BlockAccountingError, BlockPool, BlockTable, OutOfBlocksError, blocks_for
from ferrite.kv.prefix import Match, PrefixCache, PrefixLimits, PrefixStats

__all__ = [
    "BlockAccountingError",
    "BlockPool",
    "BlockTable",
    "Match",
    "OutOfBlocksError",
    "PrefixCache",
    "PrefixLimits",
    "PrefixStats",
    "blocks_for",
]
