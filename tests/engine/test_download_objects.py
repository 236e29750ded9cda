"""Whole downloads from stand-ins of S3 and of Google Cloud Storage."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from download_runs import FILES, TAKEN, WEIGHTS, Run, Serve, contents, failure_of
from model_servers import Fault, GcsStandIn, S3StandIn
from tidemill_engine.download.errors import Failure
from tidemill_engine.download.sigv4 import Credentials


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
