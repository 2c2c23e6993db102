import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.file import parse
from headgate.config.gateway import ObserveConfig
from headgate.measure.edges import INDEX, edges
from headgate.model.lane import LANES, PROMISES, Lane
from headgate.policy.promises.alert import Alert, AlertChange, AlertLevel, Severity
from headgate.policy.promises.burn import Availability
from headgate.policy.promises.promise import FleetReading
from headgate.policy.promises.slo import (
    COLD_LEAST,
    ColdWatch,
    LaneReading,
    LaneWatch,
    Promise,
    Reading,
    Slo,
    SloState,
    Tail,
    asks,
    promises,
)
from headgate.policy.promises.words import about_budget, about_cold, about_promise, about_queue, about_use, about_usual

OK, WARNING, CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL
FAST = LANES["fast"]
MINUTE, HOUR = 60, 3600


class World:
    """One lane read once a second, each figure what it is set to."""

    def __init__(self, lane: Lane = FAST, observe: ObserveConfig | None = None) -> None:
        self.lane = lane
        self.slo = Slo({lane.name: lane}, observe or ObserveConfig())
        self.now = 1000.0
        self.began = self.now
        self.seconds: dict[tuple[str, int], float] = {}
        """By figure and percentile; what is not set is far from its bound."""
        self.count = 1000
        self.requests, self.failed = 10, 0
        self.waiting, self.use = 0.0, 0.3
        self.cold = 0
        self.joined: tuple[str, ...] = ()
        self.changes: list[AlertChange] = []

    def read(self) -> list[AlertChange]:
        tails = {
            (figure, percentile, window): Tail(self.seconds.get((figure, percentile), 0.01), self.count)
            for figure, percentile, window in asks(self.lane)
        }
        lane = LaneReading(tails=tails, requests=self.requests, failed=self.failed)
        reading = Reading(
            lanes={self.lane.name: lane},
            waiting_per_replica=self.waiting,
            utilisation=self.use,
            cold=self.cold,
            cold_of=self.requests * 300,
            joined=self.joined,
        )
        self.joined = ()
        changes = self.slo.on(reading, self.now)
        self.changes += changes
        return changes

    def run(self, seconds: float, each: Callable[[], None] | None = None, every_s: float = 1.0) -> list[AlertChange]:
        said = []
        for _ in range(round(seconds / every_s)):
            if each is not None:
                each()
            said += self.read()
            self.now += every_s
        return said

    def until(self, alert: str, severity: Severity, within_s: int, every_s: float = 1.0) -> tuple[float, AlertChange]:
        """How long it took, and what was said."""
        began = self.now
        while self.now - began <= within_s:
            changes = self.read()
            took = self.now - began
            self.now += every_s
            for change in changes:
                if change.alert == alert and change.severity is severity:
                    return took, change
        raise AssertionError(f"{alert} is not {severity.value} after {within_s} s")

    def state(self) -> SloState:
        return self.slo.state(self.now)

    def severity(self, alert: str) -> Severity:
        state = self.state()
        (found,) = [k for k in (*(known for _, known in state.promises), *state.alerts) if k.alert == alert]
        return found.severity


# -- promises -------------------------------------------------------------------------------------------------------


def test_a_lane_promises_what_its_config_says_and_nothing_else() -> None:
    assert promises(FAST) == (
        Promise("ttft", 50, 0.5),
        Promise("ttft", 95, 0.5),
        Promise("ttft", 99, 2.0),
        Promise("tpot", 50, 0.08),
        Promise("gap", 99, 0.2),
        Promise("answer", 95, 0.2),
        Promise("e2e", 95, 5.0),
        Promise("e2e", 99, 30.0),
    )
    bare = Lane(name="x", priority=0, ttft_target_s=1.0, gap_target_s=0.1, wait_bound_s=1, weight=1)
    assert promises(bare) == (Promise("ttft", 95, 1.0), Promise("gap", 99, 0.1), Promise("answer", 95, 0.1))


def test_all_that_is_needed_is_asked_for_once() -> None:
    assert len(set(asks(FAST))) == len(asks(FAST))
    assert {("ttft", 99, 60), ("ttft", 99, 300), ("e2e", 95, 300), ("ttft", 50, 300)} < set(asks(FAST))
    assert ("ttft", 95, 60) not in asks(FAST)
    bare = Lane(name="x", priority=0, ttft_target_s=1.0, gap_target_s=0.1, wait_bound_s=1, weight=1)
    assert ("ttft", 50, 300) in asks(bare)  # for what is usual


