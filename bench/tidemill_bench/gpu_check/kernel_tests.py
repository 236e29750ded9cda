"""The project's own tests of the Triton kernels, run on the device by pytest where it is at hand."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemill_bench.gpu_check.place import Place

_ROOT = Path(__file__).resolve().parents[3]
_NEEDED = ("pytest", "hypothesis")
_MAX_SECONDS = 540.0
_IN_A_REHEARSAL = "normalises_rows"


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What the tests said; `why_not`: why they were not run."""

    num_passed: int = 0
    failed: list[str] = field(default_factory=list)
    num_skipped: int = 0
    seconds: float = 0.0
    why_not: str = ""

    @property
    def is_right(self) -> bool:
        """Say whether no test has failed; tests that did not run have not."""
        return not self.failed


def run_kernel_tests(place: Place, root: Path = _ROOT) -> Tested:
    """Run `tests/kernels/test_triton_*.py` on the device; in a rehearsal a few, interpreted."""
    files = sorted((root / "tests" / "kernels").glob("test_triton_*.py"))
    if not files:
        return Tested(why_not=f"there are no tests in {root / 'tests' / 'kernels'}")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Tested(why_not=f"{' and '.join(missing)} not installed: see `make gpu-site`")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = _command(place, root, [str(file) for file in files], report)
        environment = {
            **os.environ,
            "TIDEMILL_KERNEL_DEVICE": str(place.torch_device),
            "TRITON_INTERPRET": "1" if place.is_rehearsal else "0",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(root / "tests"), *sys.path]),
        }
        try:
            ran = subprocess.run(
                command, env=environment, cwd=root, timeout=_MAX_SECONDS, check=False, capture_output=True
            )
        except subprocess.TimeoutExpired:
            return Tested(failed=[f"not done after {_MAX_SECONDS:.0f} s"], seconds=_MAX_SECONDS)
        tested = read_report(report.read_text()) if report.exists() else Tested()
        if ran.returncode == 0 or tested.failed:
            return tested
        # Broken before a test was named, or none was found.
        said = (ran.stdout + ran.stderr).decode(errors="replace").strip()
        return replace(tested, failed=[f"pytest ended with {ran.returncode}: {said[-500:]}"])


def _command(place: Place, root: Path, files: list[str], report: Path) -> list[str]:
    """Return pytest without the project's settings and fixtures, which ask for what only developers have."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", f"--rootdir={root}"),
        *("-c", os.devnull, "--noconftest", "-p", "no:cacheprovider"),
        *("--disable-warnings", f"--junitxml={report}"),
        *(("-k", _IN_A_REHEARSAL) if place.is_rehearsal else ()),
        *files,
    ]


def read_report(text: str) -> Tested:
    """Read pytest's report in JUnit's format."""
    cases = list(ET.fromstring(text).iter("testcase"))  # noqa: S314 - written by our own child
    problems = [(case, (*case.findall("failure"), *case.findall("error"))) for case in cases]
    failed = [f"{case.get('name')}: {found[0].get('message', '')[:200]}" for case, found in problems if found]
    num_skipped = sum(case.find("skipped") is not None for case in cases)
    return Tested(
        num_passed=len(cases) - num_skipped - len(failed),
        failed=failed,
        num_skipped=num_skipped,
        seconds=sum(float(case.get("time", 0)) for case in cases),
    )
