"""How a request travels to a replica and its answer back.

Knows HTTP: headers, bodies, streams, what may be tried again and until when. Refuses to know how a service
was found and how replicas are discovered. A chunk is written to the client as it comes; when the client
leaves, the handler is cancelled and with it the replica's request. Another replica is tried only before the
first byte has reached the client, and only when the first one did not take the request: it could not be
connected to, or it said by 503 and `x-tidemill-draining` that it is leaving.

Connections to replicas are kept for two seconds, less than any server keeps them: one that is used again has
not been closed by the other side in the same moment, which would leave open whether work had begun.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from tidemill_gateway import errors
from tidemill_gateway.ask import Ask
from tidemill_gateway.headers import request_headers
from tidemill_gateway.ledger import Ledger
from tidemill_gateway.load_report import LOAD_HEADER, parse_load
from tidemill_gateway.meter import Meter
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Pod, Service
from tidemill_gateway.observe import Record
from tidemill_gateway.reply import EVENT_STREAM, Reply
from tidemill_gateway.selector import Selector, Wanted
from tidemill_gateway.waiting_room import Visit, WaitingRoom

logger = logging.getLogger(__name__)

DRAINING_HEADER = "x-tidemill-draining"
KEEP_SECONDS = 2.0
FAULTY = frozenset({500, 502, 503})
SET_BY_CLIENT_LIBRARY = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxyConfig:
    """The proxy's bounds."""

    connect_timeout_seconds: float = 3.0
    idle_timeout_seconds: float = 600.0
    write_timeout_seconds: float = 60.0
    max_attempts: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request that is ready to be sent: everything that a second attempt needs.

    With a `visit` it may wait for another replica when none takes it.
    """

    service: Service
    path: str
    query: str
    body: bytes | None
    record: Record
    ask: Ask = field(default_factory=Ask)
    visit: Visit | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def wanted(self) -> Wanted:
        """Give what the request wants of its replica."""
        return Wanted(service=self.service, ask=self.ask, name=self.record.request_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class NotTaken:
    """A replica that did not take the request, so that another one may."""

    reason: str
    is_draining: bool


class Proxy:
    """Sends requests to replicas and relays what they answer."""

    def __init__(
        self,
        *,
        config: ProxyConfig,
        session: aiohttp.ClientSession,
        ledger: Ledger,
        selector: Selector,
        waiting: WaitingRoom,
        metrics: GatewayMetrics,
    ) -> None:
        self._config = config
        self._session = session
        self._ledger = ledger
        self._selector = selector
        self._waiting = waiting
        self._metrics = metrics

    async def forward(self, request: web.Request, call: Call, reply: Reply) -> web.StreamResponse:
        """Relay one request; raise GatewayError when no replica takes it.

        When every replica has refused, the request waits for another one, as long as one without replicas
        would have waited.
        """
        tried: dict[str, NotTaken] = {}
        seconds = self._waiting.hold_seconds(call.service) if call.visit is not None else 0.0
        while True:
            answered = await self._try_replicas(request, call, reply, tried)
            if answered is not None:
                return answered
            if call.visit is None or len(tried) >= self._config.max_attempts:
                break
            if not await self._waiting.another_replica(call.visit, tried, seconds):
                break
        raise _nobody_took_it(call.service, self._selector.replicas(call.service), tried)

    async def _try_replicas(
        self, request: web.Request, call: Call, reply: Reply, tried: dict[str, NotTaken]
    ) -> web.StreamResponse | None:
        wanted = call.wanted()
        while len(tried) < self._config.max_attempts:
            pod = self._selector.choose(wanted, tried)
            if pod is None:
                break
            call.record.replica = pod.name
            with self._ledger.hold(pod.uid, call.ask.num_prompt_tokens):
                outcome = await self._attempt(request, call, pod, reply)
            if isinstance(outcome, web.StreamResponse):
                return outcome
            tried[pod.uid] = outcome
            self._note_not_taken(pod, outcome, call.service, call.record)
        return None

    def _note_not_taken(self, pod: Pod, outcome: NotTaken, service: Service, record: Record) -> None:
        self._ledger.suspect(pod.uid)
        record.retries += 1
        reason = "draining" if outcome.is_draining else "unreachable"
        self._metrics.decisions.upstream_retries.labels(service.namespace, service.name, reason).inc()
        logger.info(
            "request %s: trying another replica than %s: %s", record.request_id, pod.name, outcome.reason
        )

    async def _attempt(
        self, request: web.Request, call: Call, pod: Pod, reply: Reply
    ) -> web.StreamResponse | NotTaken:
        record, began = call.record, self._ledger.now
        url = URL.build(
            scheme="http",
            host=pod.address,
            port=pod.port,
            path=call.path,
            query_string=call.query,
            encoded=True,
        )
        try:
            upstream = await self._session.request(
                request.method,
                url,
                headers=request_headers(request, record.request_id, call.headers),
                data=call.body,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NotTaken(reason=str(error) or type(error).__name__, is_draining=False)
        except TimeoutError as error:
            self._ledger.suspect(pod.uid)
            raise errors.upstream_timeout(self._config.idle_timeout_seconds) from error
        except (aiohttp.ClientError, OSError) as error:
            self._ledger.suspect(pod.uid)
            logger.warning("request %s: replica %s broke off: %r", record.request_id, pod.name, error)
            raise errors.bad_upstream("The replica broke off before it answered.") from error
        async with upstream:
            report = parse_load(upstream.headers.get(LOAD_HEADER))
            if report is not None:
                self._ledger.report(pod.uid, report)
            if upstream.status == 503 and DRAINING_HEADER in upstream.headers:
                return NotTaken(reason="it is draining", is_draining=True)
            if upstream.status in FAULTY:
                # It answers faster than those that work, so the fewest in flight would always be here.
                self._ledger.suspect(pod.uid)
            else:
                self._selector.note_taken(call.service, call.ask, pod)
            return await self._relay(upstream, pod, record, reply, began)

    async def _relay(
        self, upstream: aiohttp.ClientResponse, pod: Pod, record: Record, reply: Reply, began: float
    ) -> web.StreamResponse:
        try:
            if reply.must_become_event(upstream):
                return await reply.end_with_event_of(upstream)
            chunk = await upstream.content.readany()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            self._ledger.suspect(pod.uid)
            logger.warning("request %s: replica %s broke off: %r", record.request_id, pod.name, error)
            raise errors.bad_upstream("The replica broke off before it answered.") from error
        response = await reply.relay_head(upstream)
        meter = Meter(is_events=response.content_type == EVENT_STREAM)
        while chunk:
            record.mark_first_byte()
            record.count_output(meter.feed(chunk))
            if not await reply.write(response, chunk):
                return response
            at_event_end = chunk.endswith(b"\n\n")
            try:
                chunk = await upstream.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                self._ledger.suspect(pod.uid)
                logger.warning(
                    "request %s: replica %s broke off in mid-response: %r",
                    record.request_id,
                    pod.name,
                    error,
                )
                await reply.cut(tell_client=at_event_end)
                return response
        if upstream.status not in FAULTY:
            self._ledger.trust(pod.uid, began)
        record.settle_output(meter.num_tokens)
        await reply.write(response, None)
        return response


def make_session(config: ProxyConfig) -> aiohttp.ClientSession:
    """Make the client session that reaches replicas: direct, without cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_seconds, sock_read=config.idle_timeout_seconds
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=SET_BY_CLIENT_LIBRARY,
        trust_env=False,
    )


def _nobody_took_it(
    service: Service, replicas: tuple[Pod, ...], tried: dict[str, NotTaken]
) -> errors.GatewayError:
    title = f"InferenceService {service.namespace}/{service.name}"
    if any(not outcome.is_draining for outcome in tried.values()):
        return errors.bad_upstream(f"{title}: no replica could be reached ({len(tried)} tried).")
    if tried:
        return errors.unavailable(
            f"{title}: every ready replica is draining; try again soon.", "no_ready_replica"
        )
    return errors.no_ready_replica(service, replicas)
