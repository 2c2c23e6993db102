"""One request that no replica can serve is judged itself: it takes no replica down, and no other request waits for
it."""

import random
from collections.abc import Callable

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
    ReplicaParked,
)
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.outlier import SUSPECTS, ReplicaRecord
from headgate.policy.replicas.signs import HealthState, Saw
from tests.policy.driven import Driven
from tests.policy.test_dispatcher import dispatcher, request

POISON = (b"poison",)


def poison(at: float = 0.0, lane: str = "slow", prompt: bytes = POISON[0], tenant: str = "anonymous") -> Request:
    return request(lane, at=at, tenant=tenant).but(prefix=(prompt,))


def answered(one: Request, where: str) -> AttemptFailed:
    return AttemptFailed(one.id, where, Outcome.REPLICA_FAILED, message="the replica answered 500: no", answered=True)


def record(made: Dispatcher, name: str) -> ReplicaRecord:
    watch = made.book.entries[name].health
    assert watch is not None
    return watch.record


def reset(one: Request, where: str) -> AttemptFailed:
    return AttemptFailed(one.id, where, Outcome.REPLICA_FAILED, message="the connection was lost")


Failing = Callable[[Request, str], AttemptFailed]


def engine(failing: Failing = answered) -> Callable[[Request, str, float], list[tuple[float, Event]]]:
    """Serves everybody but who has the poison."""

    def behave(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        if one.prefix[:1] == POISON or (one.prefix[:1] and one.prefix[0].startswith(b"poison")):
            return [(0.01, failing(one, where))]
        return [(0.02, FirstToken(one.id)), (0.1, Ended(one.id, Outcome.COMPLETED, (10, 5)))]

    return behave


def probe(on: Driven, names: str, until: float) -> None:
    for second in range(1, int(until) + 1):
        for name in names:
            on.at(float(second), Probed(name, ok=True))


def states(made: Dispatcher) -> list[HealthState]:
    standings = [made.book.standing(name) for name in made.index.loads]
    return [standing.state for standing in standings if standing is not None]


def in_use(made: Dispatcher) -> int:
    return sum(state in (HealthState.UP, HealthState.RAMPING) for state in states(made))


@pytest.mark.parametrize("failing", [answered, reset], ids=["500", "reset"])
@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_a_poison_request_is_sent_as_often_as_configured_and_ends_in_502(replicas: int, failing: Failing) -> None:
    on = Driven(dispatcher(*[8] * replicas), engine(failing))
    bad, good = poison(), [request("slow", at=0.05 * step) for step in range(40)]
    on.arrive(bad, *good)
    probe(on, "abcdefgh"[:replicas], 12)
    on.run(12.0)
    assert len(on.places(bad.id)) == 3
    at, said = on.over[bad.id]
    assert isinstance(said, Refuse)
    assert said.outcome is Outcome.REPLICA_FAILED
    assert said.message == f"{failing(bad, 'a').message}; too many attempts"
    assert at < 0.1
    assert {on.over[one.id][1] for one in good} == {Outcome.COMPLETED}
    assert max(on.over[one.id][0] - one.arrived for one in good) < 0.2
    assert states(on.made) == [HealthState.UP] * replicas


@pytest.mark.parametrize("failing", [answered, reset], ids=["500", "reset"])
@pytest.mark.parametrize("distinct", [True, False], ids=["distinct", "the same"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_four_of_them_a_second_leave_half_the_fleet_in_use_at_least(
    replicas: int, distinct: bool, failing: Failing
) -> None:
    on = Driven(dispatcher(*[8] * replicas), engine(failing))
    bad = [poison(0.25 * step, prompt=b"poison%d" % (step * distinct)) for step in range(120)]
    good = [request("slow", at=0.5 * step + 0.1) for step in range(60)]
    on.arrive(*bad, *good)
    probe(on, "abcdefgh"[:replicas], 30)
    least = replicas
    for step in range(300):
        on.run(0.1 * step)
        least = min(least, in_use(on.made))
    on.run(60.0)
    assert least >= (replicas + 1) // 2
    assert {on.over[one.id][1] for one in good} == {Outcome.COMPLETED}
    assert max(on.over[one.id][0] - one.arrived for one in good) < 0.5
    assert all(len(on.places(one.id)) <= 3 for one in bad)
    if failing is answered and not distinct:
        assert least == replicas, "one prompt, however often it is sent, says nothing of a replica"


def test_retries_of_poison_keep_to_the_budget_though_there_is_nobody_else() -> None:
    on = Driven(dispatcher(64), engine())
    bad = [poison(0.01 * step, prompt=b"poison%d" % step) for step in range(400)]
    on.arrive(*bad)
    on.run(20.0)
    assert len(on.over) == 400
    assert len(on.sent) <= 400 + 0.1 * 400 + 10, "one in ten, and what one replica has in flight"


def test_a_replica_that_fails_what_others_serve_is_out_also_if_all_ask_the_same() -> None:
    def behave(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        if where == "a":
            return [(0.01, answered(one, where))]
        return [(0.02, FirstToken(one.id)), (0.1, Ended(one.id, Outcome.COMPLETED, (10, 5)))]

    on = Driven(dispatcher(8, 8), behave)
    on.arrive(*(request("slow", at=0.5 * step).but(prefix=(b"the same",)) for step in range(40)))
    probe(on, "ab", 20)
    least = 2
    for step in range(220):
        on.run(0.1 * step)
        least = min(least, in_use(on.made))
    assert {said for _, said in on.over.values()} == {Outcome.COMPLETED}
    assert least == 1


def test_three_different_requests_that_fail_in_a_row_put_a_replica_out_whatever_comes_of_them() -> None:
    made = dispatcher(8, 8, 8)
    for number in range(4):
        one = poison(prompt=b"p%d" % number).but(unfit=frozenset("bc"))
        made.on(Probed("a", ok=True), 0.0)
        made.on(Arrived(one), 0.1)
        assert made.index.usable("m") == 3
        made.on(answered(one, "a"), 0.1)
        made.on(Ended(one.id, Outcome.CANCELLED), 0.1)
    assert made.index.usable("m") == 2


def test_a_request_that_kills_whoever_has_it_is_sent_three_times() -> None:
    dead: set[str] = set()

    def behave(one: Request, where: str, now: float) -> list[tuple[float, Event]]:
        if where in dead:
            return [(0.001, AttemptFailed(one.id, where, Outcome.REPLICA_FAILED, message="refused", unsent=True))]
        if one.prefix == POISON:
            dead.add(where)
            return [(0.01, reset(one, where))]
        return [(0.02, FirstToken(one.id)), (0.1, Ended(one.id, Outcome.COMPLETED, (10, 5)))]

    on = Driven(dispatcher(*[8] * 6), behave)
    bad, good = poison(), [request("slow", at=0.05 * step) for step in range(100)]
    on.arrive(bad, *good)
    for second in range(1, 10):
        for name in "abcdef":
            on.at(float(second), Probed(name, ok=name not in dead))
    on.run(12.0)
    assert len(dead) == len(on.places(bad.id)) == 3
    assert isinstance(on.over[bad.id][1], Refuse)
    assert {on.over[one.id][1] for one in good} == {Outcome.COMPLETED}


# -- who may go out ---------------------------------------------------------------------------------------


def fail(made: Dispatcher, name: str, times: int = 3, now: float = 1.0) -> None:
    for _ in range(times):
        made.book.saw(name, Saw.FAILURE, now)


def joined(made: Dispatcher, name: str, model: str | None = None, lanes: frozenset[str] = frozenset()) -> None:
    made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=4, model=model, lanes=lanes)), 0.0)
    made.on(Probed(name, ok=True), 0.0)


def test_requests_alone_never_put_out_the_last_for_a_model_or_a_lane() -> None:
    made = dispatcher()
    joined(made, "chat", "m")
    joined(made, "code", "c")
    joined(made, "quick", "m", frozenset({"fast"}))
    fail(made, "code", 10)
    assert made.index.usable("c") == 1
    fail(made, "chat", 10)
    assert made.index.usable("m", "slow") == 1, "the other one serves another lane"
    fail(made, "quick", 10)
    assert made.index.usable("m", "fast") == 1
    standing = made.book.standing("quick")
    assert standing is not None
    assert standing.state is HealthState.EJECTED, "its lane is served by one that serves all"


def test_a_parked_one_stands_in_for_nobody() -> None:
    made = dispatcher(4, 4)
    made.on(ReplicaParked("b", parked=True), 0.0)
    fail(made, "a", 10)
    assert made.index.usable("m") == 1
    made.on(ReplicaJoined(Replica(id="b", url="http://b", slots=4, kind="vllm")), 0.5)
    made.on(Probed("b", ok=True), 0.6)
    made.on(ReplicaParked("nobody", parked=True), 0.6)
    fail(made, "a", 1, now=0.7)
    assert made.index.usable("m") == 1, "nor when it is described anew"
    made.on(ReplicaParked("b", parked=False), 1.0)
    fail(made, "a", 1, now=1.1)
    assert [name for name, load in made.index.loads.items() if load.usable] == ["b"]


def test_one_failed_probe_puts_out_the_last_if_requests_fail_there_too() -> None:
    made = dispatcher(4)
    fail(made, "a", 10)
    made.on(Probed("a", ok=True), 1.0)
    assert made.index.usable("m") == 1
    made.on(Probed("a", ok=False), 2.0)
    assert made.index.usable("m") == 0


def test_where_all_fail_as_often_it_is_what_they_are_asked() -> None:
    made, now, rng = dispatcher(4, 4, 4), 0.0, random.Random(1)
    for turn in range(600):
        for name in "abc":
            now += 0.01
            load = made.index.loads[name]
            if turn > 100 and rng.random() < 0.4 and record(made, name).failed < 2:
                made.book.saw(name, Saw.FAILURE, now)
            else:
                made.book.succeeded(load, 100, 0.2, 0.02, now)
            assert load.usable == 1.0
    assert all(record(made, name).error_rate > 0.2 for name in "abc")


def test_suspects_are_bounded() -> None:
    record = ReplicaRecord()
    assert not record.another(("t", b"0"))
    for number in range(1, 100):
        assert record.another(("t", b"%d" % number))
    assert len(record.suspects) == SUSPECTS
    assert not record.another(("t", b"1"))


def test_what_was_sent_twice_to_one_replica_counts_twice() -> None:
    made = dispatcher(4, 4, 4, 4)
    one = poison()
    (sent,) = made.on(Arrived(one), 0.0)
    assert isinstance(sent, Dispatch)
    failed = AttemptFailed(one.id, sent.replica_id, Outcome.REPLICA_FAILED, twice=True)
    (again,) = made.on(failed, 0.1)
    assert isinstance(again, Dispatch)
    assert again.attempt == 3
    (said,) = made.on(reset(one, again.replica_id), 0.2)
    assert isinstance(said, Refuse)


def test_a_replica_that_serves_it_after_all_is_not_blamed() -> None:
    made = dispatcher(4)
    one = poison()
    made.on(Arrived(one), 0.0)
    made.on(answered(one, "a"), 0.1)
    assert made.passages[one.id].suspects == ("a",)
    made.on(Ended(one.id, Outcome.COMPLETED, (1, 1)), 0.2)
    assert record(made, "a").failed == 0
    assert made.on(ReplicaLeft("nobody"), 0.3) == []


def test_a_replica_that_is_back_is_not_given_every_prompt_that_is_cached_nowhere() -> None:
    """It was out and has been given nothing of late, as if it had most room for what is new."""
    made = dispatcher(8, 8)
    on = Driven(made, engine())
    probe(on, "b", 20)
    for second in [1.0, 2.0, 3.0, 4.0, *(8.0 + step for step in range(12))]:
        on.at(second, Probed("a", ok=True))
    for _ in range(3):
        on.at(5.0, Probed("a", ok=False))
    on.arrive(*(request("slow", at=5.5 + 0.5 * step).but(prefix=(b"%d" % step,)) for step in range(28)))
    on.run(20.0)
    assert in_use(made) == 2
    back = [where for at, _, where in on.sent if at >= 9.0]
    assert back[:6].count("a") == 3
