"""Which replicas are down, and which only get no requests."""

from typing import Any

import pytest

from headgate.measure.conditions import START_S, Conditions
from headgate.model.event import ReplicaJoined, ReplicaLeft, ReplicaParked
from headgate.model.replica import Replica
from headgate.policy.replicas.signs import Saw
from headgate.policy.scaling.member import PoolCounts
from tests.observe.test_alarms import Scene, replica


class FakeWatch:
    def __init__(self, phase: str = "ready", why: str = "", unwell: str = "") -> None:
        self.phase = phase
        self.why = why
        self.unwell = unwell


class FakeFleet:
    def __init__(self, serving: int = 1, **lifecycles: str) -> None:
        self.serving = serving
        self.lifecycles = lifecycles

    def lifecycle(self, replica_id: str) -> str | None:
        return self.lifecycles.get(replica_id)

    def news(self) -> dict[str, Any]:
        return {"wanted": {"serving": self.serving, "parked": 0}}

    def counts(self, now: float) -> dict[str, PoolCounts]:
        return {}


def out(scene: Scene, name: str, usable: float = 0.0) -> None:
    load = scene.dispatcher.index.loads[name]
    load.usable = usable
    scene.dispatcher.index.changed(load)


def test_parked_is_not_down_and_a_fleet_of_parked_ones_sleeps() -> None:
    scene = Scene(replica("a"), replica("b"))
    conditions = Conditions(scene.dispatcher)
    assert conditions.read(0.0).up == 2
    scene.dispatcher.on(ReplicaParked("a", True), scene.now)
    fleet = conditions.read(1.0)
    assert (fleet.up, fleet.parked, fleet.down, fleet.outage) == (1, 1, (), False)
    scene.dispatcher.on(ReplicaParked("b", True), scene.now)
    fleet = conditions.read(2.0)
    assert (fleet.up, fleet.parked, fleet.down, fleet.outage, fleet.asleep) == (0, 2, (), False, True)
    scene.dispatcher.on(ReplicaParked("b", False), scene.now)
    assert not conditions.read(3.0).asleep
    out(scene, "b")
    fleet = conditions.read(4.0)
    assert (fleet.down, fleet.outage) == (("b",), True)


def test_a_replica_that_is_new_is_starting_for_a_minute_and_down_after_it() -> None:
    scene = Scene()
    scene.dispatcher.on(ReplicaJoined(replica("a")), 0.0)
    conditions = Conditions(scene.dispatcher, {"a": FakeWatch("starting", "connection refused")})
    fleet = conditions.read(0.0)
    assert (fleet.starting, fleet.down, fleet.outage) == (1, (), False)
    fleet = conditions.read(START_S)
    assert (fleet.starting, fleet.down, fleet.outage, fleet.why) == (0, ("a",), True, "connection refused")


@pytest.mark.parametrize(("phase", "condition"), [("warming", "starting"), ("failed", "down"), ("ready", "down")])
def test_what_its_warm_up_says_counts(phase: str, condition: str) -> None:
    scene = Scene()
    scene.dispatcher.on(ReplicaJoined(replica("a")), 0.0)
    conditions = Conditions(scene.dispatcher, {"a": FakeWatch(phase)})
    assert conditions.of(2 * START_S) == {"a": condition}


def test_one_that_was_up_and_is_warmed_again_is_still_down() -> None:
    scene = Scene(replica("a"))
    watch = FakeWatch()
    conditions = Conditions(scene.dispatcher, {"a": watch})
    conditions.read(0.0)
    out(scene, "a")
    watch.phase = "warming"
    assert conditions.read(1.0).outage


def test_one_that_was_up_before_the_first_reading_is_down_and_not_new() -> None:
    scene = Scene(replica("a"))
    out(scene, "a")
    assert Conditions(scene.dispatcher).of(1.0) == {"a": "down"}


def test_one_that_can_not_be_reached_is_not_up_before_its_probes_say_so() -> None:
    scene = Scene(replica("a"))
    conditions = Conditions(scene.dispatcher)
    conditions.read(0.0)
    load = scene.dispatcher.index.loads["a"]
    load.ceiling, load.unreached = 0.0, True
    scene.dispatcher.index.changed(load)
    assert load.usable == 1.0
    assert conditions.read(1.0).outage