@pytest.mark.parametrize(
    ("share", "severity"), [(0.79, OK), (0.8, WARNING), (0.99, WARNING), (1.0, CRITICAL), (7.0, CRITICAL)]
)
@pytest.mark.parametrize("promise", promises(FAST), ids=lambda promise: promise.name)
def test_a_promise_is_at_risk_at_80_percent_of_its_bound_and_broken_at_100(
    promise: Promise, share: float, severity: Severity
) -> None:
    world = World()
    world.run(60)
    world.seconds[promise.of, promise.percentile] = share * promise.within_s
    changes = [change for change in world.read() if change.alert == promise.name]
    assert [change.severity for change in changes] == ([severity] if severity is not OK else [])
    assert world.severity(promise.name) is severity
    for change in changes:
        assert change.lane == "fast"
        assert change.was is OK
        assert change.bound == promise.within_s
        assert change.value == pytest.approx(share * promise.within_s)
        assert change.since == change.at == world.now
        assert "Look" in change.message
        assert f"p{promise.percentile}" in change.message


def test_it_steps_down_only_after_30_s_below_90_and_70_percent() -> None:
    world = World()
    key = ("ttft", 95)
    world.seconds[key] = 0.6
    world.read()
    world.now += 1
    world.seconds[key] = 0.46  # 92 %: no longer broken, but not kept either
    assert world.run(600) == []
    world.seconds[key] = 0.4  # 80 %
    took, change = world.until("ttft_p95", WARNING, 60)
    assert took == 30
    assert change.was is CRITICAL
    assert change.since == change.at - 30
    world.seconds[key] = 0.36  # 72 %
    assert world.run(600) == []
    world.seconds[key] = 0.3
    took, change = world.until("ttft_p95", OK, 60)
    assert (took, change.was) == (30, WARNING)
    assert "60 % of the promised 500 ms" in change.message


def test_what_is_far_below_all_lines_is_ok_without_a_stop_in_between() -> None:
    world = World()
    world.seconds["ttft", 95] = 0.6
    world.read()
    world.seconds["ttft", 95] = 0.1
    world.now += 1
    assert [(c.was, c.severity) for c in world.run(60)] == [(CRITICAL, OK)]


def test_one_good_reading_in_between_starts_the_30_s_anew() -> None:
    world = World()
    world.seconds["ttft", 95] = 0.6
    world.read()
    for _ in range(20):
        world.seconds["ttft", 95] = 0.1
        assert world.run(29) == []
        world.seconds["ttft", 95] = 0.6
        assert world.run(1) == []


def test_three_requests_say_nothing_and_p99_needs_a_hundred() -> None:
    world = World()
    world.seconds = {("ttft", 95): 9.0, ("ttft", 99): 9.0}
    world.count = 3
    assert world.run(300) == []
    assert "too few requests to tell (3 in 5 min)" in world.state().promises[1][1].message
    world.count = 20
    assert [c.alert for c in world.read()] == ["ttft_p95"]
    world.now += 1
    world.count = 99
    assert world.read() == []
    world.count = 100
    assert "ttft_p99" in [c.alert for c in world.read()]


def test_when_the_requests_stop_the_alert_ends_and_their_number_alone_makes_none_come_and_go() -> None:
    world = World()
    world.seconds["ttft", 95] = 0.6
    rng = random.Random(1)

    def wobble() -> None:
        world.count = rng.randint(12, 28)

    changes = world.run(600, wobble)
    assert [(c.alert, c.severity) for c in changes] == [("ttft_p95", CRITICAL)]
    world.count = 2
    took, change = world.until("ttft_p95", OK, 60)
    assert took == 30
    assert change.value is None
    assert "too few" in change.message


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    centre=st.sampled_from([0.7, 0.8, 0.9, 1.0]),
    spread=st.floats(0.0, 0.09),
)
def test_noise_near_a_line_does_not_make_it_flap(seed: int, centre: float, spread: float) -> None:
    """Under noise narrower than the gap between a line and where it is cleared, a severity is raised once and stays."""
    world, rng = World(), random.Random(seed)

    def noise() -> None:
        world.seconds["ttft", 95] = 0.5 * (centre + rng.uniform(-spread, spread))

    changes = [change for change in world.run(200, noise) if change.alert == "ttft_p95"]
    assert len(changes) <= 2
    assert [change.severity.rank for change in changes] == sorted(change.severity.rank for change in changes)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 60)), max_size=10))
