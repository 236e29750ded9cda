from pathlib import Path

import pytest

from tidemill_bench.load.plots import write_plots
from tidemill_bench.load.records import Failure, Record, write_records
from tidemill_bench.load.report import as_table, summarize


def make_record(
    index: int, sent: float, chunks: tuple[float, ...], output_tokens: int, due: float | None = None
) -> Record:
    return Record(
        index=index,
        due_seconds=sent if due is None else due,
        sent_seconds=sent,
        end_seconds=chunks[-1],
        chunk_seconds=chunks,
        prompt_tokens=10,
        output_tokens=output_tokens,
    )


FAILED = Record(
    index=1,
    due_seconds=0,
    sent_seconds=0,
    end_seconds=2,
    chunk_seconds=(),
    prompt_tokens=0,
    output_tokens=0,
    failure=Failure(kind="http", message="HTTP 500"),
)


def test_rates_count_tokens_over_the_wall_time_of_the_run() -> None:
    records = [make_record(0, 0.0, (1.0, 2.0), 5), make_record(1, 0.5, (1.5, 4.0), 15)]
    report = summarize(records, "uniform", "closed loop")
    assert report.wall_seconds == 4.0
    assert report.output_tokens_per_second == 5.0
    assert report.prompt_tokens_per_second == 5.0
    assert report.ttft_seconds.mean == 1.0


def test_time_per_output_token_divides_by_tokens_and_gaps_are_between_chunks() -> None:
    report = summarize([make_record(0, 0.0, (1.0, 2.0), 11)], "uniform", "closed loop")
    assert report.tpot_seconds.p50 == pytest.approx(0.1)
    assert report.itl_seconds.p50 == pytest.approx(1.0)


def test_a_late_client_hides_no_waiting() -> None:
    report = summarize([make_record(0, 3.0, (4.0, 5.0), 2, due=1.0)], "uniform", "Poisson")
    assert report.ttft_seconds.p50 == 3.0
    assert report.e2e_seconds.p50 == 4.0
    assert report.send_lag_p99_seconds == 2.0
    assert "client itself was up to 2.00 s late" in as_table(report)


def test_errors_are_counted_by_kind_and_leave_the_rates_alone() -> None:
    report = summarize([make_record(0, 0.0, (1.0, 2.0), 4), FAILED], "uniform", "closed loop")
    assert (report.num_errors, report.output_tokens_per_second) == (1, 2.0)
    assert report.errors_by_kind == {"http": 1}
    assert "errors: 1 http; first: http: HTTP 500" in as_table(report)


def test_no_records_give_zeros() -> None:
    assert summarize([], "uniform", "closed loop").output_tokens_per_second == 0.0


def test_writes_a_line_for_each_record(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records([make_record(0, 0.0, (1.0, 2.0), 4), FAILED], path)
    first, second = path.read_text().splitlines()
    assert '"chunk_seconds": [1.0, 2.0]' in first
    assert '"kind": "http"' in second


@pytest.mark.slow
def test_draws_a_picture_even_where_everything_failed(tmp_path: Path) -> None:
    for records in ([make_record(0, 0.0, (1.0, 2.0), 4)], [FAILED]):
        assert "</svg>" in write_plots(records, "a run", tmp_path).read_text()
