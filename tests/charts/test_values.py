"""What can be checked of the chart without helm: its values, their schema and comments, its files."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tidemill"
VALUES_LINES = (CHART / "values.yaml").read_text().splitlines()
VALUES: dict[str, Any] = yaml.safe_load("\n".join(VALUES_LINES))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return found


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def schema_paths(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, below in schema["properties"].items():
        inner = resolved(below)
        if "properties" in inner:
            yield from schema_paths(inner, (*path, key))
        else:
            yield (*path, key)


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield schema
        for below in schema.values():
            yield from objects(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from objects(below)


@pytest.mark.parametrize("path", list(leaves(VALUES)), ids=".".join)
def test_the_schema_knows_the_value(path: tuple[str, ...]) -> None:
    schema = SCHEMA
    for key in path:
        schema = resolved(schema)
        schema = schema["properties"][key] if "properties" in schema else schema["additionalProperties"]
    assert resolved(schema).keys() & {"type", "enum"}, "the schema says nothing about it"


def test_the_schema_names_nothing_that_is_no_value() -> None:
    in_values = set(leaves(VALUES))
    prefixes = {path[:length] for path in in_values for length in range(1, len(path) + 1)}
    unknown = {path for path in schema_paths(SCHEMA) if path not in prefixes} - {("global",)}
    assert not unknown


def test_the_schema_is_strict_everywhere() -> None:
    assert all(found.get("additionalProperties") is False for found in objects(SCHEMA))


def keys_with_lines() -> list[tuple[int, str]]:
    return [
        (number, line)
        for number, line in enumerate(VALUES_LINES)
        if line.strip() and not line.strip().startswith("#")
    ]


@pytest.mark.parametrize(
    ("number", "line"),
    [(number, line) for number, line in keys_with_lines() if not line.rstrip().endswith(":")],
    ids=lambda value: str(value).strip(),
)
def test_every_value_has_a_comment_right_above_it(number: int, line: str) -> None:
    above = VALUES_LINES[number - 1]
    assert above.strip().startswith("# ")
    assert above.index("#") == len(line) - len(line.lstrip()), "the comment belongs to something else"


def test_the_definition_in_the_chart_is_the_one_of_the_repository() -> None:
    file = CHART / "files" / "inferenceservices.yaml"
    assert file.is_symlink()
    assert file.resolve() == ROOT / "crds" / "inferenceservices.serving.tidemill.dev.yaml"
    assert not (CHART / "crds").exists(), "helm never upgrades what is in crds/"


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]
