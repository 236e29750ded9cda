"""InferenceServices as a person writes them, for tests of the schema on a real API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

Object = dict[str, Any]


def make(spec: Object | None = None, name: str = "chat") -> Object:
    """Build a service; what is given replaces or adds to spec, and None takes away."""
    base: Object = {"model": {"uri": "sim://demo"}, "replicas": 1}
    merged = {key: value for key, value in {**base, **(spec or {})}.items() if value is not None}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": merged}


def model(**fields: Any) -> Object:
    """Give the part of a spec that says more of its model."""
    return {"model": {"uri": "sim://demo", **fields}}


def auto(**fields: Any) -> Object:
    """Give the part of a spec that scales by itself."""
    return {"replicas": None, "scaling": {"maxReplicas": 4, **fields}}


def dry_run(crds: TestCluster, service: Object) -> tuple[int, str]:
    """Ask the API server what it would say: the exit code and the message."""
    done = crds.kubectl("create", "--dry-run=server", "-f", "-", check=False, stdin=json.dumps(service))
    return done.returncode, done.stderr
