"""The chart as helm renders it, with default values and with many others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_objects import CHART, EVERYTHING, NAMESPACE, Objects, Render

if TYPE_CHECKING:
    from harness.session import TestCluster


@pytest.fixture(scope="session")
def render(control_plane: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Render:
    def render_with(values: dict[str, Any]) -> Objects:
        file = tmp_path_factory.mktemp("values") / "values.json"
        file.write_text(json.dumps(values))
        done = control_plane.helm(
            "template",
            "tidemill",
            CHART,
            "--namespace",
            NAMESPACE,
            "--values",
            file,
            "--kube-version",
            "1.31.0",
        )
        return [found for found in yaml.safe_load_all(done.stdout) if found]

    return render_with


@pytest.fixture(scope="session")
def defaults(render: Render) -> Objects:
    return render({})


@pytest.fixture(scope="session")
def everything(render: Render) -> Objects:
    return render(EVERYTHING)