def test_changes_tell_one_story(phases: list[tuple[float, int]]) -> None:
    """Each change starts where the last one ended, none is slower down than it must be, and none is early."""
    world, last, calm_since = World(), OK, 0.0
    for share, seconds in phases:
        world.seconds["ttft", 95] = share * 0.5
        for _ in range(seconds):
            if share >= 0.9:
                calm_since = world.now + 1.0
            for change in (c for c in world.run(1) if c.alert == "ttft_p95"):
                assert change.was is last
                assert change.severity is not last
                last = change.severity
            expected = CRITICAL if share >= 1 else WARNING if share >= 0.8 else OK
            assert last.rank >= expected.rank
            if last is CRITICAL:
                assert world.now - 1.0 - calm_since < 30.0
    assert world.severity("ttft_p95") is last
    world.seconds["ttft", 95] = 0.01
    world.run(40)
    assert world.severity("ttft_p95") is OK


# -- p99 above its bound for over a minute -----------------------------------------------------------------------------


@pytest.mark.parametrize("figure", ["ttft", "gap", "e2e"])
def test_p99_above_its_bound_for_over_a_minute_is_critical(figure: str) -> None:
    world = World()
    (promise,) = [p for p in promises(FAST) if (p.figure, p.percentile) == (figure, 99)]
    world.run(120)
    world.seconds[promise.of, 99] = 1.01 * promise.within_s
    took, change = world.until(f"{figure}_p99_over_60s", CRITICAL, 90)
    assert 60 < took <= 76
    assert change.since == change.at - took
    world.seconds[promise.of, 99] = 0.5 * promise.within_s
    took, change = world.until(f"{figure}_p99_over_60s", OK, 60)
    assert took == 30


def test_one_burst_that_stays_in_the_minutes_window_is_not_over_a_minute() -> None:
    world = World()
    for _ in range(10):
        world.seconds["ttft", 99] = 2.2
        world.run(70)  # as long as a burst is in a window of a minute and a slice
        world.seconds["ttft", 99] = 0.2
        world.run(60)
    assert "ttft_p99_over_60s" not in [change.alert for change in world.changes]


def test_exactly_at_its_bound_p99_is_not_above_it() -> None:
    world = World()
    world.seconds["ttft", 99] = 2.0
    world.run(300)
    assert "ttft_p99_over_60s" not in [change.alert for change in world.changes]


# -- queues and utilisation --------------------------------------------------------------------------------------------


def test_a_queue_above_target_is_a_warning_after_15_s_and_a_burst_is_none() -> None:
    world = World()
    for _ in range(10):
        world.waiting = 30.0
        assert world.run(14) == []
        world.waiting = 0.0
        assert world.run(5) == []
    world.waiting = 8.0  # the target itself
    assert world.run(300) == []
    world.waiting = 8.5
    took, change = world.until("queue_per_replica", WARNING, 60)
    assert took == 15
    assert change.lane == ""
    assert "8.5 requests wait for each usable replica, the target is 8" in change.message
    world.waiting = 6.0
    assert world.run(300) == []
    world.waiting = 5.0
    assert world.until("queue_per_replica", OK, 60)[0] == 30


def test_utilisation_past_its_target_is_a_warning_by_the_mean_of_five_minutes() -> None:
    world = World()
    world.run(600)
    world.use = 1.0
    assert world.run(60) == []  # a minute's burst
    world.use = 0.3
    assert world.run(600) == []
    world.use = 0.9
    took, change = world.until("utilisation", WARNING, 400)
    assert 150 < took < 300
    assert "the target is 65 %" in change.message
    world.use = 0.3
    assert world.until("utilisation", OK, 400)[1].was is WARNING


def test_without_a_usable_replica_there_is_no_utilisation() -> None:
    world = World()
    world.use = 0.9
    world.until("utilisation", WARNING, 100)
    reading = Reading(lanes={}, waiting_per_replica=0.0, utilisation=None, cold=0, cold_of=0)
    for _ in range(400):
        world.slo.on(reading, world.now)
        world.now += 1
    assert world.severity("utilisation") is OK
    assert "no requests in the last 5 min" in next(k.message for k in world.state().alerts if k.alert == "cold_starts")
    assert "no replica is usable" in next(k.message for k in world.state().alerts if k.alert == "utilisation")


