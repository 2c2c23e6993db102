"""The simulator drives the same hedging: what it is worth, what it costs, and that nothing of it is left over."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from headgate.config.gateway import GatewayConfig
from headgate.config.hedge import HedgeConfig
from headgate.machine.profile import Noise, Residuals
from headgate.model.event import Arrived, Command, Event, Hedge, HedgeWon
from headgate.policy.compose import dispatcher_for
from headgate.replay.event_log import EventLog
from headgate.replay.replay import Replayed, replay
from headgate.sim.fleet import Failure, SimFleet, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.run import REPLICAS, Level, Simulated, run
from headgate.sim.watch import SimProber
from headgate.sim.world import World
from tests.sim.scene import NO_DELAYS, machine, poisson

STUCK = Residuals(1.0, ((1.0,) * 20,) * 59 + ((60.0,),))
"""Now and then a step takes sixty times as long as it should."""
OFF = GatewayConfig()
ON = GatewayConfig(hedge=HedgeConfig(enabled=True))
LEVELS: tuple[Level, ...] = ("step", "gateway")


@dataclass
class Heard:
    """What was decided, counted."""

    arrived: int = 0
    hedges: int = 0
    won: list[str] = field(default_factory=list)

    def add(self, event: Event, now: float, commands: list[Command]) -> None:
        self.arrived += isinstance(event, Arrived)
        self.hedges += sum(isinstance(command, Hedge) for command in commands)
        if isinstance(event, HedgeWon):
            self.won.append(event.request_id)


def played(config: GatewayConfig, level: Level, rate: float = 25.0, count: int = 3000) -> tuple[Simulated, Heard]:
    heard = Heard()
    members = (SimGroup(profile=machine(with_prefill=STUCK, decode_only=STUCK), count=4),)
    fleet = SimFleet(members=members, delays=NO_DELAYS)
    return run(config, poisson(7, rate, count, (20, 300)), fleet, 3, level, log=heard), heard


def test_stuck_steps_are_left_behind_within_the_budget() -> None:
    (without, _), (with_it, heard) = played(OFF, "step"), played(ON, "step")
    tails = [float(np.percentile(made.results.values("ttft", "fast"), 99.5)) for made in (without, with_it)]
    assert tails[1] < 0.75 * tails[0], tails
    assert 10 < heard.hedges <= 0.02 * heard.arrived
    assert all(made.results.ok.all() and len(made.results) == 3000 for made in (without, with_it))


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_the_same_each_time(level: Level) -> None:
    (one, heard), (two, again) = (played(ON, level, count=1200) for _ in range(2))
    assert heard == again
    assert heard.won
    assert np.array_equal(one.results.e2e_s, two.results.e2e_s)


def test_under_saturation_it_is_off() -> None:
    _, heard = played(ON, "gateway", rate=500.0)
    assert heard.hedges == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_with_hedges_and_deaths_replays_to_the_same_decisions(tmp_path: Path, level: Level) -> None:
    log = EventLog(tmp_path / "log", ON, 5)
    members = (SimGroup(profile=machine(with_prefill=STUCK, decode_only=STUCK), count=4, cold_start_s=1.0),)
    failures = (Failure(0, 20.0, 25.0), Failure(2, 40.0, 42.0), Failure(1, 60.0, 61.0))
    arrivals = poisson(5, 25.0, 2000, (20, 300))
    made = run(ON, arrivals, SimFleet(members=members, failures=failures), 5, level, log=log)
    log.close()
    assert b'"hedge_won"' in (tmp_path / "log").read_bytes()
    assert isinstance(found := replay(tmp_path / "log"), Replayed), str(found)
    assert len(made.results) == len(arrivals), "each has exactly one end"


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_cancelled_leaves_nothing_at_its_replica(level: Level) -> None:
    config = GatewayConfig(hedge=HedgeConfig(enabled=True, share=1.0, percentile=0.5, least_samples=20, least_s=0.0))
    world, closed = World(), []
    dispatcher = dispatcher_for(config, random.Random(1))

    def close(ticket: SimTicket, outcome: object, now: float) -> None:
        closed.append(ticket.request.id)

    gateway = SimGateway(world, dispatcher, SimIntake(config), NO_DELAYS, close)
    fleet = SimFleet(
        members=(SimGroup(profile=machine(with_prefill=STUCK, decode_only=STUCK), count=3),), delays=NO_DELAYS
    )
    stand_ins = []
    for seat in fleet.seats:
        chance = Noise(random.Random(seat.replica.id))
        stand_ins.append(REPLICAS[level](world, gateway, seat.replica.id, seat.member, NO_DELAYS, chance))
        stand_ins[-1].start()
        SimProber(world, gateway, seat.replica, stand_ins[-1], 1.0, 30.0)
    gateway.play(iter(poisson(3, 30.0, 1500, (20, 300))))
    world.run()
    assert len(closed) == len(set(closed)) == 1500
    assert dispatcher.hedger is not None
    counts = dispatcher.hedger.counts
    assert sum(counts.values()) > 150
    assert all(sum(n for (_, what), n in counts.items() if what == result) for result in ("won", "lost"))
    loads = dispatcher.index.loads.values()
    assert all((load.requests, load.tokens - load.silent_tokens) == (0, 0) for load in loads)
    assert gateway.at_work.number == gateway.present.number == 0
    assert not any(ticket.gone for one in stand_ins for ticket in _left(one))


def _left(stand_in: object) -> list[SimTicket]:
    """Whom it still works for, but for those that go with the step under way."""
    from headgate.sim.service import ServiceReplica

    if isinstance(stand_in, ServiceReplica):
        return [ticket for ticket in stand_in._open.values() if ticket not in stand_in._leaving]
    leaving, known = stand_in._leaving, stand_in._open  # type: ignore[attr-defined]
    return [one.ticket for number, one in known.items() if number not in leaving]
