"""Simulates a config, a workload and a fleet in virtual time.

    results = simulate(config, load("azure-conv", seed=1), fleet_of(PROFILES["h100-llama3-8b"], 4), seed=1)

The same inputs and seed give the same results, on any machine.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Noise
from headgate.model.errors import UsageError
from headgate.model.outcome import Outcome
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.utilisation import Use
from headgate.report.results import Results, Rows
from headgate.sim.fleet import Failure, SimFleet, SimSeat
from headgate.sim.gateway import Recorder, SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.service import ServiceReplica
from headgate.sim.slo import promised
from headgate.sim.watch import SimProber, UseWatch
from headgate.sim.world import World
from headgate.wire.errors import STATUS
from headgate.workload.arrival import Arrival

Level = Literal["step", "gateway"]
"""step: the engine's Batcher and block ledger decide every step. gateway: modelled service times, for very many
requests."""
REPLICAS: dict[Level, type[SteppedReplica] | type[ServiceReplica]] = {"step": SteppedReplica, "gateway": ServiceReplica}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A run's results, and what was counted beside its requests."""

    results: Results
    span_s: float
    """Virtual seconds from the first arrival to the last end."""
    events: int
    present_s: float
    """Requests in the system, integrated over time: its mean is Little's L."""
    at_work_s: float
    """Requests at a replica, integrated over time."""
    room: int
    """Requests that all replicas may have at once, as the gateway was told or has found."""
    utilisation: Use
    """Mean share in use of each of the replicas' resources, as the gateway measures it."""
    busy_s: float
    """Seconds in which replicas computed, added up."""
    replicas: int
    limits: tuple[float, ...] = ()
    """For each replica: requests that it may have at once, at the end."""
    ejections: int = 0
    """How often a replica in use was ejected."""

    @property
    def use(self) -> float:
        """Mean share in use of the scarcest resource, as `headgate_utilisation`."""
        return max(self.slots_use, self.utilisation.largest or 0.0)

    @property
    def slots_use(self) -> float:
        """Mean share in use of the replicas' slots."""
        return self.at_work_s / (self.room * self.span_s) if self.room and self.span_s else 0.0

    @property
    def busy(self) -> float:
        """Mean share of time in which a replica computed."""
        return self.busy_s / (self.replicas * self.span_s) if self.replicas and self.span_s else 0.0


class Onlooker(Protocol):
    """Observes a run without changing it."""

    def begin(self, world: World, dispatcher: Dispatcher) -> None: ...
    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None: ...


