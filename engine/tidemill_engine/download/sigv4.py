"""AWS Signature Version 4 of a GET without a body, as S3 wants it. Pure: credentials, time in; headers out.

Source: "Create a signed AWS API request" in AWS' IAM user guide.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from yarl import URL

_ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """An access key, and a session token where the key is a temporary one."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def sign_get(url: URL, region: str, credentials: Credentials, now: datetime) -> dict[str, str]:
    """Return the headers that sign a GET of a URL at a time in UTC."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    headers = {"host": _host(url), "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": stamp}
    if credentials.session_token is not None:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}\n" for name in sorted(headers)]
    query = "&".join(f"{_encode(k)}={_encode(v)}" for k, v in sorted(url.query.items()))
    canonical = "\n".join(["GET", url.raw_path, query, "".join(lines), names, EMPTY_SHA256])
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    who = f"Credential={credentials.access_key_id}/{scope}"
    authorization = f"{_ALGORITHM} {who}, SignedHeaders={names}, Signature={signature}"
    sent = {name: value for name, value in headers.items() if name != "host"}
    return {**sent, "Authorization": authorization}


def _host(url: URL) -> str:
    host = url.raw_host or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")
