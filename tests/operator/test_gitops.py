"""What GitOps tools make of our conditions: Argo CD by the script that we ship, others by kstatus' rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lupa
import pytest

from operator_builders import NOW
from tidemill_operator.conditions import evaluate, merge
from tidemill_operator.failures import Failure
from tidemill_operator.observed import LostClaim
from tidemill_operator.situation import Situation

Object = dict[str, Any]
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "argocd" / "health.lua"
CRASH = Failure(reason="DownloadUnauthorized", message="401 for hf://org/model", pod="chat-0")
NO_GPU = Failure(
    reason="InsufficientGPU", message="1 Insufficient nvidia.com/gpu", stalls=False, pod="chat-0"
)
SETTLED: Object = {
    "desired": 2,
    "least_ready": 2,
    "num_ready": 2,
    "num_updated_ready": 2,
    "num_pods": 2,
    "num_gateways": 1,
}
NOTHING_READY = {"num_ready": 0, "num_updated_ready": 0}
AT_ZERO = {"desired": 0, "least_ready": 0, "num_ready": 0, "num_updated_ready": 0, "num_pods": 0}
# name: what is so, Argo CD's word, kstatus' word
TABLE: dict[str, tuple[Object, str, str]] = {
    "all is well": ({}, "Healthy", "Current"),
    "the model is being loaded": ({**NOTHING_READY, "is_loading": True}, "Progressing", "InProgress"),
    "the download is not allowed": ({**NOTHING_READY, "failure": CRASH}, "Degraded", "Failed"),
    "no GPU is free and one may come": ({**NOTHING_READY, "failure": NO_GPU}, "Progressing", "InProgress"),
    "a rollout is under way": (
        {"num_updated_ready": 1, "num_pods": 3, "is_rolling_out": True},
        "Progressing",
        "InProgress",
    ),
    "a rollout fails while the old revision serves": (
        {"num_updated_ready": 0, "num_pods": 3, "is_rolling_out": True, "failure": CRASH},
        "Degraded",
        "Failed",
    ),
    "the spec is invalid": (
        {"problem": Failure(reason="InvalidSpec", message="spec.model.uri: is required")},
        "Degraded",
        "Failed",
    ),
    "it is suspended": ({**AT_ZERO, "is_suspended": True}, "Suspended", "InProgress"),
    "spec.replicas is 0": (AT_ZERO, "Suspended", "InProgress"),
    "no gateway is ready": ({"num_gateways": 0}, "Degraded", "InProgress"),
    "an older service has the host": (
        {"lost_claims": (LostClaim(what="a.example.com", owner="prod/older", is_host=True),)},
        "Degraded",
        "Current",
    ),
}


def make_object(generation: int = 4, **facts: Any) -> Object:
    """Build a service as the API shows it, with the conditions that we would write."""
    conditions = merge(evaluate(Situation(**{**SETTLED, **facts})), [], NOW, 4)
    return {
        "metadata": {"generation": generation},
        "status": {"observedGeneration": 4, "conditions": conditions},
    }


def argo_health(obj: Object) -> tuple[str, str]:
    """Run the script as Argo CD does: the object is a global, the answer a table."""
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    lua.globals()["obj"] = lua.table_from(obj, recursive=True)
    answer = lua.execute(SCRIPT.read_text())
    return answer["status"], answer["message"]


def kstatus(obj: Object) -> str:
    """Tell what kstatus computes for a resource that it knows nothing of but its conditions."""
    status = obj.get("status") or {}
    if status.get("observedGeneration") != obj["metadata"]["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


@pytest.mark.parametrize("case", TABLE)
def test_argo_cd_and_kstatus_say_the_truth_when(case: str) -> None:
    facts, argo, kstatus_word = TABLE[case]
    obj = make_object(**facts)
    assert (argo_health(obj)[0], kstatus(obj)) == (argo, kstatus_word)


def test_argo_cd_shows_the_reason_and_the_last_words() -> None:
    obj = make_object(**NOTHING_READY, failure=CRASH)
    assert argo_health(obj)[1] == "DownloadUnauthorized: 401 for hf://org/model"


@pytest.mark.parametrize("obj", [make_object(generation=5), {"metadata": {"generation": 1}}])
def test_a_spec_that_nobody_has_looked_at_yet_is_in_progress(obj: Object) -> None:
    assert argo_health(obj)[0] == "Progressing"
    assert kstatus(obj) == "InProgress"


def test_reconciling_and_stalled_exist_only_while_they_are_true() -> None:
    for facts, _, _ in TABLE.values():
        conditions = make_object(**facts)["status"]["conditions"]
        found = {c["type"]: c["status"] for c in conditions if c["type"] in {"Reconciling", "Stalled"}}
        assert set(found.values()) <= {"True"}
        assert len(found) <= 1
