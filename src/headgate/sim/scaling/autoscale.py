"""Scales a pool in virtual time: drives the ManagedPool of the live fleet around simulated replicas.

`policy/scaling/pool.py` decides, at the moments it decides at in a live fleet; here its commands are carried out as
`fleet/controller.py` carries them out. A started replica is warm after the cold start, a parked one is alive and gets
no requests, one that sleeps has forgotten its cache and is awake some time after it is told to, a stopped one has a few
seconds to finish. A replica costs from its start until it is gone, parked or not.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Noise
from headgate.model.event import Probed, ReplicaAsleep, ReplicaJoined, ReplicaLeft, ReplicaParked
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.compose import dispatcher_for
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.lifecycle import COMING, ROUTED, SLEEPING, Lifecycle
from headgate.policy.scaling.orders import (
    JoinReplica,
    LeaveReplica,
    PoolCommand,
    RouteReplica,
    ScalingPolicy,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)
from headgate.policy.scaling.pool import LOOK_EVERY_S, STOP_GRACE_S, ManagedPool
from headgate.policy.scaling.scale import Decision
from headgate.policy.scaling.signals import ArrivalRate, PoolSignals
from headgate.sim.fleet import Delays, SimGroup
from headgate.sim.gateway import Area, SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.run import REPLICAS, Books, Level, Simulated
from headgate.sim.scaling.first_tokens import FirstTokens
from headgate.sim.service import ServiceReplica
from headgate.sim.slo import promised
from headgate.sim.watch import UseWatch
from headgate.sim.world import World
from headgate.workload.arrival import Arrival

SAMPLE_S = 60.0
MONDAY = 4 * 86_400.0
"""Midnight of a Monday, as wall time: when a simulated week begins, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The replicas to scale, the scaler that decides, and the starting state."""

    member: SimGroup
    """The profile of each replica, and its cold start."""
    scaler: ScalingPolicy
    at_first: int = 1
    """Replicas that serve from the beginning."""
    parked_at_first: int = 0
    wall_s: float = MONDAY
    """Wall time when virtual time begins."""


@dataclass(frozen=True, slots=True)
class PoolSample:
    """The pool at one moment."""

    at_s: float
    serving: int
    parked: int
    coming: int
    """Replicas starting, or just ready."""
    draining: int
    wanted: int
    tokens_per_s: float
    asleep: int = 0
    """Replicas that sleep, fall asleep or wake up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A run, the replica time it took, and the decisions behind it."""

    simulated: Simulated
    replica_s: float
    """Replicas, integrated over time, whatever they did."""
    samples: tuple[PoolSample, ...]
    """One sample a minute."""
    decisions: tuple[tuple[float, Decision], ...]
    """Decisions that changed anything, each with its time."""
    starts: int
    held_s: tuple[float, ...] = ()
    """TTFT of the requests that waited for a replica to wake up, in seconds."""
    wake_ups: int = 0
    asleep_s: float = 0.0
    """Replicas that slept, integrated over time; they are part of `replica_s`."""

    @property
    def replica_hours(self) -> float:
        return self.replica_s / 3600.0


@dataclass(slots=True, eq=False)
class ScaledSeat:
    """A replica of the pool, and the simulated engine behind it."""

    replica: Replica
    stand_in: SteppedReplica | ServiceReplica
    asleep: bool = False


Maker = Callable[[int], ScaledSeat]


class Autoscale:
    """Drives the pool: lets it look when it is due, and carries out its commands."""

    def __init__(
        self, world: World, gateway: SimGateway, pool: ManagedPool, scaled: Scaled, signals: PoolSignals, make: Maker
    ) -> None:
        self.present = Area(world.now)
        """Replicas, from start to end."""
        self.asleep = Area(world.now)
        """Replicas that have no memory on their GPUs."""
        self.busy_s = 0.0
        self.starts = self.wake_ups = 0
        self.most = 0
        self.samples: list[PoolSample] = []
        self.decisions: list[tuple[float, Decision]] = []
        self._world = world
        self._gateway = gateway
        self._pool = pool
        self._scaled = scaled
        self._signals = signals
        self._make = make
        self._seats: dict[ReplicaId, ScaledSeat] = {}
        self._turn = 0
        """The number of the event that drives next; any other event is out of date."""
        self._begin()

    def run(self) -> None:
        """Looks from now on. All pools have their replicas of the beginning before any of them looks."""
        self._drive()
        self._sample()

    def _begin(self) -> None:
        """Has the replicas of the beginning warm and in their places."""
        now, scaled = self._world.now, self._scaled
        for number in range(scaled.at_first + scaled.parked_at_first):
            seat = self._new()
            self._pool.appeared(seat.replica, now - scaled.member.cold_start_s)
            self._carry_out()
            self._warm(seat.replica.id)
            place = self._pool.activate if number < scaled.at_first else self._pool.park
            place(seat.replica.id, "there from the beginning", now)
            self._carry_out()

    # -- looking ----------------------------------------------------------------------------------------------

    def _drive_at(self, turn: int) -> None:
        if turn == self._turn:
            self._drive()

    def _drive(self) -> None:
        now, pool = self._world.now, self._pool
        if pool.due(now):
            self._probe()
            if pool.look(now, self._scaled.wall_s + now):
                self.decisions.append((now, pool.decision))
        self._carry_out()
        self._await_turn()

    def _await_turn(self) -> None:
        """Drives next when the pool wants it; if that is now, after all else that is due now."""
        now = self._world.now
        self._turn += 1
        self._world.at(max(now, self._pool.wake_at(now)), self._drive_at, self._turn)

    def _probe(self) -> None:
        """Probes the replicas that ramp up: their share grows with each probe."""
        now = self._world.now
        for member in self._pool.members.values():
            if member.state is Lifecycle.RAMPING and self._signals.work(member.id, now).share < 1.0:
                self._gateway.hear(Probed(member.id, ok=True))

    def _sample(self, _: object = None) -> None:
        now, states = self._world.now, [member.state for member in self._pool.members.values()]
        self.samples.append(
            PoolSample(
                now,
                serving=sum(state in ROUTED for state in states),
                parked=states.count(Lifecycle.PARKED),
                coming=sum(state in COMING or state is Lifecycle.READY for state in states),
                draining=states.count(Lifecycle.DRAINING),
                wanted=self._pool.decision.serving,
                tokens_per_s=self._signals.tokens_per_s,
                asleep=sum(state in SLEEPING for state in states),
            )
        )
        self._world.at(now + SAMPLE_S, self._sample)

    # -- what the pool decides ----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        while commands := self._pool.flush():  # a start is answered at once, and leads to further commands
            for command in commands:
                self._carry_out_one(command)

    def _carry_out_one(self, command: PoolCommand) -> None:
        hear, now = self._gateway.hear, self._world.now
        if isinstance(command, StartReplica):
            seat = self._new()
            self._pool.start_answered(None, now)
            self._pool.appeared(seat.replica, now)
            self._world.at(now + self._scaled.member.cold_start_s, self._warmed, seat.replica.id)
        elif isinstance(command, JoinReplica):
            hear(ReplicaParked(command.replica.id, parked=True))  # known and watched, but gets no requests yet
            hear(ReplicaJoined(command.replica))
        elif isinstance(command, RouteReplica):
            hear(ReplicaParked(command.id, parked=not command.on, ramp=command.ramp))
        elif isinstance(command, SleepReplica):
            hear(ReplicaAsleep(command.id, command.wake_s))
            seat = self._seats[command.id]
            seat.stand_in.sleep()
            seat.asleep = True
            self.asleep.change(1, now)
            self._pool.slept(command.id, now)
        elif isinstance(command, WakeReplica):
            hear(ReplicaAsleep(command.id, command.wake_s, waking=True))
            self._world.at(now + self._scaled.member.wake_s, self._woken, command.id)
        elif isinstance(command, LeaveReplica):
            hear(ReplicaLeft(command.id))
        elif isinstance(command, StopReplica):
            seat = self._seats[command.id]
            busy = any(ticket.replica is seat.stand_in for ticket in self._gateway.tickets.values())
            self._world.at(now + (STOP_GRACE_S if busy else 0.0), self._end, command.id)

    def _new(self) -> ScaledSeat:
        self.starts += 1
        seat = self._make(self.starts)
        self._seats[seat.replica.id] = seat
        self._gateway.replicas[seat.replica.id] = seat.stand_in
        self.most = max(self.most, len(self._seats))
        self.present.change(1, self._world.now)
        return seat

    def _warmed(self, replica_id: ReplicaId) -> None:
        if replica_id in self._seats:
            self._warm(replica_id)
            self._await_turn()

    def _warm(self, replica_id: ReplicaId) -> None:
        now = self._world.now
        self._seats[replica_id].stand_in.start()
        self._pool.answered(replica_id, now)
        self._gateway.hear(Probed(replica_id, ok=True))
        self._pool.warmed(replica_id, now)

    def _woken(self, replica_id: ReplicaId) -> None:
        seat = self._seats.get(replica_id)
        if seat is not None and seat.asleep:
            seat.asleep = False
            self.wake_ups += 1
            self.asleep.change(-1, self._world.now)
            self._pool.woken(replica_id, None, self._world.now)
            self._carry_out()
            self._await_turn()

    def _end(self, replica_id: ReplicaId) -> None:
        """Ends a stopped replica, with what it has not finished."""
        seat = self._seats.pop(replica_id)
        stand_in = seat.stand_in
        if seat.asleep:
            self.asleep.change(-1, self._world.now)
        del self._gateway.replicas[replica_id]
        self.busy_s += stand_in.busy_s
        stand_in.die()
        self.present.change(-1, self._world.now)
        self._pool.stopped(replica_id)

    def outcomes(self, simulated: Simulated, firsts: FirstTokens) -> Outcomes:
        return Outcomes(
            simulated=simulated,
            replica_s=self.present.area,
            samples=tuple(self.samples),
            decisions=tuple(self.decisions),
            starts=self.starts,
            held_s=tuple(firsts.held_s),
            wake_ups=self.wake_ups,
            asleep_s=self.asleep.area,
        )

    def close(self) -> None:
        """Adds up what remains; the run is over."""
        self.present.change(0, self._world.now)
        self.asleep.change(0, self._world.now)
        self.busy_s += sum(seat.stand_in.busy_s for seat in self._seats.values())


def autoscale(
    config: GatewayConfig,
    arrivals: Iterable[Arrival],
    scaled: Scaled,
    seed: int = 0,
    level: Level = "gateway",
    *,
    title: str = "simulation",
    progress: Callable[[int, float], None] | None = None,
) -> Outcomes:
    """Runs a simulation like `sim.run.run`, with a pool that is scaled. `progress` is called every thousand arrivals
    with their number and the time; None: no progress."""
    world, books, delays = World(), Books(by_stream=False), Delays()
    dispatcher = dispatcher_for(config, random.Random(seed))
    firsts = FirstTokens(dispatcher.lanes, world.now)

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        books.close(ticket, outcome, now)
        firsts.add(ticket, now)

    gateway = SimGateway(
        world, dispatcher, SimIntake(config, dispatcher.lanes, dispatcher.cached_tokens), delays, close
    )

    def make(number: int) -> ScaledSeat:
        member = scaled.member
        name = ReplicaId(f"{member.profile.name}-{number}")
        slots = None if member.find_slots else member.slots or member.profile.slots
        replica = Replica(id=name, url=f"http://{name}", kind="headgate", slots=slots)
        chance = Noise(random.Random(f"{seed}/{name}"))
        return ScaledSeat(replica, REPLICAS[level](world, gateway, name, member, delays, chance))

    signals = PoolSignals(dispatcher, firsts.p95)
    fleet = replace(config.fleet, start_s=scaled.member.cold_start_s)
    pool = Autoscale(world, gateway, ManagedPool(scaled.scaler, fleet, signals), scaled, signals, make)
    pool.run()
    used = UseWatch(world, gateway)
    gateway.play(_told(arrivals, progress))
    world.run()
    pool.close()
    facts = {"replicas": f"{scaled.member.profile.name}, scaled", "level": level, "seed": str(seed)}
    simulated = Simulated(
        results=books.rows.results(title, source="simulation", promises=promised(config), facts=facts),
        span_s=max(0.0, books.last_at - (books.first_at or 0.0)),
        events=world.events,
        present_s=gateway.present.area,
        at_work_s=gateway.at_work.area,
        room=sum(int(replica.limit) for replica in dispatcher.view(world.now).replicas.values()),
        utilisation=used.mean,
        busy_s=pool.busy_s,
        replicas=pool.most,
    )
    return pool.outcomes(simulated, firsts)


def learn(
    forecast: Forecast, config: GatewayConfig, arrivals: Iterable[Arrival], wall_s: float = MONDAY, until_s: float = 0.0
) -> None:
    """Shows past arrivals to the forecast; nothing is served. `until_s`: seconds that the arrivals span."""
    intake, rate, tokens, now = SimIntake(config), ArrivalRate(), 0, 0.0

    def watch(until: float) -> None:
        nonlocal now
        while now <= until:
            forecast.observe(wall_s + now, rate.observe(tokens, now))
            now += LOOK_EVERY_S

    for number, arrival in enumerate(arrivals):
        watch(arrival.at_s)
        request, output = intake.request(arrival, number, arrival.at_s)
        tokens += request.tokens
        intake.learn(request, arrival, arrival.prompt_tokens, output)
    watch(until_s)


def _told(arrivals: Iterable[Arrival], progress: Callable[[int, float], None] | None) -> Iterator[Arrival]:
    for number, arrival in enumerate(arrivals):
        if progress is not None and number % 1000 == 0:
            progress(number, arrival.at_s)
        yield arrival
