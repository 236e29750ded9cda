"""Requests to the engines' admin port: load, drain, and back into service.

Knows addresses, the bearer tokens and patience: many engines at once, none for long, so that one that hangs
does not hold up a run. Refuses to decide; tokens are never logged.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from tidemill_operator import metrics, names
from tidemill_operator.answer_body import read_body
from tidemill_operator.engine_load import EngineLoad, parse_load
from tidemill_operator.model_progress import ModelProgress, parse_progress
from tidemill_operator.observed import PodView

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 2.0
MAX_REQUESTS: Final = 32
MAX_ANSWER_BYTES: Final = 64 * 1024


class EngineAdmin:
    """A client of every engine's admin port."""

    def __init__(self, session: aiohttp.ClientSession, port: int = names.ENGINE_ADMIN_PORT) -> None:
        self._session = session
        self._port = port
        self._slots = asyncio.Semaphore(MAX_REQUESTS)

    async def read(self, pods: Sequence[PodView], tokens: Sequence[str]) -> dict[str, EngineLoad | None]:
        """Ask pods for their load, by UID; those that drain are told to drain again, in case they forgot."""
        loads = await asyncio.gather(*(self._read_one(pod, tokens) for pod in pods))
        return {pod.uid: load for pod, load in zip(pods, loads, strict=True)}

    async def read_progress(
        self, pods: Sequence[PodView], tokens: Sequence[str]
    ) -> dict[str, ModelProgress | None]:
        """Ask pods how far their model is, by UID."""
        answers = await asyncio.gather(*(self._request("GET", pod.ip, "/progress", tokens) for pod in pods))
        found = [None if answer is None else parse_progress(answer) for answer in answers]
        return {pod.uid: progress for pod, progress in zip(pods, found, strict=True)}

    async def drain(self, ip: str, tokens: Sequence[str]) -> bool:
        """Tell an engine to drain; say whether it has heard."""
        return await self._request("PUT", ip, "/drain", tokens) is not None

    async def take_back(self, ip: str, tokens: Sequence[str]) -> bool:
        """Tell an engine to serve again; say whether it does. Without an address none drains."""
        return not ip or await self._request("DELETE", ip, "/drain", tokens) is not None

    async def _read_one(self, pod: PodView, tokens: Sequence[str]) -> EngineLoad | None:
        method, path = ("PUT", "/drain") if pod.is_draining else ("GET", "/load")
        answer = await self._request(method, pod.ip, path, tokens)
        return None if answer is None else parse_load(answer)

    async def _request(self, method: str, ip: str, path: str, tokens: Sequence[str]) -> dict[str, Any] | None:
        """Give the answer as an object; None when there is none in time or it is a refusal.

        The first token is the one of now. An engine that does not know it yet is offered the next.
        """
        if not ip:
            return None
        host = f"[{ip}]" if ":" in ip else ip
        url = f"http://{host}:{self._port}{path}"
        reason = "there is no token yet"
        async with self._slots:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    for token in tokens:
                        status, body = await self._send(method, url, token)
                        if status == HTTPStatus.OK:
                            metrics.ENGINE_REQUESTS.labels(path, "answered").inc()
                            return _object(body)
                        reason = f"status {status}"
                        if status != HTTPStatus.UNAUTHORIZED:
                            break
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                reason = str(error) or type(error).__name__
        metrics.ENGINE_REQUESTS.labels(path, "failed").inc()
        logger.warning("%s %s: %s", method, url, reason)
        return None

    async def _send(self, method: str, url: str, token: str) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
            body = await read_body(response.content, MAX_ANSWER_BYTES)
        if body is None:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, body


def _object(body: bytes) -> dict[str, Any]:
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - as json raises
    return answer


def make_session() -> aiohttp.ClientSession:
    """Make a session that reaches pods directly and keeps no connection to a pod that may soon be gone."""
    connector = aiohttp.TCPConnector(limit=MAX_REQUESTS, force_close=True)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
