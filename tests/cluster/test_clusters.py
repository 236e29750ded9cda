"""The cluster itself: pods, names, services, ingress, GPUs, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import cluster as clusters
from harness import host
from harness.kubectl import wait_until
from harness.layout import NODE, Layout
from harness.processes import supervisor_pid
from harness.session import own_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
CRASH_INDEX = 40
SERVER = """
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"hello " + self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 8000), Hello).serve_forever()
"""


def hello_objects(image: str) -> list[dict[str, Any]]:
    labels = {"app": "hello"}
    container = {
        "name": "hello",
        "image": image,
        "command": ["python", "-c", SERVER],
        "readinessProbe": {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {
        "host": "hello.test",
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hello", "labels": labels},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": "web"},
            "spec": {"ingressClassName": "nginx", "rules": [rule]},
        },
    ]


@pytest.fixture
def hello(cluster: TestCluster, namespace: str) -> str:
    items = hello_objects(cluster.images["operator"])
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/hello", "--timeout=120s")
    return namespace


def test_a_pod_runs_our_image_as_a_plain_user_on_a_read_only_root(cluster: TestCluster, hello: str) -> None:
    shown = cluster.kubectl("exec", "-n", hello, "hello", "--", "id", "-u").stdout
    assert shown.strip() == "65532"
    written = cluster.kubectl("exec", "-n", hello, "hello", "--", "touch", "/opt/x", check=False)
    assert "Read-only file system" in written.stderr


def test_a_service_is_found_by_name_and_an_unknown_name_does_not_exist(
    cluster: TestCluster, hello: str
) -> None:
    code = f"import urllib.request as u; print(u.urlopen('http://web.{hello}.svc.cluster.local').read().decode())"

    def fetch() -> str:
        return cluster.kubectl("exec", "-n", hello, "hello", "--", "python", "-c", code, check=False).stdout

    assert f"hello web.{hello}.svc.cluster.local" in wait_until("the service", fetch)
    lookup = "import socket; socket.gethostbyname('nobody.example')"
    result = cluster.kubectl("exec", "-n", hello, "hello", "--", "python", "-c", lookup, check=False)
    assert "Name or service not known" in result.stderr


def test_an_ingress_host_reaches_the_pod_and_other_hosts_do_not(cluster: TestCluster, hello: str) -> None:
    def status(host_header: str) -> int:
        request = urllib.request.Request(cluster.ingress_url or "", headers={"Host": host_header})
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    wait_until("the ingress", lambda: status("hello.test") == 200)
    assert status("nobody.test") == 404
    address = cluster.kubectl.get("ingress", "-n", hello, "web")["status"]["loadBalancer"]["ingress"][0]["ip"]
    assert address in (cluster.ingress_url or "")


def test_a_gpu_request_is_scheduled_on_fake_capacity(cluster: TestCluster, hello: str) -> None:
    pod = cluster.kubectl.get("pod", "-n", hello, "hello")
    assert pod["spec"]["nodeName"] == NODE
    assert cluster.kubectl.get("node", NODE)["status"]["allocatable"]["nvidia.com/gpu"] == "2"


@pytest.fixture
def crashing() -> Iterator[int]:
    yield CRASH_INDEX
    clusters.down(CRASH_INDEX)


@pytest.mark.usefixtures("own_clusters")
def test_nothing_is_left_of_a_cluster_that_was_killed(crashing: int) -> None:
    running = clusters.up(crashing, has_node=True)
    layout = running.layout
    pid = supervisor_pid(layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until("the end of its first process", lambda: supervisor_pid(layout) is None)
    clusters.down(crashing)
    assert not layout.state.exists()
    assert not Path("/sys/class/net", layout.host_link).exists()
    assert not [h for h in host._hierarchies() if (h / layout.cgroup).exists()]
    assert not host.mounts_below(layout.state)


@pytest.mark.usefixtures("own_clusters")
def test_a_cluster_ends_with_the_process_that_it_was_made_for() -> None:
    code = (
        "import time\n"
        "from harness.session import own_cluster\n"
        "with own_cluster((), has_node=False) as running:\n"
        "    print(running.kubeconfig, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, text=True, env=environment
    ) as session:
        assert session.stdout is not None
        state = Path(session.stdout.readline().strip()).parent
        layout = Layout(index=int(state.name.removeprefix("k")), state=state)
        was_up = supervisor_pid(layout) is not None
        session.kill()
    assert was_up
    wait_until("the end of the cluster", lambda: supervisor_pid(layout) is None)
    clusters.down(layout.index)


@pytest.mark.usefixtures("own_clusters")
def test_a_control_plane_serves_and_leaves_nothing() -> None:
    with own_cluster((), has_node=False) as running:
        running.kubectl("create", "namespace", "somebody")
        wait_until(
            "its service account", lambda: running.kubectl.find("-n", "somebody", "serviceaccount", "default")
        )
        state = running.kubeconfig.parent
        assert running.kubectl.items("nodes") == []
    assert not state.exists()
