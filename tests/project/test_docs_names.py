"""What the pages name exists: fields of the resource, metrics, flags of our commands, make targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from metrics_support import engine_registry
from tidemill_engine.__main__ import make_parser
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_operator import metrics as operator_metrics
from tidemill_operator import names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Of helm and kubectl; and every command has --help.
FOREIGN_FLAGS = {
    *("--create-namespace", "--namespace", "--set"),
    *("--for", "--from-literal", "--sort-by", "--type"),
    "--help",
}
ADDING = re.compile(r".+\.add_argument|add")  # the second where a command calls it so for short
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def paths_of(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield every path of a schema; one that ends in a dot may go on with any name."""
    yield path
    if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties"):
        yield f"{path}."
    for name, inner in schema.get("properties", {}).items():
        yield from paths_of(inner, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from paths_of(schema["items"], path)


@cache
def fields() -> frozenset[str]:
    crd = yaml.safe_load((ROOT / f"crds/{names.PLURAL}.{names.GROUP}.yaml").read_text(encoding="utf-8"))
    return frozenset(paths_of(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


@cache
def metrics() -> frozenset[str]:
    registries = (engine_registry(), GatewayMetrics().registry, operator_metrics.REGISTRY)
    text = "\n".join(generate_latest(registry).decode() for registry in registries)
    return frozenset(re.findall(r"^# TYPE (\S+?)(?:_total)? ", text, flags=re.MULTILINE))


@cache
def flags() -> re.Pattern[str]:
    """Match any flag that one of our commands adds to its parser."""
    found = []
    for folder in ("engine", "gateway", "operator", "bench", "kernels", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            if "add_argument" in (text := path.read_text(encoding="utf-8")):
                found += [word for node in ast.walk(ast.parse(text)) for word in flags_added(node)]
    return re.compile("|".join(found))


def flags_added(node: ast.AST) -> list[str]:
    """Give a pattern for each flag of a call of `add_argument`; what an f-string fills in is any word."""
    if not isinstance(node, ast.Call) or not ADDING.fullmatch(ast.unparse(node.func)):
        return []
    has_opposite = "BooleanOptionalAction" in ast.unparse(node)
    found = []
    for argument in node.args:
        parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
        words = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else "[a-z0-9]+" for p in parts]
        flag = "".join(words)
        found += [flag, flag.replace(r"\-\-", "--(no-)?", 1)] if has_opposite else [flag]
    return found


@each_page
def test_every_field_of_the_resource_exists(page: Path) -> None:
    named = set(re.findall(r"\b(?:spec|status)(?:\.[a-zA-Z]\w*)+", page.read_text(encoding="utf-8")))
    free = tuple(field for field in fields() if field.endswith(".") and field != ".")
    assert not sorted(field for field in named if field not in fields() and not field.startswith(free))


@each_page
def test_every_metric_exists(page: Path) -> None:
    packages = {path.name for path in ROOT.glob("*/tidemill_*")}
    named = set(re.findall(r"\btidemill_[a-z0-9_]+", page.read_text(encoding="utf-8"))) - packages
    assert not sorted(
        metric
        for metric in named
        if not {metric, re.sub(r"_(total|bucket|sum|count)$", "", metric)} & metrics()
    )


@each_page
def test_every_flag_exists(page: Path) -> None:
    named = set(FLAG.findall(page.read_text(encoding="utf-8"))) - FOREIGN_FLAGS
    assert not sorted(flag for flag in named if not flags().fullmatch(flag))


def test_the_page_on_tuning_names_flags_of_the_engine_alone() -> None:
    serve = make_parser()._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr,index]
    named = set(FLAG.findall((ROOT / "docs/tuning.md").read_text(encoding="utf-8"))) - FOREIGN_FLAGS
    assert len(named) > 20
    assert not sorted(named - set(serve._option_string_actions))


@each_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= targets