# -- what is usual -----------------------------------------------------------------------------------------------------


def settled(ttft_s: float = 0.1) -> World:
    world = World()
    world.seconds["ttft", 50] = ttft_s
    world.run(1200)
    assert world.state().usual_ttft_s["fast"] == ttft_s
    return world


def test_ttft_over_twice_its_usual_is_noticed_at_once_long_before_it_breaks_a_promise() -> None:
    world = settled()
    world.seconds["ttft", 50] = 0.2
    assert world.run(300) == []
    world.seconds["ttft", 50] = 0.21
    took, change = world.until("ttft_over_usual", WARNING, 5)
    assert took == 0
    assert "TTFT p50 is 210 ms over the last 5 min, usually 100 ms" in change.message
    world.seconds["ttft", 50] = 0.16
    assert world.run(300) == []
    world.seconds["ttft", 50] = 0.14
    assert world.until("ttft_over_usual", OK, 60)[0] == 30


def test_the_incident_itself_is_not_learned_for_however_long_within_a_day_and_then_is_the_new_usual() -> None:
    world = settled()
    world.seconds["ttft", 50] = 0.3
    world.run(12 * HOUR, every_s=30)
    assert world.state().usual_ttft_s["fast"] == 0.1
    assert world.severity("ttft_over_usual") is WARNING
    world.run(14 * HOUR, every_s=30)
    assert world.severity("ttft_over_usual") is OK
    assert world.state().usual_ttft_s["fast"] == 0.3


def test_nothing_is_usual_before_a_quarter_of_an_hour_nor_by_few_requests_nor_by_milliseconds() -> None:
    world = World()
    world.seconds["ttft", 50] = 0.1
    world.run(880)
    world.seconds["ttft", 50] = 0.35
    assert world.run(10) == []
    assert world.state().usual_ttft_s["fast"] is None
    assert "not known yet" in next(k.message for k in world.state().alerts if k.alert == "ttft_over_usual")

    world = settled()
    world.seconds["ttft", 50] = 0.35
    world.count = 49
    assert world.run(300) == []
    assert "too few" in next(k.message for k in world.state().alerts if k.alert == "ttft_over_usual")

    world = settled(0.002)
    world.seconds["ttft", 50] = 0.011  # five times as much, and 9 ms more: 2 % of what is promised are 10 ms
    assert world.run(300) == []
    world.seconds["ttft", 50] = 0.013
    assert world.until("ttft_over_usual", WARNING, 5)[0] == 0


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_ordinary_spread_is_no_shift(seed: int) -> None:
    world, rng = World(), random.Random(seed)

    def noise() -> None:
        world.seconds["ttft", 50] = 0.1 * rng.lognormvariate(0, 0.1)

    assert [c for c in world.run(4 * HOUR, noise, every_s=30) if c.alert == "ttft_over_usual"] == []


# -- cold replicas ---------------------------------------------------------------------------------------------------


def test_cold_requests_after_a_replica_came_into_use_are_a_warning_that_names_it() -> None:
    world = World()
    world.run(1800)
    world.joined = ("b (version 2)", "c (version 2)")
    assert world.run(30) == []
    world.cold = 60  # of 3000
    took, change = world.until("cold_starts", WARNING, 5)
    assert took == 0
    assert "2 % of 3000 requests met a cold replica" in change.message
    assert "since b (version 2), c (version 2) came into use" in change.message
    world.cold = 0
    assert world.until("cold_starts", OK, 60)[0] == 30


def test_cold_requests_without_a_deployment_or_a_handful_or_no_more_than_usual_are_none() -> None:
    world = World()
    world.cold = 60
    assert world.run(1800) == []
    world.joined = ("b",)  # now 2 % are usual
    world.cold = 110
    assert world.run(300) == []
    world.cold = 150
    assert world.until("cold_starts", WARNING, 5)[1].bound == pytest.approx(0.04, rel=0.1)

    world = World()
    world.run(1800)
    world.requests = 0
    world.joined = ("b",)
    assert world.run(100) == []
    world.requests, world.cold = 1, 2  # of 300; but only two
    assert world.run(100) == []


