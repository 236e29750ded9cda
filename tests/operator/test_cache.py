"""What is known of the children, whatever order the news comes in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator import names
from tidemill_operator.cache import MAX_TOMBSTONES, Cache


def make_raw(name: str = "a", version: int = 1, service: str = "chat", **fields: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "prod",
        "name": name,
        "resourceVersion": str(version),
        "labels": {names.LABEL_SERVICE: service},
        "managedFields": ["who wrote what"],
    }
    return {"metadata": metadata, **fields}


def version_of(cache: Cache, name: str = "a") -> str | None:
    found = cache.find("Pod", "prod", name)
    return None if found is None else str(found["metadata"]["resourceVersion"])


def test_gives_objects_by_the_service_whose_label_they_bear() -> None:
    cache = Cache()
    for name, service in (("b", "chat"), ("a", "chat"), ("c", "other")):
        cache.put("Pod", "Pod", make_raw(name, service=service))
    assert [obj["metadata"]["name"] for obj in cache.of_service("Pod", "prod", "chat")] == ["a", "b"]
    assert cache.of_service("Pod", "elsewhere", "chat") == []
    assert cache.of_service("Service", "prod", "chat") == []


def test_says_what_an_object_is_and_leaves_out_who_wrote_it() -> None:
    cache = Cache()
    cache.put("Gateway", "Pod", make_raw(status={"podIP": "10.0.0.1"}))
    (found,) = cache.all("Gateway")
    assert found["kind"] == "Pod"
    assert "managedFields" not in found["metadata"]
    assert found["status"] == {"podIP": "10.0.0.1"}


def test_an_object_that_changes_its_service_is_found_by_the_new_one_alone() -> None:
    cache = Cache()
    cache.put("Pod", "Pod", make_raw(version=1, service="chat"))
    cache.put("Pod", "Pod", make_raw(version=2, service="other"))
    assert cache.of_service("Pod", "prod", "chat") == []
    assert len(cache.of_service("Pod", "prod", "other")) == 1


def test_an_older_copy_that_comes_late_changes_nothing() -> None:
    cache = Cache()
    assert cache.put("Pod", "Pod", make_raw(version=5)) is not None
    assert cache.put("Pod", "Pod", make_raw(version=4)) is None
    assert version_of(cache) == "5"


def test_an_answer_that_comes_after_the_object_is_gone_does_not_bring_it_back() -> None:
    cache = Cache()
    cache.put("Pod", "Pod", make_raw(version=5))
    cache.drop("Pod", make_raw(version=8))
    assert cache.put("Pod", "Pod", make_raw(version=7)) is None
    assert version_of(cache) is None
    assert cache.put("Pod", "Pod", make_raw(version=9)) is not None


def test_the_end_of_an_older_object_leaves_its_successor() -> None:
    cache = Cache()
    cache.put("Pod", "Pod", make_raw(version=9))
    cache.drop("Pod", make_raw(version=8))
    assert version_of(cache) == "9"


def test_a_new_list_removes_what_went_while_nobody_watched_and_tells() -> None:
    cache = Cache()
    for name in ("a", "b", "c"):
        cache.put("Pod", "Pod", make_raw(name, version=3))
    changed = cache.replace("Pod", "Pod", None, [make_raw("a", 3), make_raw("b", 6)], "7")
    assert sorted(obj["metadata"]["name"] for obj in changed) == ["b", "c"]
    assert (version_of(cache, "a"), version_of(cache, "b"), version_of(cache, "c")) == ("3", "6", None)


def test_a_list_older_than_our_own_write_does_not_undo_it() -> None:
    cache = Cache()
    cache.put("Pod", "Pod", make_raw("mine", version=9))
    assert cache.replace("Pod", "Pod", None, [], "7") == []
    assert version_of(cache, "mine") == "9"


def test_the_list_of_one_namespace_says_nothing_about_another() -> None:
    cache = Cache()
    cache.put("Pod", "Pod", make_raw())
    assert cache.replace("Pod", "Pod", "elsewhere", [], "7") == []
    assert len(cache) == 1


def test_remembers_a_bounded_number_of_ends() -> None:
    cache = Cache()
    for number in range(MAX_TOMBSTONES + 10):
        cache.drop("Pod", make_raw(f"pod-{number}", version=number + 1))
    assert cache.put("Pod", "Pod", make_raw("pod-0", version=1)) is not None
    assert cache.put("Pod", "Pod", make_raw(f"pod-{MAX_TOMBSTONES + 9}", version=1)) is None


@given(st.permutations(range(1, 9)), st.integers(1, 8))
def test_in_any_order_of_news_the_newest_wins(order: list[int], gone_at: int) -> None:
    cache = Cache()
    for version in order:
        if version == gone_at:
            cache.drop("Pod", make_raw(version=version))
        else:
            cache.put("Pod", "Pod", make_raw(version=version))
    newest = max(order)
    assert version_of(cache) == (None if gone_at == newest else str(newest))
    assert len(cache.of_service("Pod", "prod", "chat")) == len(cache)
