from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tidemill_engine.runner import machine


def make_root(root: Path, files: dict[str, str]) -> Path:
    """Write a miniature of /proc and /sys."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_cgroup_v2_limits_count_at_every_level_and_the_least_wins(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/engine\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pods/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pods/engine/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/pods/memory.max": "max\n",
            "sys/fs/cgroup/pods/engine/memory.max": "1048576\n",
        },
    )
    assert machine.cpu_quota(root) == 1.5
    assert machine.memory_limit_bytes(root) == 1048576
    assert machine.num_threads(root) == 1


def test_a_container_that_sees_only_its_own_cgroup_reads_the_mount(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "4096\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
    )
    assert machine.memory_limit_bytes(root) == 4096
    assert machine.cpu_quota(root) == 0.5
    assert machine.num_threads(root) == 1


def test_cgroup_v1_is_read_where_its_controllers_are_mounted(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "8192\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.memory_limit_bytes(root) == 8192
    assert machine.cpu_quota(root) == 2.0


def test_without_limits_there_is_none_and_threads_follow_affinity(tmp_path: Path) -> None:
    root = make_root(tmp_path, {"proc/self/cgroup": "0::/\n"})
    assert machine.memory_limit_bytes(root) is None
    assert machine.cpu_quota(root) is None
    assert machine.num_threads(root) == len(os.sched_getaffinity(0))


def test_memory_figures_come_from_proc_in_bytes(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n",
            "proc/self/status": "Name: x\nRssAnon:\t 12 kB\n",
        },
    )
    assert machine.available_memory_bytes(root) == 2048 * 1024
    assert machine.used_memory_bytes(root) == 12 * 1024
    (root / "proc/meminfo").write_text("MemTotal: 9 kB\n")
    with pytest.raises(OSError, match="MemAvailable"):
        machine.available_memory_bytes(root)


def test_a_gpu_is_looked_for_where_its_driver_is(tmp_path: Path) -> None:
    assert not machine.has_gpu_driver(tmp_path)
    assert machine.has_gpu_driver(make_root(tmp_path, {"dev/nvidiactl": ""}))


@pytest.mark.parametrize(("shown", "is_shown"), [(None, True), ("0,1", True), ("", False), ("-1", False)])
def test_gpus_may_be_hidden_from_a_process(shown: str | None, *, is_shown: bool) -> None:
    assert machine.shows_gpus({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}) == is_shown


@pytest.mark.parametrize(("version", "is_for_gpus"), [("2.15.0+cu132", True), ("2.15.0+cpu", False)])
def test_a_torch_for_cpus_only_is_told_by_its_version(
    version: str, monkeypatch: pytest.MonkeyPatch, *, is_for_gpus: bool
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: version)
    assert machine.has_torch_for_gpus() == is_for_gpus


def test_without_torch_no_gpu_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert not machine.has_torch_for_gpus()


def test_this_machine_has_memory_and_threads() -> None:
    assert machine.available_memory_bytes() > 0
    assert machine.used_memory_bytes() > 0
    assert machine.num_threads() >= 1
