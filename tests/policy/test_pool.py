"""The pool alone: what is reported to it, and what it commands. Its live driver: tests/fleet/test_controller.py."""

from dataclasses import dataclass, field

import pytest

from headgate.config.fleet import FleetConfig
from headgate.model.replica import Replica
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.orders import (
    JoinReplica,
    LeaveReplica,
    PoolCommand,
    PoolNote,
    RouteReplica,
    StartReplica,
    StopReplica,
)
from headgate.policy.scaling.placement import Action, Activate, Drain, Park, PoolView, Start
from headgate.policy.scaling.pool import ASK_AGAIN_S, GLANCE_EVERY_S, LOOK_EVERY_S, OUT_FOR_S, ManagedPool
from headgate.policy.scaling.scale import Decision


@dataclass
class Reader:
    """What is seen, as a test says."""

    wanted: Demand = field(default_factory=Demand)
    works: dict[str, Work] = field(default_factory=dict)

    def waiting(self) -> int:
        return self.wanted.waiting

    def strained(self) -> bool:
        return self.wanted.waiting > 0

    def demand(self, now: float) -> Demand:
        return self.wanted

    def work(self, replica_id: str, now: float) -> Work:
        return self.works.get(replica_id, Work(slots=4))


class Scene:
    """A pool whose Scaler says what a test says."""

    def __init__(self, **config: float) -> None:
        self.now = 100.0
        self.reader = Reader()
        self.says: list[Action] = []
        self.serving = 1
        self.views: list[PoolView] = []
        self.pool = ManagedPool(self, FleetConfig(kind="processes", **config), self.reader)  # type: ignore[arg-type]

    def decide(self, view: PoolView, now: float, wall: float) -> Decision:
        self.views.append(view)
        actions, self.says = tuple(self.says), []
        return Decision(self.serving, 0, actions, ("because",))

    def look(self, *actions: Action, after_s: float = 1.0) -> list[PoolCommand]:
        """What is done at a look, without notes."""
        self.now += after_s
        self.says = list(actions)
        self.pool.look(self.now, self.now)
        return self.done()

    def done(self) -> list[PoolCommand]:
        return [command for command in self.pool.flush() if not isinstance(command, PoolNote)]

    def notes(self) -> list[str]:
        return [f"{one.text} | {' '.join(one.reasons)}" for one in self.pool.flush() if isinstance(one, PoolNote)]

    def start(self, *names: str) -> None:
        assert self.look(Start(len(names))) == [StartReplica()] * len(names)
        for name in names:
            self.pool.start_answered(None, self.now)
            self.pool.appeared(replica(name), self.now)

    def ready(self, *names: str, after_s: float = 5.0) -> None:
        self.start(*names)
        self.now += after_s
        for name in names:
            self.pool.answered(name, self.now)
            assert self.pool.warmed(name, self.now) == after_s
        self.pool.flush()

    def serve(self, *names: str) -> None:
        self.ready(*names)
        self.look(*(Activate(name) for name in names))
        self.look()
        assert {self.state(name) for name in names} == {Lifecycle.SERVING}

    def state(self, name: str) -> Lifecycle:
        return self.pool.members[name].state


def replica(name: str, url: str = "http://x") -> Replica:
    return Replica(id=name, url=url, slots=4)


def test_a_replica_is_joined_when_it_appears_and_used_when_told() -> None:
    s = Scene()
    s.start("a")
    assert s.done() == [JoinReplica(replica("a"))]
    assert s.state("a") is Lifecycle.STARTING
    s.pool.answered("a", s.now)
    assert s.state("a") is Lifecycle.WARMING
    assert s.pool.warmed("a", s.now + 7.0) == 7.0
    assert s.pool.warmed("a", s.now + 8.0) is None
    assert s.look(Activate("a")) == [RouteReplica("a", True, ramp=False)]  # alone it does not ramp
    s.ready("b")
    s.reader.works["b"] = Work(share=0.2)
    assert s.look(Activate("b")) == [RouteReplica("b", True, ramp=True)]
    s.look()
    assert s.state("b") is Lifecycle.RAMPING
    s.reader.works["b"] = Work(share=1.0)
    s.look()
    assert s.state("b") is Lifecycle.SERVING


