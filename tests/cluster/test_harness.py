"""The harness' own rules: versions, addresses, what it installs, and when a test may be skipped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness import binaries, prerequisites, session
from harness.errors import HarnessError, UnavailableError
from harness.layout import Layout
from harness.prerequisites import SystemTool
from harness.supervisor import Owner


def test_every_tool_states_its_pinned_version() -> None:
    versions = {tool.name: tool.version() for tool in binaries.ALL_TOOLS}
    assert versions.pop("pause") == "own"
    assert all(version.startswith("v") and version.count(".") >= 2 for version in versions.values())


def test_helm_believes_in_the_newest_kubernetes_that_it_runs_against() -> None:
    (minor,) = {
        version.split(".")[1] for version in binaries.KUBERNETES_FOLDERS if version == binaries.NEWEST
    }
    flags = binaries._link_flags(binaries.HELM)
    assert any(flag.endswith(f"chartutil.k8sVersionMinor={minor}") for flag in flags)


@pytest.mark.parametrize("version", binaries.KUBERNETES_FOLDERS)
def test_each_kubernetes_that_can_be_chosen_is_the_one_that_its_folder_pins(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_TEST_KUBERNETES", version)
    tool = replace(binaries.KUBERNETES, name=binaries._kubernetes_folder())
    assert tool.version().startswith(f"v{version}.")


def test_a_kubernetes_that_nobody_pins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_TEST_KUBERNETES", "1.2")
    with pytest.raises(HarnessError, match=r"names 1\.2; there are 1\.37, 1\.34"):
        binaries._kubernetes_folder()


def test_a_changed_pin_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "TOOLS", tmp_path)
    folder = tmp_path / "etcd"
    folder.mkdir()
    (folder / "go.mod").write_text("require go.etcd.io/etcd/server/v3 v3.6.1\n")
    before = binaries._key(binaries.ETCD, ())
    (folder / "go.mod").write_text("require go.etcd.io/etcd/server/v3 v3.6.2\n")
    assert binaries._key(binaries.ETCD, ()) != before
    assert binaries.ETCD.version() == "v3.6.2"


def test_clusters_side_by_side_share_no_address_and_no_name() -> None:
    one, two = (Layout(index=index, state=Path(f"/k{index}")) for index in (0, 1))
    names = ("host_ip", "node_ip", "pod_cidr", "service_cidr", "dns_service_ip", "cgroup", "host_link")
    assert all(getattr(one, name) != getattr(two, name) for name in names)


@pytest.mark.parametrize(
    ("index", "state", "sentence"),
    [
        pytest.param(64, "/k64", "give 0 to 63", id="an index beyond the networks"),
        pytest.param(0, "/" + "long" * 20, "too long for unix sockets", id="a path too long for sockets"),
        pytest.param(0, "/var/lib/k0", "hidden inside the cluster", id="a folder that the cluster hides"),
    ],
)
def test_refuses_a_layout_that_cannot_work(index: int, state: str, sentence: str) -> None:
    with pytest.raises(HarnessError, match=sentence):
        Layout(index=index, state=Path(state))


def test_installing_keeps_services_from_starting_and_restores_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("the machine's own")
    policy.chmod(0o700)
    monkeypatch.setattr(prerequisites, "_POLICY", policy)
    with prerequisites._nothing_starts():
        assert "exit 101" in policy.read_text()
    assert policy.read_text() == "the machine's own"
    assert policy.stat().st_mode & 0o777 == 0o700
    policy.unlink()
    with prerequisites._nothing_starts():
        assert policy.exists()
    assert not policy.exists()


def test_a_machine_without_apt_says_what_is_missing_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    tool = SystemTool(program="no-such-program", package="none", purpose="showing the reason")
    with pytest.raises(UnavailableError, match=r"no-such-program \(showing the reason\)"):
        prerequisites.ensure_tools([tool])


def test_a_kubeconfig_in_the_environment_is_used_and_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_TEST_KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert session.existing_kubeconfig() is None
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(HarnessError, match="missing"):
        session.existing_kubeconfig()
    (tmp_path / "config").touch()
    monkeypatch.setenv("TIDEMILL_TEST_KUBECONFIG", str(tmp_path / "config"))
    assert session.existing_kubeconfig() == tmp_path / "config"


def test_without_a_cluster_tests_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_REQUIRE_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        session.refuse("it needs root")


def test_where_a_cluster_is_required_its_lack_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        session.refuse("it needs root")


def test_a_plain_user_is_told_that_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="needs root"):
        prerequisites.require_linux_root()


def test_another_system_is_told_that_linux_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(UnavailableError, match="needs Linux, this is Darwin"):
        prerequisites.require_linux_root()


def test_go_keeps_its_caches_in_our_folder_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path))
    monkeypatch.delenv("GOCACHE", raising=False)
    monkeypatch.setenv("GOMODCACHE", "/elsewhere")
    environment = binaries.go_environment()
    assert environment["GOCACHE"] == str(tmp_path / "go" / "build")
    assert environment["GOMODCACHE"] == "/elsewhere"


def test_an_owner_is_gone_once_nobody_holds_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        owner = Owner(str(lock))
        assert not owner.is_gone()
    assert owner.is_gone()
    assert not Owner(None).is_gone(), "what nobody owns runs until it is taken down"


def test_tests_that_are_told_to_end_take_down_what_they_have_started(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import os, signal, pytest
@pytest.fixture
def started():
    yield
    print("taken down")
def test_it(started):
    os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    command = (sys.executable, "-m", "pytest", "-s", "-p", "conftest", "--rootdir", tmp_path, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=conftest.parent
    )
    assert "taken down" in ended.stdout
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
