from dataclasses import replace

import numpy as np
import pytest

from tidemill_bench.figures import Figures, jain, summarize
from tidemill_bench.plots import write_plots
from tidemill_bench.policies import CONTINUOUS, STATIC, WIDE, Losses, Row
from tidemill_bench.policies_report import PolicyReport, as_table
from tidemill_bench.promises import Flood, SloGain
from tidemill_bench.real_engine import TRANSFORMERS, RaceResult, Run
from tidemill_bench.runs import Job, Load, RateSearch, TtftSlo, highest_rate, run_jobs, simulate
from tidemill_bench.shapes import LengthShape, SimRequest
from tidemill_bench.step_time import StepTime

STEP_TIME = StepTime(coefficients=(0.02, 0.0015, 8e-6, 1.4e-6, 8e-4))
SHAPES = ("alike", "medium", "extreme")


def make_figures(tokens_per_second: float = 1.0) -> Figures:
    return Figures(
        num_requests=8,
        num_failed=0,
        makespan_seconds=10.0,
        output_tokens_per_second=tokens_per_second,
        requests_per_second=0.8,
        e2e_p50=1.0,
        e2e_p99=2.0,
        ttft_p50=0.1,
        ttft_p99=0.2,
        itl_p50=0.01,
        itl_p99=0.02,
        slo_attainment=0.5,
        goodput=0.4,
        fairness=0.9,
        effective_batch=3.0,
        padding_share=0.1,
        cached_share=0.0,
        num_preemptions=0,
    )


def make_report(
    *, wide: float = 10.0, goodput: float = 10.0, slo: float = 0.9, flooded: float = 1.0
) -> PolicyReport:
    rows = [
        Row(load=shape, engine=engine.name, figures=make_figures(speed))
        for shape in SHAPES
        for engine, speed in ((STATIC, 1.0), (CONTINUOUS, 5.0), (WIDE, wide))
    ]
    return PolicyReport(
        machine="m",
        slo="s",
        rows=rows,
        losses={
            shape: Losses(static=10.0, without_padding=6.0, without_barrier=3.0, without_reservation=2.0)
            for shape in SHAPES
        },
        goodput={shape: {STATIC.name: 1.0, CONTINUOUS.name: goodput} for shape in SHAPES},
        sparse=rows[:2],
        slo_gain=SloGain(rate=1.0, attainment={"fifo": 0.6, "sjf": 0.6, "priority": 0.6, "slo": slo}),
        flood=Flood(fair_share=10.0, beside_flood=10.0 * flooded, without_fairness=None),
    )


def test_the_json_has_the_figures_that_were_agreed() -> None:
    figures = make_report().as_json()
    assert figures["throughput_over_static"] == {"alike": 10.0, "medium": 10.0, "extreme": 10.0}
    assert figures["goodput_over_static"] == {"alike": 10.0, "medium": 10.0, "extreme": 10.0}
    assert figures["slo_gain_points"] == 30.0
    assert figures["flooded_tenant_p99_ratio"] == 1.0
    assert figures["unmet"] == []
    assert figures["losses"] == {
        shape: {"padding": 0.4, "barrier": 0.3, "reservation": 0.1} for shape in SHAPES
    }


def test_goodput_under_a_looser_slo_stands_beside_it_and_is_expected_of_nobody() -> None:
    loose = {shape: {STATIC.name: 2.0, CONTINUOUS.name: 2.5} for shape in SHAPES}
    report = replace(make_report(), loose_goodput=loose)
    said = as_table(report)
    assert "90 % keep s;" in said
    assert "90 % keep TTFT <= 2 s + 2 x" in said
    assert "continuous fifo 2.5000 (1.25)" in said
    assert report.unmet() == []
    assert report.as_json()["loose_goodput_requests_per_second"] == loose


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"wide": 3.0}, ["throughput over static, extreme"]),
        ({"goodput": 3.0}, ["goodput over static, medium", "goodput over static, extreme"]),
        ({"slo": 0.7}, ["slo gains 10.0 points"]),
        ({"flooded": 1.3}, ["flooded tenant"]),
    ],
)
def test_every_expectation_that_is_not_met_is_said_plainly(
    changes: dict[str, float], named: list[str]
) -> None:
    report = make_report(**changes)
    assert len(report.unmet()) == len(named)
    for sentence, name in zip(report.unmet(), named, strict=True):
        assert name in sentence
        assert sentence in as_table(report).split("NOT MET:")[1]
    assert "Every expectation is met." in as_table(make_report())


@pytest.mark.slow
def test_plots_are_written_as_text(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "plots"
    for path in write_plots(replace(make_report(), sweep=make_report().rows), folder):
        assert path.read_text(encoding="utf-8").startswith("<?xml")
    assert len(list(folder.iterdir())) == 4


def test_fairness_is_one_where_all_are_slowed_down_alike_and_less_where_one_is_more() -> None:
    assert jain(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)


def make_requests(slo: float) -> tuple[SimRequest, ...]:
    return tuple(
        SimRequest(
            arrival_seconds=0.0, num_prompt_tokens=100, num_output_tokens=10, slo_ttft_seconds=slo, salt=i
        )
        for i in range(10)
    )


def test_figures_count_tokens_over_the_makespan_and_requests_within_their_slo() -> None:
    job = Job(setup=CONTINUOUS, step_time=STEP_TIME, requests=make_requests(slo=1e-6))
    simulation = simulate(job)
    figures = summarize(simulation, None, STEP_TIME)
    assert figures.output_tokens_per_second == pytest.approx(100 / figures.makespan_seconds)
    assert (figures.slo_attainment, figures.goodput) == (0.0, 0.0)
    assert summarize(simulation, 1e6, STEP_TIME).slo_attainment == 1.0
    assert figures.effective_batch == pytest.approx(10.0), "all ten prompts fit the first step"


def test_jobs_give_the_same_figures_in_one_process_and_in_two() -> None:
    jobs = [
        Job(setup=setup, step_time=STEP_TIME, requests=make_requests(slo=1.0))
        for setup in (STATIC, CONTINUOUS)
    ]
    assert run_jobs(jobs, 1) == run_jobs(jobs, 2)


def test_the_highest_rate_keeps_the_slo_and_a_quarter_more_does_not() -> None:
    load = Load(
        shape=LengthShape(prompt_tokens=(50, 100), output_tokens=(5, 20)),
        count=32,
        slo=TtftSlo(seconds=1.0, times_alone=1.0),
    )
    search = RateSearch(setup=STATIC, step_time=STEP_TIME, load=load, highest_rate=8.0, tolerance=1.1)
    rate = highest_rate(search)
    assert 0.0 < rate < 16.0
    assert search.keeps_slo(rate)
    assert not search.keeps_slo(1.25 * rate)


def test_a_race_on_the_real_engine_compares_useful_tokens_per_second() -> None:
    def run(engine: str, seconds: float) -> Run:
        return Run(
            shape="medium",
            engine=engine,
            num_requests=8,
            num_tokens=100,
            seconds=seconds,
            wall_seconds=seconds,
        )

    result = RaceResult(runs=(run(WIDE.name, 10.0), run(STATIC.name, 20.0), run(TRANSFORMERS, 30.0)))
    assert result.ratios(STATIC.name) == {"medium": 2.0}
    assert result.ratios(TRANSFORMERS) == {"medium": 3.0}
    assert result.unmet() == ["over transformers generate, medium: 3.00, expected 4"]
