"""The command as a process: exit codes, the termination message, what it tells, and what it hides."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import BaseTestServer, TestServer

from free_ports import free_port
from model_servers import COMMIT, Fault, HubStandIn

PATH = f"/org/model/resolve/{COMMIT}/a.gguf"


class Command:
    """`tidemill-engine download` with a stand-in hub."""

    def __init__(self, folder: Path, hub: HubStandIn) -> None:
        self.folder = folder
        self.hub = hub
        self.port = free_port()
        (folder / "token").write_text("admin-token\n")

    async def start(self, server: BaseTestServer, uri: str = "hf://org/model") -> asyncio.subprocess.Process:
        words = [
            "download", uri,
            "--directory", str(self.folder / "models"),
            "--link", str(self.folder / "current"),
            "--endpoint", str(server.make_url("")),
            "--termination-log", str(self.folder / "log"),
            "--progress-port", str(self.port),
            "--progress-token-file", str(self.folder / "token"),
        ]  # fmt: skip
        environment = {**os.environ, "HF_TOKEN": "hf_secret"}
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemill_engine", *words, env=environment, stdout=pipe, stderr=pipe
        )

    async def progress(self, token: str = "admin-token") -> tuple[int, dict[str, object]]:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.port}/progress"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.mark.slow
async def test_tells_its_progress_to_whoever_has_the_token_and_ends_well(tmp_path: Path) -> None:
    hub = HubStandIn({"a.gguf": b"w" * 1000})
    hub.faults[PATH] = [Fault(hangs=True)]
    command = Command(tmp_path, hub)
    async with TestServer(hub.app()) as server:
        process = await command.start(server)
        await asyncio.wait_for(hub.hanging.wait(), timeout=60)
        assert await command.progress() == (
            200,
            {"phase": "downloading", "version": COMMIT, "loaded_bytes": 0, "total_bytes": 1000},
        )
        assert (await command.progress("wrong"))[0] == 401
        hub.released.set()
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "current").resolve().read_bytes() == b"w" * 1000
    assert not (tmp_path / "log").exists()
    assert b"hf_secret" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "fault", "exit_code", "reason"),
    [
        ("hf://org/other", None, 21, "DownloadNotFound"),
        ("hf://org/model", Fault(status=401, text="gated"), 20, "DownloadUnauthorized"),
        ("ftp://org/model", None, 2, "InvalidConfig"),
    ],
)
async def test_a_failure_has_its_exit_code_and_one_clear_message(
    tmp_path: Path, uri: str, fault: Fault | None, exit_code: int, reason: str
) -> None:
    hub = HubStandIn({"a.gguf": b"w"})
    if fault is not None:
        hub.faults["/api/models/org/model/revision/main"] = [fault]
    async with TestServer(hub.app()) as server:
        process = await Command(tmp_path, hub).start(server, uri=uri)
        _, errors = await process.communicate()
    assert process.returncode == exit_code
    said = json.loads((tmp_path / "log").read_text())
    assert said["reason"] == reason
    assert uri in said["message"]
    assert b"hf_secret" not in errors


@pytest.mark.slow
async def test_told_to_stop_it_stops_at_once_and_keeps_what_it_has(tmp_path: Path) -> None:
    hub = HubStandIn({"a.gguf": b"w" * 1000})
    hub.faults[PATH] = [Fault(hangs=True)]
    command = Command(tmp_path, hub)
    async with TestServer(hub.app()) as server:
        process = await command.start(server)
        await asyncio.wait_for(hub.hanging.wait(), timeout=60)
        process.terminate()
        await asyncio.wait_for(process.communicate(), timeout=20)
        hub.released.set()
    assert process.returncode == 143
    assert not (tmp_path / "current").exists()
