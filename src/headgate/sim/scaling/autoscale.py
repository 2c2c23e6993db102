"""Scales a pool in virtual time: the Scaler of the live fleet around simulated replicas.

It carries out the Scaler's decisions as fleet/controller.py does: a started replica is ready after the cold start, a
parked one is alive and gets no requests, a draining one finishes its requests and is then gone. A replica costs from
its start until it is gone, parked or not. The Scaler decides every five seconds, and every second while requests wait
or are about to.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Noise
from headgate.model.event import Probed, ReplicaJoined, ReplicaLeft, ReplicaParked
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.compose import dispatcher_for
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.lifecycle import ROUTED, Lifecycle, LifecycleEvent, next_state
from headgate.policy.scaling.scale import FULL, Activate, Decision, Park, PoolView, Start
from headgate.policy.scaling.scale import PoolMember as Seen
from headgate.sim.fleet import Delays, SimGroup
from headgate.sim.gateway import Area, SimGateway, SimTicket
from headgate.sim.replica import SteppedReplica
from headgate.sim.run import REPLICAS, Books, Level, Simulated
from headgate.sim.scaling.signals import CountedIntake, Firsts
from headgate.sim.service import ServiceReplica
from headgate.sim.slo import promised
from headgate.sim.watch import UseWatch
from headgate.sim.world import World
from headgate.workload.arrival import Arrival

LOOK_S, GLANCE_S = 5.0, 1.0
SAMPLE_S = 60.0
MONDAY = 4 * 86_400.0
"""Midnight of a Monday, as wall time: when a simulated week begins, unless told otherwise."""


class Decides(Protocol):
    def decide(self, view: PoolView, now: float, wall: float) -> Decision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The replicas to scale, the scaler that decides, and the starting state."""

    member: SimGroup
    """The profile of each replica, and its cold start."""
    scaler: Decides
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

    @property
    def replica_hours(self) -> float:
        return self.replica_s / 3600.0


@dataclass(slots=True, eq=False)
class _Seat:
    replica: Replica
    stand_in: SteppedReplica | ServiceReplica
    since: float
    state: Lifecycle = Lifecycle.STARTING
    parks: bool = False
    """Once drained, the replica is parked and not stopped."""


