"""Replica-hours that were held, over the tokens of the same time."""

import pytest

from headgate.policy.scaling.cost import KEEP_HOURS, ReplicaHours, Stretch


def test_what_is_held_is_added_up_over_time_not_counted_when_somebody_asks() -> None:
    held = ReplicaHours(100.0)
    assert held.last_hour().per_1000_tokens(2.0) is None
    held.see(4, 0, 100.0, 0.0)
    held.see(0, 50_000, 1900.0, 1800.0)  # all gone by now
    assert held.total_s == 4 * 1800
    assert held.last_hour() == Stretch(7200.0, 50_000, 1800.0)
    assert held.last_hour().per_1000_tokens(2.0) == pytest.approx(4.0 / 50)


def test_an_hour_is_an_hour_and_both_sums_are_of_the_same_one() -> None:
    held = ReplicaHours(0.0)
    for second in range(0, 3 * 3600, 10):
        # In the first two hours ten replicas and hardly any tokens, in the last one replica and many.
        early = second < 7200
        held.see(10 if early else 1, second if early else 7200 + 100 * (second - 7200), float(second), float(second))
    last = held.last_hour()
    assert last.took_s == pytest.approx(3600, abs=70)
    assert last.held_s == pytest.approx(3600, rel=0.2)
    assert last.tokens == pytest.approx(360_000, rel=0.02)


def test_hours_of_the_wall_clock_have_their_own_sums_and_the_oldest_go() -> None:
    held = ReplicaHours(0.0)
    held.see(2, 0, 0.0, 3000.0)
    held.see(2, 0, 1200.0, 4200.0)
    assert held.by_hour == {0: 1200.0, 3600: 1200.0}
    held.see(1, 0, 1100.0, 4100.0)  # a clock that goes back changes nothing
    assert held.total_s == 2400.0
    for hour in range(1, KEEP_HOURS + 5):
        held.see(1, 0, 1200.0 + 3600 * hour, 4200.0 + 3600 * hour)
    assert len(held.by_hour) == KEEP_HOURS
