import numpy as np
import pytest

from tidemill_bench.engine_seam import EngineSetup, build_engine
from tidemill_bench.runs import Job, simulate
from tidemill_bench.shapes import LengthShape, SimRequest, draw_requests
from tidemill_bench.simulator import (
    ClosedLoop,
    Computed,
    Simulation,
    SimulationOptions,
    Simulator,
    make_result,
)
from tidemill_bench.step_time import StepTime

STEP_TIME = StepTime(coefficients=(0.02, 0.0015, 8e-6, 1.4e-6, 8e-4))
SHAPE = LengthShape(prompt_tokens=(3, 200), output_tokens=(1, 60), is_log_uniform=True)
SMALL = EngineSetup(
    max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64, block_size=16, max_model_len=512
)
SETUPS = [
    SMALL,
    SMALL.but(policy="sjf"),
    SMALL.but(policy="priority"),
    SMALL.but(policy="slo"),
    SMALL.but(scheduler="static"),
    SMALL.but(scheduler="dynamic"),
    SMALL.but(num_blocks=20),
    SMALL.but(has_prefix_cache=False),
    SMALL.but(admission="strict"),
    SMALL.but(is_chunked_prefill=False),
]


def run(
    setup: EngineSetup, requests: list[SimRequest], options: SimulationOptions | None = None
) -> Simulation:
    return simulate(Job(setup=setup, step_time=STEP_TIME, requests=tuple(requests)), options)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("rate", [None, 3.0])
def test_every_request_ends_with_exactly_its_tokens_on_a_clock_that_only_goes_forward(
    setup: EngineSetup, rate: float | None
) -> None:
    requests = draw_requests(SHAPE, 60, rate=rate, seed=5)
    simulation = run(setup, requests)
    times = simulation.times
    assert times.is_finished.all()
    assert not times.errors
    assert times.num_tokens.tolist() == [request.num_output_tokens for request in requests]
    assert np.all(np.diff(simulation.steps.end_seconds) > 0)
    assert np.all(times.first_token > times.arrival)
    assert np.all(times.last_token >= times.first_token)
    assert simulation.end_seconds >= times.last_token.max()


def test_steps_never_take_more_tokens_than_the_budget_nor_more_rows_than_slots() -> None:
    simulation = run(SMALL, draw_requests(SHAPE, 60, rate=None, seed=6))
    assert simulation.steps.num_tokens.max() <= SMALL.max_num_batched_tokens
    assert simulation.steps.num_rows.max() <= SMALL.max_num_seqs


