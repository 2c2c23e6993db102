"""The live fleet and the simulated one drive the same pool: the same observations make both do the same."""

import random

import pytest

from headgate.config.fleet import FleetConfig
from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.config.scale import ScaleConfig
from headgate.engine.runner.profile_file import find
from headgate.fleet.controller import Controller
from headgate.fleet.port import Spec
from headgate.measure.figures import Figures
from headgate.model.lane import LANES
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import dispatcher_for
from headgate.policy.scaling.lifecycle import COMING, ROUTED
from headgate.policy.scaling.member import Demand, Member, Work
from headgate.policy.scaling.orders import (
    JoinReplica,
    LeaveReplica,
    PoolCommand,
    PoolNote,
    RouteReplica,
    StartReplica,
    StopReplica,
)
from headgate.policy.scaling.pool import ManagedPool
from headgate.policy.scaling.scale import FULL, Scaler
from headgate.policy.scaling.signals import P95_WINDOW_S, PoolSignals
from headgate.sim.fleet import Delays, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.scaling.autoscale import Autoscale, Scaled, ScaledSeat
from headgate.sim.scaling.first_tokens import FirstTokens
from headgate.sim.service import ServiceReplica
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from tests.fleet.double import FakeFleet, FakeHands, settle
from tests.observe.records import record
from tests.wire.serving import live

SLOTS, COLD_START_S, LASTS_S = 4, 40.0, 1300.0
SCALE = ScaleConfig(min=1, max=9, warm=1, forecast=False)
FLEET = FleetConfig(kind="processes", scale=SCALE, start_s=COLD_START_S)
Done = list[tuple[float, PoolCommand]]


