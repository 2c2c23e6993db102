"""What a pool is scaled by, read from a dispatcher."""

import pytest

from headgate.model.event import ReplicaParked
from headgate.model.lane import LANES
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.signals import P95_EVERY_S, VELOCITY_S, ArrivalRate, PoolSignals
from tests.policy.test_dispatcher import dispatcher, join, request, send

NO_P95 = dict.fromkeys(LANES)


def test_the_rate_is_over_the_last_half_minute_and_over_a_second_at_least() -> None:
    rate = ArrivalRate()
    assert rate.observe(0, 100.0) == 0.0
    assert rate.observe(50, 100.5) == 50.0
    assert rate.observe(300, 110.0) == 30.0
    assert rate.observe(600, 110.0 + VELOCITY_S) == pytest.approx(300 / VELOCITY_S)


def test_demand_is_what_waits_and_arrives() -> None:
    made = dispatcher(2)
    signals = PoolSignals(made, lambda lane, now: None)
    assert signals.demand(0.0) == Demand()
    send(made, request(), request(), request(tokens=30))
    assert signals.waiting() == 1
    assert signals.demand(1.0) == Demand(1, 60, 100.0, None)
    assert signals.tokens_per_s == 100.0


def test_it_is_strained_when_a_request_waits_or_usable_replicas_are_nearly_full() -> None:
    made = dispatcher(10)
    signals = PoolSignals(made, lambda lane, now: None)
    send(made, *(request() for _ in range(8)))
    assert not signals.strained()
    send(made, request())
    assert made.slots() == (10, 9)
    assert signals.strained()
    join(made, "b", 10)
    assert not signals.strained()
    made.on(ReplicaParked("b", True), 0.0)
    assert signals.strained()
    send(made, request(), request())
    assert (signals.waiting(), signals.strained()) == (1, True)


def test_work_is_a_replicas_load_without_its_slots_share() -> None:
    made = dispatcher(4)
    signals = PoolSignals(made, lambda lane, now: None)
    assert signals.work("x", 0.0) == Work()
    send(made, request())
    found = signals.work("a", 0.0)
    assert (found.requests, found.tokens, found.slots, found.share, found.cached_tokens) == (1, 10, 4, 1.0, 0)


def test_the_lane_that_is_furthest_from_its_promise_counts_and_is_read_once_a_second() -> None:
    late = {"fast": LANES["fast"].ttft_target_s, "slow": 3 * LANES["slow"].ttft_target_s}
    p95s: dict[str, float | None] = {**NO_P95, **late}
    asked: list[float] = []

    def p95(lane: str, now: float) -> float | None:
        asked.append(now)
        return p95s[lane]

    signals = PoolSignals(dispatcher(4), p95)
    assert signals.demand(0.0).p95_ratio == 3.0
    p95s |= NO_P95
    assert signals.demand(P95_EVERY_S / 2).p95_ratio == 3.0
    assert signals.demand(P95_EVERY_S).p95_ratio is None
    assert asked == [0.0] * len(LANES) + [P95_EVERY_S] * len(LANES)
