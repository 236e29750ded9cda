"""Every rule of the schema refuses with its sentence, on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crd_builders import Object, auto, dry_run, make, model

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
SCHEDULE: Object = {"name": "day", "cron": "0 8 * * 1-5", "duration": "10h", "minReplicas": 2}
REFUSED: dict[str, tuple[Object, str]] = {
    "a canary without a share": (
        make({"rollout": {"canary": {}}}),
        "spec.rollout.canary.trafficPercent: Required value",
    ),
    "a canary of more than everything": (
        make({"rollout": {"canary": {"trafficPercent": 101}}}),
        "less than or equal to 100",
    ),
    "a revision that is no hash": (make({"rollout": {"toRevision": "latest"}}), "spec.rollout.toRevision"),
    "a name that is too long": (make(name="n" * 41), "at most 40 characters"),
    "a name that no Service may have": (make(name="9lives"), "must begin with a letter"),
    "no model": (make({"model": None}), "spec.model: Required value"),
    "an unknown scheme": (make(model(uri="ftp://x")), "must begin with hf://, s3://, gs://, pvc://"),
    "a path that leads upwards": (make(model(uri="pvc://weights/../x")), "must not lead upwards"),
    "a hub model without a name": (make(model(uri="hf://model")), "hf://ORGANISATION/MODEL"),
    "an endpoint of one's own": (make(model(uri="s3://bucket?endpoint=http://10.0.0.1")), "s3://BUCKET/PATH"),
    "a cache of nothing": (make(model(uri="hf://a/b", cache={"size": "0"})), "must be more than nothing"),
    "a claim without a name": (make(model(uri="pvc:///x")), "must look like pvc://CLAIM/PATH"),
    "an image without a registry": (make(model(uri="oci://model:v1")), "oci://REGISTRY/REPOSITORY:TAG"),
    "a revision of what has none": (make(model(revision="v1")), "spec.model.revision is for hf:// models"),
    "a cache without downloads": (make(model(cache={"size": "1Gi"})), "so it is for hf://, s3:// and gs://"),
    "a secret for nothing": (make(model(secretRef={"name": "s"})), "spec.model.secretRef is for"),
    "a block of an odd size": (make({"engine": {"kvCache": {"blockSize": 48}}}), "must be a power of two"),
    "watermarks in the wrong order": (
        make({"engine": {"kvCache": {"watermarks": {"highPercent": 96}}}}),
        "must rise from lowPercent",
    ),
    "an unknown scheduling policy": (
        make({"engine": {"schedulingPolicy": "best"}}),
        '"fifo", "sjf", "priority"',
    ),
    "a file that is not absolute": (make(model(uri="file://x.gguf")), "absolute path with three slashes"),
    "a scheme without a model": (make(model(uri="builtin://")), "needs a model name after the scheme"),
    "white space in the uri": (make(model(uri="sim://a b")), "must not contain white space"),
    "no served name": (make(model(servedNames=[])), "should have at least 1 items"),
    "a served name twice": (make(model(servedNames=["a", "a"])), "Duplicate value"),
    "a load timeout that is none": (make(model(loadTimeout="soon")), "spec.model.loadTimeout"),
    "a load timeout of nothing": (make(model(loadTimeout="0s")), "between 1s and 24h"),
    "an unknown dtype": (
        make({"engine": {"dtype": "float8"}}),
        'supported values: "auto", "bfloat16", "float32"',
    ),
    "quantised weights in float32": (
        make({"engine": {"dtype": "float32", "quantization": "int8"}}),
        "goes with dtype auto or bfloat16",
    ),
    "an unknown quantization": (
        make({"engine": {"quantization": "nf4"}}),
        'supported values: "int8", "int4", "fp8"',
    ),
    "no sequences at all": (make({"engine": {"maxNumSeqs": 0}}), "greater than or equal to 1"),
    "an environment entry twice": (
        make({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}),
        "Duplicate value",
    ),
    "an environment entry with two values": (
        make(
            {
                "engine": {
                    "env": [
                        {"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
                    ]
                }
            }
        ),
        "either value or valueFrom",
    ),
    "an environment entry from nowhere": (
        make({"engine": {"env": [{"name": "A", "valueFrom": {}}]}}),
        "exactly one of secretKeyRef and configMapKeyRef",
    ),
    "a quantity that is none": (
        make({"resources": {"requests": {"cpu": "many"}}}),
        "spec.resources.requests.cpu",
    ),
    "more requested than allowed": (
        make({"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}),
        "must not exceed spec.resources.limits",
    ),
    "a GPU requested without a limit": (
        make({"resources": {"requests": {"nvidia.com/gpu": 1}}}),
        "must stand in spec.resources.limits",
    ),
    "fewer replicas than none": (make({"replicas": -1}), "spec.replicas"),
    "neither replicas nor scaling": (make({"replicas": None}), "without spec.scaling"),
    "replicas beside Auto": (make({"scaling": {"maxReplicas": 4}}), "remove spec.replicas"),
    "Advisory without replicas": (make(auto(mode="Advisory")), "spec.replicas is required"),
    "more replicas at least than at most": (
        make(auto(minReplicas=5)),
        "lower minReplicas or raise maxReplicas",
    ),
    "scaling without an upper bound": (
        make({"replicas": None, "scaling": {}}),
        "maxReplicas: Required value",
    ),
    "fewer replicas at least than none": (make(auto(minReplicas=-1)), "greater than or equal to 0"),
    "zero replicas at least and nothing about zero": (
        make(auto(minReplicas=0)),
        "write minReplicas 0 beside scaleToZero, or remove scaleToZero",
    ),
    "zero with a replica at least": (make(auto(minReplicas=1, scaleToZero={})), "write minReplicas 0 beside"),
    "zero in Advisory": (
        make({"scaling": {"maxReplicas": 4, "mode": "Advisory", "minReplicas": 0, "scaleToZero": {}}}),
        "nothing would wake the service again",
    ),
    "an idle time of nothing": (
        make(auto(minReplicas=0, scaleToZero={"idleAfter": "0s"})),
        "idleAfter must be between 1s and 168h",
    ),
    "figures that are always stale": (
        make(auto(metrics={"interval": "30s"})),
        "must not be shorter than spec.scaling.metrics.interval",
    ),
    "a schedule beyond the most": (
        make(auto(schedules=[{**SCHEDULE, "minReplicas": 5}])),
        "spec.scaling.schedules[].minReplicas must not be greater",
    ),
    "a schedule twice": (make(auto(schedules=[SCHEDULE, SCHEDULE])), "Duplicate value"),
    "a cron expression of four fields": (
        make(auto(schedules=[{**SCHEDULE, "cron": "0 8 * 1-5"}])),
        "five fields with one space between them",
    ),
    "an unknown policy": (
        make(auto(behavior={"scaleUp": {"policies": [{"type": "Nodes", "value": 1, "periodSeconds": 5}]}})),
        'supported values: "Pods", "Percent"',
    ),
    "an unknown mode": (make(auto(mode="Manual")), 'supported values: "Auto", "Advisory"'),
    "a latency objective of nothing": (make(auto(slo={"timeToFirstToken": "0ms"})), "longer than zero"),
    "a percentage above all": (
        make(auto(targets={"kvCacheUtilizationPercent": 101})),
        "less than or equal to 100",
    ),
    "an ingress without a host": (
        make({"routing": {"ingress": {}}}),
        "spec.routing.ingress.host: Required value",
    ),
    "an ingress host that is a URL": (
        make({"routing": {"ingress": {"host": "https://chat.example.com"}}}),
        "without scheme, port or path",
    ),
    "an ingress and a route": (
        make({"routing": {"ingress": {"host": "a.example.com"}, "parentRefs": [{"name": "public"}]}}),
        "give either spec.routing.ingress or spec.routing.parentRefs",
    ),
    "host names without a route": (
        make({"routing": {"hostnames": ["a.example.com"]}}),
        "so they need spec.routing.parentRefs",
    ),
    "a host name of a route that is a URL": (
        make({"routing": {"parentRefs": [{"name": "public"}], "hostnames": ["https://a.example.com"]}}),
        "without scheme, port or path",
    ),
    "a route to no Gateway": (make({"routing": {"parentRefs": []}}), "should have at least 1 items"),
    "fewer GPUs than parts of the model": (
        make({"parallelism": {"tensor": 4}, "resources": {"limits": {"nvidia.com/gpu": "2"}}}),
        "as many GPUs as spec.parallelism.tensor says",
    ),
    "a model in no parts": (make({"parallelism": {"tensor": 0}}), "greater than or equal to 1"),
    "a rollout that can never move": (make({"rollout": {"maxSurge": 0}}), "must not both be zero"),
    "a rollout that can never move, in percent": (
        make({"rollout": {"maxSurge": "0%", "maxUnavailable": 0}}),
        "must not both be zero",
    ),
    "a surge that is no portion": (make({"rollout": {"maxSurge": "2x"}}), "or a percentage"),
    "a negative surge": (make({"rollout": {"maxSurge": -1}}), "a number from 0 to 1000"),
    "a drain for ever": (make({"drain": {"timeout": "48h"}}), "between 0s and 24h"),
    "a field that does not exist": (make({"replica": 3}), 'unknown field "spec.replica"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(crds: TestCluster, case: str) -> None:
    service, sentence = REFUSED[case]
    code, message = dry_run(crds, service)
    assert code != 0
    assert sentence in message
