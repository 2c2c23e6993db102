"""Simulates a fleet of several pools, and says what each cost."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rich.table import Table

from headgate.config.engine import BatchConfig
from headgate.config.fleet import PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.engine.runner.profile_file import find
from headgate.machine.profile import Noise, Profile
from headgate.model.errors import UsageError
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.compose import dispatcher_for
from headgate.policy.scaling.board import PoolBoard
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.pool import ManagedPool
from headgate.policy.scaling.scale import Scaler
from headgate.sim.fleet import Delays, SimGroup, dilated
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.run import REPLICAS, Books, Level, Simulated
from headgate.sim.scaling.autoscale import MONDAY, Autoscale, Maker, Outcomes, Scaled, ScaledSeat
from headgate.sim.scaling.first_tokens import FirstTokens
from headgate.sim.service import ServiceReplica
from headgate.sim.slo import promised
from headgate.sim.watch import UseWatch
from headgate.sim.world import World
from headgate.workload.arrival import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsRun:
    """A run of several pools."""

    outcomes: dict[str, Outcomes]
    pools: tuple[PoolConfig, ...]

    @property
    def simulated(self) -> Simulated:
        return next(iter(self.outcomes.values())).simulated

    @property
    def replica_hours(self) -> float:
        return sum(one.replica_hours for one in self.outcomes.values())

    @property
    def cost(self) -> float | None:
        """Replica-hours by their prices; None: some pool has no price."""
        if any(pool.price is None for pool in self.pools):
            return None
        return sum(self.outcomes[pool.name].replica_hours * (pool.price or 0.0) for pool in self.pools)

    def as_dict(self) -> dict[str, object]:
        found = {
            pool.name: {
                "replica_hours": self.outcomes[pool.name].replica_hours,
                "price": pool.price,
                "starts": self.outcomes[pool.name].starts,
                "most": max(sample.serving + sample.parked for sample in self.outcomes[pool.name].samples),
                "replicas": [
                    [sample.at_s, sample.serving, sample.parked, sample.coming, sample.draining]
                    for sample in self.outcomes[pool.name].samples[::10]
                ],
            }
            for pool in self.pools
        }
        return {"pools": found, "replica_hours": self.replica_hours, "cost": self.cost}

    def table(self) -> Table:
        made = Table(box=None, padding=(0, 1))
        for heading in ("pool", "replica-hours", "price", "cost", "most", "starts"):
            made.add_column(heading, justify="left" if heading == "pool" else "right", no_wrap=True)
        for pool in self.pools:
            one = self.outcomes[pool.name]
            hours, most = one.replica_hours, max(sample.serving + sample.parked for sample in one.samples)
            cost = "" if pool.price is None else f"{hours * pool.price:.1f}"
            price = "" if pool.price is None else f"{pool.price:g}"
            made.add_row(pool.name, f"{hours:.1f}", price, cost, str(most), str(one.starts))
        total = "" if self.cost is None else f"{self.cost:.1f}"
        made.add_row("all", f"{self.replica_hours:.1f}", "", total, "", "")
        return made


def one_model(config: GatewayConfig) -> GatewayConfig:
    """Returns the config with pools that serve any model. Raises UsageError for pools of several models."""
    models = {pool.model for pool in config.fleet.pools}
    if len(models) > 1:
        told = ", ".join(sorted(model or "any" for model in models))
        raise UsageError(f"fleet.pools: a workload asks for one model, and these serve {told}: simulate each by itself")
    pools = tuple(replace(pool, model=None, served_as=None) for pool in config.fleet.pools)
    return replace(config, fleet=replace(config.fleet, pools=pools))


def member_of(config: GatewayConfig, pool: PoolConfig, profile: Profile, cold_start_s: float) -> SimGroup:
    """The simulated replicas of a pool: those that it emulates, or of this profile."""
    emulate = pool.emulate
    if emulate is not None:
        profile, cold_start_s = find(emulate.profile), emulate.cold_start_s or cold_start_s
    slots = pool.slots or (None if emulate is None else emulate.slots)
    made = SimGroup(profile=profile) if emulate is None else dilated(profile, emulate.dilate)
    wake_s = pool.wake_s if emulate is None else emulate.wake_s
    batch = _batch(config, pool, made)
    return replace(made, slots=slots, lanes=pool.lanes, cold_start_s=cold_start_s, wake_s=wake_s, batch=batch)


def _batch(config: GatewayConfig, pool: PoolConfig, made: SimGroup) -> BatchConfig | None:
    engine, usual = pool.engine or config.embedded, made.batch or made.profile.batch_config()
    return made.batch if engine is None or engine.batch(usual) == usual else engine.batch(usual)


def autoscale_pools(
    config: GatewayConfig,
    arrivals: Iterable[Arrival],
    scaled: Mapping[str, Scaled],
    seed: int = 0,
    level: Level = "gateway",
    *,
    title: str = "pools",
) -> dict[str, Outcomes]:
    """Runs the pools of `config.fleet.pools`, each scaled by its part of the demand as in a live fleet. Returns the
    outcomes by pool; all have the same run."""
    world, books = World(), Books(by_stream=False)
    dispatcher = dispatcher_for(config, random.Random(seed))
    firsts = FirstTokens(dispatcher.lanes, world.now)

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        books.close(ticket, outcome, now)
        firsts.add(ticket, now)

    intake = SimIntake(config, dispatcher.lanes, dispatcher.cached_tokens)
    gateway = SimGateway(world, dispatcher, intake, Delays(), close)
    board = PoolBoard(dispatcher, config.fleet.pools, firsts.p95)
    driven: dict[str, Autoscale] = {}
    for pool in config.fleet.pools:
        one, signals = scaled[pool.name], board.reader(pool.name)
        managed = ManagedPool(one.scaler, replace(pool, start_s=one.member.cold_start_s), signals)
        board.enter(pool.name, managed)
        engine = partial(_stand_in, world, gateway, one.member, level, seed)
        driven[pool.name] = Autoscale(world, gateway, managed, one, signals, _maker(pool, one.member, engine))
    for autoscale in driven.values():
        autoscale.run()
    used = UseWatch(world, gateway)
    gateway.play(iter(arrivals))
    world.run()
    for autoscale in driven.values():
        autoscale.close()
    profiles = ", ".join(dict.fromkeys(one.member.profile.name for one in scaled.values()))
    facts = {"replicas": f"{profiles}, scaled", "level": level, "seed": str(seed)}
    simulated = Simulated(
        results=books.rows.results(title, source="simulation", promises=promised(config), facts=facts),
        span_s=max(0.0, books.last_at - (books.first_at or 0.0)),
        events=world.events,
        present_s=gateway.present.area,
        at_work_s=gateway.at_work.area,
        room=sum(int(replica.limit) for replica in dispatcher.view(world.now).replicas.values()),
        utilisation=used.mean,
        busy_s=sum(one.busy_s for one in driven.values()),
        replicas=sum(one.most for one in driven.values()),
    )
    return {name: one.outcomes(simulated, firsts) for name, one in driven.items()}


def _stand_in(
    world: World, gateway: SimGateway, member: SimGroup, level: Level, seed: int, name: ReplicaId
) -> SteppedReplica | ServiceReplica:
    return REPLICAS[level](world, gateway, name, member, Delays(), Noise(random.Random(f"{seed}/{name}")))


def _maker(
    pool: PoolConfig, member: SimGroup, stand_in: Callable[[ReplicaId], SteppedReplica | ServiceReplica]
) -> Maker:
    """Makes the replicas of a pool by number."""

    def make(number: int) -> ScaledSeat:
        name = ReplicaId(f"{pool.name}-{number}")
        replica = Replica(
            id=name,
            url=f"http://{name}",
            model=pool.model,
            kind="headgate",
            slots=member.slots or member.profile.slots,
            lanes=pool.lanes,
            tags=pool.labels,
            price=pool.price,
        )
        return ScaledSeat(replica, stand_in(name))

    return make


def run_pools(
    config: GatewayConfig,
    arrivals: Iterable[Arrival],
    profile: Profile,
    seed: int = 0,
    level: Level = "gateway",
    *,
    cold_start_s: float = 0.0,
    at_first: int | None = None,
    wall_s: float = MONDAY,
    title: str = "pools",
) -> PoolsRun:
    """`profile` and `cold_start_s`: those of pools that emulate nothing. `at_first`: replicas of each that serve from
    the beginning; None: its minimum. Raises UsageError for pools of several models:
    a workload's requests ask for one."""
    config = one_model(config)
    scaled = {}
    for pool in config.fleet.pools:
        scale = pool.scale
        scaled[pool.name] = Scaled(
            member=member_of(config, pool, profile, cold_start_s),
            scaler=Scaler(scale, Forecast(scale.forecast_quantile) if scale.forecast else None),
            at_first=scale.min if at_first is None else at_first,
            parked_at_first=scale.warm,
            wall_s=wall_s,
        )
    found = autoscale_pools(config, arrivals, scaled, seed, level, title=title)
    return PoolsRun(outcomes=found, pools=config.fleet.pools)
