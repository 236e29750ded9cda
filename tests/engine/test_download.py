"""Whole downloads from stand-ins that speak the services' protocols and fail as told."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from model_servers import COMMIT, Fault, GcsStandIn, HubStandIn, S3StandIn, StandIn
from tidemill_engine.download import fetch
from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.fetch import Patience
from tidemill_engine.download.gcs import GcsService
from tidemill_engine.download.guard import AddressPolicy
from tidemill_engine.download.http import HttpClient
from tidemill_engine.download.hub import HubService
from tidemill_engine.download.progress import Progress
from tidemill_engine.download.run import Job, download
from tidemill_engine.download.s3 import S3Service
from tidemill_engine.download.sigv4 import Credentials
from tidemill_engine.download.source import GcsSource, HubSource, S3Source, parse_source

WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b'{"architectures": []}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"never",
    "original/model.safetensors": b"another format",
    "README.md": b"words",
}
TAKEN = {"config.json", "model.safetensors", "tokenizer.json"}
PATH = f"/org/model/resolve/{COMMIT}/model.safetensors"
LIST = "/api/models/org/model/revision/main"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
Serve = Callable[[StandIn], Awaitable[URL]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[TestServer] = []

    async def start(stand_in: StandIn) -> URL:
        server = TestServer(stand_in.app())
        await server.start_server()
        servers.append(server)
        return server.make_url("")

    yield start
    for server in servers:
        await server.close()


class Run:
    """Downloads from one stand-in, as often as asked."""

    def __init__(self, folder: Path, endpoint: URL, uri: str = "hf://org/model", **secrets: Any) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.uri = uri
        self.secrets = secrets
        self.progress = Progress()
        self.waits: list[float] = []
        self.revision: str | None = None
        self.timeout_seconds = 60.0
        self.silence_seconds = 30.0

    async def __call__(self) -> Path:
        self.progress = Progress()
        client = HttpClient(AddressPolicy(endpoint=self.endpoint), silence_seconds=self.silence_seconds)
        source = parse_source(self.uri, self.revision)
        try:
            job = Job(
                source=source,
                service=self._service(client, source),
                client=client,
                directory=self.folder / "models",
                link=self.folder / "link" / "current",
                timeout_seconds=self.timeout_seconds,
                patience=Patience(sleep=self._sleep, max_attempts=4),
            )
            return await download(job, self.progress)
        finally:
            await client.close()

    def _service(self, client: HttpClient, source: object) -> HubService | S3Service | GcsService:
        if isinstance(source, HubSource):
            return HubService(client, source, self.secrets.get("token"), self.endpoint)
        if isinstance(source, S3Source):
            return S3Service(client, source, self.secrets.get("credentials"), lambda: NOW, self.endpoint)
        assert isinstance(source, GcsSource)
        return GcsService(client, source, self.secrets.get("key"), lambda: NOW, self.endpoint)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def failure_of(run: Run) -> DownloadError:
    with pytest.raises(DownloadError) as failed:
        await run()
    return failed.value


def contents(model: Path) -> dict[str, bytes]:
    return {str(p.relative_to(model)): p.read_bytes() for p in model.rglob("*") if p.is_file()}


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


async def test_an_s3_folder_is_listed_in_pages_signed_and_resumed(tmp_path: Path, serve: Serve) -> None:
    s3 = S3StandIn(
        {f"llama 3/v1/{name}": body for name, body in FILES.items()} | {"llama 3/v10/x.gguf": b"x"}
    )
    credentials = Credentials(access_key_id=s3.key_id, secret_access_key=s3.secret)
    run = Run(tmp_path, await serve(s3), "s3://models/llama%203/v1?region=eu-west-1", credentials=credentials)
    s3.faults["/models/llama 3/v1/model.safetensors"] = [Fault(cut_after=300_000)]
    model = await run()
    assert contents(model) == {name: FILES[name] for name in TAKEN}
    assert s3.ranges() == ["bytes=300000-"]
    s3.requests.clear()
    assert await run() == model
    assert all(request.query.get("list-type") == "2" for request in s3.requests)


async def test_a_wrong_key_of_s3_is_told(tmp_path: Path, serve: Serve) -> None:
    s3 = S3StandIn({"m/a.gguf": b"x"})
    credentials = Credentials(access_key_id=s3.key_id, secret_access_key="wrong-secret")
    failed = await failure_of(Run(tmp_path, await serve(s3), "s3://models/m", credentials=credentials))
    assert failed.failure is Failure.UNAUTHORIZED
    assert "wrong-secret" not in failed.message


async def test_an_object_that_is_replaced_midway_is_not_mixed(tmp_path: Path, serve: Serve) -> None:
    s3 = S3StandIn({"m/a.gguf": WEIGHTS})
    credentials = Credentials(access_key_id=s3.key_id, secret_access_key=s3.secret)
    run = Run(tmp_path, await serve(s3), "s3://models/m/a.gguf", credentials=credentials)
    real = s3.send

    async def replaced(request: Any, body: bytes, fault: Fault | None = None) -> Any:
        answer = await real(request, body, fault)
        s3.files["m/a.gguf"] = b"n" * len(WEIGHTS)
        return answer

    s3.send = replaced  # type: ignore[method-assign]
    s3.faults["/models/m/a.gguf"] = [Fault(cut_after=300_000)]
    assert (await failure_of(run)).failure is Failure.CORRUPT
    assert contents(await run()) == {} or (await run()).read_bytes() == b"n" * len(WEIGHTS)


async def test_a_cloud_storage_folder_is_read_with_a_service_accounts_key(
    tmp_path: Path, serve: Serve
) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    token_uri = "http://169.254.169.254/token"
    key = json.dumps({"client_email": "reader@p.iam", "private_key": pem, "token_uri": token_uri})
    gcs = GcsStandIn({f"llama/{name}": body for name, body in FILES.items()})
    gcs.token = "ya29.t"
    run = Run(tmp_path, await serve(gcs), "gs://models/llama", key=key)
    gcs.faults["/storage/v1/b/models/o/llama/model.safetensors"] = [Fault(cut_after=300_000)]
    assert contents(await run()) == {name: FILES[name] for name in TAKEN}
    assert gcs.ranges() == ["bytes=300000-"]
    assert len(gcs.assertions) == 1
    signed, _, signature = gcs.assertions[0].rpartition(".")
    private.public_key().verify(
        base64.urlsafe_b64decode(signature + "=="), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    claims = json.loads(base64.urlsafe_b64decode(signed.partition(".")[2] + "=="))
    assert claims["iss"] == "reader@p.iam"
    assert claims["scope"].endswith("devstorage.read_only")


async def test_a_key_that_is_none_is_told_without_its_words(tmp_path: Path, serve: Serve) -> None:
    gcs = GcsStandIn({"m/a.gguf": b"x"})
    failed = await failure_of(Run(tmp_path, await serve(gcs), "gs://models/m", key="secret words"))
    assert failed.failure is Failure.UNAUTHORIZED
    assert "secret words" not in failed.message


async def test_nothing_below_a_prefix_is_told(tmp_path: Path, serve: Serve) -> None:
    gcs = GcsStandIn({"other/a.gguf": b"x"})
    assert (await failure_of(Run(tmp_path, await serve(gcs), "gs://models/m"))).failure is Failure.NOT_FOUND


def test_patience_doubles_and_ends() -> None:
    patience = fetch.Patience()
    waits = [patience.seconds_before(attempt, None) for attempt in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert patience.seconds_before(1, 600.0) == 60
