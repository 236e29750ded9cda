"""The cluster's programs and their command lines, in the order they start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from harness.layout import NODE

if TYPE_CHECKING:
    from harness.binaries import Binaries
    from harness.layout import Layout

ETCD_PORT = 2379


@dataclass(frozen=True, kw_only=True)
class Component:
    """A program that the supervisor keeps running; `after_port` must answer before it starts."""

    name: str
    command: tuple[str, ...]
    after_port: int | None = None


def components(layout: Layout, binaries: Binaries, *, has_node: bool) -> tuple[Component, ...]:
    """Return the control plane's programs and, where there is a node, those that run pods."""
    control_plane = (
        _etcd(layout, binaries),
        Component(name="kube-apiserver", command=_apiserver(layout, binaries), after_port=ETCD_PORT),
        Component(name="kube-controller-manager", command=_controller_manager(layout, binaries)),
    )
    if not has_node:
        return control_plane
    scheduler = _with_kubeconfigs(layout, binaries, "kube-scheduler", "scheduler")
    kubelet = (
        str(binaries["kubelet"]),
        f"--config={layout.state}/kubelet.yaml",
        f"--kubeconfig={layout.kubeconfig_of('node')}",
        f"--hostname-override={NODE}",
        f"--node-ip={layout.node_ip}",
        "--v=2",
    )
    return (
        Component(name="containerd", command=("containerd", "-c", f"{layout.state}/containerd.toml")),
        *control_plane,
        Component(name="kube-scheduler", command=scheduler),
        Component(name="kubelet", command=kubelet),
        Component(
            name="kube-proxy", command=(str(binaries["kube-proxy"]), f"--config={layout.state}/proxy.yaml")
        ),
        Component(name="coredns", command=(str(binaries["coredns"]), "-conf", f"{layout.state}/Corefile")),
    )


def to_json(wanted: tuple[Component, ...]) -> str:
    """Write components down for the supervisor."""
    return json.dumps([asdict(component) for component in wanted])


def from_json(text: str) -> tuple[Component, ...]:
    """Read back what `to_json` wrote."""
    return tuple(
        Component(name=row["name"], command=tuple(row["command"]), after_port=row["after_port"])
        for row in json.loads(text)
    )


def _etcd(layout: Layout, binaries: Binaries) -> Component:
    client = f"http://127.0.0.1:{ETCD_PORT}"
    command = (
        str(binaries["etcd"]),
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Component(name="etcd", command=command)


def _apiserver(layout: Layout, binaries: Binaries) -> tuple[str, ...]:
    pki = layout.pki
    return (
        str(binaries["kube-apiserver"]),
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        f"--advertise-address={layout.node_ip}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-cluster-ip-range={layout.service_cidr}",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front.crt",
        f"--proxy-client-key-file={pki}/front.key",
        "--shutdown-delay-duration=0s",
        "--profiling=false",
    )


def _controller_manager(layout: Layout, binaries: Binaries) -> tuple[str, ...]:
    pki = layout.pki
    return (
        *_with_kubeconfigs(layout, binaries, "kube-controller-manager", "kcm"),
        "--use-service-account-credentials",
        # Tests make hundreds of objects at once; the default of 20 requests a second would be their pace.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
    )


def _with_kubeconfigs(layout: Layout, binaries: Binaries, program: str, user: str) -> tuple[str, ...]:
    kubeconfig = layout.kubeconfig_of(user)
    return (
        str(binaries[program]),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--profiling=false",
    )
