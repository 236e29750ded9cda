"""Process 1 of a cluster's namespaces: prepares them, keeps the programs running, reaps orphans.

Started by `harness.cluster` as `python -m harness.supervisor STATE`. All that the cluster does ends
with this process, which ends by itself when nobody holds the lock that its plan names: that is how a
cluster goes with the test session it was made for. It knows no Kubernetes: what to run stands in
STATE/supervisor.json.
A file STATE/stopped/NAME keeps a program stopped, which tests use to take a part away.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.components import Component, from_json, to_json
from harness.layout import PRIVATE_FOLDERS

_RESTART_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LINK_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the supervisor is to do, written by the host side."""

    components: tuple[Component, ...]
    link: str
    node_ip: str
    host_ip: str
    pod_gateway: str
    hostname: str
    has_node: bool
    lives_with: str | None = None
    """A file that whoever wants the cluster keeps locked; without one it runs until it is taken down."""

    def write(self, state: Path) -> None:
        """Write the plan into the state folder."""
        rest = {name: value for name, value in asdict(self).items() if name != "components"}
        components = json.loads(to_json(self.components))
        (state / "supervisor.json").write_text(json.dumps({**rest, "components": components}))

    @classmethod
    def read(cls, state: Path) -> Plan:
        """Read the plan back."""
        row = json.loads((state / "supervisor.json").read_text())
        return cls(**{**row, "components": from_json(json.dumps(row["components"]))})


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


def _prepare_mounts(state: Path) -> None:
    """Give the node private places where the host's must not be touched, and share mounts with pods."""
    for folder in PRIVATE_FOLDERS:
        _do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for name in ("/run/containerd", "/run/netns", "/run/lock", "/var/lib/cni", "/var/lib/kubelet"):
        Path(name).mkdir(parents=True)
    _do("mount", "--bind", str(state / "kubelet"), "/var/lib/kubelet")
    _do("mount", "--make-rshared", "/")


def _prepare_network(plan: Plan) -> None:
    _do("ip", "link", "set", "lo", "up")
    deadline = time.monotonic() + _LINK_SECONDS
    while not Path("/proc/sys/net/ipv4/conf", plan.link).exists():
        if time.monotonic() > deadline:
            sys.exit(f"the host did not hand over the link {plan.link}")
        time.sleep(0.01)
    _do("ip", "addr", "add", f"{plan.node_ip}/30", "dev", plan.link)
    _do("ip", "link", "set", plan.link, "up")
    _do("ip", "route", "add", "default", "via", plan.host_ip)
    if not plan.has_node:
        return
    _do("ip", "link", "add", "cni0", "type", "bridge")
    _do("ip", "addr", "add", f"{plan.pod_gateway}/24", "dev", "cni0")
    _do("ip", "link", "set", "cni0", "up")
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        path = Path("/proc/sys", name)
        if path.exists():
            path.write_text("1")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.2):
            return True
    except OSError:
        return False


class Owner:
    """Whoever a cluster runs for, alive as long as it keeps a file locked."""

    def __init__(self, lock: str | None) -> None:
        self._file = None if lock is None else os.open(lock, os.O_RDONLY)

    def is_gone(self) -> bool:
        """Say whether nobody holds the lock any more."""
        if self._file is None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Supervisor:
    """Keeps every component running that is not stopped by a file, as long as its owner lives."""

    def __init__(self, state: Path, components: tuple[Component, ...], owner: Owner) -> None:
        self._state = state
        self._components = components
        self._owner = owner
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}
        self._env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        self._env["PATH"] = f"{self._env.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

    def run(self) -> None:
        """Look after the components until the process is killed or its owner has gone."""
        while not self._owner.is_gone():
            for component in self._components:
                self._look_after(component)
            self._reap()
            time.sleep(_POLL_SECONDS)

    def _look_after(self, component: Component) -> None:
        name = component.name
        stopped = (self._state / "stopped" / name).exists()
        process = self._running.get(name)
        if process is not None:
            if stopped:
                os.kill(process.pid, signal.SIGTERM)  # Popen.terminate may collect it before _reap
            return
        waited = time.monotonic() - self._started.get(name, -_RESTART_SECONDS)
        if stopped or waited < _RESTART_SECONDS:
            return
        if component.after_port is None or _answers(component.after_port):
            self._start(component)

    def _start(self, component: Component) -> None:
        with (self._state / "logs" / f"{component.name}.log").open("ab") as log:
            process = subprocess.Popen(
                component.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self._state,
            )
        self._running[component.name] = process
        self._started[component.name] = time.monotonic()
        (self._state / "pids" / component.name).write_text(str(process.pid))

    def _reap(self) -> None:
        """Collect ended children; containers' orphans come to this process too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, process in list(self._running.items()):
                if process.pid == pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    del self._running[name]


def main() -> None:
    """Prepare the namespaces and look after the programs of the plan."""
    state = Path(sys.argv[1])
    plan = Plan.read(state)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    socket.sethostname(plan.hostname)
    _do("mount", "--make-rprivate", "/")
    if plan.has_node:
        _prepare_mounts(state)
    _prepare_network(plan)
    Supervisor(state, plan.components, Owner(plan.lives_with)).run()


if __name__ == "__main__":
    main()
