"""The book of replicas, where a replica is named before it joins or after it has left."""

from headgate.model.event import ReplicaJoined, ReplicaLeft, ReplicaParked, Shared
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from tests.policy.test_dispatcher import dispatcher, request


def parked_ahead() -> Dispatcher:
    """One replica serves, and another is parked that has not joined yet."""
    made = dispatcher(4)
    made.on(ReplicaParked("new", True), 0.0)
    return made


def test_a_replica_that_is_parked_before_it_joins_is_none_until_then() -> None:
    made = parked_ahead()
    made.on(Shared(2, 0.0, 0.5, True), 0.0)
    made.use.look(0.0)
    made.use.look(2.0)
    assert made.use.read().slots == 0.0
    assert made.use.busy("new") is None
    assert list(made.index.loads) == list(made.view(2.0).replicas) == ["a"]
    assert made.index.capacity("m") == (2, 0)
    made.on(ReplicaJoined(Replica(id="new", url="http://new", slots=4)), 3.0)
    assert made.view(3.0).replicas["new"].parked
    assert made.view(3.0).replicas["new"].usable == 0.0


def test_parking_it_twice_or_taking_it_back_before_it_joins_leaves_nothing() -> None:
    made = parked_ahead()
    made.on(ReplicaParked("new", True), 0.0)
    made.on(ReplicaParked("new", False), 0.0)
    made.on(ReplicaParked("never parked", False), 0.0)
    assert list(made.book.entries) == ["a"]
    made.on(ReplicaJoined(Replica(id="new", url="http://new", slots=4)), 1.0)
    assert not made.view(1.0).replicas["new"].parked


def test_it_may_leave_before_it_joins() -> None:
    made = parked_ahead()
    made.on(ReplicaLeft("new"), 0.0)
    assert list(made.book.entries) == ["a"]


def test_what_is_heard_of_a_replica_that_has_left_counts_for_nothing() -> None:
    made = dispatcher(4)
    load = made.index.loads["a"]
    made.on(ReplicaLeft("a"), 0.0)
    made.book.took(load, 0.0)
    made.book.refused(load, 0.0, None, 1.0, again=False, unreached=True)
    made.book.remember(request().but(prefix=(b"x",)), "a", 1)
    made.book.succeeded(load, 10, 0.1, None, 1.0)
    assert (load.ceiling, load.unreached, len(made.book.prefixes)) == (float("inf"), False, 0)
    assert made.book.entries == {}


def test_the_last_coming_into_use_is_counted_over_all_replicas() -> None:
    made = dispatcher(4, 4)
    assert [made.view(0.0).replicas[name].came for name in "ab"] == [1, 2]
    made.on(ReplicaParked("a", True), 1.0)
    made.on(ReplicaParked("a", False), 2.0)
    assert [made.view(2.0).replicas[name].came for name in "ab"] == [3, 2]
    made.on(ReplicaJoined(Replica(id="b", url="http://b", slots=8)), 3.0)
    assert made.view(3.0).replicas["b"].came == 0


def test_a_replica_whose_slots_become_known_has_that_many_whatever_its_answers_take() -> None:
    made = dispatcher(8)
    made.on(ReplicaJoined(Replica(id="a", url="http://a")), 1.0)
    made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=4)), 1.0)
    for number in range(200):
        made.book.succeeded(made.index.loads["a"], 10, 0.1, None, 2.0 + number)
    assert made.view(300.0).replicas["a"].limit == 4
