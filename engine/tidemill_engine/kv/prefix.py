"""Names for the contents of blocks: a chain of digests, and which block holds what.

A full block's digest covers its tokens and everything before them, and its root covers who may share it:
tenant, adapter load and model, under a key that only this process has. So equal digests mean equal contents
(128 bits), nobody outside can make one, and tenants can't see each other's. Knows digests and block ids, not
reference counts.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from tidemill_engine.kv.errors import IntegrityError
from tidemill_engine.step import IntArray

DIGEST_BYTES = 16
_MAX_ROOTS = 4096


class PrefixRoots:
    """Makes the roots of the chains; `key` is random, of this process, and never leaves it."""

    def __init__(self, key: bytes, model: str) -> None:
        self._key = key
        self._model = model
        self._known: dict[tuple[str, int], bytes] = {}

    def root(self, tenant: str, adapter_generation: int = 0) -> bytes:
        """Return the root for a tenant's requests with one load of one adapter (0: none)."""
        known = self._known.get((tenant, adapter_generation))
        if known is not None:
            return known
        parts = (tenant.encode(), str(adapter_generation).encode(), self._model.encode())
        message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        root = hmac.digest(self._key, message, "sha256")[:DIGEST_BYTES]
        if len(self._known) >= _MAX_ROOTS:
            self._known.clear()
        self._known[(tenant, adapter_generation)] = root
        return root


def next_digest(parent: bytes, token_ids: IntArray) -> bytes:
    """Return the digest of a block with these tokens (int32) after what `parent` stands for."""
    return hashlib.sha256(parent + token_ids.tobytes()).digest()[:DIGEST_BYTES]


def extend_chain(chain: list[bytes], root: bytes, token_ids: IntArray, block_size: int) -> None:
    """Append the digests of all full blocks of a sequence that the chain does not have yet."""
    parent = chain[-1] if chain else root
    for start in range(len(chain) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = next_digest(parent, token_ids[start : start + block_size])
        chain.append(parent)


class PrefixIndex:
    """Which block holds the content with a digest; at most one block per digest, one digest per block."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * num_blocks
        self.is_published = np.zeros(num_blocks, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, chain: list[bytes]) -> list[int]:
        """Return the blocks of the longest part of a chain, from its start, that is held somewhere."""
        found: list[int] = []
        for digest in chain:
            block_id = self._blocks.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def knows(self, digest: bytes) -> bool:
        """Say whether some block holds this content."""
        return digest in self._blocks

    def publish(self, block_ids: list[int], digests: list[bytes]) -> None:
        """Say what blocks hold, unless another block is known for it or the block is known for something."""
        known, named = self._blocks, self._digests
        fresh = []
        for block_id, digest in zip(block_ids, digests, strict=True):
            if digest not in known and named[block_id] is None:
                known[digest] = block_id
                named[block_id] = digest
                fresh.append(block_id)
        self.is_published[fresh] = True

    def forget(self, block_ids: IntArray) -> None:
        """Say no more what these blocks hold."""
        for block_id in block_ids[self.is_published[block_ids]].tolist():
            digest = self._digests[block_id]
            if digest is not None:
                del self._blocks[digest]
                self._digests[block_id] = None
        self.is_published[block_ids] = False

    def move(self, old: int, new: int) -> None:
        """Note that a block's content is now in another block."""
        digest = self._digests[old]
        if digest is None:
            return
        self._digests[old], self._digests[new] = None, digest
        self._blocks[digest] = new
        self.is_published[old], self.is_published[new] = False, True

    def check_integrity(self) -> None:
        """Raise unless the index and the blocks' digests say the same."""
        published = np.flatnonzero(self.is_published).tolist()
        if sorted(self._blocks.values()) != published:
            raise IntegrityError("the prefix index and the published blocks differ")
        if any(self._digests[block_id] is None for block_id in published):
            raise IntegrityError("a published block has no digest")
        if any(self._digests[block_id] != digest for digest, block_id in self._blocks.items()):
            raise IntegrityError("a digest leads to a block with another one")
