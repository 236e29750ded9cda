"""Alert rules and dashboard: promtool tries every alert both ways, and every name is really exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from harness import session as sessions
from harness.errors import UnavailableError
from harness.promtool import ensure_promtool
from harness.shell import run
from prometheus_client import generate_latest

from metrics_support import engine_registry
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_operator import metrics as operator_metrics

if TYPE_CHECKING:
    from harness.session import TestCluster

HERE = Path(__file__).resolve().parent
FILES = HERE.parents[1] / "charts" / "tidemill" / "files"
ALERTS = FILES / "alerts.yaml"
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
GROUPS: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
CASES: dict[str, Any] = yaml.safe_load((HERE / "alerts_test.yaml").read_text())
PAGE = (HERE.parents[1] / "docs" / "metrics.md").read_text()
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
LABELS = {"namespace", "service", "serving_tidemill_dev_service", "pod", "signal", "code", "le"}


@pytest.fixture(scope="session")
def promtool() -> str:
    try:
        return ensure_promtool()
    except UnavailableError as error:
        sessions.refuse(str(error))


def exported() -> set[str]:
    registries = (engine_registry(), GatewayMetrics().registry, operator_metrics.REGISTRY)
    names: set[str] = set()
    for registry in registries:
        for name, kind in re.findall(
            r"^# TYPE (\S+) (\S+)$", generate_latest(registry).decode(), re.MULTILINE
        ):
            names.add(f"{name}_total" if kind == "counter" and not name.endswith("_total") else name)
            if kind == "histogram":
                names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def names_in(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\btidemill[_:][a-z0-9_:]+", bare))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_uses_only_what_is_exported(rule: dict[str, Any]) -> None:
    assert names_in(rule["expr"])
    assert not names_in(rule["expr"]) - exported() - RECORDED


@pytest.mark.parametrize(("title", "query"), list(dashboard_queries()))
def test_a_panel_shows_only_what_is_exported(title: str, query: str) -> None:
    assert names_in(query)
    assert not names_in(query) - exported()


def test_every_alert_is_tried_firing_and_silent() -> None:
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    tried = [case for test in CASES["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in tried if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in tried if not case["exp_alerts"]} == alerts


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES if "alert" in rule])
def test_every_alert_has_its_advice(alert: str) -> None:
    assert f"`{alert}`" in PAGE


def test_the_dashboard_fits_grafanas_grid_and_has_no_double_ids() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] and panel["title"] for panel in panels)


def test_the_dashboard_asks_for_one_service_in_every_query() -> None:
    assert all("$namespace" in query and "$service" in query for _, query in dashboard_queries())


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text((HERE / "alerts_test.yaml").read_text().replace("ALERTS", str(ALERTS)))
    done = run(promtool, "test", "rules", cases, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_prometheus_understands_every_rule_and_every_query(promtool: str, tmp_path: Path) -> None:
    def concrete(query: str) -> str:
        values = {"$namespace": "prod", "$service": "chat", "$__rate_interval": "5m"}
        for variable, value in values.items():
            query = query.replace(variable, value)
        return query

    shown = [
        {"record": f"panel:number{number}", "expr": concrete(query)}
        for number, (_, query) in enumerate(dashboard_queries())
    ]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": shown}]}))
    done = run(promtool, "check", "rules", ALERTS, panels, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def template(cluster: TestCluster, *arguments: str) -> list[dict[str, Any]]:
    chart = FILES.parent
    done = cluster.helm("template", "tidemill", chart, "--namespace", "tidemill-system", *arguments)
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.mark.cluster
def test_the_chart_ships_rules_and_dashboard_as_they_are(control_plane: TestCluster) -> None:
    objects = template(
        control_plane,
        *("--set", "alerts.enabled=true,alerts.labels.release=prom,dashboard.enabled=true"),
        *("--api-versions", "monitoring.coreos.com/v1/PrometheusRule"),
    )
    (rule,) = [found for found in objects if found["kind"] == "PrometheusRule"]
    assert rule["spec"]["groups"] == GROUPS
    assert rule["metadata"]["labels"]["release"] == "prom"
    (shown,) = [found for found in objects if found["kind"] == "ConfigMap"]
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(shown["data"]["tidemill-service.json"]) == DASHBOARD


@pytest.mark.cluster
def test_rules_and_dashboard_are_made_only_where_they_are_asked_for(control_plane: TestCluster) -> None:
    kinds = {found["kind"] for found in template(control_plane)}
    assert not kinds & {"PrometheusRule", "ConfigMap"}
