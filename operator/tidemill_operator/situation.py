"""The facts that conditions state, and the words for conditions themselves.

Pure. Knows what may be said of a service. Refuses to say it (conditions.py).
"""

from dataclasses import dataclass
from typing import Final

from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.failures import Failure
from tidemill_operator.model_progress import ModelProgress
from tidemill_operator.observed import LostClaim

READY: Final = "Ready"
MODEL_READY: Final = "ModelReady"
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
ROUTE_READY: Final = "RouteReady"
SCALING_ACTIVE: Final = "ScalingActive"
ABLE_TO_SCALE: Final = "AbleToScale"
CAPACITY_AVAILABLE: Final = "CapacityAvailable"
SUSPENDED: Final = "Suspended"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
SCALING_LIMITED: Final = "ScalingLimited"
METRICS_AVAILABLE: Final = "MetricsAvailable"
SLO_MET: Final = "SLOMet"
NEWER_TEMPLATE: Final = "NewerTemplateAvailable"
# Those that the autoscaler finds; AbleToScale has an answer without it.
SCALING_CONDITIONS: Final = frozenset(
    {SCALING_ACTIVE, ABLE_TO_SCALE, SCALING_LIMITED, METRICS_AVAILABLE, SLO_MET}
)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition, without its times."""

    type: str
    is_true: bool
    reason: str
    message: str
    is_unknown: bool = False

    @property
    def status(self) -> str:
        """Give the status in the API's form."""
        if self.is_unknown:
            return "Unknown"
        return "True" if self.is_true else "False"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The facts that the conditions state; `problem` is what keeps the operator from acting at all.

    `rollout_note`: reason and message of a rollout that is more than the usual one, `rollout_failure` why it
    has been stopped, `lacking_device` why it takes a replica away before it adds one.

    `write_failure`: what the API server has failed at for a while, which keeps no client from an answer.
    `scaling_conditions`: the autoscaler's own, which take the place of those of the same type.
    `keys_problem`: why nobody is let in; `route_problem`: reason and message of a Gateway that leads nowhere.
    `activation_failure`: why the last attempt to wake the service from zero came to nothing.
    """

    problem: Failure | None = None
    write_failure: Failure | None = None
    is_suspended: bool = False
    desired: int = 0
    least_ready: int = 0
    num_ready: int = 0
    num_updated_ready: int = 0
    num_pods: int = 0
    is_rolling_out: bool = False
    is_loading: bool = False
    is_downloading: bool = False
    progress: ModelProgress | None = None
    num_draining: int = 0
    rollout_note: tuple[str, str] | None = None
    rollout_failure: Failure | None = None
    lacking_device: str = ""
    failure: Failure | None = None
    num_gateways: int = 0
    lost_claims: tuple[LostClaim, ...] = ()
    keys_problem: str = ""
    route_problem: tuple[str, str] | None = None
    scaling: ScalingPolicy | None = None
    has_newer_template: bool = False
    scaling_conditions: tuple[Condition, ...] = ()
    activation_failure: str = ""
    cold_start_seconds: float | None = None

    @property
    def is_at_zero(self) -> bool:
        """Tell whether the autoscaler wants no replica because nobody asks for the model."""
        may_be_zero = self.scaling is not None and self.scaling.scale_to_zero is not None
        return self.desired == 0 and may_be_zero and not self.is_suspended and self.problem is None

    @property
    def is_settled(self) -> bool:
        """Tell whether everything is as the spec wants it."""
        counts_match = self.num_updated_ready == self.desired == self.num_pods
        is_stopped = self.problem is not None or self.write_failure is not None
        return not is_stopped and counts_match and not self.is_rolling_out
