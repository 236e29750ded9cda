"""Whole downloads from stand-ins that speak the services' protocols and fail as told."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from download_runs import FILES, LIST, PATH, TAKEN, WEIGHTS, Run, Serve, contents, failure_of
from model_servers import COMMIT, Fault, HubStandIn
from tidemill_engine.download import fetch
from tidemill_engine.download.errors import Failure


@pytest.fixture
def hub() -> HubStandIn:
    return HubStandIn(dict(FILES))


@pytest.fixture
async def run(tmp_path: Path, serve: Serve, hub: HubStandIn) -> Run:
    return Run(tmp_path, await serve(hub))


async def test_brings_what_the_engine_reads_and_no_pickle(run: Run, hub: HubStandIn) -> None:
    model = await run()
    assert contents(model) == {name: FILES[name] for name in TAKEN}
    assert (run.folder / "link" / "current").resolve() == model.resolve()
    assert model.name == COMMIT
    total = sum(len(FILES[name]) for name in TAKEN)
    assert run.progress.as_json() == {
        "phase": "downloaded",
        "version": COMMIT,
        "loaded_bytes": total,
        "total_bytes": total,
    }
    assert not any("pytorch_model" in path for path in hub.paths())


async def test_a_second_pod_asks_for_the_list_alone(run: Run, hub: HubStandIn) -> None:
    first = await run()
    hub.requests.clear()
    assert await run() == first
    assert hub.paths() == [LIST]


async def test_a_pinned_commit_starts_from_the_cache_without_the_hub(run: Run, hub: HubStandIn) -> None:
    run.revision = COMMIT
    first = await run()
    hub.requests.clear()
    assert await run() == first
    assert hub.requests == []
    assert run.progress.loaded_bytes == run.progress.total_bytes > 0


async def test_a_cut_connection_is_resumed_where_it_ended(run: Run, hub: HubStandIn) -> None:
    hub.faults[PATH] = [Fault(cut_after=300_000), Fault(cut_after=200_000)]
    assert contents(await run())["model.safetensors"] == WEIGHTS
    assert hub.ranges() == ["bytes=300000-", "bytes=500000-"]
    assert run.waits == [1.0, 1.0]


async def test_a_server_without_ranges_sends_everything_again(run: Run, hub: HubStandIn) -> None:
    hub.ignores_ranges = True
    hub.faults[PATH] = [Fault(cut_after=300_000)]
    assert contents(await run())["model.safetensors"] == WEIGHTS
    assert run.progress.loaded_bytes == run.progress.total_bytes


async def test_a_run_that_was_killed_is_gone_on_with(run: Run, hub: HubStandIn) -> None:
    hub.faults[PATH] = [Fault(cut_after=400_000), *[Fault(status=503)] * 9]
    assert (await failure_of(run)).failure is Failure.FAILED
    hub.faults.clear()
    hub.requests.clear()
    assert contents(await run())["model.safetensors"] == WEIGHTS
    assert hub.ranges() == ["bytes=400000-"]
    assert hub.paths().count(f"/org/model/resolve/{COMMIT}/config.json") == 0


async def test_bytes_that_were_damaged_on_the_way_are_refused_and_fetched_anew(
    run: Run, hub: HubStandIn
) -> None:
    hub.faults[PATH] = [Fault(body=b"x" * len(WEIGHTS))]
    failed = await failure_of(run)
    assert failed.failure is Failure.CORRUPT
    assert "sha256" in failed.message
    assert contents(await run())["model.safetensors"] == WEIGHTS


async def test_a_file_longer_than_listed_is_refused(run: Run, hub: HubStandIn) -> None:
    hub.faults[PATH] = [Fault(body=WEIGHTS + b"more")]
    assert (await failure_of(run)).failure is Failure.CORRUPT


async def test_a_file_shorter_than_listed_is_asked_for_again_and_then_refused(
    run: Run, hub: HubStandIn
) -> None:
    hub.faults[PATH] = [Fault(body=WEIGHTS[:-5]) for _ in range(9)]
    assert (await failure_of(run)).failure is Failure.FAILED


async def test_a_busy_server_is_given_the_time_it_asks_for(run: Run, hub: HubStandIn) -> None:
    hub.faults[LIST] = [Fault(status=429, headers={"Retry-After": "7"}), Fault(status=500)]
    hub.faults[PATH] = [Fault(status=502)]
    await run()
    assert sorted(run.waits) == [1.0, 2.0, 7.0]


async def test_a_server_that_stays_broken_ends_it(run: Run, hub: HubStandIn) -> None:
    hub.faults[LIST] = [Fault(status=500, text="boom")] * 9
    failed = await failure_of(run)
    assert failed.failure is Failure.FAILED
    assert "500" in failed.message
    assert len(hub.requests) == 4


@pytest.mark.parametrize("status", [401, 403])
async def test_what_is_forbidden_is_not_tried_twice(run: Run, hub: HubStandIn, status: int) -> None:
    hub.faults[LIST] = [Fault(status=status, text="gated")]
    failed = await failure_of(run)
    assert failed.failure is Failure.UNAUTHORIZED
    assert "secretRef" in failed.message
    assert run.waits == []


async def test_a_token_opens_a_private_repository_and_is_in_no_message(run: Run, hub: HubStandIn) -> None:
    hub.token = "hf_secret"
    run.secrets = {"token": "hf_wrong"}
    failed = await failure_of(run)
    assert failed.failure is Failure.UNAUTHORIZED
    assert "hf_wrong" not in failed.message
    run.secrets = {"token": "hf_secret"}
    await run()


async def test_a_model_that_is_not_there_is_told(run: Run) -> None:
    run.uri = "hf://org/other"
    failed = await failure_of(run)
    assert failed.failure is Failure.NOT_FOUND
    assert "hf://org/other" in failed.message


async def test_a_redirect_to_another_host_carries_no_token(run: Run, hub: HubStandIn, serve: Serve) -> None:
    hub.token = "hf_secret"
    run.secrets = {"token": "hf_secret"}
    elsewhere = HubStandIn(dict(FILES))
    other = await serve(elsewhere)
    place = str(other.with_path(PATH).with_query({"X-Signature": "s"}))
    hub.faults[PATH] = [Fault(status=302, headers={"Location": place})]
    assert contents(await run())["model.safetensors"] == WEIGHTS
    assert [r.headers.get("Authorization") for r in elsewhere.requests] == [None]


async def test_a_signed_url_arrives_character_by_character(run: Run, hub: HubStandIn, serve: Serve) -> None:
    elsewhere = HubStandIn(dict(FILES))
    other = await serve(elsewhere)
    signed = "X-Amz-Signature=a%2Fb%7Ec%20d&X-Amz-Credential=k%2F2026"
    hub.faults[PATH] = [Fault(status=307, headers={"Location": f"{other.with_path(PATH)}?{signed}"})]
    await run()
    assert [r.raw_path.partition("?")[2] for r in elsewhere.requests] == [signed]


async def test_what_is_left_of_a_version_that_moved_on_is_removed(run: Run) -> None:
    model = await run()
    stale = model.parent / "other.partial"
    stale.mkdir()
    (stale / "model.safetensors.part").write_bytes(b"half")
    model.rename(model.parent / "former")
    assert contents(await run())["model.safetensors"] == WEIGHTS
    assert not stale.exists()


@pytest.mark.parametrize(
    "place",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/latest/",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0/",
        "http://[::1]:1/",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "http://user:password@127.0.0.1/",
    ],
)
async def test_no_redirect_leads_to_a_forbidden_address(run: Run, hub: HubStandIn, place: str) -> None:
    hub.faults[PATH] = [Fault(status=302, headers={"Location": place})]
    assert (await failure_of(run)).failure is Failure.FORBIDDEN_ADDRESS
    assert run.waits == []


async def test_redirects_end_somewhere(run: Run, hub: HubStandIn) -> None:
    hub.faults[PATH] = [Fault(status=302, headers={"Location": PATH})] * 20
    failed = await failure_of(run)
    assert "redirects more than" in failed.message


async def test_a_full_disk_is_told_before_anything_is_fetched(
    run: Run, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    failed = await failure_of(run)
    assert failed.failure is Failure.DISK_FULL
    assert "spec.model.cache.size" in failed.message
    assert hub.paths() == [LIST]


async def test_a_disk_that_fills_up_midway_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def opened(path: Path, *args: Any, **keywords: Any) -> Any:
        if path.name == "model.safetensors.part":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **keywords)

    monkeypatch.setattr(Path, "open", opened)
    assert (await failure_of(run)).failure is Failure.DISK_FULL


async def test_a_server_that_says_nothing_is_given_up(run: Run, hub: HubStandIn) -> None:
    hub.faults[PATH] = [Fault(hangs=True)]
    run.timeout_seconds = 0.3
    failed = await failure_of(run)
    hub.released.set()
    assert failed.failure is Failure.TIMEOUT
    assert "spec.model.loadTimeout" in failed.message


async def test_two_pods_download_once(run: Run, hub: HubStandIn, serve: Serve) -> None:
    other = Run(run.folder, run.endpoint)
    first, second = await asyncio.gather(run(), other())
    assert first == second
    assert hub.paths().count(PATH) == 1


async def test_one_file_of_many_is_taken_when_named(tmp_path: Path, serve: Serve) -> None:
    hub = HubStandIn({"q4.gguf": b"four", "q8.gguf": b"eight", "config.json": b"{}"})
    run = Run(tmp_path, await serve(hub))
    failed = await failure_of(run)
    assert failed.failure is Failure.UNSUPPORTED
    assert "q4.gguf, q8.gguf" in failed.message
    run.uri = "hf://org/model/q8.gguf"
    model = await run()
    assert model.name == "q8.gguf"
    assert model.read_bytes() == b"eight"
    assert await run() == model


def test_patience_doubles_and_ends() -> None:
    patience = fetch.Patience()
    waits = [patience.seconds_before(attempt, None) for attempt in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert patience.seconds_before(1, 600.0) == 60
