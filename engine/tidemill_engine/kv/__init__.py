"""The paged KV cache's bookkeeping: which block belongs to whom. Pure numpy, no tensors."""

from tidemill_engine.kv.manager import KVCacheManager
from tidemill_engine.kv.pool import BlockPool, IntegrityError

__all__ = ["BlockPool", "IntegrityError", "KVCacheManager"]
