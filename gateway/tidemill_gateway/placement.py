"""Which of several able replicas gets a request: where its prompt is known, unless that one is too busy.

Pure. Knows loads, prompts' block hashes and where they were seen; chance and ages are arguments. Refuses to
know pods, clocks and sockets.

PrefixAware: a session goes to its replica by rendezvous hashing; a prompt of which at least half is known
somewhere goes where most of it is known; an unknown prompt goes by rendezvous hashing of a leading block, so
that several gateways agree without a word. Each only among the replicas whose load is within a bound of the
mean (consistent hashing with bounded loads, Mirrokni et al. 2018); what is too busy is passed over, in the
same order at every gateway. LeastLoad, and prompts shorter than a block: the least loaded one; where the
figures are stale, the better of two drawn ones (power of two choices, Mitzenmacher 2001), so that gateways
that all believe the same old figure do not all go to the same replica.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill_gateway.load_report import LoadReport

BOUND_FACTOR: Final = 1.25
BOUND_SLACK: Final = 4.0
TOKENS_PER_REQUEST: Final = 4096
KV_PRESSURE_FROM: Final = 0.9
KV_PRESSURE_WEIGHT: Final = 80.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A replica that could take the request.

    `num_own_requests` and `num_own_tokens` are what this gateway has given it and not yet got back;
    `num_own_then` is how many those requests were when `report` came. `is_fresh` says that the figures can be
    trusted: the report is new, or no other gateway sends requests.
    """

    uid: str
    num_own_requests: int = 0
    num_own_tokens: int = 0
    report: LoadReport | None = None
    num_own_then: int = 0
    is_fresh: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Affinity:
    """Where a request would like to go: its session, its prompt's block hashes, who knows how many."""

    session: str = ""
    prefix: Sequence[bytes] = ()
    known_blocks: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The replica, and why: `session`, `prefix`, `hash`, `load` or `two_choices`."""

    uid: str
    reason: str


def load_of(candidate: Candidate) -> float:
    """Estimate a replica's load in requests: what it reported, what was sent since, and what they weigh."""
    own, report = candidate.num_own_requests, candidate.report
    if report is None:
        return own + candidate.num_own_tokens / TOKENS_PER_REQUEST
    reported = report.num_running + report.num_waiting
    requests = max(own, reported + own - candidate.num_own_then)
    tokens = max(candidate.num_own_tokens, report.num_tokens)
    pressure = max(report.kv_usage_ratio - KV_PRESSURE_FROM, 0.0) * KV_PRESSURE_WEIGHT
    return requests + report.num_waiting + tokens / TOKENS_PER_REQUEST + pressure


def place(
    candidates: Sequence[Candidate], affinity: Affinity, *, is_prefix_aware: bool, turn: int
) -> Placement:
    """Choose among at least one candidate; `turn` is a number that differs from request to request."""
    loads = {candidate.uid: load_of(candidate) for candidate in candidates}
    bound = BOUND_FACTOR * (sum(loads.values()) + 1) / len(loads) + BOUND_SLACK
    free = [uid for uid, load in loads.items() if load <= bound] or [min(loads, key=lambda uid: loads[uid])]
    if is_prefix_aware:
        if affinity.session:
            return Placement(uid=_rendezvous(_key_of(affinity.session), free), reason="session")
        known = _where_known(affinity, free)
        if known:
            return Placement(uid=min(known, key=lambda uid: (loads[uid], uid)), reason="prefix")
        if affinity.prefix:
            return Placement(uid=_rendezvous(leading_block(affinity.prefix), free), reason="hash")
    return _least_loaded(candidates, loads, turn)


def leading_block(prefix: Sequence[bytes]) -> bytes:
    """Give the block hash that stands for a prompt: the one at the largest power of two blocks.

    Prompts with one beginning and ends of their own mostly share it, whatever their length; the very first
    block would put everybody with one system prompt in one place.
    """
    return prefix[(1 << (len(prefix).bit_length() - 1)) - 1]


def _where_known(affinity: Affinity, free: Sequence[str]) -> list[str]:
    """Give the free replicas that know most of the prompt, if that is at least half of it."""
    known = affinity.known_blocks or {}
    most = max((known.get(uid, 0) for uid in free), default=0)
    if most == 0 or 2 * most < len(affinity.prefix):
        return []
    return [uid for uid in free if known.get(uid, 0) == most]


def _key_of(session: str) -> bytes:
    """Give what stands for all of a session's name, whatever its length and whatever bytes a client sent."""
    return hashlib.blake2b(session.encode(errors="surrogatepass"), digest_size=16).digest()


def _rendezvous(key: bytes, uids: Sequence[str]) -> str:
    return max(uids, key=lambda uid: hashlib.blake2b(uid.encode(), key=key, digest_size=8).digest())


def _least_loaded(candidates: Sequence[Candidate], loads: Mapping[str, float], turn: int) -> Placement:
    uids = sorted(loads)
    if not all(candidate.is_fresh for candidate in candidates) and len(uids) > 2:
        first, step = turn % len(uids), 1 + (turn // len(uids)) % (len(uids) - 1)
        pair = (uids[first], uids[(first + step) % len(uids)])
        return Placement(uid=min(pair, key=lambda uid: loads[uid]), reason="two_choices")
    least = min(loads.values())
    best = [uid for uid in uids if loads[uid] == least]
    return Placement(uid=best[turn % len(best)], reason="load")
