"""One request for work, from the client's key to the last byte: who asks, may it, where does it wait.

Knows the order of the steps. Refuses to know how each of them decides.
"""

from dataclasses import replace
from types import TracebackType

from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.ask import Ask, read_ask
from tidemill_gateway.body import ReadBody
from tidemill_gateway.caller import Caller, Denied, engine_headers, identify
from tidemill_gateway.fair_queue import Share
from tidemill_gateway.objects import Service
from tidemill_gateway.observe import RECORD, Record
from tidemill_gateway.parts import AROUND, CONFIG, DEMAND, LIMITS, METRICS, PROXY, STATE, WAITING
from tidemill_gateway.places import able
from tidemill_gateway.proxy import Call
from tidemill_gateway.reply import Reply
from tidemill_gateway.route import MODELS_PATH, Target, model_object
from tidemill_gateway.waiting_room import Visit

SESSION_HEADER = "X-Session-Id"
SESSION_COOKIE = "tidemill-session"
MAX_SESSION_CHARACTERS = 256
EXPECTED_TOKENS = 128


async def answer_target(
    request: web.Request, target: Target, body: ReadBody, record: Record
) -> web.StreamResponse:
    """Answer a request for a service: work, or a page."""
    record.namespace, record.service = target.service.namespace, target.service.name
    caller = identify_caller(request, target.service)
    record.tenant = caller.policy.name
    if request.method == "POST":
        return await _work(request, target, body, caller)
    return await _show_page(request, target, caller)


def identify_caller(request: web.Request, service: Service) -> Caller:
    """Find out who asks; raise GatewayError where a key is wanted and there is none that is right."""
    ring = request.app[STATE].world.key_ring(service)
    found = identify(service.routing, ring, request.headers.get("Authorization", ""))
    if found is Denied.NO_KEYS_YET:
        raise errors.unavailable("The service's API keys are not known here yet.", "keys_unavailable")
    if isinstance(found, Denied):
        raise errors.wrong_key()
    return found


async def _work(request: web.Request, target: Target, body: ReadBody, caller: Caller) -> web.StreamResponse:
    app, service, record = request.app, target.service, request[RECORD]
    ask = _ask_of(request, service, body, caller)
    reply = _make_reply(request, record, may_begin_early=ask.is_stream)
    cost = ask.num_prompt_tokens + EXPECTED_TOKENS
    visit = Visit(
        service=service,
        share=Share(tenant=caller.policy.name, weight=caller.policy.weight, cost=cost),
        num_prompt_tokens=ask.num_prompt_tokens,
        num_bytes=len(body.content),
        keep_alive=reply.keep_alive,
    )
    call = Call(
        service=service,
        path=target.path,
        query=request.rel_url.raw_query_string,
        body=body.content,
        record=record,
        ask=ask,
        visit=visit,
        headers=engine_headers(caller, service.routing, request.headers),
    )
    try:
        with _WithinLimits(app, service, caller, record):
            # What is refused at a limit is nothing that the service should grow, or stay awake, for.
            app[DEMAND].arrive(service.key, ask.num_prompt_tokens, app[AROUND].clocks.wall())
            async with app[WAITING].admitted(visit):
                with app[DEMAND].in_flight(service.key, ask.num_prompt_tokens) as flight:
                    record.flight = flight
                    return await app[PROXY].forward(request, call, reply)
    except errors.GatewayError as error:
        return await reply.fail(error)


class _WithinLimits:
    """Count a request against its tenant's limits until the block ends; raise GatewayError at a limit."""

    __slots__ = ("_app", "_caller", "_key", "_record", "_service")

    def __init__(self, app: web.Application, service: Service, caller: Caller, record: Record) -> None:
        self._app, self._service, self._caller, self._record = app, service, caller, record
        self._key = (service.uid, caller.policy.name)

    def __enter__(self) -> None:
        app = self._app
        now = app[AROUND].clocks.monotonic()
        limits, num_gateways = self._caller.policy.limits, app[STATE].world.num_gateways
        refused = app[LIMITS].enter(self._key, limits, now, num_gateways)
        if refused is not None:
            app[METRICS].decisions.limited.labels(self._service.namespace, self._service.name).inc()
            raise errors.rate_limited(refused.reason, refused.retry_after_seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        flight = self._record.flight
        self._app[LIMITS].leave(self._key, flight.num_tokens if flight is not None else 0)


async def _show_page(request: web.Request, target: Target, caller: Caller) -> web.StreamResponse:
    """Pass on what costs no tokens: it wakes nobody and waits for nobody."""
    app, service, record = request.app, target.service, request[RECORD]
    if target.path == MODELS_PATH and not able(app[STATE].world.replicas(service)):
        served = [model_object(name, service) for name in service.served_names]
        return web.json_response({"object": "list", "data": served})
    call = Call(
        service=service,
        path=target.path,
        query=request.rel_url.raw_query_string,
        body=None,
        record=record,
        headers=engine_headers(caller, service.routing, request.headers),
    )
    return await app[PROXY].forward(request, call, _make_reply(request, record, may_begin_early=False))


def _ask_of(request: web.Request, service: Service, body: ReadBody, caller: Caller) -> Ask:
    """Read what is asked for; a session named in a header or cookie goes before those in the body."""
    given = request.headers.get(SESSION_HEADER, "")
    if not given and "Cookie" in request.headers:
        given = request.cookies.get(SESSION_COOKIE, "")
    ask = read_ask(body.take_document(), salt=f"{service.uid}/{caller.policy.name}", session=given)
    if not ask.session:
        return ask
    return replace(ask, session=f"{caller.policy.name}/{ask.session[:MAX_SESSION_CHARACTERS]}")


def _make_reply(request: web.Request, record: Record, *, may_begin_early: bool) -> Reply:
    seconds = request.app[CONFIG].proxy.write_timeout_seconds
    return Reply(request, record, may_begin_early=may_begin_early, write_timeout_seconds=seconds)
