"""What an engine's pod is made of, and what a person may add to it."""

from __future__ import annotations

import pytest

from operator_builders import IMAGE, engine_container, make_context, pod_spec
from tidemill_operator import names


def test_pods_satisfy_the_restricted_standard() -> None:
    spec, container = pod_spec(), engine_container()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False


def test_the_spec_chooses_the_image_before_the_operator_does() -> None:
    assert engine_container()["image"] == IMAGE
    assert engine_container({"engine": {"image": "mine:1"}})["image"] == "mine:1"


def test_a_start_may_take_as_long_as_the_load_timeout() -> None:
    probe = engine_container({"model": {"uri": "sim://m", "loadTimeout": "61s"}})["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 62


def test_a_pod_has_time_to_drain() -> None:
    assert pod_spec({"drain": {"timeout": "2m"}})["terminationGracePeriodSeconds"] == 140


def test_an_engine_that_hangs_is_not_given_the_time_of_a_drain() -> None:
    container = engine_container({"drain": {"timeout": "10m"}})
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["terminationGracePeriodSeconds"] == 30


def test_home_is_writable_unless_the_person_says_otherwise() -> None:
    assert engine_container()["env"] == [{"name": "HOME", "value": "/tmp"}]
    own = [{"name": "HOME", "value": "/work"}]
    assert engine_container({"engine": {"env": own}})["env"] == own


@pytest.mark.parametrize("where", ["requests", "limits"])
def test_a_gpu_brings_shared_memory(where: str) -> None:
    spec = pod_spec({"resources": {where: {"nvidia.com/gpu": 1}}})
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
    assert "shm" not in {volume["name"] for volume in pod_spec()["volumes"]}


def test_shared_memory_grows_with_the_gpus_that_talk_through_it() -> None:
    spec = pod_spec({"resources": {"limits": {"nvidia.com/gpu": "8"}}})
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in spec["volumes"]


def test_replicas_of_a_revision_spread_where_they_can() -> None:
    spreads = pod_spec()["topologySpreadConstraints"]
    assert [s["topologyKey"] for s in spreads] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert {s["whenUnsatisfiable"] for s in spreads} == {"ScheduleAnyway"}
    revision = make_context().spec.revision
    assert spreads[0]["labelSelector"]["matchLabels"] == names.revision_selector_labels("chat", revision)


def test_a_persons_container_becomes_a_sidecar_that_outlives_the_engine() -> None:
    beside = {"name": "log", "image": "log:1"}
    spec = pod_spec({"template": {"spec": {"containers": [beside], "nodeSelector": {"gpu": "h200"}}}})
    assert [container["name"] for container in spec["containers"]] == ["engine"]
    assert spec["initContainers"] == [{**beside, "restartPolicy": "Always"}]
    assert spec["nodeSelector"] == {"gpu": "h200"}


def test_a_persons_words_about_the_engine_add_to_the_operators() -> None:
    volume = {"name": "extra", "emptyDir": {}}
    written = {
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "A", "value": "1"}],
                    "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                }
            ],
            "volumes": [volume],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "schedulingGates": [{"name": "example.com/wait"}],
            "tolerations": [{"operator": "Exists"}],
        }
    }
    spec, plain = pod_spec({"template": written}), pod_spec()
    (container,) = spec["containers"]
    assert {"name": "A", "value": "1"} in container["env"]
    assert container["args"] == plain["containers"][0]["args"]
    assert container["volumeMounts"] == [
        *plain["containers"][0]["volumeMounts"],
        {"name": "extra", "mountPath": "/extra"},
    ]
    assert volume in spec["volumes"]
    assert spec["priorityClassName"] == "high"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["schedulingGates"] == [{"name": "example.com/wait"}]


def test_a_volume_with_a_model_is_mounted_read_only() -> None:
    spec = pod_spec({"model": {"uri": "pvc://weights/llama/8b v2".replace(" ", "-")}})
    (container,) = spec["containers"]
    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "models", "persistentVolumeClaim": claim} in spec["volumes"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert container["args"][1] == "file:///models/llama/8b-v2"
    assert "initContainers" not in spec


def test_an_image_with_a_model_is_mounted_and_pulled_with_its_secret() -> None:
    model = {"uri": "oci://registry.example.com/org/model:v1?path=gguf/a.gguf", "secretRef": {"name": "pull"}}
    spec = pod_spec({"model": model})
    image = {"reference": "registry.example.com/org/model:v1"}
    assert {"name": "models", "image": image} in spec["volumes"]
    assert spec["containers"][0]["args"][1] == "file:///models/gguf/a.gguf"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