def test_the_start_is_no_deployment_and_is_not_learned_as_usual() -> None:
    world = World()
    world.cold = 300
    assert world.run(590) == []
    world.cold = 0
    world.run(1200)
    world.joined = tuple(f"r{n}" for n in range(6))
    world.cold = 60
    _, change = world.until("cold_starts", WARNING, 5)
    assert change.bound == 0.01
    assert "r3 and 2 more" in change.message


def test_ten_minutes_after_a_deployment_cold_requests_are_no_longer_put_down_to_it() -> None:
    world = World()
    world.run(1800)
    world.joined = ("b",)
    world.cold = 60
    world.until("cold_starts", WARNING, 5)
    took, _ = world.until("cold_starts", OK, 700)
    assert 600 <= took <= 640


# -- the error budget --------------------------------------------------------------------------------------------------


def test_an_outage_burns_the_budget_critically_within_minutes() -> None:
    world = World()
    world.run(2 * HOUR)
    world.failed = 10
    took, change = world.until("error_budget", CRITICAL, 300)
    assert took < 90  # 1.44 % of an hour's requests is 52 s
    assert change.was in (OK, WARNING)
    assert change.value is not None
    assert change.value >= 14.4
    assert "headgate_errors_total" in change.message
    world.failed = 0
    took, _ = world.until("error_budget", WARNING, 600)
    assert 300 <= took <= 350  # the short window lets go of it
    assert 1400 <= world.until("error_budget", OK, 3600)[0] <= 1900


def test_a_slow_leak_is_a_warning_and_a_leak_within_budget_is_nothing() -> None:
    world = World(observe=ObserveConfig(availability=0.99))
    world.requests, world.failed = 100, 1
    assert world.run(7 * HOUR, every_s=30) == []
    world.failed = 7  # a burn of 7
    took, change = world.until("error_budget", WARNING, 7 * HOUR, every_s=30)
    assert 4 * HOUR < took < 6 * HOUR
    assert (change.was, change.bound) == (OK, 6.0)
    world.run(2 * HOUR, every_s=30)
    assert world.severity("error_budget") is WARNING


def test_four_failures_of_a_quiet_night_wake_nobody_and_the_fifth_does() -> None:
    world = World()
    world.requests = 1
    world.run(60)
    world.failed = 1
    assert world.run(4) == []
    assert [(c.alert, c.severity) for c in world.run(1)] == [("error_budget", CRITICAL), ("failed_share", CRITICAL)]


def test_where_a_tenth_may_fail_an_outage_is_still_noticed_and_where_all_may_it_is_not() -> None:
    world = World(observe=ObserveConfig(availability=0.9))
    world.failed = 10
    assert world.until("error_budget", CRITICAL, 60)[0] < 60
    world = World(observe=ObserveConfig(availability=0.0))
    world.failed = 10
    assert world.run(600) == []
    world = World(observe=ObserveConfig(availability=1.0))
    world.run(600)
    world.failed = 1
    assert world.until("error_budget", CRITICAL, 60)[0] == 4


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_state_says_everything_and_the_worst_first() -> None:
    world = World()
    world.run(60)
    calm = world.state()
    assert (calm.worst, calm.raised) == (OK, [])
    assert [promise for promise, _ in calm.promises] == list(promises(FAST))
    assert {known.alert for known in calm.alerts} == {
        "ttft_p99_over_60s", "gap_p99_over_60s", "e2e_p99_over_60s", "ttft_over_usual", "error_budget",
        "tenant_missed", "queue_per_replica", "cold_starts", "utilisation", "refused_share", "failed_share",
        "no_usable_replica", "replica_down",
    }  # fmt: skip
    assert all(known.message and known.since is None for known in calm.alerts)
    world.seconds = {("ttft", 95): 0.45, ("e2e_short", 99): 31.0}
    raised_at = world.now
    world.run(1)
    state = world.state()
    assert state.worst is CRITICAL
    assert [(known.alert, known.severity) for known in state.raised] == [("e2e_p99", CRITICAL), ("ttft_p95", WARNING)]
    assert state.raised[0].since == raised_at
    assert "over the last 5 min, 103 % of the promised 30 s (1000 requests)" in state.raised[0].message


