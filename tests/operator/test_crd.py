"""The schema on a real API server: what it takes, and that the subresources work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from harness.kubectl import wait_until

from crd_builders import auto, dry_run, make, model
from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
EXAMPLES = {
    f"{path.stem} {document['metadata']['name']}": document
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == names.KIND
}
TAKEN = {
    "the least": make(),
    "Auto by default": make(auto()),
    "Advisory with replicas": make({"scaling": {"mode": "Advisory", "minReplicas": 1, "maxReplicas": 4}}),
    "everything": make(
        {
            "model": {
                "uri": "file:///models/a.gguf",
                "servedNames": ["a", "org/a:v1"],
                "loadTimeout": "1h30m",
            },
            "engine": {
                "image": "example.com/engine@sha256:" + "0" * 64,
                "args": ["--seed", "1"],
                "env": [
                    {"name": "A", "value": ""},
                    {
                        "name": "B",
                        "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}},
                    },
                ],
                "dtype": "bfloat16",
                "quantization": "int8",
                "maxModelLen": 4096,
                "maxNumSeqs": 64,
                "maxNumBatchedTokens": 2048,
                "schedulingPolicy": "slo",
                "kvCache": {
                    "memoryUtilizationPercent": 85,
                    "blockSize": 32,
                    "swapSpace": "1Gi",
                    "watermarks": {"highPercent": 80, "lowPercent": 60, "criticalPercent": 90},
                },
            },
            "resources": {
                "requests": {"cpu": "500m", "memory": 1073741824},
                "limits": {"cpu": 2, "memory": "1Gi", "nvidia.com/gpu": 1},
            },
            "routing": {
                "ingress": {"className": "nginx", "host": "a.example.com", "tls": {"secretName": "t"}}
            },
            "rollout": {"maxSurge": "25%", "maxUnavailable": 0},
            "drain": {"timeout": "0s"},
            "disruption": {"maxUnavailable": "100%"},
            "suspend": True,
        }
    ),
    "a model of a hub": make(
        model(
            uri="hf://org/model/q4/a.gguf",
            revision="refs/pr/1",
            secretRef={"name": "hub-token"},
            cache={"size": "20Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]},
        )
    ),
    "a model in S3": make(model(uri="s3://bucket/a/b?region=eu-west-1", cache={"size": 1024})),
    "a model in Cloud Storage": make(model(uri="gs://my_bucket/a")),
    "a model on a volume": make(model(uri="pvc://weights/llama")),
    "a model in an image": make(model(uri="oci://r.example/o/m:v1?path=a", secretRef={"name": "s"})),
    "a template": make({"template": {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "x"}]}}}),
    "scaling in full": make(
        auto(
            minReplicas=4,
            targets={"kvCacheUtilizationPercent": 80, "queueLengthPerReplica": 5},
            slo={"timeToFirstToken": "2s", "interTokenLatency": "100ms", "percentile": 95},
        )
    ),
    "a model in four parts": make(
        {"parallelism": {"tensor": 4}, "resources": {"limits": {"nvidia.com/gpu": 4, "memory": "9Gi"}}}
    ),
    "a model in two parts without GPUs": make({"parallelism": {"tensor": 2}}),
    "a route of the Gateway API": make(
        {
            "routing": {
                "parentRefs": [{"name": "public", "namespace": "web", "sectionName": "https"}],
                "hostnames": ["chat.example.com"],
            }
        }
    ),
    "a rollout in place": make({"rollout": {"maxSurge": 0, "maxUnavailable": 1}}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_takes(crds: TestCluster, case: str) -> None:
    code, message = dry_run(crds, TAKEN[case])
    assert code == 0, message


@pytest.mark.parametrize("example", EXAMPLES)
def test_takes_the_examples(crds: TestCluster, example: str) -> None:
    code, message = dry_run(crds, EXAMPLES[example])
    assert code == 0, message


def test_the_scale_subresource_works(crds: TestCluster, namespace: str) -> None:
    scope = ("-n", namespace)
    crds.kubectl("create", *scope, "-f", "-", stdin=json.dumps(make()))
    crds.kubectl("scale", *scope, "infsvc/chat", "--replicas=3")
    assert crds.kubectl.get(*scope, "infsvc/chat")["spec"]["replicas"] == 3
    status = {"status": {"replicas": 2, "selector": "a=b"}}
    patch = ("patch", *scope, "infsvc/chat", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    crds.kubectl(*patch)
    raw = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/chat/scale"
    scale = json.loads(crds.kubectl("get", "--raw", raw).stdout)
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}


def test_status_is_written_on_its_own_subresource_alone(crds: TestCluster, namespace: str) -> None:
    scope = ("-n", namespace)
    crds.kubectl("create", *scope, "-f", "-", stdin=json.dumps({**make(), "status": {"replicas": 9}}))
    assert "status" not in crds.kubectl.get(*scope, "infsvc/chat")
    patch = json.dumps({"status": {"replicas": 2}, "spec": {"replicas": 7}})
    crds.kubectl("patch", *scope, "infsvc/chat", "--subresource=status", "--type=merge", "-p", patch)
    service = crds.kubectl.get(*scope, "infsvc/chat")
    assert (service["spec"]["replicas"], service["status"]["replicas"]) == (1, 2)
    assert service["metadata"]["generation"] == 1


def test_the_definition_survives_helm_and_is_structural(crds: TestCluster) -> None:
    definition = crds.kubectl.get("crd", names.CRD_NAME)
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert {c["type"]: c["status"] for c in definition["status"]["conditions"]}["Established"] == "True"
    assert "NonStructuralSchema" not in {c["type"] for c in definition["status"]["conditions"]}


def test_belongs_to_the_category(crds: TestCluster, namespace: str) -> None:
    crds.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(make()))

    def listed() -> bool | None:
        shown = crds.kubectl("get", names.CATEGORY, "-n", namespace, "-o", "name", check=False).stdout
        return "inferenceservice.serving.tidemill.dev/chat" in shown or None

    assert wait_until("the category lists the service", listed)
