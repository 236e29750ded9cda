"""The operator as a process under the chart's own rights, and a kubelet that makes every pod ready."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from api_proxy import ApiProxy, tls_of
from free_ports import free_port
from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

CHART = Path(__file__).resolve().parents[1] / "charts" / "tidemill"
Object = dict[str, Any]
# A standby looks often; how long a lease counts is as usual, so that a busy machine costs nobody the lead.
EAGER = ("--lease-retry=0.25",)


class Account:
    """The ServiceAccount that the chart gives the operator, with the chart's rights and no others."""

    def __init__(self, cluster: TestCluster, namespace: str, *, is_namespaced: bool = True) -> None:
        watched = ("--set", f"watchNamespaces={{{namespace}}}") if is_namespaced else ()
        rendered = cluster.helm(
            "template", "tidemill", CHART, "--namespace", namespace, *watched,
            "--set", f"fullnameOverride={namespace}",
            "--show-only", "templates/operator-rbac.yaml",
        )  # fmt: skip
        cluster.kubectl.apply(rendered.stdout)
        name = f"{namespace}-operator"
        self.token = cluster.kubectl("create", "token", "-n", namespace, name, "--duration=2h").stdout.strip()
        config = cluster.kubectl("config", "view", "--raw", "-o", "json").stdout
        self.server, self.tls = tls_of(config)
        self._ca = json.loads(config)["clusters"][0]["cluster"]["certificate-authority-data"]

    def write_kubeconfig(self, folder: Path, server: str | None = None) -> Path:
        """Write a kubeconfig for this account, straight to the API server or to a proxy of it."""
        cluster: Object = {"server": server or self.server}
        if server is None:
            cluster["certificate-authority-data"] = self._ca
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.token}}],
        }
        path = folder / f"{'direct' if server is None else 'proxied'}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def proxy(self, seed: int = 0) -> ApiProxy:
        """Make a proxy in front of the API server."""
        return ApiProxy(self.server, self.tls, seed)


class Operator:
    """One operator process that has its lease in a namespace and looks after that one, or after all."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        log: Path,
        *,
        image: str = "localhost/engine:test",
        is_namespaced: bool = True,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.port = free_port()
        self.log = log
        command = [
            sys.executable, "-m", "tidemill_operator", "run",
            "--engine-image", image,
            "--operator-namespace", namespace,
            *(("--watch-namespace", namespace) if is_namespaced else ()),
            "--http-host", "127.0.0.1",
            "--http-port", str(self.port),
            *arguments,
        ]  # fmt: skip
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        with log.open("a") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def get(self, path: str) -> str | None:
        """Ask the health port; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def metric(self, name: str) -> float | None:
        """Give the value of one series; None while there is none."""
        found = [value for series, value in self._series() if series == name]
        return found[0] if found else None

    def total(self, prefix: str) -> float:
        """Add up all series whose names begin so."""
        return sum(value for series, value in self._series() if series.startswith(prefix))

    def _series(self) -> list[tuple[str, float]]:
        lines = [line for line in (self.get("/metrics") or "").splitlines() if not line.startswith("#")]
        return [(series, float(value)) for series, _, value in (line.rpartition(" ") for line in lines)]

    def peak_memory_bytes(self) -> int:
        """Give the most memory that the process has held so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak) * 1024

    def end(self, signum: int) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(signum)
        return self.process.wait(timeout=120)


def restricted_pod(image: str) -> Object:
    """Write the spec of a pod that the restricted Pod Security Standard admits."""
    limits: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": "main", "image": image, "securityContext": limits}
    return {"securityContext": context, "containers": [container]}


class Admin:
    """Plain requests with the administrator's certificate; kubectl would cost a process for each."""

    def __init__(self, cluster: TestCluster) -> None:
        config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json").stdout)
        server, self._tls = tls_of(json.dumps(config))
        user = config["users"][0]["user"]
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            parts = (user["client-certificate-data"], user["client-key-data"])
            pair.write_bytes(b"".join(base64.b64decode(part) for part in parts))
            self._tls.load_cert_chain(pair)
        self._address = urllib.parse.urlsplit(server).netloc
        self._connection: http.client.HTTPSConnection | None = None

    def __call__(self, method: str, path: str, body: Object | None = None, kind: str = "json") -> Object:
        """Send one request and give the answer, whatever its status."""
        headers = {"Content-Type": f"application/{kind}", "Accept": "application/json"}
        content = None if body is None else json.dumps(body)
        is_kept = self._connection is not None
        try:
            text = self._answer(method, path, content, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            if not is_kept:
                raise
            # The server had closed a connection that was idle for long, and so has not seen the request.
            text = self._answer(method, path, content, headers)
        parsed: Object = json.loads(text or b"{}")
        return parsed

    def _answer(self, method: str, path: str, content: str | None, headers: dict[str, str]) -> bytes:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._address, context=self._tls, timeout=30)
        try:
            self._connection.request(method, path, content, headers)
            return self._connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise

    def items(self, path: str) -> list[Object]:
        """Give the items of a list."""
        found: list[Object] = self("GET", path).get("items", [])
        return found


class Kubelet:
    """Makes every engine pod of a namespace ready, as a node would whose engines load at once."""

    def __init__(self, cluster: TestCluster, namespace: str) -> None:
        self._admin = Admin(cluster)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        selector = urllib.parse.quote(names.LABEL_SERVICE)
        while not self._is_over.wait(0.1):
            for pod in self._admin.items(f"{self._pods}?labelSelector={selector}"):
                if not pod["metadata"].get("deletionTimestamp") and not _is_ready(pod):
                    self._make_ready(pod["metadata"]["name"])

    def _make_ready(self, name: str) -> None:
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        path = f"{self._pods}/{name}/status"
        self._admin("PATCH", path, {"status": status}, "merge-patch+json")


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
