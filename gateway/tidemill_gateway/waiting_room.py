"""Where requests wait: for a service that wakes, for a replica that comes back, or for a turn.

Knows who waits for which service, for how long and within which bounds, and asks for a wake. Refuses to know
bodies and answers. Whoever leaves, by whatever way, gives the place back: a place is taken when it is granted
and not when its owner notices, so that no more are let in than there are places.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType

from tidemill_gateway import errors
from tidemill_gateway.activation import Activator
from tidemill_gateway.demand import DemandBook
from tidemill_gateway.fair_queue import FairQueue, Share
from tidemill_gateway.objects import Pod, Service
from tidemill_gateway.places import Bounds, able, has_place, hold_bounds
from tidemill_gateway.world import World

logger = logging.getLogger(__name__)

KeepAlive = Callable[[], Awaitable[None]]


async def say_nothing() -> None:
    """Keep no client informed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingConfig:
    """How long and how many may wait where the service itself does not say."""

    hold_seconds: float = 30.0
    turn_seconds: float = 60.0
    max_held_requests: int = 100
    max_held_bytes: int = 128 * 1024 * 1024
    keep_alive_seconds: float = 10.0
    retry_seconds: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A request that wants to be let in; `keep_alive` is called now and then while it waits."""

    service: Service
    share: Share = field(default_factory=lambda: Share(tenant=""))
    num_prompt_tokens: int = 0
    num_bytes: int = 0
    keep_alive: KeepAlive = say_nothing


class _Room:
    """One service's visitors."""

    def __init__(self) -> None:
        self.queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.num_in_flight = 0
        self.changed = asyncio.Event()


