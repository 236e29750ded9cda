import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_bench.race.contender import WORKLOADS
from tidemill_bench.step.roofline import Lengths, MachineFloor, _occupancy, least_seconds, workload_rates

FLOOR = MachineFloor(
    layer_seconds={1: 0.004, 64: 0.016, 512: 0.128},
    head_seconds={1: 0.001, 64: 0.004},
    bytes_per_second=40e9,
    flop_per_second=1e12,
)


def test_a_single_stream_takes_a_step_for_each_token() -> None:
    seconds = least_seconds(FLOOR, [Lengths(prompt=1, output=101)], 1)
    assert seconds == pytest.approx(100 * 0.005, rel=0.05)


def test_prefill_costs_what_full_chunks_cost_and_attention_on_top() -> None:
    seconds = least_seconds(FLOOR, [Lengths(prompt=5120, output=1)], 1)
    attention = 5120**2 / 2 * FLOOR.model.attention_flop_per_pair / 1e12
    assert seconds == pytest.approx(10 * 0.128 + attention + 0.001)


def test_a_cached_prefix_is_not_computed_again() -> None:
    cold = least_seconds(FLOOR, [Lengths(prompt=1056, output=1)], 1)
    warm = least_seconds(FLOOR, [Lengths(prompt=1056, output=1, cached=1024)], 1)
    assert warm < cold / 8


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 8))
def test_every_output_token_is_decoded_once_whatever_the_concurrency(outputs: list[int], slots: int) -> None:
    occupancy = list(_occupancy(outputs, slots))
    assert sum(rows * steps for rows, steps in occupancy) == sum(outputs)
    assert all(1 <= rows <= slots and steps > 0 for rows, steps in occupancy)


def test_more_requests_at_a_time_are_never_slower() -> None:
    requests = [Lengths(prompt=100, output=50)] * 64
    times = [least_seconds(FLOOR, requests, concurrency) for concurrency in (1, 8, 64)]
    assert times == sorted(times, reverse=True)


def test_there_is_a_roofline_for_every_workload() -> None:
    rates = workload_rates(FLOOR, WORKLOADS)
    assert set(rates) == set(WORKLOADS)
    assert rates["uniform"] > rates["extreme"] > 0


def test_a_run_with_fewer_requests_than_slots_has_a_lower_roofline() -> None:
    full = workload_rates(FLOOR, ["extreme"])["extreme"]
    short = workload_rates(FLOOR, ["extreme"], num_requests=lambda _: 32)["extreme"]
    assert short < 0.8 * full


def test_the_roofline_is_of_the_requests_that_were_sent() -> None:
    rates = [workload_rates(FLOOR, ["extreme"], seeds=(seed,))["extreme"] for seed in (1, 1001, 2001)]
    assert len(set(rates)) == 3
    assert workload_rates(FLOOR, ["extreme"], seeds=(1, 1001, 2001))["extreme"] == sorted(rates)[1]
