"""A service that cannot run says why, in the words of whoever stops it, and never that it is Ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from harness.kubectl import wait_until

if TYPE_CHECKING:
    from e2e_support import Namespace, Object

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """What is wrong with a service, and what its conditions must say."""

    reason: str
    words: str
    is_stalled: bool = True
    spec: dict[str, Any]


def cases(image: str) -> dict[str, Wrong]:
    """Give services that cannot run, each in its own way."""
    tiny = {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"memory": "8Mi"}}
    gpus = {"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": 64}}
    return {
        "pull": Wrong(
            reason="ImagePullBackOff",
            words="container engine cannot be pulled",
            spec={"engine": {"image": "localhost/no-such-image:test"}},
        ),
        "memory": Wrong(reason="OOMKilled", words="needed more memory", spec={"resources": tiny}),
        "gpu": Wrong(
            reason="InsufficientGPU",
            words="Insufficient nvidia.com/gpu",
            is_stalled=False,
            spec={"resources": gpus},
        ),
        "load": Wrong(
            reason="ModelLoadFailed",
            words="The weights are cut off",
            spec={"model": {"uri": "sim://load?fail=load:The%20weights%20are%20cut%20off"}},
        ),
        "flags": Wrong(
            reason="CrashLoopBackOff",
            words="exit code 2",
            spec={"engine": {"image": image, "args": ["--no-such-flag"]}},
        ),
    }


def conditions_of(service: Object) -> dict[str, Object]:
    return {found["type"]: found for found in service.get("status", {}).get("conditions", [])}


def test_a_service_that_cannot_run_says_why_and_is_never_ready(space: Namespace, sim_engine: str) -> None:
    wrong = cases(sim_engine)
    for name, case in wrong.items():
        space.apply_sim(name, sim_engine, **case.spec)
    for name, case in wrong.items():

        def says_so(name: str = name, case: Wrong = case) -> bool:
            ready = conditions_of(space.service(name)).get("Ready", {})
            assert ready.get("status") != "True"
            return ready.get("reason") == case.reason and case.words in ready.get("message", "")

        try:
            wait_until(f"{name}: {case.reason}", says_so)
        except Exception as error:
            raise AssertionError(f"{error}: {conditions_of(space.service(name)).get('Ready')}") from error
    for name, case in wrong.items():
        service = space.service(name)
        conditions = conditions_of(service)
        assert ("Stalled" in conditions) == case.is_stalled, name
        assert ("Reconciling" in conditions) != case.is_stalled, name
        generation = service["metadata"]["generation"]
        assert {found["observedGeneration"] for found in conditions.values()} == {generation}
        assert case.words in service["status"]["model"]["lastFailure"]["message"]
        assert case.words in space.cluster.kubectl("describe", "-n", space.name, "infsvc", name).stdout
    assert conditions_of(space.service("gpu"))["CapacityAvailable"]["reason"] == "InsufficientGPU"
