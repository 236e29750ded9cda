"""The pages name the metrics and error codes that the code has."""

import re
from pathlib import Path

from tidemill_gateway.metrics import GatewayMetrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"


def test_every_metric_is_explained_and_nothing_else() -> None:
    in_code = set()
    for metric in GatewayMetrics().registry.collect():
        in_code.add(f"{metric.name}_total" if metric.type == "counter" else metric.name)
    assert in_code == set(re.findall(r"`(tidemill_gateway_\w+)", PAGE.with_name("metrics.md").read_text()))


def test_every_error_code_is_explained() -> None:
    source = PAGE.parents[1] / "gateway" / "tidemill_gateway"
    code = "".join((source / name).read_text() for name in ("errors.py", "server.py", "proxy.py"))
    codes = set(re.findall(r'code="(\w+)"', code)) | set(re.findall(r'"(no_ready_replica|starting)"', code))
    explained = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert len(codes) > 10
    assert codes - {"internal_error"} <= explained
