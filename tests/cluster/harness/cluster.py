"""Brings one cluster up and takes it down again without a trace.

All of a cluster lives below one process, pid 1 of private net, mount, pid, ipc and uts namespaces:
its end is that of every program, shim and pod with their mounts and networks. What remains on the host is
the state folder, the cgroups, the link and a few sysctls; `down` removes them, also after a crash.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from harness import containerd, host, imagestore
from harness.binaries import Binaries, ensure_binaries
from harness.cache import locked
from harness.components import components
from harness.configs import base_manifests, write_configs
from harness.errors import HarnessError
from harness.ingress import ingress_components
from harness.kubectl import Helm, Kubectl, wait_until
from harness.layout import NODE, Layout
from harness.oci import StoredImage
from harness.pki import write_pki
from harness.prerequisites import (
    CONTROL_PLANE_TOOLS,
    NODE_TOOLS,
    ensure_kubectl,
    ensure_tools,
    python_executable,
    require_linux_root,
)
from harness.processes import SUPERVISOR_MODULE, end_supervisor, supervisor_pid
from harness.shell import run, tell
from harness.supervisor import Plan

_HARNESS_PATH = Path(__file__).resolve().parent.parent
_READY_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running cluster that tests talk to."""

    layout: Layout
    kubectl: Kubectl
    helm: Helm
    has_node: bool

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def ingress_url(self) -> str:
        """Return where the ingress listens."""
        return f"http://{self.layout.node_ip}"

    def load(self, images: tuple[StoredImage, ...]) -> None:
        """Put images into the running cluster."""
        for image in images:
            imagestore.load(self.layout.containerd_socket, image)

    def stop(self, component: str) -> None:
        """Stop a program and keep it stopped."""
        (self.layout.state / "stopped" / component).touch()

    def start(self, component: str) -> None:
        """Let a stopped program run again."""
        (self.layout.state / "stopped" / component).unlink(missing_ok=True)


def prepare(*, has_node: bool) -> Binaries:
    """Install and build what a cluster needs; raises UnavailableError where that cannot be."""
    require_linux_root()
    ensure_tools(CONTROL_PLANE_TOOLS + (NODE_TOOLS if has_node else ()))
    ensure_kubectl()
    return ensure_binaries()


def attach(index: int, binaries: Binaries) -> Cluster:
    """Return a handle on the cluster with this index, which may or may not run."""
    layout = Layout.of(index)
    kubectl = Kubectl(program=ensure_kubectl(), kubeconfig=layout.kubeconfig)
    helm = Helm(program=str(binaries["helm"]), kubeconfig=layout.kubeconfig, home=layout.state / "helm")
    has_node = (layout.state / "containerd.toml").exists()
    return Cluster(layout=layout, kubectl=kubectl, helm=helm, has_node=has_node)


def is_up(index: int) -> bool:
    """Tell whether the cluster's supervisor runs."""
    return supervisor_pid(Layout.of(index)) is not None


def up(
    index: int,
    *,
    has_node: bool = True,
    gpus: int = 2,
    images: tuple[StoredImage, ...] = (),
    lives_with: Path | None = None,
) -> Cluster:
    """Start a cluster from nothing and return it once it is ready; a stale one is removed first.

    It ends by itself when nobody keeps the file `lives_with` locked; without one it stays up.
    """
    binaries = prepare(has_node=has_node)
    layout = Layout.of(index)
    with locked(f"cluster-{index}"):
        if supervisor_pid(layout) is not None:
            raise HarnessError(f"cluster {index} is up already; take it down first: python -m harness down")
        _remove(layout)
        began = time.monotonic()
        try:
            cluster = _start(layout, binaries, images, has_node=has_node, lives_with=lives_with)
            _wait_until_ready(cluster, gpus)
        except BaseException:
            tell(f"cluster {index} did not start; its logs are kept in {layout.logs}")
            end_supervisor(layout)
            raise
    tell(f"cluster {index} up in {time.monotonic() - began:.1f} s: KUBECONFIG={layout.kubeconfig}")
    return cluster


