"""The definitions of the Gateway API, out of its Go module, pinned and verified as the programs are."""

from __future__ import annotations

import json
from pathlib import Path

from harness.binaries import TOOLS, go_environment
from harness.errors import UnavailableError
from harness.prerequisites import ensure_go
from harness.shell import CommandError, run

MODULE = "sigs.k8s.io/gateway-api"


def http_route_definition() -> Path:
    """Return the CustomResourceDefinition of HTTPRoutes, fetched once."""
    command = (ensure_go(), "mod", "download", "-json", MODULE)
    try:
        told = run(*command, cwd=TOOLS / "gateway-api", env=go_environment()).stdout
    except CommandError as error:
        raise UnavailableError(f"the Gateway API could not be fetched: {error}") from error
    folder = Path(json.loads(told)["Dir"])
    return folder / "config" / "crd" / "standard" / "gateway.networking.k8s.io_httproutes.yaml"
