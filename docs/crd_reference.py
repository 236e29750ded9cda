"""Writes docs/crd.md from the CRD: every field, its type, bounds, rules and description.

Run by `make docs`; a test fails when the page is older than the schema. Knows the schema alone, no prose of
its own beyond the frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
CRD = HERE.parent / "crds" / "inferenceservices.serving.tidemill.dev.yaml"
PAGE = HERE / "crd.md"

FRAME = """# The InferenceService resource
Made from `crds/inferenceservices.serving.tidemill.dev.yaml` by `make docs`; do not edit by hand.

`{group}/{version}`, kind `{kind}`, short name `{short}`, category `{category}`. Subresources: `status` and
`scale`, so `kubectl scale infsvc/NAME --replicas=2` works, and so does an HPA where `spec.replicas` decides.
What a rule refuses is refused at `kubectl apply`, with the sentence given here.

## Rules of the whole resource
{rules}

## spec
{spec}

## status
{status}
"""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row of the reference."""

    path: str
    kind: str
    bounds: str
    text: str
    rules: tuple[str, ...]
    is_required: bool


def fields(schema: dict[str, Any], path: str) -> Iterator[Field]:
    """Walk the properties of an object schema, parents before children."""
    required = set(schema.get("required", []))
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        items = child.get("items", {})
        yield Field(
            path=here,
            kind=_kind(child),
            bounds=_bounds(child if not items else {**items, **child}),
            text=child.get("description", ""),
            rules=tuple(rule["message"] for rule in child.get("x-kubernetes-validations", [])),
            is_required=name in required,
        )
        yield from fields(child, here)
        yield from fields(items, f"{here}[]")


def render(crd: dict[str, Any]) -> str:
    """Return the whole page."""
    spec, version = crd["spec"], crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    top = [*schema.get("x-kubernetes-validations", [])]
    top += schema["properties"]["spec"].get("x-kubernetes-validations", [])
    return FRAME.format(
        group=spec["group"],
        version=version["name"],
        kind=spec["names"]["kind"],
        short=spec["names"]["shortNames"][0],
        category=spec["names"]["categories"][0],
        rules="\n".join(f"- {_plain(rule['message'])}" for rule in top),
        spec=_table(fields(schema["properties"]["spec"], "spec")),
        status=_table(fields(schema["properties"]["status"], "status")),
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(yaml.safe_load(CRD.read_text(encoding="utf-8"))), encoding="utf-8")


def _table(rows: Iterator[Field]) -> str:
    lines = ["| field | type | what it says |", "| --- | --- | --- |"]
    for row in rows:
        name = f"`{row.path}`" + (" (required)" if row.is_required else "")
        said = ". ".join(part.rstrip(". ") for part in (_plain(row.text), row.bounds) if part)
        said = " ".join([f"{said}." if said else "", *(f"*{_plain(rule)}.*" for rule in row.rules)]).strip()
        lines.append(f"| {name} | {row.kind} | {said} |")
    return "\n".join(lines)


def _kind(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_kind(schema['additionalProperties'])}"
    return str(schema.get("type", "object"))


def _bounds(schema: dict[str, Any]) -> str:
    parts = []
    if "enum" in schema:
        parts.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]))
    if "minimum" in schema and "maximum" in schema:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    elif "minimum" in schema:
        parts.append(f"At least {schema['minimum']}")
    if "maxItems" in schema:
        parts.append(f"At most {schema['maxItems']} entries")
    if "pattern" in schema:
        escaped = schema["pattern"].replace("|", "\\|")
        parts.append(f"Pattern `{escaped}`")
    return ". ".join(parts)


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
