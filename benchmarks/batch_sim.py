"""Plays interactive requests and lines of a batch over emulated replicas in virtual time, at the gateway's own pace.

The dispatcher, the engines' Batcher and `SpareRoom` are those of a running gateway. The lines come from a file without
an end; what the runner does with its answers (`batches/runner.py`) is here in ten lines.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES, Noise
from headgate.model.event import Ended
from headgate.model.outcome import Outcome
from headgate.policy.compose import dispatcher_for
from headgate.policy.tenants.spare_room import SpareRoom
from headgate.sim.fleet import Delays, SimFleet, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.run import _join
from headgate.sim.world import World
from headgate.workload.arrival import Arrival

PROFILE = PROFILES["h100-llama3-8b"]
REPLICAS = 4
LANE = "batch"
MOST_LANE = "fast"
"""Lane of the run that tells what the fleet can do: the one that nothing holds back."""
LOOK_S = 0.025
Way = Literal["interactive", "batch", "both", "most"]


@dataclass
class Seen:
    """What came of a run, counted while interactive requests came."""

    ttfts: list[float] = field(default_factory=list)
    asked: int = 0
    unanswered: int = 0
    tokens: int = 0
    """Tokens computed: prompts and outputs of everything that ended in time."""
    lines: int = 0
    put_back: int = 0


def interactive(seed: int, seconds: float, busy: float, burst_s: float, idle_s: float) -> Iterator[Arrival]:
    """Chats that come in bursts of `burst_s` seconds at `busy` a second, and hardly in the idle times between."""
    rng, at = random.Random(f"{seed}/interactive"), 0.0
    while True:
        in_burst = at % (burst_s + idle_s) < burst_s
        at += rng.expovariate(busy if in_burst else 0.05 * busy)
        if at >= seconds:
            return
        prompt = max(8, min(4000, int(rng.lognormvariate(6.0, 0.8))))
        yield Arrival(at_s=at, prompt_tokens=prompt, output_tokens=max(8, min(400, int(rng.expovariate(1 / 120)))))


class Lines:
    """Sends lines as the runner does."""

    def __init__(self, world: World, gateway: SimGateway, seed: int, paced: bool) -> None:
        """`paced` False: as many lines at once as fit, which is what the fleet can do at most."""
        self.world, self.gateway, self.paced = world, gateway, paced
        self.room, self.rng = SpareRoom(), random.Random(f"{seed}/lines")
        self.open: dict[str, None] = {}
        self.again: list[Arrival] = []
        self.put_back = 0
        world.at(0.0, self.look)

    def look(self, _: object = None) -> None:
        self.pump()
        self.world.at(self.world.now + LOOK_S, self.look)

    def pump(self) -> None:
        now = self.world.now
        lane = LANE if self.paced else MOST_LANE
        if not self.paced:
            while not self.gateway.dispatcher.waiting(lane):
                self.send(lane)
            return
        pace = self.room.look(self.gateway.dispatcher.spare("", LANE), now)
        tickets = self.gateway.tickets
        running = [tickets[name] for name in self.open if name in tickets and tickets[name].replica is not None]
        for ticket in running[len(running) - pace.end :] if pace.end else ():
            self.take_back(ticket)
        while self.room.look(self.gateway.dispatcher.spare("", LANE), now).send:
            self.send(lane)

    def send(self, lane: str) -> None:
        arrival = self.again.pop() if self.again else Arrival(
            at_s=self.world.now, lane=lane, stream=False, turn=2, name="line",
            prompt_tokens=max(50, min(2000, int(self.rng.lognormvariate(6.2, 0.5)))),
            output_tokens=max(20, min(400, int(self.rng.gauss(150, 50)))),
        )  # fmt: skip
        gateway = self.gateway
        gateway._later += 1
        self.open[str(gateway._number + 1)] = None
        gateway._arrive(arrival)

    def take_back(self, ticket: SimTicket) -> None:
        gateway, name = self.gateway, ticket.request.id
        assert ticket.replica is not None
        ticket.gone = True
        ticket.replica.cancel(ticket)
        del gateway.tickets[name], self.open[name]
        gateway.present.change(-1, self.world.now)
        gateway.at_work.change(-1, self.world.now)
        self.again.append(ticket.arrival)
        self.put_back += 1
        gateway.hear(Ended(name, Outcome.CANCELLED, None))


def play(way: Way, seed: int, seconds: float, busy: float, burst_s: float, idle_s: float) -> Seen:
    """`most`: lines alone, not paced, as many at once as the replicas take."""
    world, seen, config = World(), Seen(), GatewayConfig()
    dispatcher = dispatcher_for(config, random.Random(seed))
    fleet = SimFleet(members=(SimGroup(profile=PROFILE, count=REPLICAS),), delays=Delays())
    lines: list[Lines] = []

    def close(ticket: SimTicket, outcome: Outcome, now: float) -> None:
        line = ticket.arrival.name == "line"
        if line and lines:
            lines[0].open.pop(ticket.request.id, None)
            world.at(world.now, lambda _: lines[0].pump())
        if now > seconds:
            return
        if outcome is Outcome.COMPLETED:
            seen.tokens += ticket.arrival.prompt_tokens + ticket.said
            seen.lines += line
        if not line:
            seen.asked += 1
            if outcome is not Outcome.COMPLETED or ticket.first_at is None:
                seen.unanswered += 1
            else:
                seen.ttfts.append(ticket.first_at - ticket.arrival.at_s)
        elif outcome is not Outcome.COMPLETED:
            lines[0].again.append(ticket.arrival)

    gateway = SimGateway(
        world, dispatcher, SimIntake(config, dispatcher.lanes, dispatcher.cached_tokens), fleet.delays, close
    )
    for seat in fleet.seats:
        chance = Noise(random.Random(f"{seed}/{seat.replica.id}"))
        _join(config, world, gateway, seat, SteppedReplica(
            world, gateway, seat.replica.id, seat.member, fleet.delays, chance
        ))  # fmt: skip
    if way != "interactive":
        lines.append(Lines(world, gateway, seed, way != "most"))
    nothing: Iterator[Arrival] = iter(())
    chats = interactive(seed, seconds, busy, burst_s, idle_s) if way in ("interactive", "both") else nothing
    gateway._later += 1  # lines have no end: the clock ends the run
    gateway.play(chats)
    world.at(seconds, lambda _: world.stop())
    world.run()
    seen.put_back = sum(one.put_back for one in lines)
    return seen