def down(index: int) -> None:
    """End the cluster and remove all that it left on the host."""
    layout = Layout.of(index)
    with locked(f"cluster-{index}"):
        began = time.monotonic()
        existed = layout.state.exists()
        _remove(layout)
    if existed:
        tell(f"cluster {index} down in {time.monotonic() - began:.1f} s")


def _start(
    layout: Layout,
    binaries: Binaries,
    images: tuple[StoredImage, ...],
    *,
    has_node: bool,
    lives_with: Path | None,
) -> Cluster:
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    write_pki(layout)
    write_configs(layout, has_node=has_node)
    if has_node:
        host.save_sysctls(layout)
        host.make_cgroups(layout)
        imagestore.seed(layout.containerd_root, binaries, images)
    programs = components(layout, binaries, has_node=has_node)
    if has_node:
        programs += ingress_components(layout)
    plan = Plan(
        components=programs,
        link=host.JAIL_LINK,
        node_ip=layout.node_ip,
        host_ip=layout.host_ip,
        pod_gateway=layout.pod_gateway,
        hostname=NODE,
        has_node=has_node,
        lives_with=None if lives_with is None else str(lives_with),
    )
    plan.write(layout.state)
    _launch(layout)
    pid = wait_until("the cluster's first process", lambda: supervisor_pid(layout))
    host.connect(layout, pid)
    return attach(layout.index, binaries)


def _launch(layout: Layout) -> None:
    """Start the supervisor, detached, as pid 1 of namespaces of its own."""
    unshare = ("unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork")
    jail = (*unshare, "--kill-child=SIGKILL", "--mount-proc")
    supervisor = (python_executable(), "-m", SUPERVISOR_MODULE, layout.state)
    log = layout.logs / "supervisor.log"
    script = f'exec setsid --fork "$@" </dev/null >>{log} 2>&1'
    env = {**os.environ, "PYTHONPATH": str(_HARNESS_PATH)}
    run("sh", "-c", script, "sh", *jail, *supervisor, env=env)


def _wait_until_ready(cluster: Cluster, gpus: int) -> None:
    kubectl, layout = cluster.kubectl, cluster.layout

    def alive(ready: bool) -> bool:
        if supervisor_pid(layout) is None:
            raise HarnessError(f"the cluster's first process ended; see {layout.logs}/supervisor.log")
        return ready

    def succeeds(*arguments: str) -> bool:
        return alive(kubectl(*arguments, check=False).returncode == 0)

    wait_until("API server", lambda: succeeds("get", "--raw=/readyz"), timeout_seconds=_READY_SECONDS)
    if cluster.has_node:
        containerd.wait_until_up(layout.containerd_socket)
        kubectl.apply(base_manifests(layout))
        wait_until("node", lambda: alive(_node_is_ready(kubectl)), timeout_seconds=_READY_SECONDS)
        _set_gpus(kubectl, gpus)
    wait_until("default service account", lambda: succeeds("get", "serviceaccount", "default"))


def _node_is_ready(kubectl: Kubectl) -> bool:
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return kubectl("get", "node", NODE, "-o", path, check=False).stdout == "True"


def _set_gpus(kubectl: Kubectl, gpus: int) -> None:
    """Give the node GPUs that the scheduler counts and nobody owns."""
    patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(gpus)}]
    kubectl("patch", "node", NODE, "--subresource=status", "--type=json", "-p", json.dumps(patch))
    path = r"jsonpath={.status.allocatable.nvidia\.com/gpu}"
    wait_until("GPUs", lambda: kubectl("get", "node", NODE, "-o", path, check=False).stdout == str(gpus))


def _remove(layout: Layout) -> None:
    """End the cluster and remove what it left, in an order that works from any stage of a crash."""
    end_supervisor(layout)
    host.disconnect(layout)
    host.remove_cgroups(layout)
    host.restore_sysctls(layout)
    left = host.mounts_below(layout.state)
    if left:
        raise HarnessError(f"not removing {layout.state}: still mounted are {', '.join(left)}")
    if layout.state.exists():
        shutil.rmtree(layout.state)
