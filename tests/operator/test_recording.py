"""Recordings of loads: what `tidemill-bench replay` reads back, within a bound on memory."""

from autoscaling_builders import make_load
from tidemill_bench.fleet.replay import replay
from tidemill_operator.autoscaling.load_json import read
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.fleet.recording import GROUP_LINES, Recordings
from tidemill_operator.keys import Key
from tidemill_operator.scaling_spec import parse_scaling

CHAT, OTHER = Key("default", "chat"), Key("default", "other")
SCALING = {"minReplicas": 1, "maxReplicas": 4}


def loads(count: int, replicas: int = 2) -> list[FleetLoad]:
    return [make_load(replicas, at=1000.0 + 5 * n) for n in range(count)]


def test_what_was_recorded_is_replayed_in_order() -> None:
    recordings, noted = Recordings(10**6), loads(2 * GROUP_LINES + 7)
    for load in noted:
        recordings.note(CHAT, load)
    text = recordings.text(CHAT, SCALING)
    assert text is not None
    recording = read(text.splitlines())
    assert recording.scaling == SCALING
    assert list(recording.loads) == noted
    policy = parse_scaling(recording.scaling)
    assert policy is not None
    assert len(replay(recording, policy)) == len(noted)


def test_the_oldest_go_where_all_together_have_too_many_and_a_small_service_keeps_its_own() -> None:
    recordings = Recordings(20_000)
    for load in loads(GROUP_LINES, replicas=1):
        recordings.note(OTHER, load)
    for load in loads(40 * GROUP_LINES, replicas=8):
        recordings.note(CHAT, load)
    small, large = (recordings.text(key, SCALING) for key in (OTHER, CHAT))
    assert small is not None
    assert large is not None
    assert len(read(small.splitlines()).loads) == GROUP_LINES
    kept = read(large.splitlines()).loads
    assert 0 < len(kept) < 40 * GROUP_LINES
    assert kept[-1].at == loads(40 * GROUP_LINES)[-1].at


def test_nothing_is_kept_of_a_service_that_is_gone_nor_where_recording_is_off() -> None:
    recordings, off = Recordings(10**6), Recordings(0)
    for kept in (recordings, off):
        kept.note(CHAT, loads(1)[0])
    assert off.text(CHAT, SCALING) is None
    assert recordings.text(CHAT, SCALING) is not None
    recordings.forget(CHAT)
    assert recordings.text(CHAT, SCALING) is None
