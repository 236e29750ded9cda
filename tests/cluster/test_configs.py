"""The files and command lines that a cluster is started with; nothing is started here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from harness import configs
from harness.binaries import ALL_TOOLS, Binaries
from harness.components import components
from harness.layout import Layout
from harness.pki import certificates
from harness.supervisor import Plan

LAYOUT = Layout(index=7, state=Path("/cache/k7"))


@pytest.fixture
def binaries(tmp_path: Path) -> Binaries:
    for program in (program for tool in ALL_TOOLS for program in tool.programs):
        (tmp_path / program).touch()
    return Binaries(folder=tmp_path)


def test_a_control_plane_runs_no_program_of_a_node(binaries: Binaries) -> None:
    alone = [c.name for c in components(LAYOUT, binaries, has_node=False)]
    whole = [c.name for c in components(LAYOUT, binaries, has_node=True)]
    assert alone == ["etcd", "kube-apiserver", "kube-controller-manager"]
    assert set(whole) - set(alone) == {"containerd", "kube-scheduler", "kubelet", "kube-proxy", "coredns"}


def test_a_plan_comes_back_as_it_was_written(binaries: Binaries, tmp_path: Path) -> None:
    plan = Plan(
        components=components(LAYOUT, binaries, has_node=True),
        link="link0",
        node_ip=LAYOUT.node_ip,
        host_ip=LAYOUT.host_ip,
        pod_gateway=LAYOUT.pod_gateway,
        hostname="node1",
        has_node=True,
    )
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan


def test_containerd_touches_no_oom_score_and_runs_pods_with_runc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/sbin/runc")
    parsed = tomllib.loads(configs.containerd_config(LAYOUT))
    cri = parsed["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"
    assert parsed["root"] == "/cache/k7/containerd"


def test_the_kubelet_asks_the_clusters_own_name_server_and_evicts_nothing_for_want_of_disk() -> None:
    parsed = yaml.safe_load(configs.kubelet_config(LAYOUT))
    assert parsed["clusterDNS"] == [LAYOUT.dns_service_ip]
    assert parsed["cgroupRoot"] == f"/{LAYOUT.cgroup}"
    assert parsed["evictionHard"]["nodefs.available"] == "0%"


def test_kube_proxy_leaves_the_hosts_connection_tracking_alone() -> None:
    parsed = yaml.safe_load(configs.proxy_config(LAYOUT))
    assert parsed["mode"] == "nftables"
    assert set(parsed["conntrack"].values()) == {0, "0s"}


def test_the_name_service_answers_from_the_bridge() -> None:
    items = json.loads(configs.base_manifests(LAYOUT))["items"]
    slices = [item for item in items if item["kind"] == "EndpointSlice"]
    assert [s["endpoints"][0]["addresses"] for s in slices] == [[LAYOUT.pod_gateway]]


def test_the_api_servers_certificate_covers_every_way_to_reach_it() -> None:
    names = next(c for c in certificates(LAYOUT) if c.name == "apiserver").alternative_names
    assert {f"IP:{LAYOUT.node_ip}", f"IP:{LAYOUT.api_service_ip}", "DNS:kubernetes.default.svc"} <= set(names)
