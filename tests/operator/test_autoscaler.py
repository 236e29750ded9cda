"""Services, tasks and turns, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from operator_builders import FakeClock, make_observed, make_service, settle
from scaling_builders import KEY, FakeDecide, gateway_answer, make_figures, scaling_pod
from tidemill_operator import metrics
from tidemill_operator.autoscaling.load_json import read
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.cluster import Reading
from tidemill_operator.fleet.autoscaler import Autoscaler
from tidemill_operator.fleet.recording import Recordings
from tidemill_operator.fleet.scraper import EngineAnswer, EngineTarget, GatewayAnswer, GatewayTarget, Scraper
from tidemill_operator.keys import Key

AUTO: dict[str, Any] = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 8}}


@dataclass(kw_only=True)
class FakeScraper:
    """Answers at once, and counts."""

    clock: FakeClock
    engines: list[EngineTarget] = field(default_factory=list)
    num_gateways_asked: int = 0

    async def engine(self, target: EngineTarget) -> EngineAnswer:
        self.engines.append(target)
        return EngineAnswer(figures=make_figures(sampled_at=self.clock.now().timestamp(), num_waiting=2))

    async def gateway(self, target: GatewayTarget) -> GatewayAnswer:
        self.num_gateways_asked += 1
        return gateway_answer(sampled_at=self.clock.now().timestamp())

    async def close(self) -> None:
        pass


@dataclass(kw_only=True)
class World:
    """An autoscaler and everything around it."""

    clock: FakeClock
    scraper: FakeScraper
    decide: FakeDecide
    asked: list[Key]
    autoscaler: Autoscaler

    def look(self, spec: dict[str, Any] | None = None, **changes: Any) -> Any:
        status = changes.pop("status", {})
        name = changes.pop("name", "chat")
        uid = changes.pop("uid", f"uid-{name}")
        service = {**make_service(spec or AUTO, name=name, uid=uid), "status": status}
        pods = changes.pop("pods", (scaling_pod(1), scaling_pod(2)))
        observed = make_observed(pods=pods)
        return self.autoscaler.look(service, Reading(observed=observed, versions={}, admin_tokens=("t",)))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock, decide = FakeClock(), FakeDecide(replicas=3)
    asked: list[Key] = []
    scraper = FakeScraper(clock=clock)
    autoscaler = Autoscaler(
        scraper=cast("Scraper", scraper),
        decide=decide,
        ask_reconcile=asked.append,
        clock=clock,
        recordings=Recordings(10**6),
    )
    yield World(clock=clock, scraper=scraper, decide=decide, asked=asked, autoscaler=autoscaler)
    await autoscaler.close()


async def test_decides_soon_after_the_first_look_and_asks_for_a_reconcile(world: World) -> None:
    assert world.look().desired is None
    await settle()
    assert world.asked == [KEY]
    assert world.look().desired == 3
    assert {(t.uid, t.tokens) for t in world.scraper.engines} == {("uid-1", ("t",)), ("uid-2", ("t",))}


async def test_looks_alone_cause_no_decisions(world: World) -> None:
    world.look()
    await settle()
    for _ in range(50):
        world.look()
    await settle()
    assert len(world.decide.loads) == 1


async def test_a_hundred_seconds_without_change_are_twenty_decisions_and_one_reconcile(world: World) -> None:
    world.look()
    await world.clock.advance(100)
    assert 17 <= len(world.decide.loads) <= 23
    assert world.asked == [KEY]


async def test_a_wish_to_wake_is_decided_about_at_once(world: World) -> None:
    world.look()
    await settle()
    world.decide.replicas = 1
    world.look(status={"activation": {"requestTime": "2026-11-29T12:00:00Z"}})
    await settle()
    assert world.asked == [KEY, KEY]
    assert world.decide.loads[-1].activation_request_time is not None


async def test_a_decision_may_ask_for_an_earlier_turn(world: World) -> None:
    world.decide.retry_after_seconds = 1.0
    world.look()
    await world.clock.advance(10)
    assert len(world.decide.loads) >= 9


@pytest.mark.parametrize(("mode", "num_told"), [("Auto", 1), ("Advisory", 0)])
async def test_only_what_is_followed_counts_as_a_change_of_the_number(
    world: World, mode: str, num_told: int
) -> None:
    scaling = {**AUTO["scaling"], "mode": mode}
    spec = {"replicas": 3 if mode == "Advisory" else None, "scaling": scaling}
    counter = metrics.SCALE_EVENTS.labels("up")
    before = counter._value.get()
    world.look(spec)
    await settle()
    world.decide.replicas = 5
    await world.clock.advance(10)
    assert world.look(spec).desired == 5
    assert counter._value.get() - before == num_told


async def test_a_service_that_no_longer_scales_is_left_alone(world: World) -> None:
    world.look()
    await settle()
    assert world.look({"replicas": 2}) is None
    await world.clock.advance(60)
    assert len(world.decide.loads) == 1


async def test_a_deleted_service_leaves_nothing_behind(world: World) -> None:
    world.look()
    await settle()
    world.autoscaler.forget(KEY)
    await world.clock.advance(60)
    assert len(world.decide.loads) == 1
    assert list(world.autoscaler.rows()) == []
    assert world.autoscaler.document(*KEY) is None


async def test_a_successor_of_the_same_name_inherits_nothing(world: World) -> None:
    world.look()
    await settle()
    assert world.look(uid="uid-other").desired is None
    await settle()
    assert world.decide.loads[-1].at == world.decide.loads[0].at


async def test_a_spec_that_became_invalid_keeps_what_was_decided(world: World) -> None:
    world.look()
    await settle()
    assert world.look({"replicas": None, "scaling": {"minReplicas": 9, "maxReplicas": 2}}).desired == 3


async def test_a_suspended_service_is_neither_asked_nor_decided_about(world: World) -> None:
    world.look()
    await settle()
    asked = len(world.scraper.engines)
    assert world.look({**AUTO, "suspend": True}).desired is None
    await world.clock.advance(60)
    assert (len(world.scraper.engines), len(world.decide.loads)) == (asked, 1)
    world.look()
    await settle()
    assert len(world.decide.loads) == 2


async def test_a_decision_that_fails_holds_and_is_tried_again(world: World) -> None:
    world.look()
    await settle()
    world.decide.fails = RuntimeError("boom")
    await world.clock.advance(20)
    assert world.look().desired == 3
    world.decide.fails = None
    world.decide.replicas = 4
    await world.clock.advance(10)
    assert world.look().desired == 4


async def test_services_never_see_each_others_pods(world: World) -> None:
    world.look(name="a", pods=(scaling_pod(1),))
    world.look(name="b", pods=(scaling_pod(2), scaling_pod(3)))
    await settle()
    seen = {tuple(replica.uid for replica in load.replicas) for load in world.decide.loads}
    assert seen == {("uid-1",), ("uid-2", "uid-3")}


async def test_a_gateway_is_asked_once_for_all_services_of_a_moment(world: World) -> None:
    for number in range(30):
        world.look(name=f"s{number}", pods=())
    await settle()
    assert len(world.decide.loads) == 30
    assert world.scraper.num_gateways_asked == 1


async def test_every_load_is_recorded_until_the_service_is_gone_or_another_one(world: World) -> None:
    def recorded() -> list[FleetLoad]:
        parts = world.autoscaler.recording(*KEY)
        return list(read(b"".join(parts or ()).decode().splitlines()).loads)

    world.look()
    await world.clock.advance(60)
    assert recorded() == world.decide.loads
    first = len(world.decide.loads)
    world.look(uid="uid-other")
    await world.clock.advance(10)
    assert recorded() == world.decide.loads[first:]
    assert (
        AUTO["scaling"]
        == read(b"".join(world.autoscaler.recording(*KEY) or ()).decode().splitlines()).scaling
    )
    world.autoscaler.forget(KEY)
    assert world.autoscaler.recording(*KEY) is None


async def test_everything_known_is_exported_and_missing_figures_are_not(world: World) -> None:
    world.look()
    await settle()
    (row,) = world.autoscaler.rows()
    assert row.gauges["tidemill_autoscaler_desired_replicas"] == 3
    assert row.gauges["tidemill_autoscaler_queue_length"] == 4
    assert "tidemill_slo_time_to_first_token_seconds" not in row.gauges
    assert row.gauges.keys() <= metrics.SERVICE_GAUGES.keys()


async def test_drains_are_timed_for_services_that_do_not_scale_too(world: World) -> None:
    world.look({"replicas": 2}, pods=(scaling_pod(1, is_routable=False), scaling_pod(2)))
    await world.clock.advance(40)
    (row,) = world.autoscaler.rows()
    assert row.gauges["tidemill_drain_oldest_seconds"] == 40
    world.look({"replicas": 2})
    (row,) = world.autoscaler.rows()
    assert row.gauges["tidemill_drain_oldest_seconds"] == 0


async def test_the_document_has_the_figures_as_numbers(world: World) -> None:
    world.look()
    await settle()
    document = world.autoscaler.document("prod", "chat")
    assert document is not None
    expected = {"desiredReplicas": 3, "queueLength": 4, "kvCacheUtilizationPercent": 0, "maxReplicas": 8}
    assert {key: document[key] for key in expected} == expected
