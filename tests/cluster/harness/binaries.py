"""Builds the cluster's programs from pinned Go modules into the cache.

The pins are the go.mod files under tests/cluster/tools. A build is keyed by those files, the
flags and the Go version, so that an unchanged pin is built once per machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.cache import cache_root, locked
from harness.errors import HarnessError
from harness.prerequisites import ensure_go
from harness.shell import run, step

TOOLS = Path(__file__).resolve().parent.parent / "tools"
_COMPONENT_BASE = "k8s.io/component-base/version"
_HELM = "helm.sh/helm/v3"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One Go module under tools/ and the programs that are built from it."""

    name: str
    module: str | None
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return the folder of the tool's go.mod."""
        return TOOLS / self.name

    def version(self) -> str:
        """Return the pinned version as go.mod states it."""
        if self.module is None:
            return "own"
        text = (self.folder / "go.mod").read_text()
        match = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if match is None:
            raise HarnessError(f"{self.folder}/go.mod requires no {self.module}")
        return match.group(1)


_KUBERNETES_PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
)  # fmt: skip
NEWEST = "1.37"
# The versions of Kubernetes that the tests can run on, and the folder of each one's pins.
KUBERNETES_FOLDERS = {NEWEST: "kubernetes", "1.34": "kubernetes-1.34"}


def _kubernetes_folder() -> str:
    """Choose the version that TIDEMILL_TEST_KUBERNETES names; the newest if it names none."""
    wanted = os.environ.get("TIDEMILL_TEST_KUBERNETES") or NEWEST
    if wanted not in KUBERNETES_FOLDERS:
        known = ", ".join(KUBERNETES_FOLDERS)
        raise HarnessError(f"TIDEMILL_TEST_KUBERNETES names {wanted}; there are {known}")
    return KUBERNETES_FOLDERS[wanted]


KUBERNETES = Tool(
    name=_kubernetes_folder(),
    module="k8s.io/kubernetes",
    packages=tuple(f"k8s.io/kubernetes/cmd/{program}" for program in _KUBERNETES_PROGRAMS),
    programs=_KUBERNETES_PROGRAMS,
)
ETCD = Tool(name="etcd", module="go.etcd.io/etcd/server/v3", packages=(".",), programs=("etcd",))
COREDNS = Tool(name="coredns", module="github.com/coredns/coredns", packages=(".",), programs=("coredns",))
HELM = Tool(name="helm", module=_HELM, packages=(f"{_HELM}/cmd/helm",), programs=("helm",))
PAUSE = Tool(name="pause", module=None, packages=(".",), programs=("pause",))
ALL_TOOLS = (ETCD, KUBERNETES, COREDNS, PAUSE, HELM)


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """Where each built program is."""

    folder: Path

    def __getitem__(self, program: str) -> Path:
        """Return the path of a program, which must be there."""
        path = self.folder / program
        if not path.exists():
            raise HarnessError(f"{program} is not in {self.folder}; run: python -m harness build")
        return path


def ensure_binaries() -> Binaries:
    """Build what is missing and return the folder with a link to every program."""
    folders = [_ensure(tool) for tool in ALL_TOOLS]
    key = hashlib.sha256("\n".join(map(str, folders)).encode()).hexdigest()[:12]
    bin_folder = cache_root() / "bin" / key
    with locked("bin"):
        bin_folder.mkdir(parents=True, exist_ok=True)
        for tool, folder in zip(ALL_TOOLS, folders, strict=True):
            for program in tool.programs:
                link = bin_folder / program
                if not link.exists():
                    link.unlink(missing_ok=True)
                    link.symlink_to(folder / program)
    return Binaries(folder=bin_folder)


def _ensure(tool: Tool) -> Path:
    """Return the folder of the tool's programs, built once per key."""
    flags = _link_flags(tool)
    target = cache_root() / "tools" / f"{tool.name}-{tool.version()}-{_key(tool, flags)}"
    if target.exists():
        return target
    go = ensure_go()
    with locked(f"build-{tool.name}"):
        if target.exists():
            return target
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        output = partial / tool.programs[0] if tool.packages == (".",) else f"{partial}/"
        command = (go, "build", "-trimpath", "-ldflags", " ".join(flags), "-o", output, *tool.packages)
        # cgo follows the toolchain's default for Kubernetes; the pause program must be static.
        env = go_environment() | ({"CGO_ENABLED": "0"} if tool is PAUSE else {})
        with step(f"building {tool.name} {tool.version()} (once; cached in {target})"):
            run(*command, cwd=tool.folder, env=env)
        partial.rename(target)
    return target


def go_environment() -> dict[str, str]:
    """Keep Go's own caches in our folder, writable, so that removing the folder removes everything."""
    return {
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOWORK": "off",
        "GOCACHE": os.environ.get("GOCACHE", str(cache_root() / "go" / "build")),
        "GOMODCACHE": os.environ.get("GOMODCACHE", str(cache_root() / "go" / "mod")),
    }


def _key(tool: Tool, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join((*flags, *tool.packages)).encode())
    for path in sorted(tool.folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _link_flags(tool: Tool) -> tuple[str, ...]:
    """Return the linker flags; Kubernetes and helm must know their own version to be usable."""
    strip = ("-s", "-w")
    if tool is KUBERNETES:
        major, minor, _ = tool.version().removeprefix("v").split(".")
        values = {
            "gitVersion": tool.version(),
            "gitMajor": major,
            "gitMinor": minor,
            "gitTreeState": "clean",
            "gitCommit": "0" * 40,
            "buildDate": "2026-01-01T00:00:00Z",
        }
        return (*strip, *(f"-X {_COMPONENT_BASE}.{name}={value}" for name, value in values.items()))
    if tool is HELM:
        # Without these `helm template` believes in Kubernetes 1.20.
        minor = NEWEST.split(".")[1]
        kubernetes = tuple(
            f"-X {_HELM}/{package}.{name}={value}"
            for package in ("pkg/chartutil", "pkg/lint/rules")
            for name, value in (("k8sVersionMajor", "1"), ("k8sVersionMinor", minor))
        )
        version = f"-X {_HELM}/internal/version.version={tool.version()}"
        return (*strip, version, f"-X {_HELM}/internal/version.gitTreeState=clean", *kubernetes)
    return strip