class WaitingRoom:
    """Lets requests in, at once or when there is a place."""

    def __init__(
        self, *, config: WaitingConfig, world: Callable[[], World], activator: Activator, demand: DemandBook
    ) -> None:
        self._config = config
        self._world = world
        self._activator = activator
        self._demand = demand
        self._rooms: dict[str, _Room] = {}
        self._num_held_bytes = 0
        self._is_closed = False

    def admitted(self, visit: Visit) -> "_Admission":
        """Wait for a place, and keep it until the block ends; raise GatewayError when there will be none."""
        return _Admission(self, visit)

    async def enter(self, visit: Visit) -> _Room:
        """Take a place, after waiting where there is none; whoever has got one must leave."""
        room = self._rooms.get(visit.service.uid)
        if room is None:
            room = self._rooms[visit.service.uid] = _Room()
        if room.queue or not self._has_place(visit.service, room):
            await self._wait(room, visit)
        else:
            room.num_in_flight += 1
        return room

    async def another_replica(self, visit: Visit, tried: Collection[str], seconds: float) -> bool:
        """Wait until a replica takes requests that was not tried; False when none came in time, or will."""
        room = self._rooms[visit.service.uid]
        deadline = asyncio.get_running_loop().time() + seconds
        with self._demand.held(visit.service.key, visit.num_prompt_tokens):
            while not self._is_closed and self._may_come(visit.service):
                replicas = self._replicas(visit.service)
                if any(pod.uid not in tried for pod in able(replicas)):
                    return True
                if not able(replicas):
                    self._ask_to_wake(visit.service)
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return False
                room.changed.clear()
                await _either(room.changed.wait(), min(left, self._config.keep_alive_seconds))
                await visit.keep_alive()
        return False

    def hold_seconds(self, service: Service) -> float:
        """Give how long a request may wait for a service without replicas."""
        if not self._newest(service).wants_replicas:
            return 0.0
        return service.waking.timeout_seconds if service.waking is not None else self._config.hold_seconds

    def on_change(self) -> None:
        """Look at all rooms again, because the world has changed."""
        for uid, room in list(self._rooms.items()):
            service = self._world().services.get(uid)
            room.changed.set()
            if service is None:
                self._turn_away(room, errors.service_gone())
            else:
                self._let_in(service, room)
                if room.queue and not service.wants_replicas and not able(self._replicas(service)):
                    self._turn_away(room, errors.no_ready_replica(service, self._replicas(service)))
            if not room.queue and not room.num_in_flight:
                del self._rooms[uid]

    def close(self) -> None:
        """Send everybody who waits to another gateway, and let nobody wait any more."""
        self._is_closed = True
        for room in self._rooms.values():
            room.changed.set()
            self._turn_away(room, errors.closing())

    def needs_wake(self, uid: str) -> bool:
        """Say whether requests wait for a service that has no replica."""
        room, service = self._rooms.get(uid), self._world().services.get(uid)
        if room is None or service is None or not (room.queue or room.num_in_flight):
            return False
        return not able(self._replicas(service))

    async def _wait(self, room: _Room, visit: Visit) -> None:
        service = self._newest(visit.service)
        is_empty = not able(self._replicas(service))
        seconds = self.hold_seconds(service) if is_empty else self._config.turn_seconds
        if self._is_closed:
            raise errors.closing()
        if seconds <= 0:
            raise errors.no_ready_replica(service, self._replicas(service))
        self._check_bounds(room, visit)
        if is_empty:
            self._ask_to_wake(service)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = room.queue.push(granted, visit.share)
        self._num_held_bytes += visit.num_bytes
        try:
            with self._demand.held(service.key, visit.num_prompt_tokens):
                await self._until_granted(granted, visit, seconds)
        except BaseException:
            if not room.queue.remove(ticket, visit.share.tenant) and _has_result(granted):
                self.leave(service, room)
            raise
        finally:
            self._num_held_bytes -= visit.num_bytes

    async def _until_granted(self, granted: asyncio.Future[None], visit: Visit, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait({granted}, timeout=max(min(left, self._config.keep_alive_seconds), 0))
            if granted.done():
                return granted.result()
            if left <= self._config.keep_alive_seconds:
                replicas = self._replicas(visit.service)
                if able(replicas):
                    raise errors.no_turn(seconds)
                raise errors.no_ready_replica(visit.service, replicas, waited_seconds=seconds)
            await visit.keep_alive()

    def _check_bounds(self, room: _Room, visit: Visit) -> None:
        bounds: Bounds = hold_bounds(
            self._newest(visit.service), self._config.max_held_requests, self._world().num_gateways
        )
        if self._num_held_bytes + visit.num_bytes > self._config.max_held_bytes:
            raise errors.buffer_full("This gateway already holds as many bytes as it may.")
        if len(room.queue) >= bounds.max_requests:
            raise errors.buffer_full(f"{len(room.queue)} requests already wait for this service here.")
        if room.queue.num_of(visit.share.tenant) >= bounds.max_per_tenant:
            raise errors.buffer_full("This tenant already has as many requests waiting as it may.")

    def _ask_to_wake(self, service: Service) -> None:
        if service.waking is not None:
            self._activator.ask(service.uid, self.needs_wake)

    def _has_place(self, service: Service, room: _Room) -> bool:
        replicas = self._replicas(service)
        return has_place(self._newest(service), replicas, room.num_in_flight, self._world().num_gateways)

    def _let_in(self, service: Service, room: _Room) -> None:
        while room.queue and self._has_place(service, room):
            granted = room.queue.pop()
            if granted is not None and not granted.done():
                room.num_in_flight += 1
                granted.set_result(None)

    def _turn_away(self, room: _Room, error: errors.GatewayError) -> None:
        while (waiting := room.queue.pop()) is not None:
            if not waiting.done():
                waiting.set_exception(error)

    def leave(self, service: Service, room: _Room) -> None:
        """Give a place back."""
        room.num_in_flight -= 1
        if room.queue:
            self._let_in(self._newest(service), room)
        if not room.queue and not room.num_in_flight and self._rooms.get(service.uid) is room:
            del self._rooms[service.uid]

    def _may_come(self, service: Service) -> bool:
        """Say whether a service is to have replicas: not one that was deleted or suspended meanwhile."""
        newest = self._world().services.get(service.uid)
        return newest is not None and newest.wants_replicas

    def _newest(self, service: Service) -> Service:
        return self._world().services.get(service.uid, service)

    def _replicas(self, service: Service) -> tuple[Pod, ...]:
        return self._world().replicas(service)


class _Admission:
    """One visit from its entry to its end."""

    __slots__ = ("_place", "_room", "_visit")

    def __init__(self, room: WaitingRoom, visit: Visit) -> None:
        self._room, self._visit = room, visit

    async def __aenter__(self) -> None:
        self._place = await self._room.enter(self._visit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._room.leave(self._visit.service, self._place)


async def _either(work: Awaitable[object], seconds: float) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return


def _has_result(granted: asyncio.Future[None]) -> bool:
    return granted.done() and not granted.cancelled() and granted.exception() is None
