"""The cluster's keys, certificates and kubeconfigs, made with openssl."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.layout import NODE
from harness.shell import run

if TYPE_CHECKING:
    from pathlib import Path

    from harness.layout import Layout

_KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = "3650"
KUBECONFIG_USERS = ("admin", "node", "kcm", "scheduler", "proxy", "dns")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One certificate to be signed: its file name, subject, signer and alternative names."""

    name: str
    subject: str
    signer: str = "ca"
    alternative_names: tuple[str, ...] = ()


def certificates(layout: Layout) -> tuple[Certificate, ...]:
    """Return every certificate that a cluster needs."""
    kubernetes = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    dns_names = ("localhost", *kubernetes, "kubernetes.default.svc.cluster.local")
    ips = ("127.0.0.1", layout.node_ip, layout.api_service_ip)
    server_names = (*(f"IP:{ip}" for ip in ips), *(f"DNS:{name}" for name in dns_names))
    node = f"/O=system:nodes/CN=system:node:{NODE}"
    return (
        Certificate(name="apiserver", subject="/CN=kube-apiserver", alternative_names=server_names),
        Certificate(
            name="kubelet-server", subject=node, alternative_names=(f"IP:{layout.node_ip}", f"DNS:{NODE}")
        ),
        Certificate(name="node", subject=node),
        Certificate(name="admin", subject="/O=system:masters/CN=admin"),
        Certificate(name="apiserver-kubelet", subject="/O=system:masters/CN=apiserver-kubelet-client"),
        Certificate(name="kcm", subject="/CN=system:kube-controller-manager"),
        Certificate(name="scheduler", subject="/CN=system:kube-scheduler"),
        Certificate(name="proxy", subject="/CN=system:kube-proxy"),
        Certificate(name="dns", subject="/CN=system:coredns"),
        Certificate(name="front", subject="/CN=front-proxy-client", signer="front-ca"),
    )


def write_pki(layout: Layout) -> None:
    """Make the authorities, every certificate, the service-account keys and the kubeconfigs."""
    pki = layout.pki
    _authority(pki, "ca", "kubernetes-ca")
    _authority(pki, "front-ca", "front-proxy-ca")
    for certificate in certificates(layout):
        _sign(pki, certificate)
    run("openssl", "genrsa", "-out", pki / "sa.key", "2048")
    run("openssl", "rsa", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")
    for user in KUBECONFIG_USERS:
        _write_kubeconfig(layout, user)


def _authority(pki: Path, name: str, common_name: str) -> None:
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    files = ("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt")
    subject = ("-subj", f"/CN={common_name}", "-addext", usage)
    run("openssl", "req", "-x509", "-newkey", *_KEY, "-days", _DAYS, *subject, *files)


def _sign(pki: Path, certificate: Certificate) -> None:
    name, signer = certificate.name, certificate.signer
    request, extensions = pki / f"{name}.csr", pki / f"{name}.ext"
    files = ("-keyout", pki / f"{name}.key", "-out", request)
    run("openssl", "req", "-newkey", *_KEY, "-subj", certificate.subject, *files)
    lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    if certificate.alternative_names:
        lines.append(f"subjectAltName={','.join(certificate.alternative_names)}")
    extensions.write_text("\n".join(lines) + "\n")
    by = ("-CA", pki / f"{signer}.crt", "-CAkey", pki / f"{signer}.key", "-CAcreateserial")
    out = ("-days", _DAYS, "-extfile", extensions, "-out", pki / f"{name}.crt")
    run("openssl", "x509", "-req", "-in", request, *by, *out)


def _write_kubeconfig(layout: Layout, user: str) -> None:
    def data(name: str) -> str:
        return base64.b64encode((layout.pki / name).read_bytes()).decode()

    cluster = {"server": f"https://{layout.node_ip}:6443", "certificate-authority-data": data("ca.crt")}
    credentials = {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tidemill",
        "clusters": [{"name": "tidemill", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "tidemill", "context": {"cluster": "tidemill", "user": user}}],
    }
    path = layout.kubeconfig_of(user)
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
