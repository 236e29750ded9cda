from tidemill_bench.fleet.score import Point, front, hours_for, is_on_front, saving_between, savings, tuned


def point(attainment: float, hours: float, knobs: str = "a", policy: str = "p", load: str = "l") -> Point:
    return Point(
        policy=policy,
        knobs=knobs,
        load=load,
        attainment=attainment,
        gpu_hours=hours,
        scale_events=0,
        largest_queue=0,
    )


def test_a_point_is_beaten_by_one_that_is_as_good_and_cheaper() -> None:
    mine = point(0.95, 5.0)
    assert not is_on_front(mine, [point(0.95, 4.0)])
    assert is_on_front(mine, [point(0.94, 4.0), point(0.99, 6.0), point(0.95, 5.0)])


def test_equal_attainment_costs_a_mixture_of_the_settings_on_each_side() -> None:
    curve = [point(0.9, 4.0), point(1.0, 8.0), point(0.85, 7.0)]
    assert front(curve) == [curve[0], curve[1]]
    cost = hours_for(0.95, curve)
    assert (round(cost.gpu_hours, 6), cost.is_reached) == (6.0, True)


def test_what_is_never_attained_is_compared_with_nobody() -> None:
    curve = [point(0.9, 4.0)]
    assert not hours_for(0.99, curve).is_reached
    assert savings([point(0.99, 3.0)], {"p": curve}) == {"p": {}}
    assert savings([point(0.9, 3.0)], {"p": curve}) == {"p": {"l": 0.25}}


def test_a_user_tunes_to_the_cheapest_setting_that_attains_enough_else_to_the_best() -> None:
    points = [point(0.96, 6.0, "dear"), point(0.955, 5.0, "right"), point(0.9, 3.0, "cheap")]
    assert tuned(points, 0.95) == "right"
    assert tuned(points, 0.99) == "dear"


def test_curves_are_compared_where_both_reach_from_either_side_alike() -> None:
    ours = [point(0.85, 4.0), point(0.95, 5.0)]
    theirs = [point(0.9, 6.0), point(1.0, 10.0)]
    saved = saving_between(ours, theirs)
    assert saved is not None
    # At 0.9: 4.5 against 6; at 0.95: 5 against 8.
    assert 1 - 4.5 / 6 < saved < 1 - 5 / 8
    swapped = saving_between(theirs, ours)
    assert swapped is not None
    assert swapped < 0


def test_curves_with_no_attainment_in_common_are_compared_with_nobody() -> None:
    assert saving_between([point(0.97, 4.0)], [point(0.9, 1.0)]) is None
    assert saving_between([point(0.5, 1.0)], [point(0.6, 2.0)]) is None
