"""What this process may use of the machine: CPUs, memory, a GPU, by affinity, cgroups and device files.

Knows where Linux says so (proc(5), cgroups(7)); takes no decision.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Mapping
from pathlib import Path

_KIB = 1024
_GPU_DRIVER_FILES = ("nvidiactl", "dxg")
_V1_UNLIMITED = 1 << 60


def num_threads(root: Path = Path("/")) -> int:
    """Return min(affinity, whole CPUs of the cgroup quota), at least 1."""
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return affinity if quota is None else max(1, min(affinity, math.floor(quota)))


def has_gpu_driver(root: Path = Path("/")) -> bool:
    """Say whether the device files of an NVIDIA driver are here; a GPU may be missing or broken still."""
    return any((root / "dev" / name).exists() for name in _GPU_DRIVER_FILES)


def shows_gpus(environment: Mapping[str, str]) -> bool:
    """Say whether the CUDA driver would show this process GPUs, if there are any."""
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    return shown is None or shown.strip() not in {"", "-1", "NoDevFiles"}


def has_torch_for_gpus() -> bool:
    """Say whether a torch is installed that is not one for CPUs only, without importing it."""
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the least CPU quota of the cgroups that are visible, in CPUs; None without one."""
    quotas: list[float] = []
    for directory in _cgroup_directories(root, "cpu"):
        words = _words(directory / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _words(directory / "cpu.cfs_quota_us"), _words(directory / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            quotas.append(int(quota[0]) / int(period[0]))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the least memory limit of the cgroups that are visible; None without one."""
    limits: list[int] = []
    for directory in _cgroup_directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(directory / name)
            if words and words[0] != "max" and int(words[0]) < _V1_UNLIMITED:
                limits.append(int(words[0]))
    return min(limits, default=None)


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return what the kernel thinks can be had without swapping."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    raise OSError("/proc/meminfo has no MemAvailable")


def used_memory_bytes(root: Path = Path("/")) -> int:
    """Return this process's resident memory that isn't a file."""
    for line in (root / "proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise OSError("/proc/self/status has no RssAnon")


def _cgroup_directories(root: Path, controller: str) -> list[Path]:
    """Return the directories of this process's cgroup and of those above it that are mounted here."""
    mount = root / "sys/fs/cgroup"
    found: list[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        inside = base / path.lstrip("/")
        found += [inside, *(parent for parent in inside.parents if parent.is_relative_to(base))]
    return found or [mount, mount / controller]


def _words(path: Path) -> list[str]:
    """Return a small file's words, or none if it isn't there."""
    try:
        return path.read_text().split()
    except OSError:
        return []
