import random

import pytest

from headgate.policy.admit import Drain, come_back_in


def test_nothing_is_known_of_a_queue_that_never_had_a_backlog() -> None:
    drain = Drain()
    assert drain.per_second(1.0) is None
    assert drain.wait_s(100, 1.0) == 0.0


def test_where_nobody_has_left_yet_it_takes_at_least_as_long_as_that_has_gone_on() -> None:
    drain = Drain()
    drain.backlog(True, 0.0)
    assert drain.wait_s(100, 0.3) == pytest.approx(0.3)
    assert drain.wait_s(1, 2.0) == pytest.approx(2.0, rel=0.2)
    drain.left(2.0)
    drain.left(2.1)
    assert drain.wait_s(1, 2.1) == pytest.approx(1.05, rel=0.2)


def test_the_rate_is_that_of_the_backlog_and_idle_time_does_not_count() -> None:
    drain, now = Drain(), 0.0
    for _ in range(3):
        drain.backlog(True, now)
        for _ in range(100):
            now += 0.1
            drain.left(now)
        drain.backlog(False, now)
        now += 8.0
    assert drain.per_second(now) == pytest.approx(10.0, rel=0.1)
    assert drain.wait_s(50, now) == pytest.approx(5.0, rel=0.1)


def test_a_queue_that_stops_draining_is_noticed() -> None:
    drain = Drain()
    drain.backlog(True, 0.0)
    for index in range(100):
        drain.left(index * 0.1)
    assert drain.wait_s(10, 10.0) < 1.2
    assert drain.wait_s(10, 40.0) > 100


def test_what_was_learned_long_ago_is_forgotten_with_the_next_backlog() -> None:
    drain = Drain()
    drain.backlog(True, 0.0)
    drain.left(6.0)
    drain.backlog(False, 6.0)
    drain.backlog(True, 60.0)
    assert drain.wait_s(3, 60.0) == 0.0


def test_it_follows_a_change_of_speed() -> None:
    drain, now = Drain(), 0.0
    drain.backlog(True, now)
    for gap in [0.1] * 100 + [0.01] * 2000:
        now += gap
        drain.left(now)
    assert drain.per_second(now) == pytest.approx(100.0, rel=0.1)


def test_come_back_when_the_queue_is_through_spread_out_and_within_reason() -> None:
    drain, rng = Drain(), random.Random(1)
    drain.backlog(True, 0.0)
    for index in range(1, 51):
        drain.left(index * 0.1)
    times = {come_back_in(drain, 20, 30.0, 5.0, rng) for _ in range(50)}
    assert len(times) == 50
    assert all(1.5 < one < 2.6 for one in times)
    assert come_back_in(drain, 100_000, 2.0, 5.0, rng) <= 2.4
    assert 0.3 < come_back_in(Drain(), 5, 0.4, 0.0, rng) < 0.5
    assert come_back_in(drain, 0, 0.0, 5.0, rng) >= 0.04