def test_in_a_closed_loop_the_next_request_arrives_a_client_s_time_after_another_has_ended() -> None:
    loop = ClosedLoop(concurrency=3, turnaround_seconds=0.5, spacing_seconds=0.01)
    requests = draw_requests(SHAPE, 20, rate=None, seed=9)
    times = run(SMALL, requests, SimulationOptions(closed_loop=loop)).times
    assert times.is_finished.all()
    arrivals, ends = np.sort(times.arrival), np.sort(times.last_token)
    assert arrivals[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.all(arrivals[3:] >= ends[:-3] + 0.5), "no more than three in flight"
    assert np.all(np.diff(arrivals[3:]) >= 0.01 - 1e-9)
    assert np.all(arrivals[3:] <= ends[:-3] + 0.5 + 3 * 0.01 + 1e-9), "and no fewer while any are left"


def test_steps_that_are_computed_take_the_time_that_this_takes() -> None:
    options = SimulationOptions(compute=lambda output: Computed(seconds=0.5, result=make_result(output)))
    simulation = run(SMALL, draw_requests(SHAPE, 10, rate=None, seed=3), options)
    assert simulation.times.is_finished.all()
    assert set(simulation.steps.seconds.tolist()) == {0.5}


def test_the_same_requests_give_the_same_result_to_the_last_digit() -> None:
    requests = draw_requests(SHAPE, 40, rate=4.0, seed=7)
    first, second = run(SMALL, requests), run(SMALL, requests)
    assert first.times.last_token.tolist() == second.times.last_token.tolist()
    assert first.steps.end_seconds.tolist() == second.steps.end_seconds.tolist()


def test_tokens_computed_are_prompts_and_outputs_once_where_nothing_is_preempted_or_cached() -> None:
    requests = draw_requests(SHAPE, 30, rate=None, seed=8)
    simulation = run(SMALL.but(has_prefix_cache=False, num_blocks=512), requests)
    assert simulation.num_preemptions == 0
    assert simulation.steps.num_tokens.sum() == sum(
        request.num_prompt_tokens + request.num_output_tokens - 1 for request in requests
    )


def test_a_request_whose_client_leaves_gets_no_more_tokens_and_the_others_all_of_theirs() -> None:
    requests = [
        SimRequest(arrival_seconds=0.0, num_prompt_tokens=10 + i, num_output_tokens=50) for i in range(4)
    ]
    simulation = run(SMALL, requests, SimulationOptions(aborts=((1.0, 2),)))
    assert simulation.times.is_finished.all()
    assert 0 < simulation.times.num_tokens[2] < 50
    assert simulation.times.last_token[2] <= 1.0 + simulation.steps.seconds.max()
    assert simulation.times.num_tokens[[0, 1, 3]].tolist() == [50, 50, 50]


def test_a_prompt_that_can_never_fit_is_an_error_and_not_a_wait() -> None:
    requests = [
        SimRequest(arrival_seconds=0.0, num_prompt_tokens=600, num_output_tokens=5),
        SimRequest(arrival_seconds=0.0, num_prompt_tokens=10, num_output_tokens=5),
    ]
    times = run(SMALL, requests).times
    assert list(times.errors) == [0]
    assert times.num_tokens.tolist() == [0, 5]


def test_equal_leading_blocks_are_computed_once() -> None:
    requests = [
        SimRequest(
            arrival_seconds=10.0 * i, num_prompt_tokens=700, num_output_tokens=2, prefix_ids=(4,), salt=i
        )
        for i in range(2)
    ]
    setup = SMALL.but(num_blocks=128, max_model_len=1024)
    times = run(setup, requests).times
    assert times.num_cached_tokens.tolist() == [0, 512]
    cold, warm = (times.first_token - times.arrival).tolist()
    assert warm < cold / 2


def test_eight_requests_finish_in_twenty_blocks_though_two_prompts_need_twelve_each() -> None:
    setup = SMALL.but(num_blocks=20, max_num_batched_tokens=128)
    requests = [
        SimRequest(
            arrival_seconds=0.0, num_prompt_tokens=12 * 16 if i in (2, 5) else 20 + i, num_output_tokens=40
        )
        for i in range(8)
    ]
    simulation = run(setup, requests)
    assert simulation.times.is_finished.all()
    assert simulation.times.num_tokens.tolist() == [40] * 8


def test_a_prompt_of_10000_tokens_and_many_short_requests_both_move() -> None:
    long = SimRequest(arrival_seconds=0.5, num_prompt_tokens=10_000, num_output_tokens=20)
    shorts = [
        SimRequest(arrival_seconds=0.2 * i, num_prompt_tokens=20, num_output_tokens=10, salt=i)
        for i in range(150)
    ]
    setup = EngineSetup(max_num_seqs=16, max_num_batched_tokens=256, num_blocks=1000, max_model_len=16_000)
    shares: list[tuple[int, int]] = []

    def note(begin: float, _end: float, output: object) -> None:
        counts = output.num_scheduled_tokens.tolist()  # type: ignore[attr-defined]
        shares.append((max(counts), len(counts)))

    simulation = run(setup, [long, *shorts], SimulationOptions(on_step=note))
    assert simulation.times.is_finished.all()
    first = simulation.times.first_token[0]
    ended_meanwhile = np.count_nonzero(simulation.times.last_token[1:] < first)
    assert ended_meanwhile > 20, "short requests end while the long prompt is being computed"
    mixed = [share for share in shares if share[0] > 1 and share[1] > 1]
    assert len(mixed) > 20, "chunks of the long prompt share steps with others"
    alone = run(setup, shorts).times
    beside = simulation.times
    assert np.nanmax(beside.longest_gap[1:]) < 10 * np.nanmax(alone.longest_gap) + 1.0


def test_continuous_batching_ends_uneven_work_sooner_than_static_and_no_later_even_work() -> None:
    uneven = draw_requests(SHAPE, 64, rate=None, seed=9)
    even = draw_requests(LengthShape(prompt_tokens=(64, 64), output_tokens=(32, 32)), 64, rate=None, seed=9)
    static = SMALL.but(scheduler="static", num_blocks=256)
    continuous = SMALL.but(num_blocks=256)
    assert run(continuous, uneven).end_seconds < 0.8 * run(static, uneven).end_seconds
    assert run(continuous, even).end_seconds < 1.1 * run(static, even).end_seconds


def test_a_dynamic_batch_waits_for_company_but_not_beyond_its_window() -> None:
    requests = [
        SimRequest(arrival_seconds=1.0, num_prompt_tokens=20, num_output_tokens=3),
        SimRequest(arrival_seconds=1.05, num_prompt_tokens=20, num_output_tokens=3, salt=1),
    ]
    steps = run(SMALL.but(scheduler="dynamic"), requests).steps
    assert steps.end_seconds[0] - steps.seconds[0] >= 1.1 - 1e-9
    assert steps.num_rows.max() == 2


def test_padding_that_is_not_charged_makes_static_steps_shorter() -> None:
    requests = tuple(draw_requests(SHAPE, 32, rate=None, seed=10))
    job = Job(setup=SMALL.but(scheduler="static", num_blocks=256), step_time=STEP_TIME, requests=requests)
    padded = Simulator(build_engine(job.setup), STEP_TIME, requests).run()
    bare = Simulator(
        build_engine(job.setup), STEP_TIME, requests, SimulationOptions(is_padding_charged=False)
    ).run()
    assert padded.steps.num_padding_tokens.sum() > 0
    assert bare.end_seconds < padded.end_seconds
