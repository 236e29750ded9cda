"""Which replica a request goes to.

Knows the replicas, how many requests each holds, and which have just failed. Refuses to know services,
requests, clocks and chance: the turn that breaks ties is an argument.
"""

from collections.abc import Collection, Mapping, Sequence

from tidemill_gateway.objects import Pod


def choose(
    replicas: Sequence[Pod],
    in_flight: Mapping[str, int],
    *,
    turn: int,
    tried: Collection[str] = (),
    suspects: Collection[str] = (),
) -> Pod | None:
    """Pick the replica with the fewest requests in flight, or none when no replica takes requests.

    `in_flight`, `tried` and `suspects` are keyed by pod UID. What this request has `tried` is never picked
    again; `suspects` (replicas that failed someone a moment ago) only when there is nothing else. Ties go
    round by `turn`.
    """
    able = [pod for pod in replicas if pod.takes_requests and pod.uid not in tried]
    candidates = [pod for pod in able if pod.uid not in suspects] or able
    if not candidates:
        return None
    fewest = min(in_flight.get(pod.uid, 0) for pod in candidates)
    least_loaded = sorted(
        (pod for pod in candidates if in_flight.get(pod.uid, 0) == fewest), key=lambda pod: pod.uid
    )
    return least_loaded[turn % len(least_loaded)]
