"""Whole runs against an API server made of a dictionary, interrupted at every write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from operator_builders import make_service
from operator_fakes import KEY, FakeApi, Killed, Object, make_reconciler
from reconcile_runs import HOST, converge, make_api
from tidemill_operator import names
from tidemill_operator.errors import ApiError, ObstacleError
from tidemill_operator.keys import Key
from tidemill_operator.last_words import CutStreams
from tidemill_operator.queue import Outcome


@pytest.fixture
def api() -> FakeApi:
    return make_api()


async def test_makes_everything_and_then_writes_nothing_more(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    before = api.num_writes
    await reconciler.run(KEY)
    assert api.num_writes == before
    assert {kind for kind, _, _ in api.objects} == {
        names.KIND,
        "ControllerRevision",
        "Deployment",
        "Service",
        "Secret",
        "PodDisruptionBudget",
        "Ingress",
    }


async def test_a_new_process_changes_nothing_that_is_done(api: FakeApi) -> None:
    await converge(api, make_reconciler(api))
    before = copy.deepcopy(api.objects)
    await make_reconciler(api).run(KEY)
    assert api.objects == before


@pytest.mark.parametrize("dies_at", range(1, 9))
async def test_killed_at_any_write_the_next_run_finishes(dies_at: int) -> None:
    undisturbed = make_api()
    await converge(undisturbed, make_reconciler(undisturbed))
    killed = make_api()
    killed.dies_at = dies_at
    with pytest.raises(Killed):
        await make_reconciler(killed).run(KEY)
    await converge(killed, make_reconciler(killed))
    assert killed.contents() == undisturbed.contents()


async def test_a_refused_write_is_told_in_status_and_tried_again(api: FakeApi) -> None:
    api.refuses = {"Service"}
    with pytest.raises(ApiError):
        await make_reconciler(api).run(KEY)
    conditions = api.objects[(names.KIND, *KEY)]["status"]["conditions"]
    ready = next(c for c in conditions if c["type"] == "Ready")
    assert (ready["reason"], "exceeded quota" in ready["message"]) == ("WriteRefused", True)
    api.refuses = set()
    await converge(api, make_reconciler(api))
    assert ("Service", "prod", "chat") in api.objects


async def test_a_write_that_the_api_server_fails_at_again_and_again_is_told_in_status(api: FakeApi) -> None:
    await converge(api, make_reconciler(api))
    api.objects[names.KIND, *KEY]["spec"]["replicas"] = 3
    api.refuses, api.refusal = {"Deployment"}, 500
    reconciler = make_reconciler(api)
    for _ in range(4):
        with pytest.raises(ApiError):
            await reconciler.run(KEY)
        assert told_of(api, "Progressing")["reason"] == "ReplicasStarting"
    with pytest.raises(ApiError):
        await reconciler.run(KEY)
    told = told_of(api, "Progressing")
    assert (told["reason"], "exceeded quota" in told["message"]) == ("WriteFailed", True)
    assert "Stalled" not in {c["type"] for c in api.objects[names.KIND, *KEY]["status"]["conditions"]}
    api.refuses = set()
    await reconciler.run(KEY)
    assert told_of(api, "Progressing")["reason"] != "WriteFailed"


def told_of(api: FakeApi, kind: str) -> Object:
    conditions = api.objects[names.KIND, *KEY]["status"]["conditions"]
    found: Object = next(c for c in conditions if c["type"] == kind)
    return found


@pytest.mark.parametrize(
    ("spoil", "restored"),
    [
        (lambda o: o["spec"].update(replicas=9), ("Deployment", 2)),
        (lambda o: o["spec"]["template"]["spec"].update(containers=[]), ("Deployment", 2)),
    ],
)
async def test_what_is_changed_by_hand_is_put_back(
    api: FakeApi, spoil: Callable[[Object], None], restored: tuple[str, int]
) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    (key,) = [k for k in api.objects if k[0] == restored[0]]
    good = api.contents()
    spoilt = copy.deepcopy(api.objects[key])
    spoil(spoilt)
    api.store(spoilt)
    await reconciler.run(KEY)
    assert api.contents() == good


async def test_a_child_that_is_deleted_by_hand_comes_back(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    good = api.contents()
    api.remove(("Service", "prod", "chat"))
    await reconciler.run(KEY)
    assert api.contents() == good


async def test_a_service_of_someone_else_is_seen_though_the_watch_shows_only_ours(api: FakeApi) -> None:
    foreign = {"kind": "Service", "metadata": {"namespace": "prod", "name": "chat"}, "spec": {"mine": True}}
    api.store(foreign)
    with pytest.raises(ObstacleError, match="Service chat exists and does not belong to this service"):
        await make_reconciler(api).run(KEY)
    assert api.objects[("Service", "prod", "chat")]["spec"] == {"mine": True}


async def test_in_a_namespace_that_is_deleted_the_host_is_given_up(api: FakeApi) -> None:
    left: list[tuple[Key, str]] = []
    reconciler = replace(make_reconciler(api), on_leaving=lambda key, uid: left.append((key, uid)))
    await converge(api, reconciler)
    assert ("Ingress", "prod", "chat") in api.objects
    (deployment,) = [obj for (kind, _, _), obj in api.objects.items() if kind == "Deployment"]
    message = (
        'pods "x" is forbidden: unable to create new content in namespace prod because it is being terminated'
    )
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    api.store({**deployment, "status": {"conditions": [failure]}})
    await reconciler.run(KEY)
    assert left == [(KEY, "uid-chat")]
    assert ("Ingress", "prod", "chat") not in api.objects
    (ready, *_) = api.objects[(names.KIND, *KEY)]["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "NamespaceTerminating")


async def test_lost_status_is_rebuilt(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    good = api.contents()
    api.objects[(names.KIND, *KEY)].pop("status")
    await reconciler.run(KEY)
    assert api.contents() == good


async def test_an_event_is_told_once(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    told = [(e["reason"], e["message"]) for e in api.events]
    assert len(told) == len(set(told))
    assert "RevisionCreated" in {reason for reason, _ in told}


async def test_a_service_that_replaces_another_of_its_name_waits_for_the_garbage_collector(
    api: FakeApi,
) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    old = [key for key in api.objects if key[0] != names.KIND]
    del api.objects[(names.KIND, *KEY)]
    api.store(make_service(HOST, uid="uid-of-the-successor"))
    with pytest.raises(ObstacleError, match="deleted service of the same name"):
        await reconciler.run(KEY)
    for key in old:
        api.remove(key)
    await converge(api, reconciler)
    owners = {
        owner["uid"]
        for key, obj in api.objects.items()
        if key[0] != names.KIND
        for owner in obj["metadata"]["ownerReferences"]
    }
    assert owners == {"uid-of-the-successor"}
    assert len(api.objects) == len(old) + 1


async def test_a_service_that_is_gone_needs_no_more_runs() -> None:
    assert await make_reconciler(FakeApi()).run(KEY) is Outcome.GONE


async def test_a_service_that_is_being_deleted_is_left_alone() -> None:
    api = FakeApi()
    api.store(make_service(deletionTimestamp="2026-11-29T12:00:00Z"))
    assert await make_reconciler(api).run(KEY) is Outcome.DONE
    assert api.num_writes == 0


@pytest.mark.parametrize("metadata", [None, {"deletionTimestamp": "2026-11-29T12:00:00Z"}])
async def test_streams_that_a_deletion_has_cut_are_told_of(metadata: Object | None) -> None:
    api = FakeApi()
    if metadata is not None:
        api.store(make_service(**metadata))
    cut = (CutStreams(pod="chat-1", num_streams=3),)
    await replace(make_reconciler(api), cuts_of=lambda _: cut).run(KEY)
    (event,) = api.events
    assert (event["reason"], event["involvedObject"]["name"]) == ("DrainTimeout", "chat")
    assert "3 streams are cut" in event["message"]


async def test_pods_count_only_through_their_owners(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    (deployment,) = [o for k, o in api.objects.items() if k[0] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    def add(kind: str, name: str, owner: str) -> Object:
        owners = [{"uid": owner, "controller": True}]
        metadata = {"name": name, "namespace": "prod", "labels": labels, "ownerReferences": owners}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return api.store({"kind": kind, "metadata": metadata, "spec": {"nodeName": "n"}, "status": status})

    replica_set = add("ReplicaSet", "rs", deployment["metadata"]["uid"])
    add("Pod", "ours", replica_set["metadata"]["uid"])
    foreign = add("ReplicaSet", "foreign", "uid-of-someone-else")
    add("Pod", "forged", foreign["metadata"]["uid"])
    add("Pod", "orphan", "")
    await reconciler.run(KEY)
    assert api.objects[(names.KIND, *KEY)]["status"]["readyReplicas"] == 1


@pytest.mark.parametrize(
    ("spec", "refused", "words"),
    [
        pytest.param(
            {"template": {"spec": {"tolerations": [{"operator": "Maybe"}]}}},
            "Check",
            "no such toleration",
            id="a field that is wrong",
        ),
        pytest.param(
            {"model": {"uri": "oci://registry.example.com/org/model:v1"}},
            "Volumes",
            "leaves out volume models",
            id="a volume that it drops without a word",
        ),
    ],
)
async def test_a_template_that_the_api_server_does_not_take_changes_nothing_and_is_told(
    spec: Object, refused: str, words: str
) -> None:
    api = FakeApi()
    api.store(make_service(spec))
    api.refuses = {refused}
    with pytest.raises(ApiError):
        await make_reconciler(api).run(KEY)
    assert len(api.checked) == 1
    assert {kind for kind, _, _ in api.objects} == {names.KIND}
    conditions = api.objects[(names.KIND, *KEY)]["status"]["conditions"]
    ready = next(c for c in conditions if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidTemplate")
    assert words in ready["message"]
    api.refuses = set()
    await make_reconciler(api).run(KEY)
    assert {"Deployment", "ControllerRevision"} <= {kind for kind, _, _ in api.objects}
