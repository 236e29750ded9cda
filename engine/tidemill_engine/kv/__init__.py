"""The paged KV cache's bookkeeping: which block belongs to whom. Pure numpy, no tensors."""

from tidemill_engine.kv.errors import IntegrityError
from tidemill_engine.kv.manager import KVCacheManager, TableChange
from tidemill_engine.kv.pool import BlockPool
from tidemill_engine.kv.prefix import PrefixRoots, extend_chain, next_digest
from tidemill_engine.kv.swap import SwapSpace

__all__ = [
    "BlockPool",
    "IntegrityError",
    "KVCacheManager",
    "PrefixRoots",
    "SwapSpace",
    "TableChange",
    "extend_chain",
    "next_digest",
]