@pytest.mark.parametrize(
    ("lifecycle", "condition"),
    [
        ("starting", "starting"), ("warming", "starting"), ("ready", "parked"), ("draining", "parked"),
        ("parked", "parked"), ("stopped", "parked"), ("failed", "down"), ("serving", "down"),
    ],
)  # fmt: skip
def test_where_the_gateway_starts_replicas_their_life_says_more(lifecycle: str, condition: str) -> None:
    scene = Scene(replica("a"))
    conditions = Conditions(scene.dispatcher, {}, lambda: FakeFleet(a=lifecycle))
    out(scene, "a")
    conditions.of(0.0)
    assert conditions.of(2 * START_S) == {"a": condition}


def test_a_fleet_scaled_to_zero_sleeps_until_its_next_one_serves() -> None:
    scene = Scene(replica("a"))
    fleet = FakeFleet(1)
    conditions = Conditions(scene.dispatcher, {}, lambda: fleet)
    conditions.read(0.0)
    fleet.serving = 0
    scene.dispatcher.on(ReplicaLeft("a"), scene.now)
    assert conditions.read(1.0).asleep
    fleet.serving = 1  # a request has come
    fleet.lifecycles["b"] = "starting"
    scene.join(replica("b"))
    found = conditions.read(2.0)
    assert (found.outage, found.asleep, found.starting) == (False, True, 1)


def test_a_fleet_whose_last_one_is_lost_is_an_outage_while_another_starts() -> None:
    scene = Scene(replica("a"))
    fleet = FakeFleet(1)
    conditions = Conditions(scene.dispatcher, {}, lambda: fleet)
    conditions.read(0.0)
    scene.dispatcher.on(ReplicaLeft("a"), scene.now)
    assert conditions.read(1.0).outage
    fleet.lifecycles["b"] = "starting"
    scene.join(replica("b"))
    assert conditions.read(2.0).outage


def test_no_replica_at_all_is_an_outage_after_a_minute() -> None:
    conditions = Conditions(Scene().dispatcher)
    assert not conditions.read(0.0).outage
    assert conditions.read(START_S).outage


def test_a_lane_and_a_model_whose_replicas_are_all_down_are_named() -> None:
    own = Replica(id="l", url="http://127.0.0.1:1", slots=2, lanes=frozenset(("long",)), model="big")
    scene = Scene(Replica(id="f", url="http://127.0.0.1:1", slots=2, lanes=frozenset(("fast",)), model="small"), own)
    conditions = Conditions(scene.dispatcher)
    assert conditions.read(0.0).unserved == ()
    out(scene, "l")
    found = conditions.read(1.0)
    assert (found.unserved, found.outage) == (("lane long", "model big"), False)
    scene.join(Replica(id="g", url="http://127.0.0.1:1", slots=2, model="big"))
    assert conditions.read(2.0).unserved == ()


def test_one_that_health_has_not_put_out_yet_has_no_reason_that_is_true() -> None:
    """It said "joined", of a replica that does not answer."""
    scene = Scene(replica("a"), replica("b"))
    assert Conditions(scene.dispatcher).why("a") == ""
    for _ in range(3):
        scene.dispatcher.book.saw("a", Saw.PROBE_FAILED, scene.now)
    assert "probe" in Conditions(scene.dispatcher).why("a")


def test_what_the_last_health_check_found_is_why_a_replica_is_down_and_not_why_one_is_up() -> None:
    scene = Scene(replica("a"))
    watch = FakeWatch(unwell="connection refused")
    conditions = Conditions(scene.dispatcher, {"a": watch})
    assert "connection refused" not in conditions.standings(1.0)["a"].why
    out(scene, "a")
    assert conditions.standings(2.0)["a"].why == "connection refused"
    assert conditions.read(2.0).why == "connection refused"
    watch.why = "its warm-up failed"
    assert conditions.read(2.0).why == "its warm-up failed"