def test_reports_of_a_replica_that_is_not_here_change_nothing() -> None:
    s = Scene()
    s.pool.answered("x", 1.0)
    assert s.pool.warmed("x", 1.0) is None
    s.pool.vanished("x", "gone", False, 1.0)
    s.pool.stopped("x")
    assert s.pool.flush() == []
    assert s.look(Activate("x"), Park("x"), Drain("x")) == []
    assert s.notes() == []


def test_a_start_is_expected_to_take_as_long_as_the_longest_of_the_last_five() -> None:
    s = Scene(start_s=33.0)
    assert s.pool.start_s == 33.0
    for number, took_s in enumerate((90.0, 2.0, 3.0, 8.0, 4.0, 5.0)):
        s.ready(f"r{number}", after_s=took_s)
    s.look()
    assert s.views[-1].start_s == s.pool.start_s == 8.0


def test_what_was_asked_for_is_in_the_view_and_paid_for_from_the_first() -> None:
    s = Scene()
    s.look(Start(3))
    assert [member.state for member in s.pool.view(s.now).members] == [Lifecycle.STARTING] * 3
    assert s.pool.paid_for == 3
    s.pool.start_answered(None, s.now)
    s.pool.appeared(replica("a"), s.now)
    assert (s.pool.paid_for, len(s.pool.view(s.now).members)) == (3, 3)


def test_a_failed_start_is_tried_again_later_and_later() -> None:
    s = Scene()
    paused: list[float] = []
    for _ in range(9):
        assert s.look(Start(1)) == [StartReplica()]
        s.pool.start_answered("no machines", s.now)
        pause_s = 0.0
        while not s.look(Start(1), after_s=0.5):
            pause_s += 0.5
        s.pool.start_answered("no machines", s.now)
        paused.append(pause_s)
        s.now += 100.0
    assert paused[0] < paused[1] < paused[2]
    assert max(paused) <= ASK_AGAIN_S[1]
    s.look(Start(1))
    s.pool.start_answered(None, s.now)
    assert s.look(Start(1), after_s=0.0) == [StartReplica()]


def test_a_drained_replica_is_stopped_when_it_is_empty_or_its_time_is_over() -> None:
    s = Scene(drain_s=30.0)
    s.serve("a", "b")
    s.reader.works["a"] = s.reader.works["b"] = Work(requests=2)
    assert s.look(Drain("a"), Drain("b")) == [RouteReplica("a", False), RouteReplica("b", False)]
    assert s.look(Drain("a")) == []
    s.reader.works["a"] = Work()
    assert s.look() == [LeaveReplica("a"), StopReplica("a")]
    assert s.pool.paid_for == 1
    s.pool.stopped("a")
    assert set(s.pool.members) == {"b"}
    s.now += 30.0
    s.pool.look(s.now, s.now)
    assert "b is stopped | cut off with 2 running" in s.notes()
    s.pool.stopped("b", "it does not end")
    assert s.notes() == ["b could not be stopped | it does not end"]
    assert s.pool.members == {}


def test_a_replica_that_serves_is_drained_before_it_is_parked_and_can_be_called_back_or_stopped() -> None:
    s = Scene()
    s.serve("a", "b")
    s.reader.works["b"] = Work(requests=1)
    assert s.look(Park("b")) == [RouteReplica("b", False)]
    s.look(after_s=500.0)
    assert s.state("b") is Lifecycle.DRAINING
    assert s.look(Activate("b")) == [RouteReplica("b", True)]
    s.look(Park("b"))
    assert s.look(Drain("b")) == [RouteReplica("b", False)]
    assert s.look(Activate("b")) == [RouteReplica("b", True)]
    s.look(Park("b"))
    assert s.look(Park("b")) == []
    s.reader.works["b"] = Work()
    s.look()
    assert s.state("b") is Lifecycle.PARKED


def test_one_that_is_ready_is_parked_at_once() -> None:
    s = Scene()
    s.ready("a")
    assert s.look(Park("a")) == []
    assert s.state("a") is Lifecycle.PARKED


def test_one_that_is_not_ready_in_time_is_stopped() -> None:
    s = Scene(start_limit_s=60.0)
    s.start("a")
    s.done()
    assert s.look(after_s=60.0) == []
    assert s.look(after_s=1.0) == [LeaveReplica("a"), StopReplica("a")]
    assert s.look(Drain("a")) == []


