"""How a rollout learns that there is no room beside the old replicas, and remembers it."""

from __future__ import annotations

import pytest

from operator_builders import make_pod, ready_pods
from tidemill_operator.observed import PodView
from tidemill_operator.scarcity import Scarcity, find_scarcity, read_scarcity


def waiting(message: str) -> PodView:
    return make_pod("new", is_scheduled=False, phase="Pending", unscheduled_message=message)


@pytest.mark.parametrize(
    ("message", "device"),
    [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims", "nvidia.com/gpu"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/mig-1g.5gb.", "nvidia.com/mig-1g.5gb"),
        ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient amd.com/gpu.", "amd.com/gpu"),
        ("0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient memory.", None),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", None),
        ("", None),
    ],
)
def test_reads_the_device_in_the_schedulers_words(message: str, device: str | None) -> None:
    found = find_scarcity([waiting(message)], [*ready_pods("old", 2), waiting(message)])
    assert found == (None if device is None else Scarcity(device=device, num_placed=2))


def test_a_pod_that_has_a_place_waits_for_nothing() -> None:
    placed = make_pod("new", unscheduled_message="1 Insufficient nvidia.com/gpu.")
    assert find_scarcity([placed], [placed]) is None


def test_what_is_written_is_read_again() -> None:
    scarcity = Scarcity(device="nvidia.com/mig-1g.5gb", num_placed=12)
    assert read_scarcity(scarcity.as_written()) == scarcity


@pytest.mark.parametrize("text", ["", "true", "gpu=1", "nvidia.com/gpu=", "nvidia.com/gpu=-1"])
def test_what_someone_else_wrote_is_nothing(text: str) -> None:
    assert read_scarcity(text) is None
