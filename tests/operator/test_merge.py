"""How a person's template is laid over the operator's."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.manifests.merge import merge

NAMES = st.sampled_from(["engine", "a", "b"])
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": NAMES}, optional={"image": st.sampled_from(["x", "y"])}),
    unique_by=lambda container: container["name"],
)


def test_maps_are_merged_and_values_replaced() -> None:
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}) == {"a": {"b": 1, "c": 3, "d": 4}}


def test_null_removes() -> None:
    assert merge({"a": 1, "b": 2}, {"a": None}) == {"b": 2}


def test_containers_are_found_by_name() -> None:
    base = {"containers": [{"name": "engine", "image": "i", "env": [{"name": "A", "value": "1"}]}]}
    patch = {"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}, {"name": "other"}]}
    assert merge(base, patch) == {
        "containers": [
            {
                "name": "engine",
                "image": "i",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            },
            {"name": "other"},
        ]
    }


def test_a_volume_of_another_kind_replaces_the_one_of_its_name() -> None:
    base = {"volumes": [{"name": "tmp", "emptyDir": {}}]}
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "big"}}
    assert merge(base, {"volumes": [claim]}) == {"volumes": [claim]}
    sized = {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    assert merge(base, {"volumes": [sized]}) == {"volumes": [sized]}


def test_lists_without_a_key_are_replaced() -> None:
    base = {"topologySpreadConstraints": [{"maxSkew": 1}], "tolerations": [{"key": "a"}]}
    patch = {"topologySpreadConstraints": [], "tolerations": [{"key": "b"}]}
    assert merge(base, patch) == patch


@given(base=CONTAINERS, patch=CONTAINERS)
def test_nothing_is_lost_nothing_is_changed_in_place_and_twice_is_once(
    base: list[dict[str, Any]], patch: list[dict[str, Any]]
) -> None:
    before, words = {"containers": base}, {"containers": patch}
    kept = deepcopy((before, words))
    merged = merge(before, words)
    names = [container["name"] for container in merged["containers"]]
    assert sorted(names) == sorted({container["name"] for container in [*base, *patch]})
    assert (before, words) == kept
    assert merge(merged, words) == merged
