"""From counters that only grow to what happened since they were last read: by pod and by process.

A counter's owner is a pod's UID and its process's start; of a new owner nothing is known but its next
reading. A reading that went down without a new process, or is no number, is dropped by name: it starts
afresh. One figure may go down by itself, that of prompt tokens which were computed: engines other than ours
tell all prompt tokens when these are computed, and cached ones when they are found, which is before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidemill_operator.autoscaling.memory import Arrivals, LatencyWindow, Memory, Tokens
from tidemill_operator.autoscaling.model import EngineFigures, FleetLoad, Histogram, ReplicaLoad

logger = logging.getLogger(__name__)

KEEP_ARRIVALS_SECONDS = 1800.0
TOKENS_FADE_SECONDS = 500.0
LATENCY_FADE_SECONDS = 180.0
SETTLED_FADE_SECONDS = 600.0
BUDGET_FADE_SECONDS = 2400.0
SMOOTH_SECONDS = 45.0
Reading = tuple[float, ...]


def count(load: FleetLoad, known: Iterable[ReplicaLoad], memory: Memory) -> Memory:
    """Take in a load: `known` are the replicas whose figures are fresh."""
    elapsed = 0.0 if memory.at is None else max(0.0, load.at - memory.at)
    replicas = [(replica, replica.figures) for replica in known if replica.figures is not None]
    since = memory.arrivals_until
    if since is not None and since > load.at:
        since = None  # the clock was set back
    have_answered = _have_answered(load, since)
    read = {_engine_key(replica, figures): _engine_reading(figures) for replica, figures in replicas}
    # Gateways are read all at one time or not at all, so that what they counted belongs to one interval.
    readings = {
        **{key: _levelled(memory.counters.get(key), reading) for key, reading in read.items()},
        **(_gateway_readings(load) if have_answered else {}),
    }
    grown = {key: _growth(key, memory.counters.get(key), now) for key, now in readings.items()}
    engines = [(figures, grown[_engine_key(replica, figures)]) for replica, figures in replicas]
    gateways = [grown[key] for key in readings if key.startswith("gateway/")]
    first = [(figures.time_to_first_token, g) for figures, g in engines]
    gaps = [(figures.inter_token, g) for figures, g in engines]
    fade, settled, hour = (
        math.exp(-elapsed / seconds)
        for seconds in (LATENCY_FADE_SECONDS, SETTLED_FADE_SECONDS, BUDGET_FADE_SECONDS)
    )
    return replace(
        memory,
        at=load.at,
        counters=_kept(memory.counters, readings, load),
        arrivals=_arrivals(memory.arrivals, gateways, load.at, since),
        arrivals_until=load.at if have_answered else since,
        tokens=_tokens(memory.tokens, [g for _, g in engines], elapsed),
        time_to_first_token=_window(memory.time_to_first_token, first, _TTFT, fade),
        time_to_first_token_hour=_window(memory.time_to_first_token_hour, first, _TTFT, hour),
        inter_token=_window(memory.inter_token, gaps, _ITL, fade),
        settled_first=_window(memory.settled_first, first, _TTFT, settled),
        settled_inter=_window(memory.settled_inter, gaps, _ITL, settled),
    )


def _have_answered(load: FleetLoad, since: float | None) -> bool:
    """Tell whether every gateway has answered since then; the last word of a silent one stays a while."""
    demands = [gateway.demand for gateway in load.gateways]
    return bool(demands) and all(
        demand is not None and (since is None or demand.sampled_at > since) for demand in demands
    )


_TTFT, _ITL = 4, -1
_MAX_BUCKETS = 64


def _engine_key(replica: ReplicaLoad, figures: EngineFigures) -> str:
    return f"pod/{replica.uid}/{figures.process_started}"


def _gateway_readings(load: FleetLoad) -> dict[str, Reading]:
    return {
        f"gateway/{g.name}/{g.started}": (g.demand.requests_total, g.demand.prompt_tokens_total)
        for g in load.gateways
        if g.demand is not None
    }


def _engine_reading(figures: EngineFigures) -> Reading:
    """Return an engine's counters in one row: four totals, then TTFT's buckets, then the inter-token ones."""
    totals = (
        figures.prefill_tokens_total,
        figures.cached_tokens_total,
        figures.output_tokens_total,
        figures.requests_total,
    )
    ttft, itl = (_buckets(h) for h in (figures.time_to_first_token, figures.inter_token))
    return (*(math.nan if t is None else t for t in totals), *ttft, *itl)


def _levelled(before: Reading | None, now: Reading) -> Reading:
    """Hold the first figure, computed prompt tokens, where it alone went down: what comes makes up for it."""
    if before is None or len(before) != len(now) or not now[0] < before[0]:
        return now
    is_alone = not any(b < a for a, b in zip(before[1:], now[1:], strict=True))
    return (before[0], *now[1:]) if is_alone else now


def _buckets(histogram: Histogram | None) -> Reading:
    return () if histogram is None else histogram.cumulative_counts[:_MAX_BUCKETS]


def _growth(key: str, before: Reading | None, now: Reading) -> Reading:
    """Return how much each counter grew; NaN where that cannot be said."""
    if before is None or len(before) != len(now):
        return (math.nan,) * len(now)
    grown = tuple(b - a for a, b in zip(before, now, strict=True))
    if any(g < 0 for g in grown):
        logger.warning("counters of %s went down without a restart; they are counted from here on", key)
        return (math.nan,) * len(now)
    return grown


def _kept(before: Mapping[str, Reading], now: Mapping[str, Reading], load: FleetLoad) -> dict[str, Reading]:
    """Return the readings to compare the next ones with; those of who is gone go at once."""
    alive = {f"pod/{replica.uid}/" for replica in load.replicas}
    alive |= {f"gateway/{gateway.name}/" for gateway in load.gateways}
    old = {key: row for key, row in before.items() if key[: key.rindex("/") + 1] in alive}
    newly_read = {key[: key.rindex("/") + 1] for key in now}
    return {
        **{key: row for key, row in old.items() if key[: key.rindex("/") + 1] not in newly_read},
        **now,
    }


def _arrivals(
    before: tuple[Arrivals, ...], gateways: list[Reading], at: float, since: float | None
) -> tuple[Arrivals, ...]:
    """Add what came since every gateway had answered before, where each can be compared with that answer."""
    kept = tuple(a for a in before if a.at > at - KEEP_ARRIVALS_SECONDS)
    rows = [row for row in gateways if not any(math.isnan(x) for x in row)]
    if since is None or since >= at or not rows or len(rows) != len(gateways):
        return kept
    latest = Arrivals(
        at=at,
        seconds=at - since,
        requests=sum(row[0] for row in rows),
        prompt_tokens=sum(row[1] for row in rows),
    )
    return (*kept, latest)


def _tokens(before: Tokens, engines: list[Reading], elapsed: float) -> Tokens:
    fade = math.exp(-elapsed / TOKENS_FADE_SECONDS)
    rows = [row for row in engines if not any(math.isnan(x) for x in row[:4])]
    prefill, cached, output, ended = (sum(row[i] for row in rows) for i in range(4))
    return Tokens(
        prefill=before.prefill * fade + prefill,
        cached=before.cached * fade + cached,
        output=before.output * fade + output,
        ended=before.ended * fade + ended,
    )


def _window(
    before: LatencyWindow | None,
    engines: list[tuple[Histogram | None, Reading]],
    place: int,
    fade: float,
) -> LatencyWindow | None:
    """Add what the engines observed since the last reading to what is still remembered."""
    for histogram, grown in engines:
        if histogram is None:
            continue
        bounds = histogram.upper_bounds_seconds[:_MAX_BUCKETS]
        row = grown[4 : 4 + len(bounds)] if place == _TTFT else grown[len(grown) - len(bounds) :]
        if any(math.isnan(x) for x in row):
            continue
        if before is None or before.upper_bounds_seconds != bounds:
            before, fade = LatencyWindow(upper_bounds_seconds=bounds, counts=(0.0,) * len(bounds)), 1.0
        own = [b - a for a, b in zip((0.0, *row), row, strict=False)]
        counts = tuple(c * fade + o for c, o in zip(before.counts, own, strict=True))
        before, fade = replace(before, counts=counts), 1.0
    if before is None or fade == 1.0:
        return before
    return replace(before, counts=tuple(c * fade for c in before.counts))
