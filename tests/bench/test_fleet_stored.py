"""Kept results: found again only for the same run, and `--quick` shows no other savings than they do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill_bench.fleet import catalogue, roster, sweep
from tidemill_bench.fleet.catalogue import shortened
from tidemill_bench.fleet.score import Point
from tidemill_bench.fleet.settings import FleetSettings
from tidemill_bench.fleet.stored import Store, key_of, write_shipped
from tidemill_bench.fleet.sweep import Job, Options, quick, run, whole

SETTINGS = FleetSettings()
LOAD = shortened(catalogue.held_out()[6], 400.0)
OTHER = roster.peers()[0]
POINT = Point(policy="a", knobs="b", load="c", attainment=0.9, gpu_hours=1.5, scale_events=2, largest_queue=3)


def test_a_result_is_found_under_its_own_key_alone(tmp_path: Path) -> None:
    store = Store(folder=tmp_path, shipped={})
    key = key_of("a", "b", LOAD, SETTINGS, "quick")
    store.keep(key, POINT)
    assert store.find(key) == POINT
    others = (
        key_of("a", "c", LOAD, SETTINGS, "quick"),
        key_of("a", "b", shortened(LOAD, 300.0), SETTINGS, "quick"),
        key_of("a", "b", LOAD, replace(SETTINGS, seed=2), "quick"),
        key_of("a", "b", LOAD, SETTINGS, "scheduler"),
    )
    assert [store.find(other) for other in others] == [None] * 4


def test_a_damaged_result_is_none(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{", encoding="utf-8")
    assert Store(folder=tmp_path, shipped={}).find("key") is None


def test_a_kept_result_is_taken_and_ours_is_never_kept(tmp_path: Path) -> None:
    store = Store(folder=tmp_path, shipped={})
    key = key_of(OTHER.policy, OTHER.knobs, LOAD, SETTINGS, "quick")
    store.keep(key, POINT)
    assert run(Job(candidate=OTHER, load=LOAD, settings=SETTINGS, store=store)) == POINT
    mine = run(Job(candidate=roster.ours(), load=LOAD, settings=SETTINGS, store=store))
    assert mine.policy == roster.OURS
    assert len(list(tmp_path.iterdir())) == 1


def test_shipped_results_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "shipped.json"
    write_shipped([("k", POINT), ("a", replace(POINT, load="d"))], path)
    store = Store(folder=tmp_path, shipped=json.loads(path.read_text(encoding="utf-8")))
    assert store.find("k") == POINT


@pytest.mark.slow
def test_quick_says_what_the_whole_sweep_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "held_out", lambda: [LOAD])
    monkeypatch.setattr(catalogue, "tuning", lambda: [LOAD])
    monkeypatch.setattr(catalogue, "steady", lambda: [LOAD])
    options = Options(settings=SETTINGS, store=Store(folder=tmp_path, shipped={}), policies=("llm-d",))
    complete = whole(options)
    monkeypatch.setattr(sweep, "CHOSEN", complete.chosen)
    assert quick(options).as_json() == replace(complete, ours_otherwise=()).as_json()
    assert set(complete.savings_between_curves()) == {"llm-d"}