class Autoscale:
    """Drives the pool: looks at it, and carries out the scaler's decisions."""

    def __init__(
        self,
        world: World,
        gateway: SimGateway,
        config: GatewayConfig,
        scaled: Scaled,
        intake: CountedIntake,
        made: "_Maker",
    ) -> None:
        self.present = Area(world.now)
        """Replicas, from start to end."""
        self.busy_s = 0.0
        self.starts = 0
        self.most = 0
        self.samples: list[PoolSample] = []
        self.decisions: list[tuple[float, Decision]] = []
        self.firsts = Firsts()
        self._world = world
        self._gateway = gateway
        self._scaled = scaled
        self._intake = intake
        self._made = made
        self._seats: dict[ReplicaId, _Seat] = {}
        self._wanted = (-1, -1)
        self._look_at = 0.0
        for number in range(scaled.at_first + scaled.parked_at_first):
            seat = self._new()
            self._warm(seat)
            self._activate(seat) if number < scaled.at_first else self._move(seat, LifecycleEvent.PARK)
        self._glance()
        self._sample()

    # -- looking ----------------------------------------------------------------------------------------------

    def _glance(self, _: object = None) -> None:
        now = self._world.now
        for seat in [seat for seat in self._seats.values() if seat.state is Lifecycle.DRAINING]:
            if self._is_idle(seat):
                self._drained(seat)
        if now >= self._look_at or self._pressed():
            self._look(now)
        self._world.at(now + GLANCE_S, self._glance)

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_S
        decision = self._scaled.scaler.decide(self.view(), now, self._scaled.wall_s + now)
        for action in decision.actions:
            if isinstance(action, Start):
                for _ in range(action.count):
                    self._world.at(now + self._scaled.member.cold_start_s, self._warm, self._new())
            elif isinstance(action, Activate):
                self._activate(self._seats[action.id])
            else:
                self._put_away(self._seats[action.id], isinstance(action, Park))
        wanted = (decision.serving, decision.parked)
        if decision.actions or wanted != self._wanted:
            self.decisions.append((now, decision))
        self._wanted = wanted
        for seat in self._seats.values():
            if seat.state in ROUTED and self._usable(seat) < 1.0:
                self._gateway.hear(Probed(seat.replica.id, ok=True))
                if self._usable(seat) >= 1.0:
                    self._move(seat, LifecycleEvent.RAMPED)
            else:
                self._move(seat, LifecycleEvent.RAMPED)

    def view(self) -> PoolView:
        now = self._world.now
        waiting, waiting_tokens = self._gateway.dispatcher.queued()
        return PoolView(
            members=tuple(self._seen(seat, now) for seat in self._seats.values()),
            waiting=waiting,
            waiting_tokens=waiting_tokens,
            tokens_per_s=self._intake.tokens_per_s(now),
            p95_ratio=self.firsts.p95(now),
            start_s=self._scaled.member.cold_start_s,
        )

    def _pressed(self) -> bool:
        """True if the next look can't wait: requests wait, or soon will while a parked replica could take them."""
        waiting, _ = self._gateway.dispatcher.queued()
        room, used, _ = self._gateway.dispatcher.room(None)
        parked = any(seat.state is Lifecycle.PARKED for seat in self._seats.values())
        return waiting > 0 or (parked and used >= FULL * room)

    def _is_idle(self, seat: _Seat) -> bool:
        seen = self._gateway.dispatcher.replica(seat.replica.id, self._world.now)
        return seen is None or not seen.requests

    def _usable(self, seat: _Seat) -> float:
        """The share of a replica that may be used; 1: there is nothing to wait for."""
        seen = self._gateway.dispatcher.replica(seat.replica.id, self._world.now)
        return 1.0 if seen is None else seen.usable

    def _seen(self, seat: _Seat, now: float) -> Seen:
        """What the scaler sees of a replica, with the utilisation of its resources beside slots."""
        load = self._gateway.dispatcher.replica(seat.replica.id, now)
        use = replace(self._gateway.dispatcher.use_of(seat.replica.id), slots=None)
        return Seen(
            id=seat.replica.id,
            state=seat.state,
            since=seat.since,
            requests=0 if load is None else load.requests,
            outstanding_tokens=0 if load is None else load.tokens,
            cached_tokens=seat.stand_in.cached_tokens,
            slots=1 if load is None else max(1, int(load.limit)),
            use=use.largest or 0.0,
            binding=use.binding,
        )

    def _sample(self, _: object = None) -> None:
        now, states = self._world.now, [seat.state for seat in self._seats.values()]
        self.samples.append(
            PoolSample(
                now,
                serving=sum(state in ROUTED for state in states),
                parked=states.count(Lifecycle.PARKED),
                coming=sum(state in (Lifecycle.STARTING, Lifecycle.WARMING, Lifecycle.READY) for state in states),
                draining=states.count(Lifecycle.DRAINING),
                wanted=self._wanted[0],
                tokens_per_s=self._intake.tokens_per_s(now),
            )
        )
        self._world.at(now + SAMPLE_S, self._sample)

    # -- one replica ------------------------------------------------------------------------------------------

    def _new(self) -> _Seat:
        self.starts += 1
        seat = self._made(self.starts, self._world.now)
        self._seats[seat.replica.id] = seat
        self._gateway.replicas[seat.replica.id] = seat.stand_in
        self.most = max(self.most, len(self._seats))
        self.present.change(1, self._world.now)
        return seat

    def _warm(self, seat: _Seat) -> None:
        seat.stand_in.start()
        self._move(seat, LifecycleEvent.ANSWERED)
        self._move(seat, LifecycleEvent.WARMED)
        hear, name = self._gateway.hear, seat.replica.id
        hear(ReplicaParked(name, parked=True))  # known and watched, but gets no requests yet
        hear(ReplicaJoined(seat.replica))
        hear(Probed(name, ok=True))

    def _activate(self, seat: _Seat) -> None:
        ramp = seat.state is Lifecycle.READY and self._world.now > 0
        self._move(seat, LifecycleEvent.ACTIVATED)
        self._gateway.hear(ReplicaParked(seat.replica.id, parked=False, ramp=ramp))

    def _put_away(self, seat: _Seat, parks: bool) -> None:
        """Parks or stops a replica; drains it first if it has requests."""
        seat.parks = parks
        if parks and seat.state is Lifecycle.READY:
            self._move(seat, LifecycleEvent.PARK)
            return
        if seat.state in ROUTED:
            self._gateway.hear(ReplicaParked(seat.replica.id, parked=True))
        self._move(seat, LifecycleEvent.DRAIN)
        if self._is_idle(seat):
            self._drained(seat)

    def _drained(self, seat: _Seat) -> None:
        if seat.parks:
            self._move(seat, LifecycleEvent.PARK)
            return
        self._move(seat, LifecycleEvent.STOPPED)
        self._gateway.hear(ReplicaLeft(seat.replica.id))
        self.busy_s += seat.stand_in.busy_s
        seat.stand_in.alive = False
        del self._seats[seat.replica.id]
        del self._gateway.replicas[seat.replica.id]
        self.present.change(-1, self._world.now)

    def _move(self, seat: _Seat, happened: LifecycleEvent) -> None:
        state = next_state(seat.state, happened)
        if state is not seat.state:
            seat.state, seat.since = state, self._world.now

    def close(self) -> None:
        """Adds up what remains; the run is over."""
        self.present.change(0, self._world.now)
        self.busy_s += sum(seat.stand_in.busy_s for seat in self._seats.values())


