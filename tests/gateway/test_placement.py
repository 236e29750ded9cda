"""Which of several able replicas gets a request."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.ask import read_ask
from tidemill_gateway.load_report import LoadReport
from tidemill_gateway.placement import (
    BOUND_FACTOR,
    BOUND_SLACK,
    Affinity,
    Candidate,
    Placement,
    leading_block,
    load_of,
    place,
)
from tidemill_gateway.prefix_index import PrefixIndex

UIDS = ["a", "b", "c", "d"]


def candidates(*loads: int, **changes: Any) -> list[Candidate]:
    return [
        Candidate(uid=uid, num_own_requests=load, **changes)
        for uid, load in zip([f"p{i}" for i in range(len(loads))], loads, strict=True)
    ]


def report(**changes: Any) -> LoadReport:
    values = {"num_running": 0, "num_waiting": 0, "kv_usage_ratio": 0.0, "num_tokens": 0, **changes}
    return LoadReport(**values)


def prompt(text: str, blocks: int = 8) -> tuple[bytes, ...]:
    return read_ask({"prompt": (text + " ") * (256 * blocks // (len(text) + 1) + 1)}).prefix


def chosen(placement: Placement) -> str:
    return placement.uid


def test_the_least_loaded_replica_gets_a_request_without_affinity() -> None:
    assert place(candidates(2, 1, 3), Affinity(), is_prefix_aware=True, turn=0).uid == "p1"


def test_ties_go_round() -> None:
    uids = [place(candidates(0, 0, 1), Affinity(), is_prefix_aware=True, turn=turn).uid for turn in range(4)]
    assert uids == ["p0", "p1", "p0", "p1"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_least_load_always_takes_one_of_the_least_loaded(loads: list[int], turn: int) -> None:
    uid = place(candidates(*loads), Affinity(), is_prefix_aware=False, turn=turn).uid
    assert loads[int(uid[1:])] == min(loads)


def test_one_prompt_goes_to_one_replica_and_many_prompts_to_all() -> None:
    prompts = [prompt(f"document {number}") for number in range(200)]
    idle = candidates(0, 0, 0, 0)
    first = [place(idle, Affinity(prefix=p), is_prefix_aware=True, turn=1).uid for p in prompts]
    again = [place(idle, Affinity(prefix=p), is_prefix_aware=True, turn=2).uid for p in prompts]
    assert first == again
    assert min(Counter(first).values()) > 25


def test_when_a_replica_leaves_only_its_prompts_move() -> None:
    prompts = [prompt(f"document {number}") for number in range(100)]
    four, three = candidates(0, 0, 0, 0), candidates(0, 0, 0)
    for p in prompts:
        before = place(four, Affinity(prefix=p), is_prefix_aware=True, turn=0).uid
        after = place(three, Affinity(prefix=p), is_prefix_aware=True, turn=0).uid
        assert before in (after, "p3")


def test_a_prompt_goes_where_most_of_it_is_known() -> None:
    affinity = Affinity(prefix=prompt("x"), known_blocks={"p1": 4, "p2": 7})
    assert place(candidates(0, 0, 0), affinity, is_prefix_aware=True, turn=0) == Placement(
        uid="p2", reason="prefix"
    )


def test_knowing_less_than_half_is_no_reason_to_go_there() -> None:
    affinity = Affinity(prefix=prompt("x"), known_blocks={"p1": 3})
    assert place(candidates(0, 0, 0), affinity, is_prefix_aware=True, turn=0).reason == "hash"


def test_sessions_are_told_apart_by_all_of_their_names() -> None:
    start = "https://chat.example/workspaces/0123456789/projects/0123456789/conversations/"
    placed = {
        place(candidates(0, 0, 0, 0), Affinity(session=f"{start}{i}"), is_prefix_aware=True, turn=0).uid
        for i in range(40)
    }
    assert len(placed) == 4


def test_a_session_whose_name_is_no_text_has_its_replica_too() -> None:
    affinity = Affinity(session=b"Ren\xe9".decode(errors="surrogateescape") + "\ud800")
    placed = [place(candidates(0, 0, 0), affinity, is_prefix_aware=True, turn=i) for i in range(3)]
    assert {placement.reason for placement in placed} == {"session"}
    assert len({placement.uid for placement in placed}) == 1


def test_a_session_stays_with_its_replica_whatever_it_asks() -> None:
    uids = {
        place(
            candidates(0, 0, 0, 0), Affinity(session="s", prefix=prompt(text)), is_prefix_aware=True, turn=i
        ).uid
        for i, text in enumerate("abcdefgh")
    }
    assert len(uids) == 1


@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=8),
    st.text(max_size=5),
    st.dictionaries(st.sampled_from([f"p{i}" for i in range(8)]), st.integers(1, 8)),
)
def test_no_affinity_ever_leads_to_a_replica_beyond_the_bound(
    loads: list[int], session: str, known: dict[str, int]
) -> None:
    affinity = Affinity(session=session, prefix=prompt("shared"), known_blocks=known)
    uid = place(candidates(*loads), affinity, is_prefix_aware=True, turn=0).uid
    bound = BOUND_FACTOR * (sum(loads) + 1) / len(loads) + BOUND_SLACK
    assert loads[int(uid[1:])] <= bound


def test_one_hot_prompt_spreads_no_further_than_its_load_demands() -> None:
    loads = {f"p{i}": 0 for i in range(4)}
    for _ in range(40):
        now = [Candidate(uid=uid, num_own_requests=load) for uid, load in loads.items()]
        loads[place(now, Affinity(prefix=prompt("hot")), is_prefix_aware=True, turn=0).uid] += 1
    assert max(loads.values()) <= BOUND_FACTOR * 40 / 4 + BOUND_SLACK + 1
    assert sum(loads.values()) == 40


def test_with_stale_figures_the_better_of_two_is_taken_and_not_always_the_same() -> None:
    stale = candidates(0, 1, 2, 9, is_fresh=False)
    placements = [place(stale, Affinity(), is_prefix_aware=False, turn=turn) for turn in range(24)]
    assert {placement.reason for placement in placements} == {"two_choices"}
    counts = Counter(map(chosen, placements))
    assert counts["p3"] == 0
    assert len(counts) == 3


def test_what_was_sent_since_a_report_is_added_to_it() -> None:
    base = Candidate(uid="a", num_own_requests=5, num_own_then=3, report=report(num_running=10))
    assert load_of(base) == 12
    assert load_of(Candidate(uid="a", num_own_requests=5, num_own_then=9, report=report())) == 5


def test_a_queue_tokens_and_a_full_cache_weigh() -> None:
    light = load_of(Candidate(uid="a", report=report(num_running=4)))
    assert load_of(Candidate(uid="a", report=report(num_running=2, num_waiting=2))) > light
    assert load_of(Candidate(uid="a", report=report(num_running=4, num_tokens=50_000))) > light
    assert load_of(Candidate(uid="a", report=report(num_running=4, kv_usage_ratio=0.98))) > light
    assert load_of(Candidate(uid="a", report=report(num_running=4, kv_usage_ratio=0.5))) == light


def test_prompts_of_different_ends_share_their_leading_block() -> None:
    beginning = "a long document " * 200
    ends = [read_ask({"prompt": beginning + f"question {i}" * i}).prefix for i in range(1, 40)]
    assert len({leading_block(prefix) for prefix in ends}) == 1


def test_the_index_counts_leading_blocks_and_forgets_the_oldest() -> None:
    index = PrefixIndex(max_blocks=16)
    one, two = prompt("one"), prompt("two")
    index.learn(one, "a")
    index.learn(one[:4], "b")
    assert index.known_blocks(one, {"a", "b", "c"}) == {"a": 8, "b": 4}
    assert index.known_blocks(one, {"c"}) == {}
    index.learn(two, "a")
    index.learn(prompt("three"), "a")
    assert index.known_blocks(one, {"a"}) == {}
    assert len(index) == 16
