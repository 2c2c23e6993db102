import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.policy.promises.burn import SLICE_S, Availability, Burn, Meter, reachable
from headgate.policy.replicas.baseline import DAY_S, POINT_S, Baseline


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 400), st.integers(0, 50)), min_size=1, max_size=60),
    st.sampled_from([15, 60, 300, 600]),
    st.floats(0, 1e7),
)
def test_a_window_holds_what_it_should_and_at_most_a_slice_more(
    steps: list[tuple[float, int]], window: int, start: float
) -> None:
    meter, now, history = Meter(1, reach_s=600), start, []
    for pause, value in steps:
        now += pause
        meter.add(now, value)
        history.append((now, value))
        (total,) = meter.over(window, now)
        assert total >= sum(v for at, v in history if at > now - window)
        assert total <= sum(v for at, v in history if at >= now - window - SLICE_S)


def test_a_meter_forgets_what_is_out_of_reach_however_long_nobody_looked() -> None:
    meter = Meter(2, reach_s=60)
    meter.add(0.0, 5, 1)
    assert meter.over(60, 59.0) == (5, 1)
    assert meter.over(60, 1e9) == (0, 0)
    meter.add(1e9, 2, 0)
    assert meter.over(60, 1e9 + 1) == (2, 0)
    assert meter.over(9999, 1e9 + 1) == (2, 0)  # no further than it reaches


def test_burn_is_failures_against_what_may_fail() -> None:
    burn = Burn(0.001)
    assert burn.rate(300, 0.0) == 0.0
    burn.add(10_000, 20, 0.0)
    assert burn.rate(300, 1.0) == pytest.approx(2.0)
    assert burn.counts(300, 1.0) == Availability(10_000, 0, 20)
    burn.add(10_000, 0, 400.0)
    assert burn.rate(300, 400.0) == 0.0
    assert burn.rate(3600, 400.0) == pytest.approx(1.0)


def test_both_windows_must_burn() -> None:
    burn = Burn(0.001)
    burn.add(1000, 1000, 0.0)
    assert burn.score(14.4, 3600, 300, 0.0) == pytest.approx(1000 / 14.4)
    burn.add(1000, 0, 400.0)
    assert burn.score(14.4, 3600, 300, 400.0) == 0.0


@given(st.floats(0, 1), st.floats(0.1, 20))
def test_a_burn_that_alerts_is_more_than_the_budget_and_can_happen(budget: float, factor: float) -> None:
    if 1e-6 < budget < 1 - 1e-6:
        share = reachable(factor, budget) * budget
        assert share < 1
        assert share > budget or factor <= 1


def test_usual_is_the_median_of_calm_points_and_ages() -> None:
    usual, now = Baseline(), 0.0

    def see(value: float | None, calm: bool = True) -> float | None:
        nonlocal now
        usual.see(value, calm, now)
        now += POINT_S
        return usual.value

    assert [see(v) for v in (9.0, 1.0, 2.0)] == [None, None, None]  # the first only starts the five minutes
    assert see(3.0) == 2.0
    assert see(100.0) == 2.5
    assert see(100.0, calm=False) == 2.5
    assert see(None) == 2.5
    assert usual.points == 4
    for _ in range(1000):
        see(5.0)
    assert usual.points <= DAY_S / POINT_S
    assert usual.value == 5.0
    now += DAY_S
    assert see(None) is None


def test_points_are_five_minutes_apart_however_often_one_looks() -> None:
    usual = Baseline()
    for second in range(1501):
        usual.see(1.0, True, float(second))
    assert usual.points == 5
