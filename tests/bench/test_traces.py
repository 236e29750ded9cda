import pytest

from tidemill_bench.shapes import SHAPES, SimRequest, draw_requests
from tidemill_bench.traces import TRACES, load_trace, parse_blocks


@pytest.mark.parametrize("name", TRACES)
def test_a_shipped_trace_is_in_order_and_has_lengths(name: str) -> None:
    requests = load_trace(name)
    assert len(requests) > 1500
    arrivals = [request.arrival_seconds for request in requests]
    assert arrivals == sorted(arrivals)
    assert min(r.num_prompt_tokens for r in requests) >= 1
    assert min(r.num_output_tokens for r in requests) >= 1


def test_a_stretched_trace_keeps_its_lengths_and_moves_its_arrivals() -> None:
    plain, slow = load_trace(TRACES[0], limit=50), load_trace(TRACES[0], limit=50, stretch=3.0)
    assert [r.num_prompt_tokens for r in plain] == [r.num_prompt_tokens for r in slow]
    assert slow[-1].arrival_seconds == pytest.approx(3 * plain[-1].arrival_seconds)


def test_an_unknown_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        load_trace("nothing")


def test_runs_of_block_ids_are_read_back() -> None:
    assert parse_blocks("0 14-16 7") == (0, 14, 15, 16, 7)
    assert parse_blocks("") == ()


def test_prompts_share_exactly_the_blocks_that_share_ids() -> None:
    one = SimRequest(arrival_seconds=0, num_prompt_tokens=1200, num_output_tokens=1, prefix_ids=(1, 2))
    two = SimRequest(arrival_seconds=0, num_prompt_tokens=1100, num_output_tokens=1, prefix_ids=(1, 3))
    first, second = one.prompt_token_ids(0), two.prompt_token_ids(1)
    assert len(first) == 1200
    assert len(second) == 1100
    assert first[:512] == second[:512]
    assert first[512:544] != second[512:544]
    assert first[1024:1056] != second[1024:1056]


def test_drawn_lengths_stay_within_their_shape_and_repeat_with_the_seed() -> None:
    for shape in SHAPES.values():
        requests = draw_requests(shape, 200, rate=2.0, seed=3)
        assert requests == draw_requests(shape, 200, rate=2.0, seed=3)
        low, high = shape.prompt_tokens
        assert all(low <= request.num_prompt_tokens <= high for request in requests)
        low, high = shape.output_tokens
        assert all(low <= request.num_output_tokens <= high for request in requests)
    assert SHAPES["extreme"].divided_by(8).prompt_tokens == (1, 500)
