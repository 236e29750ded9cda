from dataclasses import replace

import pytest

from tidemill_bench.race.contender import Result, Workload, num_requests_of
from tidemill_bench.race.figures import RaceReport, Run, as_table


def make_run(
    contender: str, rate: float, number: int = 0, workload: Workload = "uniform", ttft: float = 1.0
) -> Run:
    result = Result(
        output_tokens_per_second=rate,
        prompt_tokens_per_second=10 * rate,
        ttft_p99_seconds=ttft,
        itl_p99_seconds=ttft / 10,
    )
    return Run(contender=contender, workload=workload, round=number, result=result)


def make_report(*runs: Run, roofline: float = 0.0, failures: dict[str, str] | None = None) -> RaceReport:
    configurations = {run.contender: {run.workload: "default"} for run in runs}
    return RaceReport(
        runs=runs,
        configurations=configurations,
        failures=failures or {},
        rooflines={"bf16": {"uniform": roofline}} if roofline else {},
    )


def test_a_ratio_compares_runs_of_the_same_round_only() -> None:
    report = make_report(
        make_run("tidemill bf16", 300, 0),
        make_run("vllm-cpu", 100, 0),
        make_run("tidemill bf16", 100, 1),  # a slow moment of the machine, for both
        make_run("vllm-cpu", 25, 1),
        make_run("tidemill bf16", 1000, 2),  # the peer did not run
    )
    spread = report.rate_ratios("vllm-cpu")["uniform"]
    assert (spread.least, spread.median, spread.most) == (3.0, 3.5, 4.0)


def test_prefill_is_compared_by_prompt_tokens() -> None:
    run = make_run("vllm-cpu", 5.0, workload="prefill")
    assert run.result.rate("prefill") == 50.0
    assert run.result.rate("uniform") == 5.0


def test_each_quantisation_of_llama_cpp_meets_ours_of_the_same_width() -> None:
    report = make_report(
        make_run("tidemill int8", 900), make_run("tidemill int4", 500), make_run("llama.cpp", 100),
        make_run("llama.cpp Q4_0", 100),
    )  # fmt: skip
    assert report.rate_ratios("llama.cpp")["uniform"].median == 9.0
    assert report.rate_ratios("llama.cpp Q4_0")["uniform"].median == 5.0
    assert [line for line in report.unmet() if "Q4_0" in line]
    assert not [line for line in report.unmet() if "llama.cpp:" in line]


def test_a_missed_ratio_is_unmet_unless_the_roofline_explains_it() -> None:
    runs = (make_run("tidemill bf16", 200, ttft=0.5), make_run("vllm-cpu", 100))
    (sentence,) = make_report(*runs).unmet()
    assert "uniform over vllm-cpu: 2.00" in sentence
    assert make_report(*runs, roofline=1000.0).unmet() == [sentence]
    assert make_report(*runs, roofline=250.0).unmet() == []


def test_higher_tail_latencies_than_vllm_and_errors_are_unmet() -> None:
    report = make_report(make_run("tidemill bf16", 400, ttft=2.0), make_run("vllm-cpu", 100, ttft=1.0))
    assert any("P99 TTFT is 2.00" in sentence for sentence in report.unmet())
    assert any("P99 ITL is 2.00" in sentence for sentence in report.unmet())


def test_the_json_has_a_ratio_for_each_peer_and_says_who_could_not_take_part() -> None:
    report = make_report(
        make_run("tidemill bf16", 400),
        make_run("vllm-cpu", 100),
        roofline=800.0,
        failures={"llama.cpp": "no cmake"},
    )
    figures = report.as_json()
    assert figures["ratio"]["vllm-cpu"] == {"uniform": 4.0}  # type: ignore[index]
    assert figures["ratio"]["llama.cpp"] == {}  # type: ignore[index]
    assert figures["roofline_fraction"] == {"uniform": 0.5}
    assert figures["did_not_take_part"] == {"llama.cpp": "no cmake"}
    assert "llama.cpp did not take part: no cmake" in as_table(report)


@pytest.mark.parametrize(("workload", "expected"), [("single", 8), ("medium", 512)])
def test_a_full_run_has_eight_requests_for_each_slot(workload: Workload, expected: int) -> None:
    assert num_requests_of(workload, 8, is_quick=False) == expected


def test_each_precision_has_a_roofline_of_its_own_and_only_bf16_has_the_plain_name() -> None:
    runs = (make_run("tidemill bf16", 400), make_run("tidemill int8", 600), make_run("llama.cpp", 100))
    report = replace(
        make_report(*runs), rooflines={"bf16": {"uniform": 500.0}, "int8": {"uniform": 800.0}, "int4": {}}
    )
    figures = report.as_json()
    assert figures["roofline_fraction"] == {"uniform": 0.8}
    assert figures["roofline_fraction_quantized"] == {"int8": {"uniform": 0.75}, "int4": {}}
    assert "in int8: uniform 800 tok/s (75% reached)" in as_table(report)
    assert any("uniform over llama.cpp" in line for line in report.unmet())  # no roofline excuses it
