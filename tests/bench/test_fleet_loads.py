"""Loads by seed: the same again for the same seed, others for another; traces are cut where they say."""

from __future__ import annotations

from tidemill_bench.fleet.catalogue import held_out, tuning
from tidemill_bench.fleet.drawing import LENGTH, drawn
from tidemill_bench.fleet.loads import Cut, from_trace
from tidemill_bench.traces import load_trace


def test_a_seed_draws_the_same_loads_again_and_another_seed_others() -> None:
    first, again, other = drawn(7), drawn(7), drawn(8)
    assert first == again
    assert [load.name for load in first] == [load.name for load in other]
    assert all(a.arrivals != b.arrivals for a, b in zip(first, other, strict=True))


def test_what_is_reported_is_drawn_and_is_none_of_the_tuning_loads() -> None:
    tuned = {load.arrivals for load in tuning()}
    assert len(held_out()) == 9
    assert not tuned & {load.arrivals for load in held_out()}


def test_a_cut_of_a_trace_begins_at_its_second_and_takes_requests_of_its_own() -> None:
    cut = Cut(start_seconds=600.0, first=3)
    load = from_trace("m", "mooncake_conversation", 1 / 8, LENGTH, 1, cut)
    within = [r for r in load_trace("mooncake_conversation") if 600.0 <= r.arrival_seconds < 600.0 + LENGTH]
    assert sorted(at for at, _, _ in load.arrivals) == [r.arrival_seconds - 600.0 for r in within[3::8]]
    assert sum(output for _, _, output in load.arrivals) == sum(r.num_output_tokens for r in within[3::8])