def test_lanes_are_judged_each_by_itself_and_one_not_read_keeps_its_state() -> None:
    other = replace(FAST, name="other")
    slo = Slo({"fast": FAST, "other": other}, ObserveConfig())

    def reading(**ttft_s: float) -> Reading:
        lanes = {
            name: LaneReading(tails={("ttft", 95, 300): Tail(value, 100)}, requests=1, failed=0)
            for name, value in ttft_s.items()
        }
        return Reading(lanes=lanes, waiting_per_replica=0, utilisation=0.1, cold=0, cold_of=1)

    assert [(c.lane, c.severity) for c in slo.on(reading(fast=0.6, other=0.1), 1.0)] == [("fast", CRITICAL)]
    for second in range(100):
        assert slo.on(reading(other=0.1), 2.0 + second) == []
    assert slo.state(102.0).worst is CRITICAL


def test_the_same_readings_give_the_same_changes() -> None:
    def story() -> list[AlertChange]:
        world, rng = World(), random.Random(7)

        def noise() -> None:
            world.seconds["ttft", 95] = rng.uniform(0.1, 0.8)
            world.waiting = rng.uniform(0, 20)
            world.failed = rng.randint(0, 1)

        return world.run(2000, noise)

    assert story() == story() != []


def test_another_promise_ends_what_was_said_of_the_old_one_and_keeps_what_was_counted() -> None:
    world = settled()
    world.seconds["ttft", 95] = 0.6
    world.failed = 10
    world.run(120)
    assert {known.alert for known in world.state().raised} == {"ttft_p95", "error_budget", "failed_share"}
    burns = world.state().burns
    assert world.slo.reconfigure({"fast": FAST}, world.now) == []
    world.lane = replace(FAST, ttft_target_s=1.0)
    ended = world.slo.reconfigure({"fast": world.lane, "new": replace(FAST, name="new")}, world.now)
    assert [(c.alert, c.was, c.severity) for c in ended] == [
        ("ttft_p95", CRITICAL, OK),
        ("error_budget", CRITICAL, OK),
        ("failed_share", CRITICAL, OK),
    ]
    assert all("config" in change.message for change in ended)
    state = world.state()
    assert state.burns["fast"] == burns["fast"]
    assert state.usual_ttft_s == {"fast": 0.1, "new": None}
    assert [(c.alert, c.severity) for c in world.run(60)] == [("error_budget", CRITICAL), ("failed_share", CRITICAL)]
    assert world.slo.reconfigure({"fast": world.lane}, world.now) == []
    assert list(world.state().burns) == ["fast"]


def test_a_promise_to_nobody_is_idle_and_one_to_a_few_unknown() -> None:
    world = World()
    for many, standing in ((0, "idle"), (5, "unknown"), (1000, "ok")):
        world.count = many
        world.run(60)
        assert {known.standing for _, known in world.state().promises} == {standing}
    world.seconds["ttft", 95] = 0.6
    world.run(2)
    assert "critical" in {known.standing for _, known in world.state().promises}
    world.count = 0
    world.run(300)
    assert "TTFT p95: idle, no requests in 5 min; promised 500 ms" in {k.message for _, k in world.state().promises}


