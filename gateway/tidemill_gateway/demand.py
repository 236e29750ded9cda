"""What clients ask of each service at this gateway, for the autoscaler.

Knows counts by service. Refuses to know clocks (times are arguments), sockets and what the counts are for.
A held request is waiting here for a replica; one in flight has been given to one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

ServiceKey = tuple[str, str]


@dataclass(kw_only=True, slots=True)
class ServiceDemand:
    """The counts of one service since this gateway started, and those of now."""

    held_requests: int = 0
    held_prompt_tokens: int = 0
    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    requests_total: int = 0
    prompt_tokens_total: int = 0
    output_tokens_total: int = 0
    last_request_time: float | None = None


class Flight:
    """One request at a replica, counted until the block ends; its tokens grow while the answer passes."""

    __slots__ = ("_demand", "num_output_tokens", "num_tokens")

    def __init__(self, demand: ServiceDemand, num_prompt_tokens: int) -> None:
        self._demand = demand
        self.num_tokens = num_prompt_tokens
        self.num_output_tokens = 0

    def __enter__(self) -> Self:
        self._demand.in_flight_requests += 1
        self._demand.in_flight_tokens += self.num_tokens
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._demand.in_flight_requests -= 1
        self._demand.in_flight_tokens -= self.num_tokens

    def add_output(self, num_tokens: int) -> None:
        """Count output tokens as they pass; a negative number corrects an estimate."""
        self.num_tokens += num_tokens
        self.num_output_tokens += num_tokens
        self._demand.in_flight_tokens += num_tokens
        self._demand.output_tokens_total += num_tokens


class DemandBook:
    """The demand for every service that was asked for."""

    def __init__(self, *, gateway: str, started: float) -> None:
        self._gateway = gateway
        self._started = started
        self._services: dict[ServiceKey, ServiceDemand] = {}

    def of(self, key: ServiceKey) -> ServiceDemand:
        """Give the counts of a service, which this keeps."""
        return self._services.setdefault(key, ServiceDemand())

    def arrive(self, key: ServiceKey, num_prompt_tokens: int, now: float) -> None:
        """Count a request that wants to be served and may, whatever becomes of it."""
        demand = self.of(key)
        demand.requests_total += 1
        demand.prompt_tokens_total += num_prompt_tokens
        demand.last_request_time = now

    @contextmanager
    def held(self, key: ServiceKey, num_prompt_tokens: int) -> Iterator[None]:
        """Count a request as waiting here until the block ends."""
        demand = self.of(key)
        demand.held_requests += 1
        demand.held_prompt_tokens += num_prompt_tokens
        try:
            yield
        finally:
            demand.held_requests -= 1
            demand.held_prompt_tokens -= num_prompt_tokens

    def in_flight(self, key: ServiceKey, num_prompt_tokens: int) -> Flight:
        """Count a request as being answered while the block of what this gives lasts."""
        return Flight(self.of(key), num_prompt_tokens)

    def report(self, existing: Iterable[ServiceKey]) -> dict[str, object]:
        """Write the demand for the services that exist, asked for or not; forget idle ones that do not."""
        wanted = set(existing)
        self._services = {
            key: demand
            for key, demand in self._services.items()
            if key in wanted or demand.held_requests or demand.in_flight_requests
        }
        return {
            "gateway": self._gateway,
            "started": self._started,
            "services": {"/".join(key): asdict(self.of(key)) for key in sorted(wanted)},
        }
