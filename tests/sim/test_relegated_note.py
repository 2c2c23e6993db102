"""A simulation says how many requests waited in another lane than their own."""

from dataclasses import replace

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.sim.fleet import SimFleet, dilated
from headgate.sim.run import simulate
from headgate.workload.load import Workload


def notes(replicas: int) -> tuple[str, ...]:
    fleet = SimFleet(members=(replace(dilated(PROFILES["h100-llama3-8b"], 1.0), count=replicas, slots=32),))
    load = Workload("chat=poisson:rate=1,prompt=2000-6000,output=20-60", rate=40.0, duration_s=15.0)
    return simulate(GatewayConfig(), load.arrivals(3), fleet, 3, "gateway").notes


def test_those_that_would_be_late_are_counted_where_they_waited() -> None:
    told = [note for note in notes(1) if note.startswith(tuple("0123456789"))]
    ways = [note.partition(" of ")[2] for note in told]
    assert "slow would have been late there and waited as batch: they count as batch" in ways
    assert sum(int(note.split()[0]) for note in told) > 50
    assert notes(8) == ()
