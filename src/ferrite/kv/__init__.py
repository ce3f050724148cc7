"""Which KV blocks a sequence holds: allocation, reference counts and block tables; the memory is native."""

from ferrite.kv.blocks import BlockAccountingError, BlockPool, BlockTable, OutOfBlocksError, blocks_for

__all__ = ["BlockAccountingError", "BlockPool", "BlockTable", "OutOfBlocksError", "blocks_for"]
