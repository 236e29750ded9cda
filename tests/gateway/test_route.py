"""Routing as tables: who answers which path, host and model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.builders import parsed_service
from tidemill_gateway.route import (
    MAX_KNOWN_ADDRESSES,
    ModelList,
    Redirect,
    Refusal,
    RefusalKind,
    RouteRequest,
    Target,
    build_claims,
    models_in,
    needs_model,
    route,
    unknown_model,
)

CHAT = parsed_service("chat", "default", created="2026-01-01T00:00:00Z", host="chat.example.com")
OTHER_CHAT = parsed_service("chat", "team-b", created="2026-01-02T00:00:00Z", host="chat.example.com")
CODE = parsed_service("code", "team-b", created="2026-01-03T00:00:00Z", served=["coder", "org/coder"])
MODELS = parsed_service("models", "v1", created="2026-01-04T00:00:00Z", served=["m"])
CLAIMS = build_claims([CHAT, OTHER_CHAT, CODE, MODELS])
COMPLETIONS = "/v1/chat/completions"


def ask(method: str, path: str, host: str = "gateway:8080", model: str | None = None) -> RouteRequest:
    return RouteRequest(method=method, path=path, host=host, model=model)


@pytest.mark.parametrize(
    ("request_", "service", "path"),
    [
        # by path
        (ask("POST", f"/default/chat{COMPLETIONS}", model="chat"), CHAT, COMPLETIONS),
        (ask("POST", f"/team-b/chat{COMPLETIONS}", model="chat"), OTHER_CHAT, COMPLETIONS),
        (ask("POST", f"/team-b/code{COMPLETIONS}", model="org/coder"), CODE, COMPLETIONS),
        (ask("POST", f"/team-b/code{COMPLETIONS}", model=None), CODE, COMPLETIONS),
        (ask("GET", "/team-b/code/v1/models"), CODE, "/v1/models"),
        (ask("GET", "/team-b/code/"), CODE, "/"),
        (ask("POST", f"/v1/models{COMPLETIONS}", model="m"), MODELS, COMPLETIONS),
        # the path goes before the host
        (ask("POST", f"/team-b/code{COMPLETIONS}", host="chat.default", model="coder"), CODE, COMPLETIONS),
        # by host
        (ask("POST", COMPLETIONS, host="chat.team-b", model="chat"), OTHER_CHAT, COMPLETIONS),
        (ask("POST", COMPLETIONS, host="chat.team-b:80", model="chat"), OTHER_CHAT, COMPLETIONS),
        (ask("POST", COMPLETIONS, host="Chat.Team-B.svc", model="chat"), OTHER_CHAT, COMPLETIONS),
        (
            ask("POST", COMPLETIONS, host="chat.team-b.svc.cluster.local.", model="chat"),
            OTHER_CHAT,
            COMPLETIONS,
        ),
        (ask("GET", "/", host="code.team-b"), CODE, "/"),
        (ask("GET", "/v1/models", host="code.team-b"), CODE, "/v1/models"),
        # an ingress host wanted by two services belongs to the older
        (ask("POST", COMPLETIONS, host="chat.example.com", model="chat"), CHAT, COMPLETIONS),
        # by model, for hosts that mean no service
        (ask("POST", COMPLETIONS, model="chat"), CHAT, COMPLETIONS),
        (ask("POST", COMPLETIONS, model="coder"), CODE, COMPLETIONS),
        (ask("POST", COMPLETIONS, host="[::1]:8080", model="coder"), CODE, COMPLETIONS),
        (ask("POST", COMPLETIONS, host="chat.team-b.example.com", model="coder"), CODE, COMPLETIONS),
        (ask("POST", COMPLETIONS, host="code", model="coder"), CODE, COMPLETIONS),
    ],
)
def test_a_request_goes_to_its_service(request_: RouteRequest, service: object, path: str) -> None:
    assert route(request_, CLAIMS) == Target(service=service, path=path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (ask("POST", COMPLETIONS, model="nope"), RefusalKind.UNKNOWN_MODEL),
        (ask("POST", f"/default/chat{COMPLETIONS}", model="coder"), RefusalKind.UNKNOWN_MODEL),
        (ask("POST", COMPLETIONS, host="chat.default", model="coder"), RefusalKind.UNKNOWN_MODEL),
        (ask("POST", COMPLETIONS), RefusalKind.MODEL_MISSING),
        # a bare name that two namespaces have, and one that means another service than the model does
        (ask("POST", COMPLETIONS, host="chat", model="chat"), RefusalKind.AMBIGUOUS_HOST),
        (ask("POST", COMPLETIONS, host="code:80", model="chat"), RefusalKind.AMBIGUOUS_HOST),
        (ask("POST", f"/default/nope{COMPLETIONS}", model="chat"), RefusalKind.UNKNOWN_SERVICE),
        (ask("GET", "/default/nope/"), RefusalKind.UNKNOWN_SERVICE),
        (ask("GET", COMPLETIONS), RefusalKind.WRONG_METHOD),
        (ask("DELETE", f"/default/chat{COMPLETIONS}"), RefusalKind.WRONG_METHOD),
        (ask("POST", "/v1/models"), RefusalKind.WRONG_METHOD),
        (ask("POST", "/default/chat/v1/models", model="chat"), RefusalKind.WRONG_METHOD),
        (ask("GET", "/"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/metrics"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/default/chat/metrics"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/health/ready", host="chat.default"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/default/chat/v1/../metrics"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/default/chat/v1/%2e%2e/metrics"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/default/chat/v1/..%2Fmetrics"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/default/chat/v1//models"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "//default/chat/v1/models"), RefusalKind.UNKNOWN_PATH),
        (ask("GET", "/v1/models/%2e%2e%2fmetrics", host="chat.default"), RefusalKind.UNKNOWN_PATH),
    ],
)
def test_a_request_is_refused_for_a_reason(request_: RouteRequest, kind: RefusalKind) -> None:
    refusal = route(request_, CLAIMS)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is kind
    assert refusal.message
    assert bool(refusal.allow) == (kind is RefusalKind.WRONG_METHOD)


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/models", None), ("/v1/models/coder", "coder"), ("/v1/models/org%2Fcoder", "org%2Fcoder")],
)
def test_the_gateway_answers_for_models_itself(path: str, model: str | None) -> None:
    assert route(ask("GET", path), CLAIMS) == ModelList(model=model)


def test_a_service_called_localhost_does_not_stop_those_who_forward_a_port() -> None:
    claims = build_claims([CHAT, parsed_service("localhost", "a"), parsed_service("localhost", "b")])
    assert route(ask("POST", COMPLETIONS, "localhost:8080", "chat"), claims) == Target(
        service=CHAT, path=COMPLETIONS
    )


def test_a_service_called_models_in_a_namespace_called_v1_does_not_take_the_model_list() -> None:
    assert route(ask("GET", "/v1/models/"), CLAIMS) == ModelList(model=None)


def test_the_page_of_a_service_needs_its_final_slash() -> None:
    assert route(ask("GET", "/team-b/code"), CLAIMS) == Redirect(location="code/")


def test_every_claimed_model_is_listed_once_with_its_owners_age() -> None:
    listed = {model["id"]: model["created"] for model in models_in(CLAIMS)}
    assert listed == {"chat": 1767225600, "coder": 1767398400, "org/coder": 1767398400, "m": 1767484800}


def test_a_refusal_names_at_most_ten_models() -> None:
    refusal = unknown_model("x", [f"m{i:02}" for i in range(12)])
    assert "`m09` and 2 more" in refusal.message
    assert "`m10`" not in refusal.message
    assert "no model yet" in unknown_model("x", []).message
    assert len(unknown_model("x" * 10_000, []).message) < 300


def test_only_requests_whose_fate_is_open_have_their_body_read() -> None:
    assert needs_model(ask("POST", COMPLETIONS), CLAIMS)
    assert needs_model(ask("POST", f"/default/chat{COMPLETIONS}"), CLAIMS)
    assert not needs_model(ask("POST", f"/default/nope{COMPLETIONS}"), CLAIMS)
    assert not needs_model(ask("POST", "/nothing"), CLAIMS)
    assert not needs_model(ask("GET", "/v1/models"), CLAIMS)


@given(
    path=st.text(max_size=60).map(lambda text: f"/{text}"),
    host=st.text(max_size=30),
    method=st.sampled_from(["GET", "POST", "PUT"]),
)
def test_no_input_breaks_routing_or_reaches_anything_but_v1_and_the_page(
    path: str, host: str, method: str
) -> None:
    routed = route(ask(method, path, host, model="chat"), CLAIMS)
    if isinstance(routed, Target):
        assert routed.path == "/" or routed.path.startswith("/v1/")
        assert ".." not in routed.path.split("/")


def test_what_paths_mean_is_remembered_within_a_bound_and_never_across_changes() -> None:
    claims = build_claims([CHAT])
    for number in range(3 * MAX_KNOWN_ADDRESSES):
        assert not isinstance(route(ask("GET", f"/nothing/{number}"), claims), Target)
    assert len(claims.known) <= MAX_KNOWN_ADDRESSES
    path = f"/{CHAT.namespace}/{CHAT.name}{COMPLETIONS}"
    for _ in range(2):
        assert isinstance(route(ask("POST", path), claims), Target)
    assert not isinstance(route(ask("POST", path), build_claims([])), Target)
