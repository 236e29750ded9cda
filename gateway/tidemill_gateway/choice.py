"""Which replicas a request may go to at all.

Pure. Knows the replicas, which have just failed, and which revision the request belongs to. Refuses to know
loads and prompts: `placement` chooses among what is left here.
"""

from collections.abc import Collection, Sequence

from tidemill_gateway.objects import Pod
from tidemill_gateway.service_spec import Revisions


def eligible(
    replicas: Sequence[Pod],
    *,
    tried: Collection[str] = (),
    avoided: Collection[str] = (),
    revision: str | None = None,
    failed_revision: str = "",
) -> tuple[Pod, ...]:
    """Give the replicas that this request may go to; none when no replica takes requests.

    `tried` and `avoided` hold pod UIDs. What this request has tried is never asked again. Other wishes give
    way, the least important first, when there is nothing else: the request's revision, then to avoid replicas
    that failed a moment ago, then to avoid a revision that has failed.
    """
    able = [pod for pod in replicas if pod.takes_requests and pod.uid not in tried]
    sound = [pod for pod in able if not failed_revision or pod.revision != failed_revision] or able
    healthy = [pod for pod in sound if pod.uid not in avoided] or sound
    return tuple([pod for pod in healthy if revision is None or pod.revision == revision] or healthy)


def failed_revision_of(revisions: Revisions) -> str:
    """Give the revision that nobody should be sent to, if there is a better one."""
    return revisions.failed if revisions.failed != revisions.current else ""
