"""What a cluster changes on the host outside its own namespaces: a link, routes, cgroups, sysctls."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.layout import Layout

logger = logging.getLogger(__name__)
JAIL_LINK = "tmk"
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_TRIES = 200
# The kubelet sets these for the whole machine.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def connect(layout: Layout, supervisor: int) -> None:
    """Link the host with the cluster's network namespace and route pods and services through it."""
    peer = ("peer", "name", JAIL_LINK, "netns", supervisor)
    run("ip", "link", "add", layout.host_link, "type", "veth", *peer)
    run("ip", "addr", "add", f"{layout.host_ip}/30", "dev", layout.host_link)
    run("ip", "link", "set", layout.host_link, "up")
    for network in (layout.pod_cidr, layout.service_cidr):
        run("ip", "route", "replace", network, "via", layout.node_ip)


def disconnect(layout: Layout) -> None:
    """Remove the link, and with it the routes; nothing to do where the kernel already did."""
    run("ip", "link", "del", layout.host_link, check=False)


def _hierarchies() -> Iterator[Path]:
    """Yield each cgroup hierarchy: the one of cgroup v2, or those of v1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        yield _CGROUPS
        return
    for path in sorted(_CGROUPS.iterdir()):
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists():
            yield path


def make_cgroups(layout: Layout) -> None:
    """Make the cluster's group in every hierarchy."""
    for hierarchy in _hierarchies():
        group = hierarchy / layout.cgroup
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # In v1 a new cpuset has no processor and no memory, so that nothing could run in it.
            if hierarchy != _CGROUPS and (group / name).exists():
                (group / name).write_text((hierarchy / name).read_text())


def remove_cgroups(layout: Layout) -> None:
    """Remove the cluster's groups from the leaves up; the kernel may need a moment to let go of them."""
    for hierarchy in _hierarchies():
        group = hierarchy / layout.cgroup
        for _ in range(_CGROUP_TRIES):
            if not group.is_dir():
                break
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:
                    logger.debug("the cgroup %s is still busy", folder)
            time.sleep(0.02)
        if group.is_dir():
            raise HarnessError(f"{group} cannot be removed: processes are left in it")


def save_sysctls(layout: Layout) -> None:
    """Write down the machine's settings that the kubelet changes."""
    values = {name: Path("/proc/sys", name).read_text() for name in _SYSCTLS}
    (layout.state / "sysctls.json").write_text(json.dumps(values))


def restore_sysctls(layout: Layout) -> None:
    """Put the machine's settings back as `save_sysctls` found them."""
    saved = layout.state / "sysctls.json"
    if not saved.exists():
        return
    for name, value in json.loads(saved.read_text()).items():
        path = Path("/proc/sys", name)
        if path.read_text() != value:
            path.write_text(value)


def mounts_below(folder: Path) -> list[str]:
    """Return the host's mount points below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{folder}/")]
