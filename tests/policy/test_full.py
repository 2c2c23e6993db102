"""A replica that says it is full is left alone for a while, and a request that waits for it gets an answer in time."""

import random
from collections.abc import Callable
from math import inf

import pytest

from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
    Tick,
)
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Load, Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.retry import MOST_REFUSALS
from headgate.policy.replicas.full import BACK_OFF_S, FORGET_S, LEAST_S, LONGEST_S, STEP_S
from tests.policy.driven import Driven
from tests.policy.test_dispatcher import dispatcher, placed, refused, request, send

ASK_S = 0.001
"""A refusal's way there and back."""


def refusal(one: Request, where: str, after_s: float | None = None) -> AttemptFailed:
    message = "the replica answered 429: busy"
    return AttemptFailed(
        one.id, where, Outcome.REPLICA_FAILED, refused=True, message=message, answered=True, retry_after_s=after_s
    )


def refusing(after_s: float | None) -> Callable[[Request, str, float], list[tuple[float, Event]]]:
    return lambda one, where, now: [(ASK_S, refusal(one, where, after_s))]


class Slots:
    """Replicas that take a number of requests at once and refuse the rest."""

    def __init__(self, slots: int, takes_s: float, after_s: float | None = None) -> None:
        self.slots, self.takes_s, self.after_s = slots, takes_s, after_s
        self.busy: dict[str, list[float]] = {}
        """When each of those at work ends, by replica."""
        self.refused: list[float] = []

    def __call__(self, one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        at_work = self.busy[where] = [ends for ends in self.busy.get(where, []) if ends > now]
        if len(at_work) >= self.slots:
            self.refused.append(now)
            return [(ASK_S, refusal(one, where, self.after_s))]
        at_work.append(now + self.takes_s)
        first = [(self.takes_s / 2, FirstToken(one.id))] if one.stream else []
        return [*first, (self.takes_s, Ended(one.id, Outcome.COMPLETED, (10, 5)))]


def load_of(made: Dispatcher, name: str = "a") -> Load:
    load = made.index.get(name)
    assert load is not None
    return load


# -- whoever waits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["fast", "slow", "long"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_only_replica_refuses_and_its_client_is_told_when_it_will_have_room(lane: str, stream: bool) -> None:
    on = Driven(dispatcher(8), refusing(20.0))
    one = request(lane, stream=stream)
    on.arrive(one)
    on.run(60.0)
    assert len(on.sent) == 1
    at, said = on.over[one.id]
    assert at == pytest.approx(LANES[lane].wait_bound_s, abs=0.01)
    assert isinstance(said, Refuse)
    assert said.outcome is Outcome.WAITED_TOO_LONG
    assert said.retry_after_s == pytest.approx(20.0 - at, abs=0.01)
    assert "every replica says that it is full" in said.message
    assert on.made.passages == {}


def test_everybody_is_told_the_replicas_word_where_nothing_of_ours_is_there() -> None:
    """Not one after the other at a pace that was never measured."""
    on = Driven(dispatcher(8), refusing(2.0))
    ones = [request(at=0.05 * number, tokens=256) for number in range(10)]
    on.arrive(*ones)
    on.run(60.0)
    for at, said in (on.over[one.id] for one in ones):
        assert isinstance(said, Refuse)
        assert said.retry_after_s == pytest.approx(2.0 - at, abs=0.01)


def test_a_refusal_that_comes_late_does_not_move_the_bound() -> None:
    def slow(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        return [(1.0, refusal(one, where, 0.1))]

    on = Driven(dispatcher(8), slow)
    one = request()
    on.arrive(one)
    on.run(10.0)
    assert len(on.sent) == 1
    assert on.over[one.id][0] == pytest.approx(1.0)


@pytest.mark.parametrize("after_s", [None, 0.0, 0.02, 1.0, 5.0])
@pytest.mark.parametrize("clients", [1, 50])
def test_a_replica_that_refuses_for_ever_is_hardly_asked(after_s: float | None, clients: int) -> None:
    """Clients that come back at once, for a minute."""
    on = Driven(dispatcher(8), refusing(after_s))
    on.arrive(*(request(at=0.05 * step) for step in range(1200) for _ in range(clients // 50 or 1)))
    on.arrive(*(request() for _ in range(clients)))
    on.run(60.0)
    times = [when for when, _, _ in on.sent]
    for second in range(1, 60):
        asked = sum(second <= when < second + 1 for when in times)
        assert asked < 20
    assert sum(when < 1.0 for when in times) < 20 + 8, "what was sent before the first refusal came"
    assert not [one for one in on.over.values() if isinstance(one[1], Outcome)]
    late = [at - on.requests[name].arrived for name, (at, _) in on.over.items()]
    assert max(late) < LANES["fast"].wait_bound_s + 0.1


def test_a_request_refused_everywhere_asks_each_once_and_costs_its_tenant_one_prompt() -> None:
    on = Driven(dispatcher(4, 4, 4, 4), refusing(5.0))
    one = request("slow")
    on.arrive(one)
    on.run(1.0)
    assert sorted(on.places(one.id)) == ["a", "b", "c", "d"]
    assert on.made.index.usable("m") == 4, "it is no fault of theirs"
    state = on.made.passages[one.id].lane_queue
    assert state.tally.served == pytest.approx(one.tokens / state.tally.weight)


# -- room -------------------------------------------------------------------------------------------------


def test_one_more_goes_there_when_one_of_its_requests_ends() -> None:
    made = dispatcher(4)
    first, second = request("batch"), request("batch")
    send(made, first, second)
    made.on(refusal(second, "a", 30.0), 0.01)
    assert made.passages[second.id].load is None
    assert load_of(made).room == 0
    assert placed(send(made, request("batch", at=0.02))) == []
    told = made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.5)
    assert placed(told) == [second.id]
    assert load_of(made).room == 0, "it has as many as it took before"


def test_or_when_the_time_it_named_has_passed_and_then_one_at_a_time() -> None:
    made = dispatcher(8)
    waiting = [request("batch") for _ in range(6)]
    send(made, *waiting[:1])
    made.on(refusal(waiting[0], "a", 3.0), 0.01)
    send(made, *waiting[1:], now=0.02)
    assert made.wake_at == pytest.approx(3.01)
    assert placed(made.on(Tick(), 3.0)) == []
    (tried,) = placed(made.on(Tick(), 3.01))
    more = placed(made.on(FirstToken(tried), 3.1))
    assert len(more) == 1, "it was taken, so that one more is tried"
    assert len(placed(made.on(Tick(), 3.01 + STEP_S))) == 1, "nor does it take an answer in one piece for ever to grow"
    for name in (tried, *more):
        made.on(Ended(name, Outcome.COMPLETED, (10, 5)), 3.3)
    assert made.waiting("batch") == 0


def test_the_ceiling_grows_with_what_is_taken_until_it_is_gone() -> None:
    made, now = dispatcher(6), 0.0
    send(made, one := request())
    made.on(refusal(one, "a", 0.1), now)
    for _ in range(40):
        now += 0.1
        sent = [*placed(made.on(Tick(), now)), *placed(send(made, request(at=now)))]
        for name in sent:
            made.on(FirstToken(name), now)
    assert load_of(made).ceiling == inf
    assert load_of(made).requests == 6


def test_a_ceiling_that_nobody_reaches_is_forgotten() -> None:
    made = dispatcher(6)
    send(made, one := request("batch"))
    made.on(refusal(one, "a", 1.0), 0.0)
    made.on(Ended(one.id, Outcome.CANCELLED), 0.5)
    while made.wake_at < inf:
        now = made.wake_at
        made.on(Tick(), now)
    assert FORGET_S <= now < FORGET_S + 2 * STEP_S
    assert load_of(made).ceiling == inf


def test_without_a_time_the_pause_doubles_and_a_success_ends_that() -> None:
    made, now, pauses = dispatcher(8), 0.0, []
    (tried,) = placed(send(made, *(request("batch") for _ in range(7)))[:1])
    for name in list(made.passages)[1:]:
        made.on(Ended(name, Outcome.CANCELLED), now)
    for _ in range(6):
        since, again = now, made.on(refusal(made.passages[tried].request, "a"), now)
        made.on(Arrived(request("batch", at=now - 1.0)), now)
        while not again:
            now = made.wake_at
            again = made.on(Tick(), now)
        (tried,) = placed(again)
        pauses.append(now - since)
    assert pauses == pytest.approx([0.25, 0.5, 1.0, 2.0, 2.0, 2.0])
    assert pauses[0] == BACK_OFF_S
    made.on(FirstToken(tried), now)
    for name in set(made.passages) - {tried}:
        made.on(Ended(name, Outcome.CANCELLED), now)
    send(made, other := request("batch", at=now))
    made.on(refusal(other, "a"), now)
    assert made.wake_at - now == pytest.approx(0.25)


def test_one_request_that_alone_is_refused_holds_up_nobody_and_is_told_in_the_end() -> None:
    """As where a proxy says 503 whenever its engine breaks off."""

    def behave(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        if one.tenant == "bad":
            return [(ASK_S, refusal(one, where))]
        return [(0.02, FirstToken(one.id)), (0.1, Ended(one.id, Outcome.COMPLETED, (10, 5)))]

    on = Driven(dispatcher(8, 8), behave)
    bad = [request("batch", at=8.0 * step, tenant="bad") for step in range(5)]
    good = [request(at=0.2 * step + 0.03) for step in range(200)]
    on.arrive(*bad, *good)
    on.run(400.0)
    served = sum(on.over[one.id][1] is Outcome.COMPLETED for one in good)
    assert served >= 198, "a forecast may be wrong in the moment that all are closed"
    assert max(len(on.places(one.id)) for one in bad) <= 2 * MOST_REFUSALS
    said = on.over[bad[0].id][1]
    assert isinstance(said, Refuse)
    assert said.message == f"the replica answered 429: busy; it was tried {MOST_REFUSALS} times"


@pytest.mark.parametrize(("named_s", "kept_s"), [(0.0, LEAST_S), (1e9, LONGEST_S), (7.0, 7.0)])
def test_what_it_names_is_kept_to_within_bounds(named_s: float, kept_s: float) -> None:
    made = dispatcher(8)
    send(made, one := request("batch"))
    made.on(refusal(one, "a", named_s), 0.0)
    assert made.wake_at == pytest.approx(kept_s)


def test_a_burst_that_is_refused_counts_once_and_what_stays_is_the_ceiling() -> None:
    made = dispatcher(16)
    many = [request("fast") for _ in range(16)]
    send(made, *many)
    for number, one in enumerate(many[4:]):
        made.on(refusal(one, "a"), 0.001 * number)
    assert load_of(made).ceiling == load_of(made).requests == 4
    assert made.wake_at < 0.3, "the pause has not doubled with each"


def test_a_full_replica_is_full_for_whoever_counts_its_room() -> None:
    made = dispatcher(8, 4)
    one = request()
    (sent,) = send(made, one)
    assert isinstance(sent, Dispatch)
    made.on(refusal(one, sent.replica_id, 5.0), 0.0)
    made.on(Ended(one.id, Outcome.CANCELLED), 0.0)
    load = load_of(made, sent.replica_id)
    assert (load.room, load.ceiling) == (0, 0.0)
    other = 12 - int(load.limit)
    assert made.index.capacity("m") == (other + 1, 1)
    assert len(placed(send(made, *(request() for _ in range(12))))) == other


@pytest.mark.parametrize("seed", range(6))
def test_throughput_hardly_suffers_where_a_replica_has_less_room_than_is_believed(seed: int) -> None:
    """It is said to have 64, and takes 8, for an eighth of a second each: 64 a second."""
    engine, rng = Slots(8, 0.125), random.Random(seed)
    on = Driven(dispatcher(64), engine)
    on.arrive(*(request("slow", at=rng.uniform(0.0, 20.0), stream=rng.random() < 0.5) for _ in range(2000)))
    on.run(30.0)
    assert len(on.over) == 2000
    served = sum(said is Outcome.COMPLETED for _, said in on.over.values())
    assert served > 0.93 * 64 * 20
    steady = [when for when in engine.refused if 1.0 <= when < 20.0]
    assert len(steady) / 19.0 < 20


def test_two_gateways_before_one_replica_both_back_off() -> None:
    engine = Slots(4, 0.2)
    ours, others = Driven(dispatcher(8), engine), Driven(dispatcher(8), engine)
    for number, on in enumerate((ours, others)):
        on.arrive(*(request("slow", at=0.02 * step + 0.01 * number) for step in range(500)))
    for step in range(1500):
        ours.run(0.01 * (step + 1))
        others.run(0.01 * (step + 1))
    assert len(ours.over) == len(others.over) == 500
    for on in (ours, others):
        served = sum(said is Outcome.COMPLETED for _, said in on.over.values())
        assert served > 40, "each has its part of 20 a second for 10 s"
    steady = [when for when in engine.refused if 1.0 <= when < 10.0]
    assert len(steady) / 9.0 < 40, "20 a second from each"


# -- not there --------------------------------------------------------------------------------------------


def unreached(one: Request, where: str) -> AttemptFailed:
    return AttemptFailed(one.id, where, Outcome.REPLICA_FAILED, message="no connection", unsent=True)


def test_one_that_can_not_be_reached_is_not_usable_until_it_is_tried_again_or_a_probe_reaches_it() -> None:
    made = dispatcher(4)
    send(made, one := request())
    assert made.on(unreached(one, "a"), 0.1) == []
    assert made.index.usable("m") == 0
    late = request(at=0.2)
    send(made, late)
    assert refused(made.on(Tick(), 0.34)) == []
    assert placed(made.on(Tick(), 0.35)) == [one.id], "one tries"
    made.on(unreached(one, "a"), 0.36)
    assert set(placed(made.on(Probed("a", ok=True), 0.4))) == {one.id, late.id}
    assert load_of(made).ceiling == inf


def test_whoever_waits_for_it_waits_as_long_as_for_any_replica() -> None:
    def dead(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        return [(ASK_S, unreached(one, where))]

    on = Driven(dispatcher(8, no_replica_wait_s=5.0), dead)
    first, late = request(), request(at=0.5)
    on.arrive(first, late)
    on.run(20.0)
    assert on.over[first.id][0] == pytest.approx(5.0, abs=0.1)
    assert on.over[late.id][0] == pytest.approx(5.5, abs=0.1)
    assert all(isinstance(said, Refuse) and said.outcome is Outcome.NO_REPLICA for _, said in on.over.values())
    assert len(on.sent) < 10


def test_what_a_replica_said_before_it_was_out_or_left_is_forgotten() -> None:
    made = dispatcher(4, 4)
    send(made, one := request("batch"))
    name = made.passages[one.id].load
    assert name is not None
    made.on(refusal(one, name.id, 30.0), 0.0)
    for now in (1.0, 2.0, 3.0):
        made.on(Probed(name.id, ok=False), now)
    assert load_of(made, name.id).ceiling == inf
    other = "b" if name.id == "a" else "a"
    made.on(refusal(one, other, 30.0), 3.0)
    made.on(ReplicaJoined(Replica(id=other, url="http://x", slots=9)), 3.5)
    assert load_of(made, other).ceiling == inf
    gone = load_of(made, other)
    made.on(Probed(other, ok=True), 4.0)
    made.on(ReplicaLeft(other), 4.5)
    made.on(refusal(one, other, 30.0), 5.0)
    assert gone.ceiling == inf
    assert made.wake_at < inf


def test_a_refusal_of_another_kind_of_replica_does_not_make_all_full() -> None:
    made = dispatcher(1, 1)
    one = request().but(unfit=frozenset({"a"}))
    send(made, one)
    made.on(refusal(one, "b", 9.0), 0.0)
    (said,) = made.on(Tick(), 0.41)
    assert isinstance(said, Refuse)
    assert said.retry_after_s == pytest.approx(8.59, abs=0.01), "only b could have it"
    send(made, other := request(at=1.0))
    assert made.passages[other.id].load is load_of(made, "a")
