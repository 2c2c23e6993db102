"""What each of several pools is scaled by, read from a dispatcher."""

import random

import pytest

from headgate.config.fleet import PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.model.event import Arrived, Probed, ReplicaJoined
from headgate.model.replica import Replica
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.scaling.board import FAILED_FOR_S, PoolBoard, no_plans
from headgate.policy.scaling.pool import ManagedPool
from headgate.policy.scaling.scale import Scaler
from tests.policy.test_dispatcher import request

SCALE = ScaleConfig(max=3, forecast=False)
POOLS = (
    PoolConfig(name="cheap", model="m", price=1.0, scale=SCALE),
    PoolConfig(name="dear", model="m", price=3.0, scale=SCALE),
    PoolConfig(name="other", lanes=frozenset({"long"}), scale=SCALE),
)


class Scene:
    def __init__(self) -> None:
        self.dispatcher: Dispatcher = dispatcher_for(GatewayConfig(), random.Random(1))
        self.late: dict[str, float] = {}
        self.board = PoolBoard(self.dispatcher, POOLS, lambda lane, now: self.late.get(lane))
        self.readers = {pool.name: self.board.reader(pool.name) for pool in POOLS}
        self.pools = {}
        for pool in POOLS:
            made = self.pools[pool.name] = ManagedPool(Scaler(pool.scale), pool, self.readers[pool.name])
            self.board.enter(pool.name, made)

    def join(self, pool: str, number: int = 1, slots: int = 10, *, serve: bool = True) -> None:
        config = next(one for one in POOLS if one.name == pool)
        replica = Replica(id=f"{pool}-{number}", url="http://x", model=config.model, slots=slots,
                          lanes=config.lanes, price=config.price)  # fmt: skip
        self.dispatcher.on(ReplicaJoined(replica), 0.0)
        self.dispatcher.on(Probed(replica.id, ok=True), 0.0)
        managed = self.pools[pool]
        managed.appeared(replica, 0.0)
        managed.warmed(replica.id, 0.0)
        if serve:
            managed.activate(replica.id, "", 0.0)

    def send(self, count: int, now: float = 0.0) -> None:
        for _ in range(count):
            self.dispatcher.on(Arrived(request().but(wait_until=99.0)), now)


def test_pools_that_serve_the_same_are_scaled_cheapest_first() -> None:
    scene = Scene()
    scene.join("cheap")
    scene.join("dear")
    scene.send(18)
    cheap, dear = (scene.readers[name].demand(1.0) for name in ("cheap", "dear"))
    assert (cheap.present, dear.present) == (18.0, 6.5)  # the cheap pool should hold all, the dear one keeps its 65 %
    assert (cheap.may_start, dear.may_start) == (True, False)
    assert scene.readers["other"].demand(1.0).present == 0.0


def test_each_pool_sees_its_own_strain_and_what_it_could_serve() -> None:
    scene = Scene()
    scene.join("cheap", slots=2)
    scene.join("other")
    assert not scene.readers["other"].strained()
    scene.send(5)
    assert [scene.readers[name].waiting() for name in ("cheap", "dear", "other")] == [3, 3, 0]
    assert scene.readers["cheap"].strained()
    assert scene.readers["dear"].strained()  # it has none, and requests wait that it could serve
    assert not scene.readers["other"].strained()
    assert scene.readers["cheap"].demand(1.0).waiting == 3


def test_a_pool_whose_starts_fail_leaves_growing_to_the_next() -> None:
    scene = Scene()
    scene.join("cheap")
    scene.join("dear")
    scene.send(18)
    scene.pools["cheap"].start_answered("there is no machine", 0.0)
    assert scene.pools["cheap"].stuck
    cheap, dear = (scene.readers[name].demand(1.0) for name in ("cheap", "dear"))
    assert cheap.present == 6.5
    assert dear.present == pytest.approx(11.5)
    assert (dear.may_start, dear.waiting) == (True, 0)
    scene.pools["cheap"].start_answered(None, 1.0)
    assert not scene.pools["cheap"].stuck


def test_a_pool_whose_engines_end_at_each_start_leaves_growing_to_the_next_for_a_while() -> None:
    scene = Scene()
    scene.join("cheap")
    scene.join("dear")
    scene.send(18)
    scene.pools["cheap"].appeared(Replica(id="cheap-2", url="http://x"), 0.0)
    scene.pools["cheap"].vanished("cheap-2", "its process ended", True, 1.0)
    assert scene.readers["dear"].demand(2.0).may_start
    scene.pools["cheap"].vanished("cheap-2", "given up", False, 3.0)
    assert scene.readers["dear"].demand(31.0).may_start
    assert not scene.readers["dear"].demand(2.0 + FAILED_FOR_S).may_start


def test_warm_coming_and_full_pools_count_by_what_they_may_have() -> None:
    scene = Scene()
    for number in range(3):
        scene.join("cheap", number, serve=number < 2)
    now = 1.0
    found = scene.board.room("cheap", now)
    assert (found.now, found.grows) == (13.0, True)
    assert found.most == pytest.approx(19.5)
    scene.pools["cheap"].activate("cheap-2", "", now)
    assert not scene.board.room("cheap", 2.0).grows
    scene.pools["dear"].appeared(Replica(id="dear-9", url="http://x"), now)
    assert scene.board.room("dear", 2.0).now == 0.0
    scene.pools["dear"].drain("dear-9", "", now)
    assert scene.board.room("dear", 3.0).grows


def test_replicas_that_no_pool_owns_hold_their_part() -> None:
    scene = Scene()
    scene.dispatcher.on(ReplicaJoined(Replica(id="fixed", url="http://x", model="m", slots=8)), 0.0)
    scene.dispatcher.on(Probed("fixed", ok=True), 0.0)
    scene.join("cheap")
    scene.send(12)
    assert scene.readers["cheap"].demand(1.0).present == 4.0


def test_late_first_tokens_are_a_reason_for_the_pool_that_grows_for_the_lane() -> None:
    scene = Scene()
    scene.join("cheap")
    scene.join("dear")
    scene.send(3)
    scene.late["fast"] = 10 * scene.dispatcher.lanes["fast"].ttft_target_s
    assert scene.readers["cheap"].demand(1.0).p95_ratio == pytest.approx(10.0)
    assert scene.readers["dear"].demand(1.0).p95_ratio is None


def test_plans_and_prices_can_change() -> None:
    scene = Scene()
    scene.join("cheap")
    scene.send(4)
    assert no_plans() == ()
    scene.board.plan_by(lambda: [{"m": 0.5, "n": 0.5}])
    assert {one.model for one in scene.board.sources(1.0)} == {"m", "n"}
    scene.board.reconfigure([PoolConfig(name="cheap", model="m", price=9.0), *POOLS[1:]])
    assert not scene.readers["cheap"].demand(2.0).may_start


def test_a_model_holds_what_its_replicas_hold_of_all_requests_for_a_name() -> None:
    scene = Scene()
    scene.join("cheap")
    assert scene.board.holds(["m", "old"], "m", 0.0) == 1.0  # nothing is there yet
    scene.send(26)
    assert scene.board.holds(["m", "old"], "m", 1.0) == pytest.approx(6.5 / 26)
    assert scene.board.holds(["m"], "unknown", 1.0) == 1.0  # no pool of it is scaled here
