"""kubectl and helm against one cluster; knows a kubeconfig, nothing of where the cluster came from."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import HarnessError
from harness.shell import run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

_POLL_SECONDS = 0.2
PATIENCE_SECONDS = 120.0
"""What takes seconds on a quiet machine may take a minute on two cores that run all other tests too."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """Runs kubectl with a kubeconfig."""

    program: str
    kubeconfig: Path

    def __call__(
        self, *arguments: object, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return the finished process."""
        return run(self.program, f"--kubeconfig={self.kubeconfig}", *arguments, check=check, stdin=stdin)

    def get(self, *arguments: object) -> dict[str, Any]:
        """Return `kubectl get ... -o json`, parsed."""
        parsed: dict[str, Any] = json.loads(self("get", *arguments, "-o", "json").stdout)
        return parsed

    def items(self, *arguments: object) -> list[dict[str, Any]]:
        """Return the items of a list."""
        items: list[dict[str, Any]] = self.get(*arguments)["items"]
        return items

    def find(self, *arguments: object) -> dict[str, Any] | None:
        """Return one object, or None when it does not exist."""
        result = self("get", *arguments, "-o", "json", "--ignore-not-found")
        parsed: dict[str, Any] | None = json.loads(result.stdout) if result.stdout.strip() else None
        return parsed

    def apply(self, manifest: dict[str, Any] | str) -> None:
        """Apply a manifest server-side."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        self("apply", "--server-side", "-f", "-", stdin=text)


@dataclass(frozen=True, kw_only=True)
class Helm:
    """Runs helm with a kubeconfig, its own files kept in the state folder."""

    program: str
    kubeconfig: Path
    home: Path

    def __call__(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm and return the finished process."""
        folders = {"HELM_CACHE_HOME": "cache", "HELM_CONFIG_HOME": "config", "HELM_DATA_HOME": "data"}
        env = {name: str(self.home / folder) for name, folder in folders.items()}
        return run(self.program, *arguments, check=check, env={**env, "KUBECONFIG": str(self.kubeconfig)})


def wait_until(what: str, probe: Callable[[], T | None], *, timeout_seconds: float = PATIENCE_SECONDS) -> T:
    """Poll until the probe returns something true, and return it."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise HarnessError(f"{what}: not after {timeout_seconds:.0f} s")
        time.sleep(_POLL_SECONDS)