class Books:
    """Turns finished requests into rows."""

    def __init__(self, by_stream: bool) -> None:
        self.rows = Rows()
        self.first_at: float | None = None
        self.last_at = 0.0
        self._by_stream = by_stream
        self._relegated: Counter[tuple[str, str]] = Counter()

    @property
    def notes(self) -> list[str]:
        """What figures by lane do not say: how many requests waited in another lane than their own."""
        return [
            f"{count} of {lane} would have been late there and waited as {other}: they count as {other}"
            for (lane, other), count in sorted(self._relegated.items())
        ]

    def close(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        arrival, first = ticket.arrival, ticket.first_at
        at = arrival.at_s
        if self.first_at is None or at < self.first_at:
            self.first_at = at
        self.last_at = now
        if ticket.relegated_from:
            self._relegated[ticket.relegated_from, ticket.request.lane] += 1
        lane = arrival.label if self._by_stream else ticket.request.lane
        if outcome is not Outcome.COMPLETED or first is None:
            self.rows.add(
                at_s=at,
                lane=lane,
                kind=outcome.kind,
                why=f"{STATUS[outcome]} {outcome.value}",
                e2e_s=now - at,
                queue_s=ticket.queue_s,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=ticket.said,
            )
            return
        each = ticket.said // arrival.choices
        streamed = each > 1 and arrival.stream
        self.rows.add(
            at_s=at,
            lane=lane,
            ttft_s=first - at if arrival.stream else None,
            tpot_s=(now - first) / (each - 1) if streamed else None,
            max_gap_s=ticket.gap_s if streamed else None,
            e2e_s=now - at,
            queue_s=ticket.queue_s,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=ticket.said,
        )


def simulate(
    config: GatewayConfig,
    arrivals: Iterable[Arrival],
    fleet: SimFleet,
    seed: int = 0,
    level: Level = "step",
    title: str = "simulation",
) -> Results:
    return run(config, arrivals, fleet, seed, level, title=title).results


def run(
    config: GatewayConfig,
    arrivals: Iterable[Arrival],
    fleet: SimFleet,
    seed: int = 0,
    level: Level = "step",
    *,
    title: str = "simulation",
    by_stream: bool = False,
    log: Recorder | None = None,
    progress: Callable[[int, float], None] | None = None,
    onlooker: Onlooker | None = None,
) -> Simulated:
    """Runs a simulation. `by_stream`: rows are named as the workload names them, not by the lane they were given.
    `progress` is called every thousand arrivals with their number and the time; None: no progress."""
    world = World()
    books = Books(by_stream)
    dispatcher = dispatcher_for(config, random.Random(seed))

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        books.close(ticket, outcome, now)
        if onlooker is not None:
            onlooker.closed(ticket, outcome, now)

    intake = SimIntake(config, dispatcher.lanes, dispatcher.cached_tokens)
    gateway = SimGateway(world, dispatcher, intake, fleet.delays, close, log)
    if onlooker is not None:
        onlooker.begin(world, dispatcher)
    stand_ins = []
    for seat in fleet.seats:
        chance = Noise(random.Random(f"{seed}/{seat.replica.id}"))
        stand_in = REPLICAS[level](world, gateway, seat.replica.id, seat.member, fleet.delays, chance)
        stand_ins.append(stand_in)
        _join(config, world, gateway, seat, stand_in)
    for failure in fleet.failures:
        if not 0 <= failure.replica < fleet.replicas:
            raise UsageError(f"replica {failure.replica} can't fail: there are 0 to {fleet.replicas - 1}")
        _schedule(world, failure, stand_ins, fleet)
    used = UseWatch(world, gateway)
    gateway.play(_told(arrivals, progress))
    world.run()
    seen = dispatcher.view(world.now)
    limits = tuple(replica.limit for replica in seen.replicas.values())
    first_at = books.first_at or 0.0
    facts, notes = _facts(fleet, seed, level), () if by_stream else books.notes
    results = books.rows.results(title, source="simulation", promises=promised(config), facts=facts, notes=notes)
    return Simulated(
        results=results,
        span_s=max(0.0, books.last_at - first_at),
        events=world.events,
        present_s=gateway.present.area,
        at_work_s=gateway.at_work.area,
        room=sum(map(int, limits)),
        utilisation=used.mean,
        busy_s=sum(stand_in.busy_s for stand_in in stand_ins),
        replicas=fleet.replicas,
        limits=limits,
        ejections=seen.ejections,
    )


def _join(
    config: GatewayConfig, world: World, gateway: SimGateway, seat: SimSeat, stand_in: SteppedReplica | ServiceReplica
) -> None:
    member = seat.member

    def watch(_: object) -> None:
        SimProber(world, gateway, seat.replica, stand_in, config.health.probe_interval_s, config.health.deep_interval_s)

    if member.starts_s is None:
        stand_in.start()
        watch(None)
    else:
        world.at(member.starts_s, watch)
        world.at(member.starts_s + member.cold_start_s, stand_in.start)


def _schedule(
    world: World, failure: Failure, stand_ins: Sequence[SteppedReplica | ServiceReplica], fleet: SimFleet
) -> None:
    stand_in, member = stand_ins[failure.replica], fleet.seats[failure.replica].member
    world.at(failure.at_s, stand_in.die)
    if failure.back_s is not None:
        world.at(failure.back_s + member.cold_start_s, stand_in.start)


def _told(arrivals: Iterable[Arrival], progress: Callable[[int, float], None] | None) -> Iterator[Arrival]:
    for number, arrival in enumerate(arrivals):
        if progress is not None and number % 1000 == 0:
            progress(number, arrival.at_s)
        yield arrival


def _facts(fleet: SimFleet, seed: int, level: Level) -> dict[str, str]:
    members = [f"{member.count} × {member.profile.name}" for member in fleet.members]
    return {"fleet": ", ".join(members), "level": level, "seed": str(seed)}
