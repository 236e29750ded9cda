"""What each model URI means, and which are refused."""

from __future__ import annotations

import pytest

from tidemill_operator.errors import InvalidSpec
from tidemill_operator.model_source import (
    ClaimSource,
    DownloadSource,
    EngineSource,
    ImageSource,
    ModelSource,
    parse_source,
)

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("builtin://smollm2-135m", EngineSource(uri="builtin://smollm2-135m")),
        ("file:///models/a.gguf", EngineSource(uri="file:///models/a.gguf")),
        ("sim://demo?step_ms=5", EngineSource(uri="sim://demo?step_ms=5")),
        ("hf://org/model", DownloadSource(scheme="hf", uri="hf://org/model")),
        ("hf://org/model/q4/a.gguf", DownloadSource(scheme="hf", uri="hf://org/model/q4/a.gguf")),
        ("s3://bucket/a/b?region=eu-west-1", DownloadSource(scheme="s3", uri="s3://bucket/a/b?region=eu-west-1")),
        ("gs://my_bucket", DownloadSource(scheme="gs", uri="gs://my_bucket")),
        ("pvc://weights/llama/", ClaimSource(claim="weights", path="llama")),
        ("pvc://weights", ClaimSource(claim="weights", path="")),
        ("oci://localhost:5000/m:v1", ImageSource(reference="localhost:5000/m:v1", path="")),
        ("oci://r.example/o/m@" + DIGEST, ImageSource(reference="r.example/o/m@" + DIGEST, path="")),
        ("oci://r.example/o/m:1?path=/a/b/", ImageSource(reference="r.example/o/m:1", path="a/b")),
    ],
)  # fmt: skip
def test_reads_the_uri(uri: str, source: ModelSource) -> None:
    assert parse_source(uri) == source


@pytest.mark.parametrize(
    "uri",
    [
        "org/model",
        "ftp://a/b",
        "hf://",
        "hf://model",
        "hf://org/model?x=1",
        "hf://org/../x",
        "s3://B/x",
        "s3://bucket?endpoint=http://169.254.169.254",
        "gs://b",
        "pvc:///path",
        "pvc://weights/../../etc",
        "oci://model",
        "oci://registry/m:1?path=../x",
    ],
)
def test_refuses_what_leads_elsewhere(uri: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.model\.uri"):
        parse_source(uri)
