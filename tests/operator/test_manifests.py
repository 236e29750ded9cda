"""What the builders make of a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_builders import IMAGE, make_context, make_service
from tidemill_engine.__main__ import make_parser
from tidemill_engine.serve_flags import make_config
from tidemill_operator import manifests, names
from tidemill_operator.observed import GatewayView

Object = dict[str, Any]


def pod_spec(spec: Object | None = None) -> Object:
    built: Object = manifests.build_pod_template(make_context(spec))["spec"]
    return built


def engine(spec: Object | None = None) -> Object:
    (container,) = pod_spec(spec)["containers"]
    built: Object = container
    return built


def test_pods_satisfy_the_restricted_standard() -> None:
    spec, container = pod_spec(), engine()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False


def test_the_engine_is_told_everything_the_spec_says() -> None:
    args = engine(
        {
            "model": {"uri": "builtin://m", "servedNames": ["a", "b"]},
            "engine": {
                "dtype": "float32",
                "maxModelLen": 1024,
                "kvCache": {"blockSize": 16},
                "maxNumSeqs": 8,
                "maxNumBatchedTokens": 512,
                "args": ["--seed", "7"],
            },
            "drain": {"timeout": "1m"},
        }
    )["args"]
    assert args[:2] == ["serve", "builtin://m"]
    text = " ".join(args)
    for words in (
        "--served-model-name a b --host",
        "--port 8000",
        "--admin-port 8001",
        "--admin-token-file /var/run/tidemill/admin/token",
        "--drain-timeout 60",
        "--dtype float32",
        "--max-model-len 1024",
        "--max-num-seqs 8",
        "--max-num-batched-tokens 512",
        "--block-size 16",
    ):
        assert words in text
    assert args[-2:] == ["--seed", "7"]


def test_the_engine_is_told_how_weights_are_held() -> None:
    args = engine({"engine": {"quantization": "int8"}})["args"]
    assert args[args.index("--quantization") + 1] == "int8"


def test_what_the_spec_leaves_open_is_the_engines_choice() -> None:
    assert not {"--dtype", "--max-model-len", "--max-num-seqs", "--block-size"} & set(engine()["args"])


def test_the_spec_chooses_the_image_before_the_operator_does() -> None:
    assert engine()["image"] == IMAGE
    assert engine({"engine": {"image": "mine:1"}})["image"] == "mine:1"


def test_a_start_may_take_as_long_as_the_load_timeout() -> None:
    probe = engine({"model": {"uri": "sim://m", "loadTimeout": "61s"}})["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 62


def test_a_pod_has_time_to_drain() -> None:
    assert pod_spec({"drain": {"timeout": "2m"}})["terminationGracePeriodSeconds"] == 140


def test_an_engine_that_hangs_is_not_given_the_time_of_a_drain() -> None:
    container = engine({"drain": {"timeout": "10m"}})
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["terminationGracePeriodSeconds"] == 30


def test_home_is_writable_unless_the_person_says_otherwise() -> None:
    assert engine()["env"] == [{"name": "HOME", "value": "/tmp"}]
    own = [{"name": "HOME", "value": "/work"}]
    assert engine({"engine": {"env": own}})["env"] == own


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


def test_the_kv_cache_and_the_policy_reach_the_engine() -> None:
    cache = {
        "memoryUtilizationPercent": 85,
        "swapSpace": "1536Mi",
        "watermarks": {"highPercent": 80, "lowPercent": 60},
    }
    text = " ".join(engine({"engine": {"kvCache": cache, "schedulingPolicy": "slo"}})["args"])
    for words in (
        "--gpu-memory-utilization 0.85",
        "--swap-space 1.5",
        "--kv-watermarks 0.8,0.6,0.95",
        "--scheduling-policy slo",
    ):
        assert words in text


def test_the_engine_understands_every_flag_that_the_operator_writes() -> None:
    cache = {
        "memoryUtilizationPercent": 85,
        "blockSize": 16,
        "swapSpace": "1Gi",
        "watermarks": {"highPercent": 80},
    }
    written = {
        "dtype": "float32",
        "maxModelLen": 64,
        "maxNumSeqs": 2,
        "maxNumBatchedTokens": 32,
        "schedulingPolicy": "sjf",
        "kvCache": cache,
    }
    read = make_config(make_parser().parse_args(engine({"engine": written})["args"]), None)
    assert read.core.cache.memory_utilization == 0.85
    assert read.core.cache.swap_bytes == 1 << 30
    assert read.core.scheduler.watermarks.high == 0.8
    assert read.core.scheduler.order.policy == "sjf"


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


def test_labels_that_are_handed_on_reach_deployment_and_pods() -> None:
    queued = replace(make_context(), propagated_labels={"kueue.x-k8s.io/queue-name": "team"})
    template = manifests.build_pod_template(queued)
    deployment = manifests.build_deployment(queued, queued.spec.revision, template, 1)
    for labels in (template["metadata"]["labels"], deployment["metadata"]["labels"]):
        assert labels["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in deployment["spec"]["selector"]["matchLabels"]


def test_only_labels_on_the_list_are_handed_on() -> None:
    service = make_service(labels={"kueue.x-k8s.io/queue-name": "team", "team": "a", "cost": "b"})
    settings = manifests.PodSettings(propagated_labels=(*names.PROPAGATED_LABELS, "cost"))
    assert settings.labels_of(service) == {"cost": "b", "kueue.x-k8s.io/queue-name": "team"}


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


def test_no_selector_depends_on_whether_a_pod_is_routable() -> None:
    context = make_context()
    template = manifests.build_pod_template(context)
    deployment = manifests.build_deployment(context, context.spec.revision, template, 2)
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert names.LABEL_ROUTABLE not in selector
    assert selector.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["labels"][names.LABEL_ROUTABLE] == "true"


def test_clients_are_led_to_the_gateway_and_nowhere_else() -> None:
    context = make_context()
    service = manifests.build_client_service(context)
    assert "selector" not in service["spec"]
    slice_ = manifests.build_endpoint_slice(
        context, [GatewayView(name="b", ip="10.0.0.2"), GatewayView(name="a", ip="10.0.0.1", node="n")]
    )
    assert slice_ is not None
    assert [e["addresses"] for e in slice_["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert slice_["ports"][0]["name"] == service["spec"]["ports"][0]["name"]
    assert slice_["ports"][0]["port"] == service["spec"]["ports"][0]["targetPort"] == 8080


def test_a_slice_is_of_one_address_family_and_bounded() -> None:
    context = make_context()
    mixed = [GatewayView(name="a", ip="fd00::1"), GatewayView(name="b", ip="10.0.0.1")]
    slice_ = manifests.build_endpoint_slice(context, mixed)
    assert slice_ is not None
    assert (slice_["addressType"], len(slice_["endpoints"])) == ("IPv6", 1)
    many = [GatewayView(name=f"g{n:03}", ip=f"10.0.1.{n}") for n in range(150)]
    bounded = manifests.build_endpoint_slice(context, many)
    assert bounded is not None
    assert len(bounded["endpoints"]) == 100


def test_there_is_no_slice_without_a_gateway() -> None:
    assert manifests.build_endpoint_slice(make_context(), []) is None


@pytest.mark.parametrize(
    ("hostnames", "prefix"),
    [
        pytest.param(["chat.example.com"], "/", id="with a host of its own everything below it"),
        pytest.param(None, "/prod/chat", id="below its path on hosts that it shares"),
    ],
)
def test_a_route_leads_gateways_to_the_service(hostnames: list[str] | None, prefix: str) -> None:
    parents = [{"name": "public", "namespace": "web", "sectionName": "https"}, {"name": "inner"}]
    routing = {"parentRefs": parents, **({} if hostnames is None else {"hostnames": hostnames})}
    built = manifests.build_http_route(make_context({"routing": routing}))
    assert built is not None
    kind = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    assert built["spec"]["parentRefs"] == [{**kind, **parent} for parent in parents]
    assert built["spec"].get("hostnames") == hostnames
    (rule,) = built["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": prefix}}]
    assert rule["backendRefs"] == [{"name": "chat", "port": 80}]
    assert manifests.build_http_route(make_context()) is None


def test_a_model_over_several_gpus_is_one_process_for_each() -> None:
    limits = {"limits": {"nvidia.com/gpu": 4}}
    args = engine({"parallelism": {"tensor": 4}, "resources": limits})["args"]
    assert make_config(make_parser().parse_args(args), None).core.device.tensor_parallel_size == 4
    (memory,) = (v for v in pod_spec({"resources": limits})["volumes"] if v["name"] == "shm")
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert "--tensor-parallel-size" not in engine()["args"]


def test_there_is_no_ingress_unless_asked_for() -> None:
    assert manifests.build_ingress(make_context()) is None


def test_an_ingress_leads_its_host_to_the_service() -> None:
    ingress = {"host": "chat.example.com", "className": "nginx", "tls": {"secretName": "cert"}}
    built = manifests.build_ingress(make_context({"routing": {"ingress": ingress}}))
    assert built is not None
    assert built["spec"]["ingressClassName"] == "nginx"
    assert built["spec"]["tls"] == [{"hosts": ["chat.example.com"], "secretName": "cert"}]
    (rule,) = built["spec"]["rules"]
    assert rule["host"] == "chat.example.com"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "chat", "port": {"name": "http"}}


def test_the_disruption_budget_lets_sick_pods_go() -> None:
    built = manifests.build_disruption_budget(make_context({"disruption": {"maxUnavailable": "50%"}}))
    assert built is not None
    assert built["spec"]["maxUnavailable"] == "50%"
    assert built["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_there_is_no_disruption_budget_without_replicas() -> None:
    assert manifests.build_disruption_budget(make_context({"suspend": True})) is None


NETWORK = manifests.NetworkSettings(
    operator_namespace="tidemill-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
    operator_labels={"app.kubernetes.io/component": "operator"},
    metrics_peers=({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},),
)


def test_only_gateway_and_operator_reach_an_engine_and_only_the_operator_its_admin_port() -> None:
    context = replace(make_context(), settings=manifests.PodSettings(network=NETWORK))
    policy = manifests.build_network_policy(context)
    assert policy is not None
    assert policy["spec"]["podSelector"] == {"matchLabels": names.selector_labels("chat")}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    who = {
        rule["ports"][0]["port"]: [
            next(iter((peer.get("podSelector") or peer["namespaceSelector"])["matchLabels"].values()))
            for peer in rule["from"]
        ]
        for rule in policy["spec"]["ingress"]
    }
    assert who == {
        names.ENGINE_PORT: ["gateway", "operator", "monitoring"],
        names.ENGINE_ADMIN_PORT: ["operator"],
    }
    for rule in policy["spec"]["ingress"]:
        for peer in rule["from"]:
            assert peer["namespaceSelector"]["matchLabels"], "a peer without a namespace is the service's own"


def test_there_is_no_policy_where_none_is_wanted() -> None:
    assert manifests.build_network_policy(make_context()) is None
