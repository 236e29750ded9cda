from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemill_operator.errors import InvalidSpec
from tidemill_operator.scaling_fields import SCALING_FIELDS, check_scaling_fields

CRD = Path(__file__).parents[2] / "crds" / "inferenceservices.serving.tidemill.dev.yaml"
KINDS = {"string": str, "integer": int}


def fields_of(schema: dict[str, Any]) -> Any:
    """Return a schema's fields in the shape of SCALING_FIELDS."""
    if schema["type"] == "object":
        return {name: fields_of(one) for name, one in schema["properties"].items()}
    if schema["type"] == "array":
        return [fields_of(schema["items"])]
    return KINDS[schema["type"]]


def test_the_fields_are_those_of_the_crd() -> None:
    crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert fields_of(spec["properties"]["scaling"]) == SCALING_FIELDS


def test_takes_what_the_schema_takes() -> None:
    check_scaling_fields(
        {
            "maxReplicas": 4,
            "slo": {"timeToFirstToken": "2s", "percentile": 90},
            "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}},
            "schedules": [],
        }
    )


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"maxReplica": 4}, "spec.scaling.maxReplica"),
        ({"slo": {"ttft": 2000}}, "spec.scaling.slo.ttft"),
        ({"slo": {"timeToFirstToken": 2}}, "spec.scaling.slo.timeToFirstToken"),
        ({"maxReplicas": True}, "spec.scaling.maxReplicas"),
        ({"behavior": {"scaleUp": {"policies": [{"kind": "Pods"}]}}}, "scaleUp.policies[0].kind"),
        ({"schedules": {"name": "office"}}, "spec.scaling.schedules"),
        ([], "spec.scaling"),
    ],
)
def test_names_the_field_that_is_wrong(raw: object, field: str) -> None:
    with pytest.raises(InvalidSpec) as bad:
        check_scaling_fields(raw)
    assert field in str(bad.value)
