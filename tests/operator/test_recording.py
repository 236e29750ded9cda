"""Recordings of loads: what `tidemill-bench replay` reads back, within a bound on memory."""

from autoscaling_builders import make_load
from tidemill_bench.fleet.replay import replay
from tidemill_operator.autoscaling.load_json import Recording, read
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.fleet.recording import GROUP_BYTES, Recordings
from tidemill_operator.keys import Key
from tidemill_operator.scaling_spec import parse_scaling

CHAT, OTHER = Key("default", "chat"), Key("default", "other")
SCALING = {"minReplicas": 1, "maxReplicas": 4}


def loads(count: int, replicas: int = 2) -> list[FleetLoad]:
    return [make_load(replicas, at=1000.0 + 5 * n) for n in range(count)]


def recorded(recordings: Recordings, key: Key) -> Recording:
    parts = recordings.parts(key, SCALING)
    assert parts is not None
    whole = list(parts)
    assert max(map(len, whole)) < 2 * GROUP_BYTES
    return read(b"".join(whole).decode().splitlines())


def test_what_was_recorded_is_replayed_in_order() -> None:
    recordings, noted = Recordings(10**6), loads(200)
    for load in noted:
        recordings.note(CHAT, load)
    recording = recorded(recordings, CHAT)
    assert recording.scaling == SCALING
    assert list(recording.loads) == noted
    policy = parse_scaling(recording.scaling)
    assert policy is not None
    assert len(replay(recording, policy)) == len(noted)


def test_the_oldest_go_where_all_together_have_too_many_and_a_small_service_keeps_its_own() -> None:
    recordings, most = Recordings(120_000), 2000
    for load in loads(70, replicas=1):
        recordings.note(OTHER, load)
    for load in loads(most, replicas=8):
        recordings.note(CHAT, load)
    assert len(recorded(recordings, OTHER).loads) == 70
    kept = recorded(recordings, CHAT).loads
    assert 0 < len(kept) < most
    assert list(kept) == loads(most, replicas=8)[-len(kept) :]


def test_many_services_with_a_few_loads_each_take_no_more_than_is_allowed() -> None:
    recordings, most = Recordings(100_000), 0
    for load in loads(5):
        for number in range(100):
            recordings.note(Key("default", f"service-{number}"), load)
            most = max(most, recordings.num_bytes)
    assert 90_000 < most <= 100_000
    for number in range(100):
        recordings.forget(Key("default", f"service-{number}"))
    assert recordings.num_bytes == 0


def test_nothing_is_kept_of_a_service_that_is_gone_nor_where_recording_is_off() -> None:
    recordings, off = Recordings(10**6), Recordings(0)
    for kept in (recordings, off):
        kept.note(CHAT, loads(1)[0])
    assert off.parts(CHAT, SCALING) is None
    assert recordings.parts(CHAT, SCALING) is not None
    recordings.forget(CHAT)
    assert recordings.parts(CHAT, SCALING) is None