_Maker = Callable[[int, float], _Seat]


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
    world, books, intake, delays = World(), Books(by_stream=False), CountedIntake(config), Delays()
    dispatcher = dispatcher_for(config, random.Random(seed))
    pools: list[Autoscale] = []

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        books.close(ticket, outcome, now)
        if ticket.arrival.stream:
            pools[0].firsts.add(ticket, now, dispatcher.lanes[ticket.request.lane].ttft_target_s)

    gateway = SimGateway(world, dispatcher, intake, delays, close)

    def make(number: int, now: float) -> _Seat:
        member = scaled.member
        name = ReplicaId(f"{member.profile.name}-{number}")
        slots = None if member.find_slots else member.slots or member.profile.slots
        replica = Replica(id=name, url=f"http://{name}", kind="headgate", slots=slots)
        chance = Noise(random.Random(f"{seed}/{name}"))
        return _Seat(replica, REPLICAS[level](world, gateway, name, member, delays, chance), now)

    pool = Autoscale(world, gateway, config, scaled, intake, make)
    pools.append(pool)
    used = UseWatch(world, gateway)
    gateway.play(_told(arrivals, progress))
    world.run()
    pool.close()
    first_at = books.first_at or 0.0
    facts = {"replicas": f"{scaled.member.profile.name}, scaled", "level": level, "seed": str(seed)}
    results = books.rows.results(title, source="simulation", promises=promised(config), facts=facts)
    simulated = Simulated(
        results=results,
        span_s=max(0.0, books.last_at - first_at),
        events=world.events,
        present_s=gateway.present.area,
        at_work_s=gateway.at_work.area,
        room=sum(int(replica.limit) for replica in dispatcher.view(world.now).replicas.values()),
        utilisation=used.mean,
        busy_s=pool.busy_s,
        replicas=pool.most,
    )
    return Outcomes(
        simulated=simulated,
        replica_s=pool.present.area,
        samples=tuple(pool.samples),
        decisions=tuple(pool.decisions),
        starts=pool.starts,
    )


def learn(
    forecast: Forecast, config: GatewayConfig, arrivals: Iterable[Arrival], wall_s: float = MONDAY, until_s: float = 0.0
) -> None:
    """Shows past arrivals to the forecast; nothing is served. `until_s`: seconds that the arrivals span."""
    intake, now = CountedIntake(config), 0.0

    def watch(until: float) -> None:
        nonlocal now
        while now <= until:
            forecast.observe(wall_s + now, intake.tokens_per_s(now))
            now += LOOK_S

    for number, arrival in enumerate(arrivals):
        watch(arrival.at_s)
        request, output = intake.request(arrival, number, arrival.at_s)
        intake.learn(request, arrival, arrival.prompt_tokens, output)
    watch(until_s)


def _told(arrivals: Iterable[Arrival], progress: Callable[[int, float], None] | None) -> Iterator[Arrival]:
    for number, arrival in enumerate(arrivals):
        if progress is not None and number % 1000 == 0:
            progress(number, arrival.at_s)
        yield arrival
