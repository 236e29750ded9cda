"""The documentation names what exists: links resolve, every dependency, field and metric has its line."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    missing = [link for link in LINK.findall(prose) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_anchor_leads_to_a_heading(page: Path) -> None:
    missing = []
    for link, anchor in ANCHOR.findall(page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        # As GitHub does: lower case, no punctuation, a hyphen for a space.
        known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if anchor not in known:
            missing.append(f"{link}#{anchor}")
    assert not missing


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    names = {re.split(r"[<>=\[;]", entry)[0] for group in groups for entry in group if isinstance(entry, str)}
    reasons = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    assert names
    assert not [name for name in sorted(names) if name not in reasons]


def test_the_resource_reference_is_as_new_as_the_schema() -> None:
    spec = importlib.util.spec_from_file_location("crd_reference", ROOT / "docs/crd_reference.py")
    assert spec
    assert spec.loader
    reference = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = reference
    spec.loader.exec_module(reference)
    page = reference.render(yaml.safe_load(reference.CRD.read_text(encoding="utf-8")))
    assert page.count("| `spec.") > 30
    assert (ROOT / "docs/crd.md").read_text(encoding="utf-8") == page, "run make docs"


def test_nothing_tracked_names_a_path_of_one_machine() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"(^|[^\w.$~-])/(work|root)/|\.\./shared")
    me = Path(__file__).relative_to(ROOT).as_posix()
    found = []
    for name in files:
        path = ROOT / name
        if name == me or path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{name}: {line.strip()[:80]}" for line in text.splitlines() if pattern.search(line)]
    assert not found
