"""Parked replicas that sleep: requests are held for them, the pool wakes them, and one that does not is replaced."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.config.scale import ScaleConfig, contradictions
from headgate.model.event import (
    Arrived,
    Dispatch,
    Ended,
    Quote,
    QuoteAsked,
    Refuse,
    ReplicaAsleep,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaParked,
    Tick,
)
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.orders import (
    LeaveReplica,
    RouteReplica,
    SleepReplica,
    StopReplica,
    WakeReplica,
)
from headgate.policy.scaling.placement import Activate, Drain, Park, PoolMember, PoolView, Sleep, Wake, rest
from headgate.policy.scaling.pool import SLEEP_AGAIN_S
from headgate.policy.scaling.scale import Scaler
from tests.policy.test_dispatcher import dispatcher, placed, request, send
from tests.policy.test_parked import parked
from tests.policy.test_pool import Scene

WAKE_S = 2.0


def asleep(made: Dispatcher, name: str, slots: int, now: float = 0.0) -> None:
    parked(made, name, slots, now)
    made.on(ReplicaAsleep(name, WAKE_S), now)


def refused(made: Dispatcher, now: float) -> list[Refuse]:
    commands = made.on(Arrived(request("slow", at=now)), now)
    return [one for one in commands if isinstance(one, Refuse)]


def ticked(made: Dispatcher, until: float) -> list[object]:
    """All commands of the ticks that the dispatcher asks for."""
    found: list[object] = []
    while made.wake_at <= until:
        found += made.on(Tick(), made.wake_at)
    return found


# -- requests that are held ---------------------------------------------------------------------------------------


def test_a_request_is_held_for_its_lanes_patience_and_a_wake_up_and_no_longer() -> None:
    made = dispatcher(1)
    bound = made.lanes["fast"].wait_bound_s
    asleep(made, "p", 2)
    first, held = request(), request()
    assert placed(send(made, first, held)) == [first.id]
    assert ticked(made, bound + WAKE_S - 0.01) == []
    (refusal,) = ticked(made, bound + WAKE_S)
    assert isinstance(refusal, Refuse)
    assert (refusal.request_id, refusal.outcome) == (held.id, Outcome.WAITED_TOO_LONG)


def test_who_waits_goes_to_the_one_that_wakes_up_and_is_told_how_long_that_took() -> None:
    made = dispatcher(1)
    asleep(made, "p", 2)
    first, held = request(), request()
    send(made, first, held)
    made.on(ReplicaAsleep("p", WAKE_S, waking=True), 0.1)
    (sent,) = made.on(ReplicaParked("p", False), 1.6)
    assert isinstance(sent, Dispatch)
    assert (sent.request_id, sent.replica_id) == (held.id, "p")
    assert sent.woke_s == pytest.approx(1.5)
    late = request(at=1.7)
    (sent,) = made.on(Arrived(late), 1.7)
    assert isinstance(sent, Dispatch)
    assert sent.woke_s == 0.0


def test_a_slot_that_comes_free_before_is_taken_and_nobody_is_told_of_a_wake_up() -> None:
    made = dispatcher(1)
    asleep(made, "p", 2)
    first, held = request(), request()
    send(made, first, held)
    (sent,) = made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.2)
    assert isinstance(sent, Dispatch)
    assert (sent.replica_id, sent.woke_s) == ("a", 0.0)


def overloaded(made: Dispatcher) -> float:
    """A queue that drains at one a second, and has two waiting: who comes next would wait too long."""
    now, running = 0.0, request("slow")
    send(made, running)
    for _ in range(30):
        follower = request("slow", at=now)
        send(made, follower)
        now += 1.0
        made.on(Ended(running.id, Outcome.COMPLETED, (10, 5)), now)
        running = follower
    send(made, request("slow", at=now), request("slow", at=now))
    return now


def test_what_a_forecast_would_refuse_is_held_as_far_as_the_sleeping_have_room() -> None:
    made = dispatcher(1)
    now = overloaded(made)
    (refusal,) = refused(made, now)
    assert refusal.outcome is Outcome.WOULD_WAIT_TOO_LONG
    assert not made.wanted_awake(now)
    asleep(made, "p", 4, now)
    (quote,) = made.on(QuoteAsked(request("slow", at=now)), now)
    assert isinstance(quote, Quote)
    assert quote.admitted
    assert "2.0 s" in quote.message
    assert [refused(made, now) for _ in range(2)] == [[], []]
    assert made.wanted_awake(now)
    assert len(refused(made, now)) == 1  # four are ahead of it, as many as the sleeping one has room for
    assert not made.wanted_awake(now + 5.0)
    assert len(placed(made.on(ReplicaParked("p", False), now + 0.1))) == 4
    assert not made.wanted_awake(now + 0.1)
    # What it takes off the queue is not in the forecast yet: that goes for a while.
    assert [refused(made, now + 0.1) for _ in range(3)] == [[], [], []]
    (quote,) = made.on(QuoteAsked(request("slow", at=now + 0.1)), now + 0.1)
    assert isinstance(quote, Quote)
    assert quote.admitted
    assert quote.message == "it would wait for a replica that has just woken up"
    assert made.book.sleepers.of("m", "slow", now + 0.1) == (4, 0.0)
    assert made.book.sleepers.of("m", "slow", now + 0.1 + WAKE_S) is None
    made.on(ReplicaParked("p", True), now + 0.2)
    assert made.book.sleepers.of("m", "slow", now + 0.2) is None


def test_one_that_should_have_been_awake_long_since_is_not_counted_on() -> None:
    made = dispatcher(1)
    now = overloaded(made)
    asleep(made, "p", 3, now)
    made.on(ReplicaAsleep("p", WAKE_S, waking=True), now - 2 * WAKE_S - 0.1)
    assert len(refused(made, now)) == 1


def test_one_that_left_or_serves_another_lane_or_model_holds_nobody() -> None:
    made = dispatcher(1)
    now = overloaded(made)
    asleep(made, "p", 3, now)
    assert made.book.sleepers.of("m", "slow", now) == (3, WAKE_S)
    made.on(ReplicaLeft("p"), now)
    assert made.book.sleepers.of("m", "slow", now) is None
    assert len(refused(made, now)) == 1


def test_with_all_of_them_asleep_requests_wait_even_where_a_version_is_pinned() -> None:
    made = dispatcher(no_replica_wait_s=0.5)
    bound = made.lanes["fast"].wait_bound_s
    asleep(made, "p", 2)
    (quote,) = made.on(QuoteAsked(request()), 0.0)
    assert isinstance(quote, Quote)
    assert quote.admitted
    assert "wake up" in quote.message
    plain, pinned = request(), request().but(pinned=True)
    assert send(made, plain, pinned) == []
    assert made.wanted_awake(0.0)
    assert made.on(ReplicaJoined(Replica(id="q", url="http://q", model="another", slots=1)), 0.1) == []
    assert ticked(made, bound + WAKE_S - 0.01) == []
    assert {one.request_id for one in ticked(made, bound + WAKE_S)} == {plain.id, pinned.id}  # type: ignore[attr-defined]


def test_what_it_had_cached_is_forgotten() -> None:
    made = dispatcher(2, 2)
    prompt = request().but(prefix=(b"x" * 8, b"y" * 8), link_tokens=5.0)
    (sent,) = made.on(Arrived(prompt), 0.0)
    assert isinstance(sent, Dispatch)
    made.on(Ended(prompt.id, Outcome.COMPLETED, (10, 5)), 0.1)
    assert made.book.entries[sent.replica_id].links.seen
    made.on(ReplicaAsleep(sent.replica_id, WAKE_S), 0.2)
    assert made.book.entries[sent.replica_id].links.seen  # it is not parked: what is said of it is out of date
    made.on(ReplicaParked(sent.replica_id, True), 0.2)
    made.on(ReplicaAsleep(sent.replica_id, WAKE_S), 0.2)
    assert not made.book.entries[sent.replica_id].links.seen
    made.on(ReplicaAsleep("unknown", WAKE_S), 0.2)


def test_one_that_was_parked_before_it_joined_has_no_room_yet() -> None:
    made = dispatcher(1)
    made.on(ReplicaParked("p", True), 0.0)
    made.on(ReplicaAsleep("p", WAKE_S), 0.0)
    assert made.book.sleepers.of("m", "fast", 0.0) is None
    made.on(ReplicaJoined(Replica(id="p", url="http://p", model="m", lanes=frozenset({"long"}), slots=2)), 0.1)
    assert made.book.sleepers.of("m", "fast", 0.1) is None
    assert made.book.sleepers.of("m", "long", 0.1) == (2, WAKE_S)
    assert made.book.sleepers.of("other", "long", 0.1) is None


# -- the pool -------------------------------------------------------------------------------------------------------


def resting(scene: Scene, *names: str) -> None:
    """Replicas that serve, and one more that is asleep."""
    scene.ready(*names)
    *serving, last = names
    scene.look(*(Activate(name) for name in serving), Park(last))
    assert scene.look(Sleep(last)) == [SleepReplica(last, 5.0)]
    assert scene.pool.members[last].state is Lifecycle.DOZING
    scene.pool.slept(last, scene.now)
    assert scene.pool.members[last].state is Lifecycle.ASLEEP
    scene.pool.flush()


def test_one_that_sleeps_is_woken_and_then_gets_requests_without_a_ramp() -> None:
    scene = Scene()
    resting(scene, "a", "b")
    assert scene.look(Activate("b")) == [WakeReplica("b", 5.0)]
    assert scene.look(Activate("b")) == []
    scene.now += 1.0
    scene.pool.woken("b", None, scene.now)
    assert scene.done() == [RouteReplica("b", True)]
    assert scene.pool.members["b"].state is Lifecycle.SERVING
    assert scene.pool.wake_s == pytest.approx(2.0)
    scene.pool.woken("b", None, scene.now)
    scene.pool.slept("b", scene.now)
    assert scene.done() == []


def test_one_that_is_woken_to_stay_parked_may_be_needed_before_it_is_awake() -> None:
    scene = Scene()
    resting(scene, "a", "b")
    assert scene.look(Wake("b")) == [WakeReplica("b", 5.0)]
    assert scene.look(Wake("b")) == []
    scene.pool.woken("b", None, scene.now)
    assert scene.done() == [RouteReplica("b", False)]
    assert scene.pool.members["b"].state is Lifecycle.PARKED
    scene.look(Sleep("b"))
    scene.pool.slept("b", scene.now)
    scene.look(Wake("b"))
    assert scene.look(Activate("b")) == []  # it wakes already
    scene.pool.woken("b", None, scene.now)
    assert scene.done() == [RouteReplica("b", True)]


def test_one_that_is_needed_while_it_falls_asleep_does_both_one_after_the_other() -> None:
    scene = Scene()
    scene.ready("a", "b")
    scene.look(Activate("a"), Park("b"))
    scene.look(Sleep("b"))
    assert scene.look(Activate("b")) == [WakeReplica("b", 5.0)]
    scene.pool.slept("b", scene.now)
    assert scene.pool.members["b"].state is Lifecycle.WAKING
    scene.pool.woken("b", None, scene.now)
    assert scene.done() == [RouteReplica("b", True)]


def test_one_that_does_not_fall_asleep_stays_as_it_was_and_is_not_told_again_for_a_while() -> None:
    scene = Scene()
    scene.ready("a", "b")
    scene.look(Activate("a"), Park("b"))
    scene.look(Sleep("b"))
    scene.pool.stays_awake("b", "it has no /sleep", scene.now)
    assert scene.done() == [RouteReplica("b", False)]
    assert scene.pool.members["b"].state is Lifecycle.PARKED
    scene.pool.stays_awake("b", "said too late", scene.now)
    assert scene.done() == []
    seen = {member.id: member for member in scene.pool.view(scene.now).members}
    assert seen["b"].sleepless
    seen = {member.id: member for member in scene.pool.view(scene.now + SLEEP_AGAIN_S).members}
    assert not seen["b"].sleepless


def test_one_that_fails_to_wake_or_takes_too_long_is_stopped_and_no_other() -> None:
    scene = Scene(wake_limit_s=30.0)
    resting(scene, "a", "b")
    scene.look(Activate("b"))
    scene.pool.woken("b", "it answered 500", scene.now)
    assert scene.done() == [LeaveReplica("b"), StopReplica("b")]
    assert scene.pool.members["a"].state is Lifecycle.SERVING
    other = Scene(wake_limit_s=30.0)
    resting(other, "a", "b")
    other.look(Activate("b"))
    assert other.look(after_s=29.0) == []
    seen = {member.id: member for member in other.views[-1].members}
    assert seen["b"].overdue
    assert other.look(after_s=2.0) == [LeaveReplica("b"), StopReplica("b")]


def test_what_sleeps_is_stopped_without_being_drained_and_is_replaced_when_it_dies() -> None:
    scene = Scene()
    resting(scene, "a", "b")
    assert scene.look(Drain("b")) == [LeaveReplica("b"), StopReplica("b")]
    other = Scene()
    resting(other, "a", "b")
    other.reader.works["b"] = Work(slots=4, share=0.0)
    other.look(after_s=1.0)
    assert other.look(after_s=61.0) == [LeaveReplica("b"), StopReplica("b")]


def test_one_that_dies_asleep_and_comes_back_is_not_meant_to_serve() -> None:
    scene = Scene()
    resting(scene, "a", "b")
    scene.look(Activate("b"))
    scene.pool.vanished("b", "killed", True, scene.now)
    scene.pool.appeared(scene.pool.members["b"].replica, scene.now)
    assert not scene.pool.members["b"].then_serve
    assert scene.pool.activate("unknown", "", scene.now) == scene.pool.wake("unknown", "", scene.now) == ""
    assert scene.pool.sleep("a", "it serves", scene.now) == ""
    assert scene.pool.activate("a", "it serves", scene.now) == ""


# -- the scaler -----------------------------------------------------------------------------------------------------

CONFIG = ScaleConfig(min=1, max=9, warm=2, forecast=False, sleep_after_s=60.0)


def member(name: str, state: Lifecycle, since: float = 0.0, **more: object) -> PoolMember:
    return PoolMember(id=name, state=state, since=since, slots=10, **more)  # type: ignore[arg-type]


def decided(scaler: Scaler, *members: PoolMember, now: float = 1000.0, waiting: int = 0, held: bool = False) -> Any:
    return scaler.decide(PoolView(members=members, waiting=waiting, held=held), now, 1e9 + now).actions


def test_parked_ones_sleep_after_a_while_and_only_if_they_can() -> None:
    serving = member("a", Lifecycle.SERVING)
    rested = member("b", Lifecycle.PARKED)
    assert decided(Scaler(CONFIG), serving, rested, member("c", Lifecycle.PARKED, 990.0)) == (Sleep("b"),)
    assert decided(Scaler(CONFIG), serving, replace(rested, sleepless=True), member("c", Lifecycle.ASLEEP)) == ()
    awake = replace(CONFIG, sleep_after_s=None)
    assert decided(Scaler(awake), serving, rested, member("c", Lifecycle.PARKED)) == ()


def test_those_awake_are_used_before_those_that_sleep_and_one_that_wakes_up_is_not_asked_for_again() -> None:
    full = member("a", Lifecycle.SERVING, requests=10)
    sleeping, awake = member("b", Lifecycle.ASLEEP, cached_tokens=99), member("c", Lifecycle.PARKED, 999.0)
    scaler = Scaler(CONFIG)
    assert Activate("c") in decided(scaler, full, sleeping, awake)
    woken = replace(sleeping, state=Lifecycle.WAKING, then_serve=True)
    scaler = Scaler(CONFIG)
    assert Activate("b") in decided(scaler, full, sleeping, member("d", Lifecycle.ASLEEP))
    assert Activate("d") not in decided(scaler, full, woken, member("d", Lifecycle.ASLEEP), now=1000.05)
    late = replace(woken, overdue=True)
    assert Activate("d") in decided(scaler, full, late, member("d", Lifecycle.ASLEEP), now=1011.0)


def test_a_held_request_wakes_one_though_the_slots_are_not_all_taken() -> None:
    there = (member("a", Lifecycle.SERVING, requests=2), member("b", Lifecycle.ASLEEP), member("c", Lifecycle.ASLEEP))
    assert decided(Scaler(CONFIG), *there, waiting=1) == ()
    assert decided(Scaler(CONFIG), *there, waiting=1, held=True) == (Activate("b"),)


def test_the_forecast_keeps_awake_or_wakes_what_it_will_want() -> None:
    class Sure(Forecast):
        demand = 300.0

        def expect(self, since: float, until: float):  # type: ignore[no-untyped-def]
            from headgate.policy.scaling.forecast import ExpectedDemand

            return ExpectedDemand(self.demand, 0.0, 1)

    config = replace(CONFIG, forecast=True, tokens_per_s=100.0, warm=2)
    sleeping = (member("b", Lifecycle.ASLEEP), member("c", Lifecycle.ASLEEP))
    busy = (member("a", Lifecycle.SERVING, requests=3), member("d", Lifecycle.SERVING))
    sure = Sure()
    actions = decided(Scaler(config, sure), *busy, *sleeping)
    assert Wake("b") in actions or Activate("b") in actions
    sure.demand = 1.0
    assert decided(Scaler(config, sure), *busy, *sleeping) == ()


def test_no_more_are_woken_or_put_to_sleep_than_it_takes() -> None:
    parked = [member(name, Lifecycle.PARKED) for name in "ab"]
    sleeping = [member(name, Lifecycle.ASLEEP) for name in "cd"]
    assert rest([*parked, *sleeping], awake=3, after_s=60.0, now=1000.0) == (Wake("c"),)
    assert rest([*parked, *sleeping], awake=2, after_s=60.0, now=1000.0) == ()
    assert rest([*parked, *sleeping], awake=1, after_s=60.0, now=1000.0) == (Sleep("a"),)
    assert rest([*parked, *sleeping], awake=1, after_s=None, now=1000.0) == ()


def test_sleep_without_a_warm_pool_is_a_contradiction() -> None:
    ((path, problem),) = contradictions(replace(CONFIG, warm=0), "fleet.scale")
    assert path == "fleet.scale.sleep_after_s"
    assert "warm" in problem


def test_a_pool_tells_its_scaler_that_requests_are_held() -> None:
    scene = Scene()
    scene.reader.wanted = Demand(held=True)
    assert scene.pool.view(scene.now).held