def test_an_alert_that_is_raised_is_kept_by_half_as_many_requests_as_raised_it() -> None:
    """Otherwise it would come and go with their number, while they are as slow as ever."""
    watch = LaneWatch(LANES["fast"], 0.999)
    promise, alert = next((p, a) for p, a in watch.kept if p.name == "ttft_p95")
    for second in range(900):
        count = promise.least if second < 300 else promise.least * 6 // 10
        tails = {("ttft", 95, 300): Tail(2 * promise.within_s, count)}
        watch.on(LaneReading(tails=tails, requests=0, failed=0), float(second))
    kept = alert.severity
    for second in range(900, 1800):
        tails = {("ttft", 95, 300): Tail(2 * promise.within_s, promise.least * 4 // 10)}
        watch.on(LaneReading(tails=tails, requests=0, failed=0), float(second))
    assert (kept, alert.severity) == (CRITICAL, OK)


@pytest.mark.parametrize(("cold", "raised"), [(COLD_LEAST - 1, False), (COLD_LEAST, True)])
def test_a_few_cold_requests_are_no_news_however_large_their_share(cold: int, raised: bool) -> None:
    watch = ColdWatch()
    for second in range(120):
        joined = ("a",) if second == 0 else ()
        reading = Reading(lanes={}, waiting_per_replica=0, utilisation=0.1, cold=cold, cold_of=2 * cold, joined=joined)
        watch.on(reading, float(second))
    assert (watch.alert.severity is Severity.WARNING) == raised


# -- words ---------------------------------------------------------------------------------------------------------


def test_a_text_does_not_contradict_its_severity_while_it_cools_down() -> None:
    """It said "20 % of the promised 1 s. Look at the queue wait …" under a badge that said critical."""
    steps = (AlertLevel(CRITICAL, 1.0, 0.9, clear_after_s=30.0), AlertLevel(WARNING, 0.8, 0.7, clear_after_s=30.0))
    alert = Alert("ttft_p95", "fast", steps, lambda alert: about_promise(alert, "ttft", 95, 5))
    alert.see(2.0, 1.0, 100, (2.0, 2.0), 0.0)
    assert "Look at the queue wait" in alert.tell(alert)
    alert.see(0.2, 1.0, 100, (0.2, 0.2), 1.0)
    assert alert.severity is CRITICAL
    assert "Look at" not in alert.tell(alert)
    assert "still critical" in alert.tell(alert)
    alert.see(None, 1.0, 3, (None, None), 2.0)
    assert "too few requests" in alert.tell(alert)
    assert "still critical" in alert.tell(alert)
    alert.see(0.2, 1.0, 100, (0.2, 0.2), 40.0)
    assert "still" not in alert.tell(alert)


def test_numbers_in_alerts_have_no_exponents() -> None:
    """`1e+03×` was what a page said when everything failed."""
    alert = Alert("error_budget", "fast", (AlertLevel(CRITICAL, 1.0),), lambda alert: about_budget(alert, 0.999))
    alert.see(1000.0, 14.4, 5, (69.0,), 0.0)
    assert "1000× as fast" in alert.tell(alert)
    queue = Alert("queue_per_replica", "", (AlertLevel(WARNING, 1.0),), about_queue)
    queue.see(12_345.6, 1_000_000.0, 0, (0.1,), 0.0)
    assert "12346 requests wait for each usable replica, the target is 1000000" in queue.tell(queue)


def test_every_alert_says_when_it_is_only_cooling_down() -> None:
    tells: list[tuple[Callable[[Alert], str], float]] = [
        (about_queue, 8.0),
        (lambda alert: about_use(alert, "kv"), 0.65),
        (lambda alert: about_usual(alert, 0.1), 0.2),
        (lambda alert: about_cold(alert, ("a", "b", "c", "d", "e")), 0.01),
    ]
    for tell, bound in tells:
        alert = Alert("x", "", (AlertLevel(WARNING, 1.0, 0.9),), tell)
        alert.see(2 * bound, bound, 100, (2.0,), 0.0)
        assert "still warning" not in alert.tell(alert)
        for value in (0.1 * bound, None):
            alert.see(value, bound, 100, (None if value is None else 0.1,), 1.0)
            assert "still warning" in alert.tell(alert)


def test_who_is_there_may_be_seen_between_two_looks() -> None:
    slo = Slo({"fast": FAST}, ObserveConfig())
    assert slo.see_fleet(FleetReading(up=1), 0.0) == []
    assert slo.see_fleet(FleetReading(up=0, down=("a",), outage=True), 0.1)[0].severity is CRITICAL
    assert (slo.state(0.1).fleet.outage, slo.state(0.1).worst) == (True, CRITICAL)


def test_what_was_refused_before_its_lane_was_known_is_told_too() -> None:
    slo = Slo({"fast": FAST}, ObserveConfig())

    def reading(refused: int) -> Reading:
        unknown = Availability(refused, refused, 0)
        return Reading(
            lanes={},
            waiting_per_replica=0,
            utilisation=None,
            cold=0,
            cold_of=0,
            fleet=FleetReading(up=1),
            unknown=unknown,
        )

    assert slo.on(reading(0), 0.0) == []
    assert "other" not in slo.state(0.0).availability
    (change,) = slo.on(reading(9), 1.0)
    assert (change.alert, change.lane, change.severity) == ("refused_share", "other", CRITICAL)
    assert slo.state(1.0).availability["other"][300].share == 0.0


# -- the table of promises ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "figure", "percentile"), PROMISES)
def test_every_promise_can_be_set_is_judged_and_has_its_edge(field: str, figure: str, percentile: int) -> None:
    lane = next(one for one in parse(f"lanes: {{fast: {{{field}: 0.777}}}}", "x.yaml").lanes if one.name == "fast")
    assert Promise(figure, percentile, 0.777) in promises(lane)
    assert 0.777 in edges([lane])[INDEX[figure]].values
