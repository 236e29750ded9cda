"""Signatures against AWS' own examples, in the S3 API reference under Authorization Header calculations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from yarl import URL

from tidemill_engine.download.sigv4 import Credentials, sign_get

KEY = Credentials(
    access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)
NOW = datetime(2013, 5, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signs_as_aws_does(query: str, signature: str) -> None:
    url = URL(f"https://examplebucket.s3.amazonaws.com/?{query}", encoded=True)
    headers = sign_get(url, "us-east-1", KEY, NOW)
    assert headers["Authorization"].endswith(f"Signature={signature}")
    assert headers["x-amz-date"] == "20130524T000000Z"


def test_a_temporary_key_is_signed_with_its_token() -> None:
    temporary = Credentials(access_key_id="A", secret_access_key="s", session_token="t")
    headers = sign_get(URL("https://s3.amazonaws.com/b"), "us-east-1", temporary, NOW)
    assert headers["x-amz-security-token"] == "t"
    assert "x-amz-security-token" in headers["Authorization"]


def test_secrets_are_not_shown() -> None:
    assert "wJalr" not in repr(KEY)
