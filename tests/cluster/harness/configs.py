"""The text of every configuration file of the cluster's programs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.layout import NODE
from harness.prerequisites import SYSTEM_PATH

if TYPE_CHECKING:
    from harness.layout import Layout

PAUSE_IMAGE = "localhost/pause:1"
_UNUSED_CONTAINERD_PLUGINS = (
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.internal.v1.opt",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
)


def containerd_config(layout: Layout) -> str:
    """Return containerd's configuration; OOM scores stay untouched, for want of CAP_SYS_RESOURCE."""
    runc = shutil.which("runc", path=SYSTEM_PATH)
    if runc is None:
        raise HarnessError("runc is not installed")
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{layout.containerd_root}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = {json.dumps(_UNUSED_CONTAINERD_PLUGINS)}
[grpc]
  address = "{layout.containerd_socket}"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.state}/cni"
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"""


def cni_config(layout: Layout) -> str:
    """Return the pods' network: one bridge, addresses handed out on the node."""
    ranges = [[{"subnet": layout.pod_cidr, "rangeStart": layout.first_pod_ip}]]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "tidemill", "plugins": [bridge]})


def kubelet_config(layout: Layout) -> str:
    """Return the kubelet's configuration: nothing is evicted, no image is collected."""
    pki = layout.pki
    return f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {pki}/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/kubelet-server.crt
tlsPrivateKeyFile: {pki}/kubelet-server.key
cgroupDriver: cgroupfs
cgroupRoot: /{layout.cgroup}
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
failSwapOn: false
failCgroupV1: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://{layout.containerd_socket}
clusterDNS: [{layout.dns_service_ip}]
clusterDomain: cluster.local
resolvConf: {layout.state}/resolv.conf
hairpinMode: hairpin-veth
evictionHard:
  memory.available: "100Mi"
  nodefs.available: "0%"
  imagefs.available: "0%"
  nodefs.inodesFree: "0%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
podLogsDir: {layout.state}/podlogs
volumePluginDir: {layout.state}/volumeplugins
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
syncFrequency: 10s
shutdownGracePeriod: 0s
registerNode: true
"""


def proxy_config(layout: Layout) -> str:
    """Return kube-proxy's configuration; connection tracking limits are the host's and stay as they are."""
    return f"""apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {layout.kubeconfig_of("proxy")}}}
hostnameOverride: {NODE}
clusterCIDR: {layout.pod_cidr}
oomScoreAdj: 0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nodePortAddresses: ["primary"]
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
nftables: {{minSyncPeriod: 200ms, syncPeriod: 30s}}
"""


def corefile(layout: Layout) -> str:
    """Return CoreDNS' configuration; names outside the cluster do not exist rather than fail for now."""
    return f"""cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {layout.pod_gateway}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {layout.kubeconfig_of("dns")}
        pods insecure
        ttl 5
    }}
    cache 5
}}
.:53 {{
    bind {layout.pod_gateway}
    errors
    template IN ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def base_manifests(layout: Layout) -> str:
    """Return the objects that every cluster starts with: DNS and its permissions."""
    role = "system:coredns"
    reads = ["list", "watch"]
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    rbac = "rbac.authorization.k8s.io"
    items = [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"],
                    "verbs": reads,
                },
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": reads},
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": role}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": layout.dns_service_ip, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-host",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [layout.pod_gateway], "conditions": {"ready": True}}],
            "ports": ports,
        },
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def write_configs(layout: Layout, *, has_node: bool) -> None:
    """Write the files that the programs are started with."""
    if not has_node:
        return
    texts = {
        "containerd.toml": containerd_config(layout),
        "cni/10-tidemill.conflist": cni_config(layout),
        "kubelet.yaml": kubelet_config(layout),
        "proxy.yaml": proxy_config(layout),
        "Corefile": corefile(layout),
        "resolv.conf": f"nameserver {layout.pod_gateway}\n",
    }
    for name, text in texts.items():
        (layout.state / name).write_text(text)
