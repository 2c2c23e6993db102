import random
from itertools import pairwise

import pytest

from headgate.policy.dispatch.admit import LATEST_S, come_back_at
from headgate.policy.tenants.fair import DrainRate


def test_nothing_is_known_of_a_queue_that_never_had_a_backlog() -> None:
    drain = DrainRate()
    assert drain.per_second(1.0) is None
    assert drain.wait_s(100, 1.0) == 0.0


def test_where_nobody_has_left_yet_it_takes_at_least_as_long_as_that_has_gone_on() -> None:
    drain = DrainRate()
    drain.backlog(True, 0.0)
    assert drain.wait_s(100, 0.3) == pytest.approx(0.3)
    assert drain.wait_s(1, 2.0) == pytest.approx(2.0, rel=0.2)
    drain.left(2.0)
    drain.left(2.1)
    assert drain.wait_s(1, 2.1) == pytest.approx(1.05, rel=0.2)


def test_the_rate_is_that_of_the_backlog_and_idle_time_does_not_count() -> None:
    drain, now = DrainRate(), 0.0
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
    drain = DrainRate()
    drain.backlog(True, 0.0)
    for index in range(100):
        drain.left(index * 0.1)
    assert drain.wait_s(10, 10.0) < 1.2
    assert drain.wait_s(10, 40.0) > 100


def test_what_was_learned_long_ago_is_forgotten_with_the_next_backlog() -> None:
    drain = DrainRate()
    drain.backlog(True, 0.0)
    drain.left(6.0)
    drain.backlog(False, 6.0)
    drain.backlog(True, 60.0)
    assert drain.wait_s(3, 60.0) == 0.0


def test_it_follows_a_change_of_speed() -> None:
    drain, now = DrainRate(), 0.0
    drain.backlog(True, now)
    for gap in [0.1] * 100 + [0.01] * 2000:
        now += gap
        drain.left(now)
    assert drain.per_second(now) == pytest.approx(100.0, rel=0.1)


def test_a_refused_client_comes_back_when_it_would_have_had_its_turn_after_those_told_before_it() -> None:
    rng, now, promised = random.Random(1), 100.0, float("-inf")
    told = []
    for _ in range(5):
        promised = come_back_at(2.15, 0.5, promised, now, rng)
        told.append(promised - now)
    assert 2.15 <= told[0] <= 2.3
    assert all(0.5 <= later - sooner <= 0.625 for sooner, later in pairwise(told))


def test_a_promise_that_has_passed_moves_nobody() -> None:
    assert come_back_at(0.0, 0.2, 50.0, 100.0, random.Random(1)) == pytest.approx(100.05, abs=0.051)


def test_nobody_is_told_to_wait_longer_than_clients_heed() -> None:
    rng = random.Random(1)
    times = {come_back_at(1e6, 5.0, 0.0, 0.0, rng) for _ in range(50)}
    assert len(times) == 50
    assert all(30.0 <= one <= 60.0 for one in times)


def test_as_long_as_clients_heed_is_told_as_it_is() -> None:
    assert come_back_at(LATEST_S, 0.0, float("-inf"), 100.0, random.Random(1)) == 100.0 + LATEST_S
