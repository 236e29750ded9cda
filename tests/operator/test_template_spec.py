"""Which parts of a pod a person may not take from the operator."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator.errors import InvalidSpec
from tidemill_operator.template_spec import checked_template


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


@pytest.mark.parametrize(
    ("template", "field", "words"),
    [
        (engine(args=["x"]), "spec.template.spec.containers[0].args", "use spec.engine.args"),
        (engine(image="x"), "spec.template.spec.containers[0].image", "use spec.engine.image"),
        (engine(resources={}), "spec.template.spec.containers[0].resources", "use spec.resources"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.template.spec.containers[0]", "needs a name"),
        ({"spec": {"initContainers": [{"name": "engine"}]}}, "spec.template.spec.initContainers[0]", "main"),
        ({"spec": {"containers": [{"name": "download"}]}}, "spec.template.spec.containers[0]", "choose"),
        ({"metadata": {"labels": {"serving.tidemill.dev/x": ""}}}, "spec.template.metadata.labels", "set"),
        ({"metadata": {"name": "x"}}, "spec.template.metadata.name", "unknown here"),
        ({"containers": []}, "spec.template.containers", "unknown here"),
        ({"spec": "x"}, "spec.template.spec", "must be an object"),
        ({"spec": {"containers": "x"}}, "spec.template.spec.containers", "must be a list"),
    ],
)  # fmt: skip
def test_refuses_and_says_what_to_write_instead(template: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as refused:
        checked_template(template)
    assert refused.value.field == field


def test_takes_what_a_pod_may_have_besides() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "containers": [{"name": "engine", "env": [{"name": "A"}]}, {"name": "log", "image": "log:1"}],
        },
    }
    assert checked_template(template) == template
