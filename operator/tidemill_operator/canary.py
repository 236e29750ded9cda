"""Whether a canary may go on: by the readiness of its replicas and the share of requests that they fail.

Pure. Knows the new revision's pods and what engines counted since they started. Refuses to know traffic: the
gateways send a canary its share of sessions, and none once it has failed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.failures import Failure, pod_failure
from tidemill_operator.observed import PodView
from tidemill_operator.spec import CanarySpec

MIN_ANSWERS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How many requests were answered, and how many of them failed by the engine's fault."""

    answered: int
    failed: int

    @property
    def failed_percent(self) -> float:
        """Give the share of failures; none while nothing was answered."""
        return 100 * self.failed / self.answered if self.answered else 0.0


def size_of(canary: CanarySpec, desired: int) -> int:
    """Give the number of replicas for the canary's share of the traffic: at least one, if any is wanted."""
    return -(-desired * canary.traffic_percent // 100)


def answers_of(pods: Iterable[PodView], loads: Mapping[str, EngineLoad | None]) -> Answers:
    """Add up what the engines of some pods counted."""
    found = [load for pod in pods if (load := loads.get(pod.uid)) is not None]
    return Answers(
        answered=sum(load.num_answered for load in found), failed=sum(load.num_failed for load in found)
    )


def find_reason_to_stop(
    pods: Iterable[PodView], update: Answers, current: Answers, canary: CanarySpec, load_timeout_seconds: int
) -> Failure | None:
    """Say why the new revision has failed; None while it may go on.

    Lack of room is not the revision's fault, and neither are failures that the current one has as well.
    """
    for pod in sorted(pods, key=lambda pod: pod.name):
        failure = None if pod.is_ready else pod_failure(pod, load_timeout_seconds)
        if failure is not None and failure.stalls:
            return failure
    share = update.failed_percent
    if update.answered < MIN_ANSWERS or share <= max(canary.max_error_percent, current.failed_percent):
        return None
    message = (
        f"{update.failed} of {update.answered} requests failed in the new revision ({share:.0f} %), more "
        f"than spec.rollout.canary.maxErrorPercent ({canary.max_error_percent}) and than in the current one "
        f"({current.failed_percent:.0f} %)"
    )
    return Failure(reason="CanaryErrors", message=message)
