"""The cheap histogram says what the client library's own would say."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from tidemill_engine.histogram import PairedHistogram

BOUNDS = (0.01, 0.5, 2.0)


@given(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.5, 1.0, 2.0, 3.0]), max_size=30))
def test_shows_under_both_names_what_the_library_would(values: list[float]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    expected, actual = CollectorRegistry(), CollectorRegistry()
    ours = Histogram("tidemill_x_seconds", "Some time", buckets=BOUNDS, registry=expected)
    theirs = Histogram("vllm:x_seconds", "Some time", ["model_name"], buckets=BOUNDS, registry=expected)
    cheap = PairedHistogram("x_seconds", "Some time", BOUNDS, "m")
    actual.register(cheap)
    theirs.labels("m")
    cheap.observe_all(values[:10])
    for value in values[10:]:
        cheap.observe(value)
    for value in values:
        ours.observe(value)
        theirs.labels("m").observe(value)
    assert generate_latest(actual) == generate_latest(expected)
