"""What clients are told when a request fails: always OpenAI's error object.

Knows status codes, error types and codes. Refuses to know why the gateway decided so: the message is given.
"""

import json
from dataclasses import dataclass, field

from aiohttp import web

from tidemill_gateway.objects import Pod, Service
from tidemill_gateway.route import Refusal, RefusalKind

RETRY_AFTER_SECONDS = 5
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


@dataclass(kw_only=True, eq=False)
class GatewayError(Exception):
    """A request's end as the client is told; its message may quote the client, so no log has it below 500."""

    status: int
    message: str
    code: str
    type: str = INVALID_REQUEST
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


def error_object(error: GatewayError) -> dict[str, object]:
    """Write an error as OpenAI's error object."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: GatewayError) -> web.Response:
    """Write an error as a response."""
    return web.json_response(error_object(error), status=error.status, headers=error.headers)


def error_event(error: GatewayError) -> bytes:
    """Write an error as the last event of a stream that has already begun."""
    return f"data: {json.dumps(error_object(error))}\n\n".encode()


def from_refusal(refusal: Refusal) -> GatewayError:
    """Translate routing's refusal."""
    if refusal.kind is RefusalKind.WRONG_METHOD:
        headers = {"Allow": refusal.allow}
        return GatewayError(status=405, message=refusal.message, code="method_not_allowed", headers=headers)
    if refusal.kind is RefusalKind.MODEL_MISSING:
        return GatewayError(status=400, message=refusal.message, code="model_required", param="model")
    if refusal.kind is RefusalKind.AMBIGUOUS_HOST:
        return GatewayError(status=400, message=refusal.message, code="ambiguous_host")
    if refusal.kind is RefusalKind.UNKNOWN_MODEL:
        return GatewayError(status=404, message=refusal.message, code="model_not_found", param="model")
    if refusal.kind is RefusalKind.UNKNOWN_SERVICE:
        return GatewayError(status=404, message=refusal.message, code="service_not_found")
    return GatewayError(status=404, message=refusal.message, code="not_found")


def bad_json(reason: str) -> GatewayError:
    """Refuse a body that is not a JSON object."""
    return GatewayError(status=400, message=f"The body is not a JSON object: {reason}", code="invalid_json")


def body_too_large(max_bytes: int) -> GatewayError:
    """Refuse a body beyond the bound."""
    message = f"The body is larger than {max_bytes} bytes."
    return GatewayError(status=413, message=message, code="request_too_large")


def body_too_slow(seconds: float) -> GatewayError:
    """Give up on a client that does not send its body."""
    message = f"The body did not arrive within {seconds:g} s."
    return GatewayError(status=408, message=message, code="request_timeout", headers={"Connection": "close"})


def overloaded(max_in_flight: int) -> GatewayError:
    """Refuse a request because the gateway itself is full."""
    return GatewayError(
        status=429,
        message=f"This gateway already has {max_in_flight} requests in flight.",
        code="overloaded",
        type="rate_limit_error",
        headers={"Retry-After": "1"},
    )


def bodies_full() -> GatewayError:
    """Refuse a body because those of other requests take all the memory that they may."""
    return _try_later("This gateway already holds as many bytes of requests as it may.", "overloaded")


def unavailable(message: str, code: str) -> GatewayError:
    """Say that trying again later may help."""
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return GatewayError(status=503, message=message, code=code, type=SERVER_ERROR, headers=headers)


def no_ready_replica(
    service: Service, replicas: tuple[Pod, ...], waited_seconds: float = 0.0
) -> GatewayError:
    """Say that a service has no replica, and how long the request waited for one."""
    title = f"InferenceService {service.namespace}/{service.name}"
    state = f"{len(replicas)} exist, none of them ready" if replicas else "none exists"
    waited = f" after {waited_seconds:g} s" if waited_seconds else ""
    code = "activation_timeout" if service.waking is not None and waited_seconds else "no_ready_replica"
    return unavailable(f"{title} has no ready replica{waited} ({state}).", code)


def service_gone() -> GatewayError:
    """Say that the service was deleted while the request waited for it."""
    return GatewayError(
        status=404, message="The InferenceService was deleted meanwhile.", code="service_not_found"
    )


def closing() -> GatewayError:
    """Send a request to another gateway, because this one goes away."""
    error = unavailable("This gateway is going away; ask again.", "gateway_closing")
    error.headers = {"Retry-After": "1", "Connection": "close"}
    return error


def buffer_full(message: str) -> GatewayError:
    """Refuse a request because too many already wait."""
    return _try_later(message, "buffer_full")


def no_turn(seconds: float) -> GatewayError:
    """Refuse a request that waited too long for a turn at a busy service."""
    return _try_later(f"All replicas were busy for {seconds:g} s.", "overloaded")


def wrong_key() -> GatewayError:
    """Refuse a request without a key, or with one that is nobody's."""
    return GatewayError(
        status=401,
        message="The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def rate_limited(reason: str, retry_after_seconds: int) -> GatewayError:
    """Refuse a request because its tenant has reached a limit."""
    error = _try_later(f"The limit of {reason} is reached.", "rate_limit_exceeded")
    error.headers = {"Retry-After": str(retry_after_seconds)}
    return error


def _try_later(message: str, code: str) -> GatewayError:
    return GatewayError(
        status=429,
        message=message,
        code=code,
        type="rate_limit_error",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def bad_upstream(message: str) -> GatewayError:
    """Say that a replica could not be reached or broke off."""
    return GatewayError(status=502, message=message, code="upstream_error", type=SERVER_ERROR)


def upstream_timeout(seconds: float) -> GatewayError:
    """Say that a replica was silent for too long."""
    message = f"The replica sent nothing for {seconds:g} s."
    return GatewayError(status=504, message=message, code="upstream_timeout", type=SERVER_ERROR)


def internal(request_id: str) -> GatewayError:
    """Say that the gateway failed, and nothing of how."""
    message = f"The gateway failed on this request; its log has the reason under {request_id}."
    return GatewayError(status=500, message=message, code="internal_error", type=SERVER_ERROR)
