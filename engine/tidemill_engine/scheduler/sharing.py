"""Who may use what others have computed or are computing: cached prefixes, leaders to wait for, forks.

Knows digests per request and which running row is going to publish which. Does not know budgets or order.

A request whose prefix is being computed by a running row, the leader, waits until the leader has published
it, and is let go when the leader stops. A request whose whole prompt a running row has computed is forked
from it: it shares the full blocks and gets a copy of the last, partly filled one.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.kv import extend_chain, next_digest
from tidemill_engine.kv.prefix import DIGEST_BYTES
from tidemill_engine.step import IntArray, int_array

if TYPE_CHECKING:
    from tidemill_engine.kv import KVCacheManager, PrefixRoots
    from tidemill_engine.request import Request
    from tidemill_engine.scheduler.rows import InFlightStep, RowTable

_PROMPT = b"prompt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a waiting request need not compute: found blocks, or a row to fork from; or whom to wait for."""

    found: IntArray
    fork_from: int | None = None
    is_awaited: bool = False
    """A running row is computing more of its prefix, or steps in flight still use the row that it had."""


NOTHING = Offer(found=int_array())
AWAITED = Offer(found=int_array(), is_awaited=True)


class PrefixSharing:
    """Digests of requests and rows, from the moment they are first tried."""

    def __init__(self, rows: RowTable, kv: KVCacheManager) -> None:
        self._rows = rows
        self._kv = kv
        self._shift = kv.block_size.bit_length() - 1
        self._parents = np.zeros((rows.num_rows, DIGEST_BYTES), dtype=np.uint8)
        """The digest of each row's last published block, or the root of its chain."""
        self._leaders: dict[bytes, int] = {}
        self._led: dict[int, list[bytes]] = {}
        self._donors: dict[bytes, int] = {}
        self.queries_tokens = 0
        self.hits_tokens = 0

    def name(self, request: Request) -> None:
        """Make a request's digests when it arrives, so that no step has to for a whole crowd."""
        if self._kv.roots is not None:
            self._prepare(request, self._kv.roots)

    def find(self, request: Request) -> Offer:
        """Return what a request need not compute; at least its last token is always left."""
        if request.row is not None:  # its tokens are not all its own again
            return AWAITED
        roots = self._kv.roots
        if roots is None or request.needs_all_positions:
            return NOTHING
        if request.awaited in self._leaders:
            return AWAITED
        self._prepare(request, roots)
        num_full = (request.num_tokens - 1) >> self._shift
        found = self._kv.find_prefix(request.chain[:num_full])
        donor = self._donor_for(request, len(found) << self._shift)
        if donor is not None:
            return Offer(found=found, fork_from=donor)
        request.awaited = request.chain[len(found)] if len(found) < num_full else None
        return Offer(found=found, is_awaited=request.awaited in self._leaders)

    def num_skipped_tokens(self, request: Request, offer: Offer) -> int:
        """Return how many of its tokens a request need not compute if it begins with what it is offered."""
        if request.swapped is not None:
            return request.num_swapped_tokens
        if offer.fork_from is not None:
            return request.num_prompt_tokens - 1
        return len(offer.found) << self._shift

    def is_affine(self, request: Request) -> bool:
        """Say whether the start of a waiting request's prompt is cached or being computed."""
        roots = self._kv.roots
        if roots is None or request.needs_all_positions:
            return False
        self._prepare(request, roots)
        if not request.chain:
            return False
        return request.chain[0] in self._leaders or self._kv.knows(request.chain[0])

    def start(
        self, row: int, request: Request, num_computed_tokens: int, num_swapped_blocks: int = 0
    ) -> None:
        """Note what a row that begins is going to compute, and count what it need not.

        Its last computed blocks, so many of them, come back from the CPU pool in the step in which it begins:
        they have no name until the end of that.
        """
        if request.num_tokens == request.num_prompt_tokens and request.num_preemptions == 0:
            request.num_cached_tokens = num_computed_tokens
            self.queries_tokens += request.num_prompt_tokens
            self.hits_tokens += num_computed_tokens
        roots = self._kv.roots
        if roots is None:
            return
        self._prepare(request, roots)
        num_found = (num_computed_tokens >> self._shift) - num_swapped_blocks
        self._rows.num_hashed_blocks[row] = num_found
        parent = request.chain[num_found - 1] if num_found else self._root(request)
        self._parents[row] = np.frombuffer(parent, dtype=np.uint8)
        # It may compute again what is cached: the last block of a prompt that ends with it, or everything.
        led = [
            digest
            for digest in request.chain[num_found:]
            if digest not in self._leaders and not self._kv.knows(digest)
        ]
        self._leaders.update(dict.fromkeys(led, row))
        self._led[row] = led
        if request.prompt_digest is not None:
            self._donors.setdefault(request.prompt_digest, row)

    def stop(self, row: int, request: Request) -> None:
        """Let those go that wait for a row, and let nobody fork from it."""
        for digest in self._led.pop(row, ()):
            self._leaders.pop(digest, None)
        if request.prompt_digest is not None and self._donors.get(request.prompt_digest) == row:
            del self._donors[request.prompt_digest]

    def settle(self, step: InFlightStep, failed: set[int]) -> None:
        """Publish the blocks that a step has filled, of rows that are still wanted and did not fail."""
        table = self._rows
        rows, ends = step.rows, step.ends
        if failed:
            is_fine = ~np.isin(rows, list(failed))
            rows, ends = rows[is_fine], ends[is_fine]
        table.num_settled_tokens[rows] = ends
        if self._kv.roots is None:
            return
        num_full = ends >> self._shift
        crossed = ((num_full > table.num_hashed_blocks[rows]) & table.is_open[rows]).nonzero()[0]
        if len(crossed):
            self._publish(rows[crossed], num_full[crossed])

    def distrust(self, row: int) -> None:
        """Make what a failed row has computed unfindable."""
        if self._kv.roots is not None:
            self._kv.forget(row)

    def check_idle(self) -> None:
        """Raise if anything is remembered of rows while none is taken."""
        if self._leaders or self._led or self._donors:
            raise RuntimeError("prefixes are still led by rows that have ended")

    def _prepare(self, request: Request, roots: PrefixRoots) -> None:
        """Make a request's digests, as far as they are missing."""
        root = roots.root(request.tenant)
        extend_chain(request.chain, root, request.token_ids, self._kv.block_size)
        if request.prompt_digest is None:
            num_full = request.num_prompt_tokens >> self._shift
            parent = request.chain[num_full - 1] if num_full else root
            rest = request.token_ids[num_full << self._shift : request.num_prompt_tokens]
            request.prompt_digest = next_digest(_PROMPT + parent, rest)

    def _donor_for(self, request: Request, num_found_tokens: int) -> int | None:
        """Return a running row that has computed all of a request's prompt that it may skip."""
        num_wanted = request.num_prompt_tokens - 1
        if request.num_tokens > request.num_prompt_tokens or num_wanted <= num_found_tokens:
            return None
        row = self._donors.get(request.prompt_digest or b"")
        if row is None or int(self._rows.num_settled_tokens[row]) < num_wanted:
            return None
        return row

    def _publish(self, rows: IntArray, num_full: IntArray) -> None:
        """Publish rows' blocks up to these numbers: one each where they decode, more after a chunk."""
        first = self._rows.num_hashed_blocks[rows]
        self._rows.num_hashed_blocks[rows] = num_full
        is_one = num_full == first + 1
        if is_one.all():
            self._publish_one_each(rows, first)
            return
        self._publish_one_each(rows[is_one], first[is_one])
        many = zip(rows[~is_one].tolist(), first[~is_one].tolist(), num_full[~is_one].tolist(), strict=True)
        for row, start, end in many:
            self._publish_many(row, start, end)

    def _publish_one_each(self, rows: IntArray, positions: IntArray) -> None:
        """Publish one full block of each row: tokens are gathered at once, and no request is touched."""
        if len(rows) == 0:
            return
        size = self._kv.block_size
        width = DIGEST_BYTES + size * self._rows.token_ids.itemsize
        blocks = self._rows.token_ids.reshape(self._rows.num_rows, -1, size)
        contents = np.empty((len(rows), width), dtype=np.uint8)
        contents[:, :DIGEST_BYTES] = self._parents[rows]
        contents[:, DIGEST_BYTES:] = blocks[rows, positions].view(np.uint8)
        data = contents.tobytes()
        digests = [
            sha256(data[start : start + width]).digest()[:DIGEST_BYTES]
            for start in range(0, len(data), width)
        ]
        self._parents[rows] = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        self._announce(self._kv.block_table[rows, positions], digests)

    def _publish_many(self, row: int, start: int, end: int) -> None:
        """Publish several blocks of one row."""
        request = self._rows.request_at(row)
        size = self._kv.block_size
        extend_chain(request.chain, self._root(request), self._rows.token_ids[row, : end * size], size)
        digests = request.chain[start:end]
        self._parents[row] = np.frombuffer(digests[-1], dtype=np.uint8)
        self._announce(self._kv.block_table[row, start:end], digests)

    def _announce(self, block_ids: IntArray, digests: list[bytes]) -> None:
        """Make blocks findable and let their followers go."""
        self._kv.publish(block_ids.tolist(), digests)
        if self._leaders:
            for digest in digests:
                self._leaders.pop(digest, None)

    def _root(self, request: Request) -> bytes:
        roots = self._kv.roots
        if roots is None:
            raise RuntimeError("digests are made without a root")
        return roots.root(request.tenant)
