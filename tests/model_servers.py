"""Stand-ins for a model hub, S3 and Cloud Storage: they speak the protocols and fail as told.

No code of the downloader is used here, so that both sides must agree on the protocol and not on each other.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from aiohttp import web

COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one request instead of the answer; `cut_after`: so many bytes, then the end."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    cut_after: int | None = None
    body: bytes | None = None
    hangs: bool = False


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FAULT: web.RequestKey[Fault | None] = web.RequestKey("fault", object)  # type: ignore[arg-type]


class StandIn:
    """Files by name; faults by path, one per request, first things first."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[web.BaseRequest] = []
        self.ignores_ranges = False
        self.hanging = asyncio.Event()
        self.released = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{tail:.*}", self._guarded(self.answer))
        app.router.add_post("/{tail:.*}", self._guarded(self.answer))
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def ranges(self) -> list[str]:
        return [r.headers["Range"] for r in self.requests if "Range" in r.headers]

    async def send(self, request: web.Request, body: bytes, fault: Fault | None = None) -> web.StreamResponse:
        """Send a file, or the range of it that is asked for."""
        start, status, headers = 0, 200, {"Content-Type": "application/octet-stream"}
        asked = request.headers.get("Range")
        if asked is not None and not self.ignores_ranges:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(body):
                return web.Response(status=416)
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(body) - 1}/{len(body)}"
        rest = body[start:]
        if fault is None or fault.cut_after is None:
            return web.Response(status=status, headers=headers, body=rest)
        response = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(rest))})
        await response.prepare(request)
        await response.write(rest[: fault.cut_after])
        assert request.transport is not None
        request.transport.close()
        return response

    def _guarded(self, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.requests.append(request)
            waiting = self.faults[request.path]
            fault = waiting.pop(0) if waiting else None
            if fault is not None and fault.status is not None:
                return web.Response(status=fault.status, headers=fault.headers, text=fault.text)
            if fault is not None and fault.hangs:
                self.hanging.set()
                await self.released.wait()
            request[FAULT] = fault
            return await handler(request)

        return handle


class HubStandIn(StandIn):
    """One repository, org/model, whose branch main is at one commit; weights are in LFS."""

    token: str | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Access to this repository is restricted.")
        if request.path in {f"/api/models/org/model/revision/{r}" for r in ("main", COMMIT)}:
            return web.json_response({"id": "org/model", "sha": COMMIT, "siblings": self._siblings()})
        prefix = f"/org/model/resolve/{COMMIT}/"
        name = request.path.removeprefix(prefix)
        if not request.path.startswith(prefix) or name not in self.files:
            return web.Response(status=404, text="Entry not found")
        fault: Fault | None = request[FAULT]
        body = self.files[name] if fault is None or fault.body is None else fault.body
        return await self.send(request, body, fault)

    def _siblings(self) -> list[dict[str, object]]:
        return [self._sibling(name, body) for name, body in self.files.items()]

    def _sibling(self, name: str, body: bytes) -> dict[str, object]:
        blob = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
        sibling: dict[str, object] = {"rfilename": name, "size": len(body), "blobId": blob}
        if name.endswith((".safetensors", ".gguf", ".bin")):
            sibling["lfs"] = {
                "sha256": hashlib.sha256(body).hexdigest(),
                "size": len(body),
                "pointerSize": 134,
            }
        return sibling


class S3StandIn(StandIn):
    """One bucket, `models`, of which two keys make a page; checks signatures as AWS documents them."""

    key_id, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self._is_signed(request):
            return web.Response(status=403, text="<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if request.query.get("list-type") == "2":
            return self._list(request)
        key = request.path.removeprefix("/models/")
        if key not in self.files:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        body = self.files[key]
        if request.headers.get("If-Match") not in {None, self._etag(body)}:
            return web.Response(status=412)
        return await self.send(request, body, request[FAULT])

    def _list(self, request: web.Request) -> web.Response:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter")
        keys = [k for k in sorted(self.files) if k.startswith(prefix)]
        if delimiter:
            keys = [k for k in keys if delimiter not in k.removeprefix(prefix)]
        start = int(request.query.get("continuation-token", "0"))
        page, rest = keys[start : start + 2], keys[start + 2 :]
        contents = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.files[k])}</Size>"
            f"<ETag>{escape(self._etag(self.files[k]))}</ETag></Contents>"
            for k in page
        )
        more = f"<NextContinuationToken>{start + 2}</NextContinuationToken>" if rest else ""
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}{contents}</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")

    def _etag(self, body: bytes) -> str:
        return f'"{hashlib.md5(body).hexdigest()}-2"'

    def _is_signed(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        fields = dict(
            part.strip().split("=", 1) for part in given.removeprefix("AWS4-HMAC-SHA256 ").split(",") if part
        )
        if set(fields) != {"Credential", "SignedHeaders", "Signature"}:
            return False
        key_id, *scope = fields["Credential"].split("/")
        query = "&".join(
            f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}"
            for k, v in sorted(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True))
        )
        headers = "".join(f"{n}:{request.headers[n].strip()}\n" for n in fields["SignedHeaders"].split(";"))
        canonical = "\n".join(
            ["GET", request.rel_url.raw_path, query, headers, fields["SignedHeaders"],
             request.headers["x-amz-content-sha256"]]
        )  # fmt: skip
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", request.headers["x-amz-date"], "/".join(scope), digest])
        key = f"AWS4{self.secret}".encode()
        for part in scope:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        wanted = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return key_id == self.key_id and hmac.compare_digest(wanted, fields["Signature"])


class GcsStandIn(StandIn):
    """One bucket, `models`; hands out a token for an assertion and wants it with every request."""

    token: str | None = None

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.assertions: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            form = await request.post()
            self.assertions.append(str(form["assertion"]))
            return web.json_response({"access_token": self.token, "expires_in": 3600})
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": {"code": 401, "message": "Invalid Credentials"}}, status=401)
        base = "/storage/v1/b/models/o"
        if request.path == base:
            return self._list(request)
        name = request.path.removeprefix(f"{base}/")
        if name not in self.files:
            return web.json_response({"error": {"code": 404, "message": "No such object"}}, status=404)
        assert request.query["alt"] == "media"
        assert request.query["generation"] == self._generation(name)
        return await self.send(request, self.files[name], request[FAULT])

    def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        names = [n for n in sorted(self.files) if n.startswith(prefix)]
        start = int(request.query.get("pageToken", "0"))
        items = [
            {
                "name": n,
                "size": str(len(self.files[n])),
                "generation": self._generation(n),
                "md5Hash": base64.b64encode(hashlib.md5(self.files[n]).digest()).decode(),
            }
            for n in names[start : start + 2]
        ]
        more = {"nextPageToken": str(start + 2)} if names[start + 2 :] else {}
        return web.Response(text=json.dumps({"items": items, **more}), content_type="application/json")

    def _generation(self, name: str) -> str:
        return str(int.from_bytes(hashlib.md5(self.files[name]).digest()[:6], "big"))
