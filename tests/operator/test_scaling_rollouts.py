"""Scaling while one revision takes over from another, or a canary stands beside it, through whole runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from scaling_stage import AUTO, Stage, make_stage
from tidemill_operator.spec import parse

pytestmark = pytest.mark.slow

NEW_ENGINE: dict[str, Any] = {"env": [{"name": "LEVEL", "value": "2"}]}
CANARY: dict[str, Any] = {"canary": {"trafficPercent": 10}}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Give a service of two replicas whose queue is shorter than allowed, and never empty."""
    scaling = {**AUTO["scaling"], "minReplicas": 2, "targets": {"queueLengthPerReplica": 5}}
    staged = make_stage({**AUTO, "scaling": scaling})
    await staged.reconcile()
    staged.fleet.usual_waiting = 1
    await staged.pass_time(60)
    assert staged.replicas == 2
    yield staged
    await staged.autoscaler.close()


def begin(stage: Stage, rollout: dict[str, Any]) -> None:
    """Change the engine; the new revision's replicas load for ever."""
    stage.change_spec(engine=NEW_ENGINE, rollout=rollout)
    stage.controllers.slow_revisions = {parse(stage.service).revision}


@pytest.mark.parametrize("rollout", [{}, CANARY], ids=["rollout", "canary"])
@pytest.mark.parametrize("waiting", [1, None], ids=["requests wait", "engines are silent"])
async def test_what_a_new_revision_adds_for_a_while_is_never_added_to(
    stage: Stage, rollout: dict[str, Any], waiting: int | None
) -> None:
    begin(stage, rollout)
    stage.fleet.usual_waiting = waiting
    for _ in range(24):
        await stage.pass_time(5)
        assert stage.replicas <= 4, stage.status["scaling"]
    assert stage.status["desiredReplicas"] <= 3, "KV caches are nearly full: one more may be asked for"


@pytest.mark.parametrize("rollout", [{}, {"maxSurge": 0, "maxUnavailable": 1}, CANARY])
async def test_load_that_grows_in_a_rollout_is_answered(stage: Stage, rollout: dict[str, Any]) -> None:
    begin(stage, rollout)
    await stage.pass_time(10)
    stage.fleet.usual_waiting = 40
    await stage.pass_time(30)
    assert stage.status["desiredReplicas"] >= 5