class Observed(PoolSignals):
    """What is observed of a pool, made up: by time, and by which replicas serve."""

    def __init__(self) -> None:
        super().__init__(dispatcher_for(GatewayConfig(), random.Random(1)), lambda lane, now: None)
        self.now = 0.0
        self.members: dict[str, Member] = {}

    def present(self) -> int:
        """A burst, a long swell, and next to nothing after it."""
        now = self.now
        return 14 if 100 <= now < 140 else 22 if 300 <= now < 600 else 1

    def serving(self) -> list[str]:
        return [name for name, member in self.members.items() if member.state in ROUTED]

    def waiting(self) -> int:
        return max(0, self.present() - SLOTS * len(self.serving()))

    def strained(self) -> bool:
        return self.present() >= FULL * SLOTS * len(self.serving())

    def demand(self, now: float) -> Demand:
        late = 1.5 if self.waiting() else None
        return Demand(self.waiting(), 100 * self.waiting(), 150.0 * self.present(), late)

    def work(self, replica_id: str, now: float) -> Work:
        serving = self.serving()
        if replica_id not in serving:
            return Work(slots=SLOTS)
        requests = min(SLOTS, -(-self.present() // len(serving)))
        ramped = now - self.members[replica_id].since > 10
        return Work(requests, 100 * requests, 50, SLOTS, share=1.0 if ramped else 0.5)


def watched(pool: ManagedPool, observed: Observed) -> Done:
    """From now on, what the pool commands, and when."""
    done: Done = []
    observed.members, flush = pool.members, pool.flush

    def note() -> list[PoolCommand]:
        commands = flush()
        done.extend((observed.now, command) for command in commands)
        return commands

    pool.flush = note  # type: ignore[method-assign]
    return done


def named(number: int) -> Replica:
    return Replica(id=f"p-{number}", url=f"unix:/nowhere/p-{number}.sock", kind="headgate", slots=SLOTS)


def simulated_fleet() -> Done:
    """The simulated driver, in its own virtual time."""
    world, observed = World(), Observed()
    gateway = SimGateway(
        world, dispatcher_for(GatewayConfig(), random.Random(1)), SimIntake(GatewayConfig()), Delays(), lambda *_: None
    )
    member = SimGroup(profile=find("h100-llama3-8b"), slots=SLOTS, cold_start_s=COLD_START_S)
    pool = ManagedPool(Scaler(SCALE), FLEET, observed)
    done = watched(pool, observed)
    due = pool.due

    def told_the_time(now: float) -> bool:
        observed.now = now
        return due(now)

    pool.due = told_the_time  # type: ignore[method-assign]

    def make(number: int) -> ScaledSeat:
        replica = named(number)
        return ScaledSeat(replica, ServiceReplica(world, gateway, replica.id, member, Delays(), None))

    scaled = Scaled(member=member, scaler=Scaler(SCALE), at_first=0, wall_s=0.0)
    Autoscale(world, gateway, pool, scaled, observed, make).run()
    world.at(LASTS_S, lambda _: world.stop())
    world.run()
    return done


class ObservedHands(FakeHands):
    """A gateway that is observed as the simulated one is."""

    def __init__(self, observed: Observed) -> None:
        super().__init__()
        self.waiting, self.strained = observed.waiting, observed.strained  # type: ignore[method-assign]
        self.demand, self.work = observed.demand, observed.work  # type: ignore[method-assign]


async def live_fleet() -> Done:
    """The live driver, on a clock that is moved to the next moment at which anything happens."""
    observed, fleet = Observed(), FakeFleet()
    hands = ObservedHands(observed)
    controller = Controller(
        fleet, Scaler(SCALE), Spec(pool="p"), hands, FLEET.every[0], lambda: observed.now, lambda: observed.now
    )
    done = watched(controller.pool, observed)
    fleet.watch(controller.on_change)
    warm_at: dict[str, float] = {}
    while observed.now < LASTS_S:
        now, before = observed.now, len(done)
        for name in [name for name, at in warm_at.items() if at <= now]:
            del warm_at[name]
            hands.joined[name]()
            before = -1
        if controller.pool.due(now):
            controller.look(now)
        if len(done) != before:
            await settle()
        for name, member in controller.pool.members.items():
            if member.state in COMING:
                warm_at.setdefault(name, now + COLD_START_S)
        observed.now = min(controller.pool.wake_at(now), *warm_at.values(), LASTS_S)
    await controller.close()
    return done


@live
async def test_the_same_observations_make_both_fleets_do_the_same_at_the_same_moments() -> None:
    found, expected = simulated_fleet(), await live_fleet()
    kinds = {type(command) for _, command in found}
    assert kinds == {StartReplica, JoinReplica, RouteReplica, LeaveReplica, StopReplica, PoolNote}
    assert [line for line in found if not isinstance(line[1], PoolNote)] == [
        line for line in expected if not isinstance(line[1], PoolNote)
    ]
    decisions = [[(at, one.text) for at, one in done if isinstance(one, PoolNote)] for done in (found, expected)]
    assert decisions[0] == decisions[1]
    assert any("park" in text for _, text in decisions[0])


def test_both_judge_first_tokens_by_the_same_windows() -> None:
    figures, firsts = Figures(dict(LANES), ObserveConfig(), 0.0), FirstTokens(("fast", "slow"), 0.0)
    rng = random.Random(3)
    for number in range(3000):
        now = number / 10
        took_s = rng.lognormvariate(-2.0, 1.0)
        arrival = Arrival(now - took_s, 100, 9)
        lane, stream = rng.choice(("fast", "slow")), rng.random() < 0.8
        request = Request(
            id=str(number), arrived=now - took_s - 1.0, model="m", lane=lane, priority=0, wait_until=now,
            first_token_by=now, stream=stream,
        )  # fmt: skip
        ticket = SimTicket(number, arrival, request, 9, now - 0.5)
        ticket.first_at = now if number % 7 else None
        ticket.told_s = None if stream or not number % 3 else 0.25
        firsts.add(ticket, now)
        first_at = ticket.first_at if stream else None if ticket.told_s is None else now - 0.25
        ttft_s = None if first_at is None else first_at - request.arrived
        figures.take([record(lane, stream=stream, ttft_s=ttft_s)], now)
        if number % 97 == 96:
            for name in ("fast", "slow"):
                expected = figures.sketch("ttft", P95_WINDOW_S, now, lane=name).quantile(0.95)
                assert firsts.p95(name, now) == pytest.approx(expected, rel=0.05)  # parts begin at other moments
