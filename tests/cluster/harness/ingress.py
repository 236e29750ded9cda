"""A minimal ingress controller for the tests: nginx configured from live Ingress and EndpointSlice objects.

Runs inside the cluster's namespaces as `python -m harness.ingress STATE SERVER ADDRESS`, beside an nginx
that the supervisor keeps running. It knows host and path rules and streams without buffering; no TLS,
no annotations. It also writes the address into each Ingress' status, as a real controller does.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.components import Component
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.layout import Layout

logger = logging.getLogger(__name__)
CLASS_NAME = "nginx"
_POLL_SECONDS = 0.3
_HEAD = """daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
access_log off;
client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi;
client_max_body_size 64m;
server_names_hash_bucket_size 512;
proxy_http_version 1.1;
proxy_buffering off;
proxy_read_timeout 3600s;
proxy_set_header Host $http_host;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_set_header Connection "";
server {{ listen 80 default_server; return 404; }}
"""

Object = dict[str, Any]


def ingress_components(layout: Layout) -> tuple[Component, ...]:
    """Return nginx and its controller as programs of the supervisor."""
    folder = layout.state / "ingress"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nginx.conf").write_text(nginx_config([], [], [], folder))
    controller = (sys.executable, "-m", "harness.ingress", str(layout.state))
    nginx = ("nginx", "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log")
    return (
        Component(name="nginx", command=nginx),
        Component(name="ingress", command=(*controller, layout.node_ip, layout.node_ip), after_port=6443),
    )


def is_ours(ingress: Object) -> bool:
    """Tell whether an Ingress asks for this controller or for none in particular."""
    return bool(ingress["spec"].get("ingressClassName", CLASS_NAME) == CLASS_NAME)


def nginx_config(ingresses: list[Object], services: list[Object], slices: list[Object], folder: Path) -> str:
    """Return nginx' configuration for the objects; a service without ready endpoints answers 503."""
    upstreams: dict[str, list[str]] = {}
    servers: dict[str, list[str]] = {}
    for ingress in filter(is_ours, ingresses):
        namespace = ingress["metadata"]["namespace"]
        for rule in ingress["spec"].get("rules", []):
            host = rule.get("host", "_")
            for path in rule.get("http", {}).get("paths", []):
                backend = path["backend"]["service"]
                name = re.sub(r"[^a-z0-9]", "_", f"{namespace}_{backend['name']}_{_port_key(backend)}")
                upstreams[name] = _endpoints(namespace, backend, services, slices)
                target = f"proxy_pass http://{name};" if upstreams[name] else "return 503;"
                exact = "= " if path["pathType"] == "Exact" else ""
                servers.setdefault(host, []).append(f"location {exact}{path.get('path', '/')} {{ {target} }}")
    lines = [_HEAD.format(folder=folder)]
    for name, addresses in sorted(upstreams.items()):
        if addresses:
            lines.append(f"upstream {name} {{ {' '.join(f'server {a};' for a in addresses)} }}\n")
    for host, locations in sorted(servers.items()):
        lines.append(f"server {{ listen 80; server_name {host}; {' '.join(locations)} }}\n")
    return "".join(lines) + "}\n"


def _port_key(backend: Object) -> str:
    port = backend.get("port", {})
    return str(port.get("number") or port.get("name"))


def _endpoints(namespace: str, backend: Object, services: list[Object], slices: list[Object]) -> list[str]:
    """Return the ready addresses behind one port of a service."""
    service = next((s for s in services if _key(s) == (namespace, backend["name"])), None)
    if service is None:
        return []
    wanted = _port_key(backend)
    ports = service["spec"].get("ports", [])
    port = next((p for p in ports if wanted in {str(p["port"]), p.get("name")}), None)
    if port is None:
        return []
    found: set[str] = set()
    for item in slices:
        owner = item["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        if (item["metadata"]["namespace"], owner) != _key(service):
            continue
        numbers = [p["port"] for p in item.get("ports") or [] if p.get("name", "") == port.get("name", "")]
        for endpoint in item.get("endpoints") or []:
            if endpoint.get("conditions", {}).get("ready", True):
                found.update(f"{a}:{n}" for a in endpoint["addresses"] for n in numbers)
    return sorted(found)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


class _Api:
    """The few requests to the API server, over one connection that is kept open."""

    def __init__(self, state: Path, server: str) -> None:
        pki = state / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = http.client.HTTPSConnection(server, 6443, context=context, timeout=10)

    def list(self, path: str) -> list[Object]:
        """Return the items of a list."""
        items: list[Object] = json.loads(self._request("GET", path, None))["items"]
        return items

    def patch_status(self, ingress: Object, address: str) -> None:
        """Write the address under which the Ingress is reached."""
        namespace, name = _key(ingress)
        path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/{name}/status"
        body = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        self._request("PATCH", path, json.dumps(body))

    def _request(self, method: str, path: str, body: str | None) -> bytes:
        headers = {"Content-Type": "application/merge-patch+json"} if body else {}
        try:
            self._connection.request(method, path, body=body, headers=headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if response.status >= 300:
            raise HarnessError(f"{method} {path}: {response.status} {data[:500]!r}")
        return data


def _reconcile(api: _Api, state: Path, address: str) -> None:
    ingresses = api.list("/apis/networking.k8s.io/v1/ingresses")
    services = api.list("/api/v1/services") if ingresses else []
    slices = api.list("/apis/discovery.k8s.io/v1/endpointslices") if ingresses else []
    path = state / "ingress" / "nginx.conf"
    text = nginx_config(ingresses, services, slices, path.parent)
    if text != path.read_text():
        path.write_text(text)
        os.kill(int((state / "pids" / "nginx").read_text()), signal.SIGHUP)
        logger.info("nginx reloaded for %d ingresses", len(ingresses))
    for ingress in filter(is_ours, ingresses):
        if not ingress.get("status", {}).get("loadBalancer"):
            api.patch_status(ingress, address)


def main() -> None:
    """Keep nginx' configuration in step with the cluster."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    state, server, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    api = _Api(state, server)
    while True:
        try:
            _reconcile(api, state, address)
        except (OSError, http.client.HTTPException, HarnessError) as error:
            logger.warning("not reconciled: %s", error)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
