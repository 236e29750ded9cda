"""Bad specs are refused when they are applied, with a sentence that says what to write instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e_support import Object, make_sim

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
AUTO = {"mode": "Auto", "minReplicas": 1, "maxReplicas": 3}


def make_spec(**changes: Any) -> Object:
    """Return a good service with fields replaced; None removes one."""
    service = make_sim("candidate", "localhost/engine:test", "candidate.test")
    service["spec"] = {name: v for name, v in {**service["spec"], **changes}.items() if v is not None}
    return service


def apply(cluster: TestCluster, namespace: str, service: Object) -> tuple[int, str]:
    result = cluster.kubectl("apply", "-n", namespace, "-f", "-", check=False, stdin=json.dumps(service))
    return result.returncode, result.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {"replicas": None, "scaling": {**AUTO, "minReplicas": 4}},
            "must not be greater than",
            id="more replicas at least than at most",
        ),
        pytest.param({"model": {"uri": "ftp://models/one"}}, "builtin://", id="a scheme nobody knows"),
        pytest.param(
            {"replicas": 2, "scaling": AUTO}, "spec.replicas", id="replicas beside automatic scaling"
        ),
        pytest.param({"replicas": None}, "spec.replicas", id="no replicas and no scaling"),
        pytest.param({"replicas": -1}, "spec.replicas", id="fewer replicas than none"),
        pytest.param({"drain": {"timeout": "soon"}}, "spec.drain.timeout", id="a time that is none"),
    ],
)
def test_a_bad_spec_is_refused_with_a_helpful_sentence(
    crds: TestCluster, namespace: str, changes: Object, sentence: str
) -> None:
    status, message = apply(crds, namespace, make_spec(**changes))
    assert status != 0
    assert sentence in message
    assert crds.kubectl.items("infsvc", "-n", namespace) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="fixed replicas"),
        pytest.param({"replicas": None, "scaling": AUTO}, id="automatic scaling"),
    ],
)
def test_a_good_spec_is_taken(crds: TestCluster, namespace: str, changes: Object) -> None:
    status, message = apply(crds, namespace, make_spec(**changes))
    assert (status, message) == (0, "")


def test_kubectl_knows_the_short_name_and_the_columns(crds: TestCluster, namespace: str) -> None:
    apply(crds, namespace, make_spec())
    header = crds.kubectl("get", "infsvc", "-n", namespace).stdout.splitlines()[0].split()
    assert header[:5] == ["NAME", "MODEL", "READY", "REASON", "REPLICAS"]
