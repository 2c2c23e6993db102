"""Replicas that are known and watched, and get nothing: the warm pool as the dispatcher sees it."""

from headgate.model.event import Arrived, Dispatch, Ended, Probed, ReplicaJoined, ReplicaLeft, ReplicaParked, Tick
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.signs import HealthState
from headgate.policy.tenants.limits import TenantLimits
from tests.policy.test_dispatcher import dispatcher, join, placed, request, send


def parked(made: Dispatcher, name: str, slots: int, now: float = 0.0) -> None:
    """It joins as one of a fleet does: known and watched, and not to be used."""
    made.on(ReplicaParked(name, True), now)
    made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=slots)), now)
    made.on(Probed(name, ok=True), now)


def where(made: Dispatcher, count: int, now: float) -> list[str]:
    commands = [c for _ in range(count) for c in made.on(Arrived(request(at=now)), now)]
    return [c.replica_id for c in commands if isinstance(c, Dispatch)]


def test_a_parked_one_gets_nothing_and_takes_who_waits_the_moment_it_is_activated() -> None:
    made = dispatcher(1)
    parked(made, "p", 2)
    first, second, third = request(), request(), request()
    assert placed(send(made, first, second, third)) == [first.id]
    assert made.book.entries["p"].parked
    assert placed(made.on(Probed("p", ok=True), 0.05)) == []
    assert placed(made.on(ReplicaParked("p", False), 0.1)) == [second.id, third.id]


def test_one_that_is_parked_finishes_what_it_has() -> None:
    made = dispatcher(2, 2)
    assert sorted(where(made, 2, 0.0)) == ["a", "b"]
    made.on(ReplicaParked("a", True), 0.1)
    load = made.index.get("a")
    assert load is not None
    assert load.requests == 1
    assert where(made, 2, 0.2) == ["b"]
    running = next(passage.request.id for passage in made.passages.values() if passage.load is load)
    made.on(Ended(running, Outcome.COMPLETED, (10, 5)), 0.3)
    assert load.requests == 0
    assert made.index.capacity("m")[0] == 2


def test_with_only_parked_ones_requests_wait_as_for_a_replica_that_is_coming() -> None:
    made = dispatcher(no_replica_wait_s=10.0)
    parked(made, "p", 2)
    waiting = request()
    assert send(made, waiting) == []
    assert made.on(Tick(), 5.0) == []
    assert placed(made.on(ReplicaParked("p", False), 6.0)) == [waiting.id]


def test_a_new_one_ramps_up_and_one_that_was_only_parked_does_not() -> None:
    made = dispatcher(10)
    parked(made, "p", 10)
    made.on(ReplicaParked("p", False, ramp=True), 0.0)
    load = made.index.get("p")
    assert load is not None
    assert load.usable == 0.1
    standing = made.book.standing("p")
    assert standing is not None
    assert standing.state is HealthState.RAMPING
    made.on(Tick(), made.wake_at)
    assert 0.1 < load.usable < 1.0
    while made.wake_at <= 6.0:
        made.on(Tick(), made.wake_at)
    assert load.usable == 1.0
    made.on(ReplicaParked("p", True), 7.0)
    made.on(ReplicaParked("p", False), 8.0)
    assert load.usable == 1.0


def test_health_goes_on_while_it_is_parked_and_counts_when_it_is_activated() -> None:
    made = dispatcher(1)
    parked(made, "p", 2)
    for second in range(3):
        made.on(Probed("p", ok=False), 1.0 + second)
    made.on(ReplicaParked("p", False), 4.0)
    assert where(made, 2, 4.0) == ["a"]
    for second in range(4):
        made.on(Tick(), 5.0 + second)
        made.on(Probed("p", ok=True), 5.0 + second)
    load = made.index.get("p")
    assert load is not None
    assert load.usable > 0


def test_a_ramp_that_passes_while_it_is_parked_leaves_it_parked() -> None:
    made = dispatcher(1)
    parked(made, "p", 10)
    made.on(ReplicaParked("p", False, ramp=True), 0.0)
    made.on(ReplicaParked("p", True), 0.1)
    while made.wake_at <= 10.0:
        made.on(Tick(), made.wake_at)
    load = made.index.get("p")
    assert load is not None
    assert load.usable == 0.0
    made.on(ReplicaParked("p", False), 11.0)
    assert load.usable == 1.0


def test_what_it_has_cached_is_not_forgotten_while_it_is_parked() -> None:
    made = dispatcher(4, 4)
    prefixed = Request(
        id="x", arrived=0.0, model="m", lane="fast", priority=0, wait_until=1.0, first_token_by=1.0, prefix=(b"x",)
    )
    made.book.remember(prefixed, "a", 1)
    made.on(ReplicaParked("a", True), 0.0)
    assert len(made.book.entries["a"].links.seen) == 1
    made.on(ReplicaLeft("a"), 0.1)
    assert "a" not in made.book.entries


def test_one_that_left_while_parked_comes_back_as_any_other() -> None:
    made = dispatcher()
    parked(made, "p", 2)
    made.on(ReplicaLeft("p"), 0.1)
    join(made, "p", 2, 0.2)
    assert where(made, 1, 0.3) == ["p"]


def test_what_arrives_is_added_up_and_what_is_refused_for_its_tenants_limit_is_not() -> None:
    made = dispatcher(1, tenants={"small": TenantLimits(requests_per_min=1)})
    send(made, request(tokens=10), *(request(tokens=5, tenant="small") for _ in range(3)))
    assert made.arrived_tokens == 30
