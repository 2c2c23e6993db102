"""A version of which no replica is usable: whom another one answers, when, and whom not."""

import random
from pathlib import Path
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaParked,
    Tick,
)
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.rollout.rollout import TrafficSplit, digest_of
from headgate.replay.event_log import EventLog
from headgate.replay.replay import Replayed, replay, request_of
from tests.policy.test_dispatcher import dispatcher, join, request, send


def fleet(first: int = 1, second: int = 1) -> Dispatcher:
    """A replica of each of two versions."""
    made = dispatcher()
    join(made, "one", first, model="v1")
    join(made, "two", second, model="v2")
    return made


def drawn(**more: Any) -> Request:
    return request(model="v2", **more).but(fallback=("v1",))


def sent(commands: list[Command]) -> list[tuple[str, str, str]]:
    """Which went where, and in place of its own as which model."""
    return [(c.request_id, c.replica_id, c.model) for c in commands if isinstance(c, Dispatch)]


def test_while_its_own_version_is_there_nobody_stands_in() -> None:
    made = fleet()
    one, other = drawn(), drawn()
    assert sent(send(made, one, other)) == [(one.id, "two", "")]
    assert sent(made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), 0.5)) == [(other.id, "two", "")]
    made.on(Ended(other.id, Outcome.COMPLETED, (10, 5)), 1.0)
    assert not made._versions.asked


def test_an_arrival_for_a_dead_version_goes_to_another_at_once() -> None:
    made = fleet()
    made.on(ReplicaParked("two", True), 0.0)
    one = drawn()
    assert sent(send(made, one)) == [(one.id, "one", "v1")]
    assert not made._versions.asked
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), 1.0)
    assert made.index.loads["one"].requests == 0
    assert made.running("fast") == 0


@pytest.mark.parametrize("end", [ReplicaParked("two", True), ReplicaLeft("two")])
def test_whoever_waits_as_its_version_goes_is_moved_and_who_runs_stays(end: Event) -> None:
    made = fleet()
    running, first, second, pinned = drawn(), drawn(), drawn(), request(model="v2")
    send(made, running, first, second, pinned)
    assert made.waiting("fast") == 3
    assert sent(made.on(end, 0.1)) == [(first.id, "one", "v1")]
    assert made.passages[running.id].load is not None
    assert made.passages[second.id].request.model == "v1"
    assert made.passages[pinned.id].request.model == "v2"
    assert made.waiting("fast") == 2
    assert sent(made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.2)) == [(second.id, "one", "v1")]
    made.on(Ended(running.id, Outcome.COMPLETED, (10, 5)), 0.3)
    assert not made._versions.asked


def test_with_no_version_left_it_waits_for_its_own() -> None:
    made = fleet()
    for name in ("one", "two"):
        made.on(ReplicaParked(name, True), 0.0)
    one = drawn()
    assert sent(send(made, one)) == []
    assert made.passages[one.id].request.model == "v2"
    assert sent(made.on(ReplicaParked("two", False), 0.1)) == [(one.id, "two", "")]


def test_of_several_the_first_that_is_usable_stands_in() -> None:
    made = fleet()
    join(made, "three", 1, model="v3")
    made.on(ReplicaParked("two", True), 0.0)
    made.on(ReplicaParked("one", True), 0.0)
    one = request(model="v2").but(fallback=("v1", "v3"))
    assert sent(send(made, one)) == [(one.id, "three", "v3")]


def failed(one: Request, **more: Any) -> AttemptFailed:
    return AttemptFailed(one.id, "two", Outcome.REPLICA_FAILED, **more)


def test_one_that_can_not_be_reached_is_not_waited_for() -> None:
    made = fleet()
    one = drawn()
    send(made, one)
    assert sent(made.on(failed(one, unsent=True), 0.1)) == [(one.id, "one", "v1")]


def test_one_that_fails_or_is_busy_and_still_usable_keeps_its_requests() -> None:
    for more in ({}, {"refused": True}):
        made = fleet()
        one = drawn()
        send(made, one)
        assert sent(made.on(failed(one, **more), 0.1)) in ([], [(one.id, "two", "")])
        assert made.passages[one.id].request.model == "v2"


def test_what_a_client_has_heard_of_one_version_is_not_gone_on_with_by_another() -> None:
    made = fleet()
    one = drawn()
    send(made, one)
    made.on(FirstToken(one.id), 0.1)
    assert sent(made.on(failed(one, unsent=True), 0.2)) in ([], [(one.id, "two", "")])
    made.on(ReplicaParked("two", True), 0.3)
    assert made.passages[one.id].request.model == "v2"


def named(**more: Any) -> Request:
    """Its client wants this version and no other."""
    return request(model="v2", **more).but(pinned=True)


