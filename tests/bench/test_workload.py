import pytest

from tidemill_bench.workload import FIRST_PLAIN_TOKEN_ID, SHAPES, plan_requests


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_draws_within_the_ranges_of_the_workload(name: str) -> None:
    shape = SHAPES[name]
    for request in plan_requests(name, 200, vocab_size=1000, seed=3):
        assert shape.prompt_tokens[0] <= len(request.prompt_token_ids) <= shape.prompt_tokens[1]
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


def test_refuses_an_unknown_workload_and_a_tiny_vocabulary() -> None:
    with pytest.raises(ValueError, match="'burst' is unknown; choose one of"):
        plan_requests("burst", 1, vocab_size=1000, seed=0)
    with pytest.raises(ValueError, match="too small"):
        plan_requests("single", 1, vocab_size=100, seed=0)
