import pytest

from tidemill_bench.report import Record, as_table, summarize


def make_record(index: int, start: float, chunks: tuple[float, ...], output_tokens: int) -> Record:
    return Record(
        index=index,
        start_seconds=start,
        end_seconds=chunks[-1],
        chunk_seconds=chunks,
        prompt_tokens=10,
        output_tokens=output_tokens,
    )


def test_rates_count_tokens_over_the_wall_time_of_the_run() -> None:
    records = [make_record(0, 0.0, (1.0, 2.0), 5), make_record(1, 0.5, (1.5, 4.0), 15)]
    report = summarize(records, "uniform", 2)
    assert report.wall_seconds == 4.0
    assert report.output_tokens_per_second == 5.0
    assert report.prompt_tokens_per_second == 5.0
    assert report.ttft_seconds.mean == 1.0


def test_inter_token_latency_divides_by_tokens_not_by_chunks() -> None:
    report = summarize([make_record(0, 0.0, (1.0, 2.0), 11)], "uniform", 1)
    assert report.itl_seconds.p50 == pytest.approx(0.1)


def test_errors_are_counted_and_leave_the_rates_alone() -> None:
    failed = Record(
        index=1,
        start_seconds=0,
        end_seconds=2,
        chunk_seconds=(),
        prompt_tokens=0,
        output_tokens=0,
        error="HTTP 500",
    )
    report = summarize([make_record(0, 0.0, (1.0, 2.0), 4), failed], "uniform", 2)
    assert (report.num_errors, report.output_tokens_per_second) == (1, 2.0)
    assert "first error: HTTP 500" in as_table(report)


def test_no_records_give_zeros() -> None:
    assert summarize([], "uniform", 1).output_tokens_per_second == 0.0
