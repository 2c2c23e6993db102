"""How long a number of replicas is kept: longer where it was missed."""

import pytest

from headgate.policy.scaling.levels import LARGE, LONGER, MOST, SOON, Levels

COOLDOWN_S = 300.0


def given_up_and_missed(levels: Levels, count: int, now: float, after_s: float) -> float:
    """Down by one, and up again after this time."""
    levels.changed(count, count - 1, now, COOLDOWN_S)
    levels.changed(count - 1, count, now + after_s, COOLDOWN_S)
    levels.need(count, now + after_s)
    return now + after_s


def test_a_number_is_kept_for_the_cooldown_after_it_was_last_needed() -> None:
    levels = Levels()
    assert levels.kept(0.0, COOLDOWN_S) == 0
    levels.need(4, 0.0)
    levels.need(2, 100.0)
    assert levels.kept(300.0, COOLDOWN_S) == 4
    assert levels.kept(301.0, COOLDOWN_S) == 2
    assert levels.kept(401.0, COOLDOWN_S) == 0


def test_one_that_was_given_up_and_missed_is_kept_longer_and_longer() -> None:
    levels, now = Levels(), 0.0
    levels.need(4, now)
    for times in (LONGER, MOST, MOST):
        now = given_up_and_missed(levels, 4, now, 200.0)
        assert levels.patience(4) == times
        assert levels.kept(now + times * COOLDOWN_S, COOLDOWN_S) == 4
        assert levels.kept(now + times * COOLDOWN_S + 1, COOLDOWN_S) == 0
    assert levels.kept(now + COOLDOWN_S + 1, COOLDOWN_S, patient=False) == 0
    assert levels.patience(3) == levels.patience(9) == levels.patience(0) == 1.0


def test_one_that_is_needed_again_much_later_is_forgiven() -> None:
    levels = Levels()
    levels.need(4, 0.0)
    now = given_up_and_missed(levels, 4, 0.0, 200.0)
    now = given_up_and_missed(levels, 4, now, SOON * LONGER * COOLDOWN_S + 1)
    assert levels.patience(4) == 1.0
    given_up_and_missed(levels, 4, now, SOON * COOLDOWN_S + 1)
    assert levels.patience(4) == 1.0


@pytest.mark.parametrize(("count", "times"), [(4, MOST), (6, 4.0), (8, 2.25), (LARGE, 1.0), (64, 1.0)])
def test_in_a_large_pool_one_may_come_and_go(count: int, times: float) -> None:
    levels, now = Levels(), 0.0
    levels.need(count, now)
    for _ in range(3):
        now = given_up_and_missed(levels, count, now, 100.0)
    assert levels.patience(count) == times
