import pytest

from tidemill_bench.load.workload import (
    FIRST_PLAIN_TOKEN_ID,
    SHAPES,
    TraceCut,
    at_poisson_times,
    plan_requests,
    plan_trace,
)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_draws_within_the_ranges_of_the_workload(name: str) -> None:
    shape = SHAPES[name]
    for request in plan_requests(name, 100, vocab_size=1000, seed=3):
        num_own = len(request.prompt_token_ids) - shape.shared_tokens
        assert shape.prompt_tokens[0] <= num_own <= shape.prompt_tokens[1]
        assert shape.output_tokens[0] <= request.output_tokens <= shape.output_tokens[1]
        assert all(FIRST_PLAIN_TOKEN_ID <= token < 1000 for token in request.prompt_token_ids)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    first = plan_requests("medium", 20, vocab_size=1000, seed=1)
    assert first == plan_requests("medium", 20, vocab_size=1000, seed=1)
    assert first != plan_requests("medium", 20, vocab_size=1000, seed=2)


def test_extreme_mixes_short_and_long() -> None:
    lengths = [request.output_tokens for request in plan_requests("extreme", 300, vocab_size=1000, seed=0)]
    assert min(lengths) < 20
    assert max(lengths) > 600


def test_prompts_of_prefix_open_alike_and_end_differently() -> None:
    prompts = [request.prompt_token_ids for request in plan_requests("prefix", 10, vocab_size=1000, seed=0)]
    assert len({prompt[:1024] for prompt in prompts}) == 1
    assert len({prompt[1024:] for prompt in prompts}) == 10


def test_poisson_arrivals_have_the_rate_that_was_asked_for_and_never_go_back() -> None:
    requests = at_poisson_times(plan_requests("single", 2000, vocab_size=1000, seed=0), 5.0, seed=1)
    dues = [request.due_seconds or 0.0 for request in requests]
    assert dues == sorted(dues)
    assert dues[-1] == pytest.approx(2000 / 5.0, rel=0.1)


def test_a_trace_keeps_its_times_and_leaves_out_what_is_too_long() -> None:
    requests = plan_trace(
        "trace:azure_2023_conv", TraceCut(stretch=2.0, max_requests=50, max_total_tokens=1500)
    )
    assert len(requests) == 50
    assert all(len(r.prompt_token_ids) + r.output_tokens <= 1500 for r in requests)
    whole = plan_trace("trace:azure_2023_conv", TraceCut(max_requests=2))
    assert requests[1].due_seconds == 2 * (whole[1].due_seconds or 0.0)


def test_refuses_an_unknown_workload_and_a_tiny_vocabulary() -> None:
    with pytest.raises(ValueError, match="'burst' is unknown; choose one of"):
        plan_requests("burst", 1, vocab_size=1000, seed=0)
    with pytest.raises(ValueError, match="too small"):
        plan_requests("single", 1, vocab_size=100, seed=0)
