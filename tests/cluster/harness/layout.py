"""Where one cluster's files are and which addresses it has; pure arithmetic on its index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.cache import cache_root
from harness.errors import HarnessError

NODE = "node1"
MAX_INDEX = 63
# containerd's shims make unix sockets below the state folder; their paths end at 107 bytes.
MAX_STATE_CHARS = 60
# The cluster sees empty folders here, so that the host's own stay as they are.
PRIVATE_FOLDERS = ("/run", "/var/lib", "/var/log")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names, paths and addresses of cluster number `index`."""

    index: int
    state: Path

    def __post_init__(self) -> None:
        if not 0 <= self.index <= MAX_INDEX:
            raise HarnessError(f"cluster index {self.index}: give 0 to {MAX_INDEX}")
        if len(str(self.state)) > MAX_STATE_CHARS:
            raise HarnessError(
                f"{self.state} is longer than {MAX_STATE_CHARS} characters, too long for unix sockets: "
                "set TIDEMILL_CACHE to a shorter folder"
            )
        if any(self.state.is_relative_to(folder) for folder in PRIVATE_FOLDERS):
            raise HarnessError(f"{self.state} is hidden inside the cluster: set TIDEMILL_CACHE elsewhere")

    @classmethod
    def of(cls, index: int) -> Layout:
        """Return the layout with its state in the cache folder, where images can be hard-linked from."""
        return cls(index=index, state=cache_root() / f"k{index}")

    @property
    def host_ip(self) -> str:
        """Return the host's end of the link."""
        return f"10.245.{self.index}.1"

    @property
    def node_ip(self) -> str:
        """Return the cluster's end of the link."""
        return f"10.245.{self.index}.2"

    @property
    def pod_cidr(self) -> str:
        """Return the pods' network."""
        return f"10.244.{self.index}.0/24"

    @property
    def pod_gateway(self) -> str:
        """Return the bridge's address, where DNS answers."""
        return f"10.244.{self.index}.1"

    @property
    def first_pod_ip(self) -> str:
        """Return the lowest address that a pod may get."""
        return f"10.244.{self.index}.2"

    @property
    def service_cidr(self) -> str:
        """Return the services' network: about two thousand addresses for each index."""
        return f"{self._service_address(0)}/21"

    @property
    def api_service_ip(self) -> str:
        """Return the address of the service `kubernetes`."""
        return self._service_address(1)

    @property
    def dns_service_ip(self) -> str:
        """Return the address of the service `kube-dns`."""
        return self._service_address(10)

    def _service_address(self, host: int) -> str:
        second, third = divmod(8 * self.index, 256)
        return f"10.{97 + second}.{third}.{host}"

    @property
    def cgroup(self) -> str:
        """Return the name of the cgroup that all pods live below."""
        return f"tidemill-k{self.index}"

    @property
    def host_link(self) -> str:
        """Return the name of the host's network device (at most 15 characters)."""
        return f"tmk{self.index}"

    @property
    def pki(self) -> Path:
        """Return the folder of keys and certificates."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """Return the folder with a log per program."""
        return self.state / "logs"

    @property
    def containerd_root(self) -> Path:
        """Return the folder of images and snapshots."""
        return self.state / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """Return the address of containerd."""
        return self.state / "run" / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str) -> Path:
        """Return the kubeconfig of a component."""
        return self.state / f"{user}.kubeconfig"

    def folders(self) -> tuple[Path, ...]:
        """Return every folder that must exist before the cluster starts."""
        names = ("cni", "kubelet", "podlogs", "stopped", "pids", "run")
        return (self.pki, self.logs, self.containerd_root, *(self.state / name for name in names))
