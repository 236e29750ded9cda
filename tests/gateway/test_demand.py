"""What the autoscaler is told that clients ask for."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.demand import DemandBook

CHAT = ("team-a", "chat")


def book() -> DemandBook:
    return DemandBook(gateway="gateway-1", started=1000.0)


def figures(demand: DemandBook) -> dict[str, object]:
    services = demand.report([CHAT])["services"]
    assert isinstance(services, dict)
    found: dict[str, object] = services["team-a/chat"]
    return found


def test_a_service_that_nobody_asked_for_has_zeros_and_no_time() -> None:
    assert book().report([CHAT]) == {
        "gateway": "gateway-1",
        "started": 1000.0,
        "services": {
            "team-a/chat": {
                "held_requests": 0,
                "held_prompt_tokens": 0,
                "in_flight_requests": 0,
                "in_flight_tokens": 0,
                "requests_total": 0,
                "prompt_tokens_total": 0,
                "output_tokens_total": 0,
                "last_request_time": None,
            }
        },
    }


def test_a_request_is_held_then_in_flight_then_only_counted() -> None:
    demand = book()
    demand.arrive(CHAT, 10, 1234.5)
    with demand.held(CHAT, 10):
        assert (figures(demand)["held_requests"], figures(demand)["held_prompt_tokens"]) == (1, 10)
    with demand.in_flight(CHAT, 10) as flight:
        flight.add_output(3)
        now = figures(demand)
        assert (now["held_requests"], now["in_flight_requests"], now["in_flight_tokens"]) == (0, 1, 13)
    end = figures(demand)
    assert (end["in_flight_requests"], end["in_flight_tokens"], end["output_tokens_total"]) == (0, 0, 3)
    assert (end["requests_total"], end["prompt_tokens_total"], end["last_request_time"]) == (1, 10, 1234.5)


@given(st.lists(st.tuples(st.integers(0, 99), st.lists(st.integers(-5, 50), max_size=5)), max_size=20))
def test_whatever_passes_nothing_stays_in_flight(requests: list[tuple[int, list[int]]]) -> None:
    demand = book()
    for num_prompt_tokens, outputs in requests:
        with demand.held(CHAT, num_prompt_tokens):
            pass
        with demand.in_flight(CHAT, num_prompt_tokens) as flight:
            for num in outputs:
                flight.add_output(num)
    end = figures(demand)
    assert (end["held_requests"], end["held_prompt_tokens"]) == (0, 0)
    assert (end["in_flight_requests"], end["in_flight_tokens"]) == (0, 0)


def test_a_service_that_is_gone_is_forgotten_once_its_last_request_has_ended() -> None:
    demand = book()
    demand.arrive(CHAT, 1, 1.0)
    with demand.in_flight(CHAT, 1):
        assert demand.report([])["services"] == {}
    demand.report([])
    assert figures(demand)["requests_total"] == 0
