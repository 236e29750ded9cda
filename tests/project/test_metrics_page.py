"""Every metric that a process exports has its place in docs/metrics.md."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from metrics_support import engine_registry
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_operator import metrics as operator_metrics

PAGE = Path(__file__).resolve().parents[2] / "docs/metrics.md"


@pytest.mark.parametrize(
    ("registry", "at_least"),
    [
        pytest.param(engine_registry(), 40, id="engine"),
        pytest.param(GatewayMetrics().registry, 8, id="gateway"),
        pytest.param(operator_metrics.REGISTRY, 4, id="operator"),
    ],
)
def test_every_exported_metric_stands_on_the_page(registry: CollectorRegistry, at_least: int) -> None:
    text = generate_latest(registry).decode()
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    names = {
        f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
        for name, kind in families.items()
        if not name.endswith("_created")
    }
    page = PAGE.read_text(encoding="utf-8")
    assert len(names) >= at_least
    assert not sorted(name for name in names if f"`{name}`" not in page)


def test_every_metric_on_the_page_is_exported() -> None:
    registries = (engine_registry(), GatewayMetrics().registry, operator_metrics.REGISTRY)
    text = "\n".join(generate_latest(registry).decode() for registry in registries)
    exported = {
        name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE)
    }
    named = set(re.findall(r"`((?:tidemill_|vllm:)[a-z0-9_]+)`", PAGE.read_text(encoding="utf-8")))
    assert not sorted(name for name in named if name.removesuffix("_total") not in exported)
