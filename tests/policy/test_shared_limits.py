"""Limits that hold for several gateways together: what one decides from its allowance, and from what it last heard."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.model.event import Arrived, Command, Dispatch, Ended, Event, Leased, Probed, Refuse, ReplicaJoined, Shared
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.compose import dispatcher_for
from headgate.policy.replicas.allowance import AHEAD_S, MOST_OF_BUCKET, Appetite, part_of, room_of
from headgate.policy.tenants.limits import Grant, OverLimit, RateLimiter, TenantLimits
from headgate.policy.tenants.shared_limits import SOON_S, SharedLimits
from headgate.replay.event_log import EventLog
from headgate.replay.replay import Replayed, replay
from tests.policy.test_dispatcher import dispatcher, join, placed, refused, request, send

LIMITS = TenantLimits(requests_per_min=60, tokens_per_min=6000)
"""A request is a second; a hundred tokens are one."""
EMPTY_S = 60.0
"""Until an empty bucket is full."""


def shared(gateways: int = 2, connected: bool = True) -> SharedLimits:
    made = SharedLimits()
    made.share(gateways, connected)
    return made


def granted(made: SharedLimits, tokens: int = 100, now: float = 0.0) -> Grant:
    grant = made.take("t", LIMITS, tokens, now)
    assert isinstance(grant, Grant)
    return grant


def test_an_allowance_is_spent_whatever_is_left_in_the_bucket() -> None:
    made = shared()
    made.leased("t", 2.0, 3.0, EMPTY_S, EMPTY_S, 0.0)
    assert made.covers("t", LIMITS, 300)
    granted(made, 100)
    assert not made.covers("t", LIMITS, 300)
    granted(made, 200)
    over = made.take("t", LIMITS, 100, 0.0)
    assert isinstance(over, OverLimit)
    assert over.retry_after_s == pytest.approx(1.0)
    assert over.view.requests is not None
    assert over.view.requests.remaining == 0


def test_what_is_in_the_purse_need_not_be_waited_for() -> None:
    made = shared()
    made.leased("t", 0.4, 5.0, EMPTY_S, 0.0, 0.0)
    assert made.wait_s("t", LIMITS, 100, 0.0) == pytest.approx(0.6)
    assert made.wait_s("t", LIMITS, 100, 0.7) == 0.0
    assert made.wait_s("nobody known", LIMITS, 100, 0.0) == 0.0


def test_a_bucket_that_is_full_is_full_now() -> None:
    made = shared()
    made.leased("t", 0.0, 0.0, 3.0, 8.0, 0.0)
    assert made.full_in_s("t", 1.0) == pytest.approx((2.0, 7.0))
    assert made.full_in_s("t", 5.0) == pytest.approx((0.0, 3.0))
    assert made.full_in_s("t", 9.0) == (0.0, 0.0)


def test_without_an_allowance_a_gateway_goes_as_far_as_its_part_of_what_is_left_and_owes_it() -> None:
    made = shared(gateways=3)
    made.leased("t", 0.0, 0.0, EMPTY_S - 9.0, 0.0, 0.0)
    for _ in range(3):
        granted(made)
    over = made.take("t", LIMITS, 100, 0.0)
    assert isinstance(over, OverLimit)
    assert over.retry_after_s >= SOON_S
    assert made.purses["t"].requests_s == pytest.approx(-3.0)
    assert made.purses["t"].tokens_s == pytest.approx(-3.0)
    made.leased("t", 3.0, 3.0, EMPTY_S, 0.0, 0.0)
    assert "t" not in made.purses  # paid, and nothing left: nothing is kept of it
    assert made.wait_s("t", LIMITS, 100, 0.0) > 0


def test_what_was_really_used_changes_the_purse_alone() -> None:
    made = shared()
    made.leased("t", 3.0, 3.0, 10.0, 10.0, 0.0)
    first, second = granted(made), granted(made)
    made.settle(first, 50, 1.0)
    assert made.purses["t"].tokens_s == pytest.approx(1.5)
    made.give_back(second, 1.0)
    assert made.purses["t"].requests_s == pytest.approx(2.0)
    assert made.purses["t"].tokens_s == pytest.approx(2.5)
    made.settle(granted(made), 600, 1.0)
    assert made.purses["t"].tokens_s == pytest.approx(-3.5)
    assert made.touched == {"t"}


def test_while_the_bucket_is_out_of_reach_all_parts_together_are_the_limit() -> None:
    made = [shared(gateways=3) for _ in range(3)]
    for one in made:
        one.leased("t", 0.0, 0.0, EMPTY_S - 30.0, 0.0, 0.0)
        one.share(3, False)
    passed = sum(isinstance(one.take("t", LIMITS, 1, now / 10), Grant) for now in range(600) for one in made)
    assert passed == pytest.approx(30 + 60, abs=3)


def test_going_out_of_reach_loses_no_more_than_the_purse_and_gives_nobody_a_new_bucket() -> None:
    made = shared()
    made.leased("t", 2.0, 2.0, EMPTY_S, EMPTY_S, 0.0)
    before = granted(made)
    made.share(2, False)
    over = made.take("t", LIMITS, 100, 0.0)
    assert isinstance(over, OverLimit)
    assert over.retry_after_s == pytest.approx(2.0)  # at half the rate
    made.settle(before, 0, 0.0)
    made.give_back(before, 0.0)
    assert isinstance(made.take("t", LIMITS, 100, 0.0), Grant)
    assert made.used(0.0) == ["t"]
    assert made.full_in_s("t", 0.0)[0] == pytest.approx(EMPTY_S)


@pytest.mark.parametrize("connected", [True, False])
def test_what_is_given_back_is_what_was_taken_and_nothing_stays_reserved(connected: bool) -> None:
    made = shared(gateways=2, connected=connected)
    other, one = granted(made, 1000), granted(made, 1000)
    assert made.reserved == 2
    before = made.purses["t"].tokens_s if connected else made.full_in_s("t", 0.0)[1]
    made.give_back(granted(made, 500), 0.0)
    after = made.purses["t"].tokens_s if connected else made.full_in_s("t", 0.0)[1]
    assert after == pytest.approx(before)
    made.settle(one, 20, 0.0)
    made.give_back(other, 0.0)
    assert made.reserved == 0


def test_reservations_of_before_others_were_known_are_settled_too() -> None:
    it = dispatcher(1, tenants={"t": LIMITS})
    (sent,) = placed(send(it, request(tenant="t")))
    it.on(Shared(1, 0.0, 1.0, False), 0.0)
    assert it.gate.limits.reserved == 1
    it.on(Ended(sent, Outcome.COMPLETED, (1, 1)), 1.0)
    assert it.gate.limits.reserved == 0


def test_whoever_has_no_limits_is_asked_nothing() -> None:
    made = shared()
    grant = made.take("t", TenantLimits(), 10**9, 0.0)
    assert isinstance(grant, Grant)
    made.settle(grant, 5, 0.0)
    made.give_back(grant, 0.0)
    assert not made.purses
    assert not made.touched


# -- how much ---------------------------------------------------------------------------------------------


def test_an_allowance_is_for_a_moment_at_the_rate_it_goes_and_never_much_of_a_bucket() -> None:
    appetite = Appetite(0.0)
    for step in range(1, 101):
        appetite.seen(0.1 * step, 0.5 * step, 0.1 * step)
    assert list(appetite.wants(60.0)) == pytest.approx([AHEAD_S, 5 * AHEAD_S], rel=0.01)
    assert appetite.wants(8.0)[1] == MOST_OF_BUCKET * 8.0
    assert appetite.spent_at == 10.0
    appetite.seen(10.0, 50.0, 20.0)
    assert appetite.spent_at == 10.0
    assert appetite.wants(60.0)[0] < 0.05 * AHEAD_S
    appetite.seen(1.0, 1.0, 21.0)  # a new purse
    assert appetite.spent_at == 21.0


@given(
    demands=st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0, 1e6), min_size=1, max_size=8),
    limit=st.integers(1, 500),
)
def test_parts_meet_without_a_gap_and_divide_every_replica_to_the_last(demands: dict[str, float], limit: int) -> None:
    parts = sorted(part_of(demands, name) for name in demands)
    assert parts[0][0] == 0.0
    assert parts[-1][1] == 1.0
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    rooms = [room_of(limit, low, high) for low, high in parts]
    spare = sum(int(limit * high + 1e-9) == int(limit * low + 1e-9) for low, high in parts)
    assert sum(rooms) == limit + spare  # whoever would get none has one


def test_who_has_more_to_do_gets_more_and_who_is_idle_keeps_some() -> None:
    low, high = part_of({"a": 30.0, "b": 0.0}, "b")
    assert high - low == pytest.approx(0.125)
    assert part_of({}, "a") == (0.0, 1.0)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 1e308])
def test_a_demand_that_can_not_be_is_of_a_gateway_that_is_not_there(odd: float) -> None:
    assert part_of({"a": 1.0, "b": odd}, "a") == (0.0, 1.0)
    assert part_of({"a": 1.0, "b": odd}, "b") == part_of({"a": 1.0, "b": 0.0}, "b")


# -- the dispatcher ---------------------------------------------------------------------------------------


def test_each_gateway_uses_its_part_of_every_replica_known_or_new() -> None:
    made = dispatcher(8)
    made.on(Shared(2, 0.0, 0.5, True), 0.0)
    join(made, "b", 4)
    join(made, "c", None)
    found = made.index.loads["c"].limit
    assert [made.index.loads[name].limit for name in "ab"] == [4.0, 2.0]
    made.on(Shared(2, 0.25, 1.0, True), 0.0)
    assert [made.index.loads[name].limit for name in "ab"] == [6.0, 3.0]
    assert made.index.loads["c"].limit == found  # found by watching, and others are part of what is seen
    made.on(Shared(1, 0.0, 1.0, True), 0.0)
    assert [made.index.loads[name].limit for name in "ab"] == [8.0, 4.0]


def test_room_that_comes_from_others_is_used_at_once() -> None:
    made = dispatcher(4)
    made.on(Shared(2, 0.0, 0.5, True), 0.0)
    assert len(placed(send(made, *(request() for _ in range(4))))) == 2
    assert len(placed(made.on(Shared(1, 0.0, 1.0, True), 0.0))) == 2


def test_outstanding_tokens_are_divided_too() -> None:
    made = dispatcher()
    made.on(Shared(2, 0.0, 0.5, True), 0.0)
    made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=100, token_limit=1000)), 0.0)
    seat = made.index.seat("a")
    assert seat is not None
    assert seat.token_limit == 500


def test_alone_nothing_is_different() -> None:
    made = dispatcher(4, tenants={"t": LIMITS})
    assert type(made.gate.limits) is RateLimiter
    made.on(Leased("t", 1.0, 1.0, 0.0, 0.0), 0.0)  # from nobody
    assert type(made.gate.limits) is RateLimiter


def test_an_allowance_decides_and_a_recorded_run_replays_to_the_same(tmp_path: Path) -> None:
    tenant = Tenant(name="t", key_sha256=("1" * 64,), requests_per_min=60)
    config, path = GatewayConfig(tenants=(tenant,)), tmp_path / "events.jsonl"
    log, made, rng = EventLog(path, config, 7), dispatcher_for(config, random.Random(7)), random.Random(1)
    answered: list[Command] = []

    def on(event: Event, now: float) -> None:
        commands = made.on(event, now)
        log.add(event, now, commands)
        answered.extend(commands)

    on(Shared(1, 0.0, 1.0, False), 0.0)
    on(ReplicaJoined(Replica(id="a", url="http://a", slots=8)), 0.0)
    on(Probed("a", ok=True), 0.0)
    for step in range(1, 400):
        now = step / 10
        if step % 50 == 1:
            on(Shared(rng.randint(1, 3), 0.0, rng.choice((0.5, 1.0)), step % 150 != 1), now)
        if rng.random() < 0.5:
            on(Leased("t", rng.uniform(-0.5, 2.0), 0.0, rng.uniform(50.0, 60.0), 0.0), now)
        asked = request(at=now, tenant="t")
        on(Arrived(asked), now)
        if rng.random() < 0.99:
            on(Ended(asked.id, Outcome.COMPLETED, (10, 5)), now)
    log.close()
    assert Outcome.OVER_LIMIT in refused(answered)
    assert sum(isinstance(command, Dispatch) for command in answered) > 50
    assert sum(isinstance(command, Refuse) for command in answered) > 50
    found = replay(path)
    assert isinstance(found, Replayed), str(found)


@pytest.mark.parametrize("connected", [True, False])
def test_a_look_refuses_only_what_taking_would(connected: bool) -> None:
    limits = shared(connected=connected)
    assert limits.look("t", LIMITS, 1, 0.0) is None
    limits.leased("t", 0.0, 0.0, EMPTY_S, 0.0, 0.0)
    over = limits.look("t", LIMITS, 1, 0.0)
    assert over is not None
    assert over.which == "requests"
    assert isinstance(limits.take("t", LIMITS, 1, 0.0), OverLimit)
    limits.leased("t", 0.0, 0.0, 0.0, EMPTY_S, 0.0)
    over = limits.look("t", LIMITS, 1, 0.0)
    assert over is not None
    assert over.which == "tokens"
    assert isinstance(limits.take("t", LIMITS, 1, 0.0), OverLimit)
    if connected:
        limits.leased("t", 1.0, 1.0, EMPTY_S, EMPTY_S, 0.0)
        assert limits.look("t", LIMITS, 1, 0.0) is None
        assert isinstance(limits.take("t", LIMITS, 1, 0.0), Grant)