def test_one_that_health_keeps_out_counts_as_starting_and_is_replaced() -> None:
    s = Scene()
    s.serve("a")
    s.reader.works["a"] = Work(share=0.0)
    s.look()
    assert [member.state for member in s.views[-1].members] == [Lifecycle.STARTING]
    s.look(after_s=OUT_FOR_S - 1.0)
    assert s.state("a") is Lifecycle.SERVING
    assert s.look(after_s=1.0) == [RouteReplica("a", False)]
    assert s.pool.members["a"].why == "out for 60 s: it is replaced"


def test_one_that_its_fleet_brings_back_is_on_its_way_and_can_be_given_up() -> None:
    s = Scene()
    s.serve("a", "b")
    s.pool.vanished("a", "killed", True, s.now)
    s.pool.vanished("b", "killed", True, s.now)
    assert s.done() == [LeaveReplica("a"), LeaveReplica("b")]
    s.look()
    assert [member.state for member in s.views[-1].members] == [Lifecycle.STARTING] * 2
    s.pool.appeared(replica("a"), s.now)
    assert s.state("a") is Lifecycle.STARTING
    assert s.done() == [JoinReplica(replica("a"))]
    assert s.look(Drain("b")) == [StopReplica("b")]  # it has left already
    s.pool.vanished("b", "ended", False, s.now)
    assert s.done() == []
    assert set(s.pool.members) == {"a"}


def test_one_that_moves_to_another_address_leaves_and_joins() -> None:
    s = Scene()
    s.start("a")
    s.done()
    s.pool.appeared(replica("a", "http://y"), s.now)
    assert s.done() == [LeaveReplica("a"), JoinReplica(replica("a", "http://y"))]


def test_it_looks_every_second_and_at_once_when_something_happens() -> None:
    s = Scene()
    assert s.pool.due(s.now)
    s.look()
    assert not s.pool.due(s.now)
    assert s.pool.wake_at(s.now) == s.now + LOOK_EVERY_S
    assert s.pool.due(s.now + LOOK_EVERY_S)
    s.reader.wanted = Demand(waiting=3)
    assert not s.pool.due(s.now)  # a start helps no sooner
    s.pool.appeared(replica("a"), s.now)
    assert s.pool.due(s.now)
    assert s.pool.wake_at(s.now) == s.now


def test_a_burst_does_not_wait_for_the_next_look_where_a_warm_replica_is_parked() -> None:
    s = Scene()
    s.serve("a")
    s.ready("b")
    s.look(Park("b"))
    assert not s.pool.due(s.now)
    assert s.pool.wake_at(s.now) == pytest.approx(s.now + GLANCE_EVERY_S)
    s.reader.wanted = Demand(waiting=1)
    assert s.pool.due(s.now)


def test_at_zero_on_purpose_nothing_is_decided_until_a_request_waits() -> None:
    s = Scene()
    s.serve("a", "b")
    assert s.pool.to_zero("asked for", s.now) == 2
    assert s.done() == [RouteReplica("a", False), RouteReplica("b", False)]
    looks = len(s.views)
    assert s.look() == [LeaveReplica("a"), StopReplica("a"), LeaveReplica("b"), StopReplica("b")]
    assert s.pool.to_zero("asked for", s.now) == 0
    assert (len(s.views), s.pool.held, s.pool.due(s.now)) == (looks, True, False)
    s.reader.wanted = Demand(waiting=1)
    assert s.pool.due(s.now)
    assert s.look(Start(1)) == [StartReplica()]
    assert not s.pool.held


def test_a_pool_that_is_meant_to_serve_with_none_counts_as_ready() -> None:
    s = Scene()
    s.look()
    assert not s.pool.was_ready
    s.serving = 0
    s.look()
    assert s.pool.was_ready


def test_decisions_are_noted_with_reasons_and_not_repeated() -> None:
    s = Scene()
    s.says = [Start(1)]
    assert s.pool.look(s.now, s.now)
    assert s.notes() == ["1 to serve, 0 parked: start 1 | because"]
    assert not s.pool.look(s.now, s.now)
    s.serving = 2
    assert s.pool.look(s.now, s.now)
    assert s.notes() == ["2 to serve, 0 parked | because"]
