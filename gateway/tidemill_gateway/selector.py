"""Puts the pure choices together: revision, eligible replicas, placement; and remembers what came of it.

Knows the newest world, the ledger and the prefix index. Refuses to know sockets.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidemill_gateway.ask import Ask
from tidemill_gateway.canary import revision_for
from tidemill_gateway.choice import eligible, failed_revision_of
from tidemill_gateway.ledger import Ledger
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Pod, Service
from tidemill_gateway.placement import Affinity, place
from tidemill_gateway.prefix_index import PrefixIndex
from tidemill_gateway.service_spec import PREFIX_AWARE
from tidemill_gateway.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a request wants of its replica; `name` stands for a session where there is none."""

    service: Service
    ask: Ask
    name: str


class Selector:
    """Chooses a replica for each attempt."""

    def __init__(self, *, world: Callable[[], World], ledger: Ledger, metrics: GatewayMetrics) -> None:
        self._world = world
        self._ledger = ledger
        self._metrics = metrics
        self._index = PrefixIndex()

    def replicas(self, service: Service) -> tuple[Pod, ...]:
        """Give all replicas of a service, able or not."""
        return self._world().replicas(service)

    def choose(self, wanted: Wanted, tried: Collection[str]) -> Pod | None:
        """Choose a replica; None when none that was not tried takes requests."""
        service, ask, world = wanted.service, wanted.ask, self._world()
        revisions = world.services.get(service.uid, service).revisions
        pods = {
            pod.uid: pod
            for pod in eligible(
                world.replicas(service),
                tried=tried,
                avoided=self._ledger.suspects,
                revision=revision_for(revisions, ask.session or wanted.name),
                failed_revision=failed_revision_of(revisions),
            )
        }
        if len(pods) < 2:
            return next(iter(pods.values()), None)
        is_prefix_aware = service.routing.strategy == PREFIX_AWARE
        known = self._index.known_blocks(ask.prefix, pods) if is_prefix_aware else {}
        placement = place(
            self._ledger.candidates(pods, is_alone=world.num_gateways == 1),
            Affinity(session=ask.session, prefix=ask.prefix, known_blocks=known),
            is_prefix_aware=is_prefix_aware,
            turn=self._ledger.next_turn(),
        )
        self._metrics.decisions.placements.labels(service.namespace, service.name, placement.reason).inc()
        return pods[placement.uid]

    def note_taken(self, service: Service, ask: Ask, pod: Pod) -> None:
        """Remember that a replica has taken a request, and so knows its prompt."""
        if service.routing.strategy == PREFIX_AWARE:
            self._index.learn(ask.prefix, pod.uid)