def refused(commands: list[Command]) -> list[tuple[str, Outcome]]:
    return [(c.request_id, c.outcome) for c in commands if isinstance(c, Refuse)]


@pytest.mark.parametrize("end", [ReplicaParked("two", True), ReplicaLeft("two")])
def test_a_version_that_was_named_is_not_waited_for_once_it_is_gone(end: Event) -> None:
    made = fleet()
    running, waiting = named(), named()
    send(made, running, waiting)
    assert refused(made.on(end, 0.1)) == [(waiting.id, Outcome.NO_REPLICA)]
    assert refused(made.on(failed(running), 0.2)) == [(running.id, Outcome.NO_REPLICA)]
    assert not made._versions.asked
    assert not made.passages
    assert made.waiting("fast") == 0


def test_a_named_version_that_went_before_its_request_came_in_is_refused_too() -> None:
    made = fleet()
    made.on(ReplicaParked("two", True), 0.0)
    late = named()
    assert refused(send(made, late)) == [(late.id, Outcome.NO_REPLICA)]
    assert not made._versions.asked


def test_a_named_version_that_can_not_be_reached_is_said_and_one_that_is_busy_is_waited_for() -> None:
    made = fleet()
    one = named()
    send(made, one)
    assert refused(made.on(failed(one, unsent=True), 0.1)) == [(one.id, Outcome.NO_REPLICA)]
    other = named()
    made = fleet()
    send(made, other)
    assert refused(made.on(failed(other, refused=True), 0.1)) == []


def test_a_named_version_without_a_replica_for_its_lane_is_waited_for_no_longer_than_its_lane_allows() -> None:
    made = dispatcher()
    join(made, "two", 1, model="v2")
    batch = Replica(id="batch", url="http://batch", slots=1, model="v2", lanes=frozenset({"batch"}))
    made.on(ReplicaJoined(batch), 0.0)
    made.on(Probed("batch", ok=True), 0.0)
    running, one = named(), named()
    send(made, running, one)
    made.on(ReplicaParked("two", True), 0.1)
    assert made.waiting("fast") == 1
    assert refused(made.on(Tick(), one.wait_until + 0.1)) == [(one.id, Outcome.NO_REPLICA)]


def test_one_that_is_refused_is_forgotten() -> None:
    made = fleet()
    for name in ("one", "two"):
        made.on(ReplicaParked(name, True), 0.0)
    send(made, drawn())
    made.on(Tick(), 11.0)
    assert not made.passages
    assert not made._versions.asked


def test_a_recorded_run_with_a_death_replays_to_the_same(tmp_path: Path) -> None:
    config, seed = GatewayConfig(), 5
    log = EventLog(tmp_path / "log", config, seed)
    made = dispatcher_for(config, random.Random(seed))
    names = {"one": "v1", "two": "v2"}
    events: list[tuple[Event, float]] = []
    for name, model in names.items():
        events += [(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=2, model=model)), 0.0)]
        events += [(Probed(name, ok=True), 0.0)]
    arrivals = [drawn(at=0.1 * n) for n in range(8)]
    events += [(Arrived(one), one.arrived) for one in arrivals]
    events += [(ReplicaParked("two", True), 1.0)]
    events += [(Ended(one.id, Outcome.COMPLETED, (10, 5)), 1.0 + 0.1 * n) for n, one in enumerate(arrivals)]
    stood_in = 0
    for event, now in events:
        commands = made.on(event, now)
        stood_in += sum(isinstance(command, Dispatch) and command.model == "v1" for command in commands)
        log.add(event, now, commands)
    log.close()
    assert stood_in >= 4
    assert isinstance(replay(tmp_path / "log"), Replayed)


def test_a_request_of_an_older_log_has_no_fallback() -> None:
    fields = drawn().fields()
    assert request_of({**fields, "prefix": []}).fallback == ("v1",)
    del fields["fallback"]
    assert request_of({**fields, "prefix": []}).fallback == ()


def test_the_stable_version_comes_first_and_what_is_not_tried_out_never() -> None:
    split = TrafficSplit((("v1", 0.5), ("v2", 0.5)), "v3", 0.3)
    seen = set()
    for number in range(50):
        digest = digest_of("chat", str(number))
        home = TrafficSplit(split.weights).pick(digest)[0]
        assert split.others("v3", digest) == (home, "v2" if home == "v1" else "v1")
        assert split.others("v1", digest) == ("v2", "v3")
        seen.add(home)
    assert seen == {"v1", "v2"}
    assert TrafficSplit((("v1", 1.0),)).others("v1", digest_of("chat", "x")) == ()
    assert TrafficSplit((("v1", 1.0),), "v2", 0.0).others("v1", digest_of("chat", "x")) == ()
