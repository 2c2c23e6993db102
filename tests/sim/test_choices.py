"""Several choices of one request, simulated: the same slots, tokens and waits as in the gateway."""

import json

import pytest

from headgate.model.event import Arrived, Command, Ended, Event
from headgate.model.outcome import Outcome
from headgate.sim.fleet import Failure, SimFleet, SimGroup
from headgate.sim.run import Level, run
from headgate.workload.arrival import Arrival
from headgate.workload.records import read_records
from tests.sim.scene import CONFIG, NO_DELAYS, machine, poisson, simulated

LEVELS: tuple[Level, ...] = ("step", "gateway")


class Heard:
    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.ended: list[Ended] = []

    def add(self, event: Event, now: float, commands: list[Command]) -> None:
        if isinstance(event, Arrived):
            self.arrived.append(event)
        elif isinstance(event, Ended):
            self.ended.append(event)


def played(arrivals: list[Arrival], level: Level, slots: int = 16, **more: object) -> Heard:
    heard = Heard()
    fleet = SimFleet(members=(SimGroup(profile=machine(slots=slots)),), delays=NO_DELAYS, **more)  # type: ignore[arg-type]
    run(CONFIG, arrivals, fleet, 1, level, log=heard)
    return heard


@pytest.mark.parametrize("level", LEVELS)
def test_all_choices_are_reserved_said_and_settled(level: Level) -> None:
    heard = played([Arrival(1.0, 100, 20, choices=4)], level)
    request = heard.arrived[0].request
    assert (request.choices, request.max_output) == (4, 80)
    assert heard.ended[0].outcome is Outcome.COMPLETED
    assert heard.ended[0].usage == (100, 80)


@pytest.mark.parametrize("level", LEVELS)
def test_they_take_slots_of_a_replica_from_others(level: Level) -> None:
    def slowest(choices: int) -> float:
        arrivals = [Arrival(1.0, 50, 200, choices=choices), Arrival(1.1, 50, 5, lane="batch")]
        return float(simulated(arrivals, level=level, slots=4).results.queue_s.max())

    assert slowest(1) == 0.0
    assert slowest(4) > 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_each_has_one_end_whatever_happens(level: Level) -> None:
    arrivals = [
        Arrival(one.at_s, one.prompt_tokens, one.output_tokens, stream=one.stream, choices=1 + number % 5)
        for number, one in enumerate(poisson(5, 12.0, 300))
    ]
    heard = played(arrivals, level, slots=8, failures=(Failure(0, 5.0, 6.0), Failure(0, 12.0, 12.5)))
    assert len(heard.arrived) == 300
    assert len({one.request_id for one in heard.ended}) == len(heard.ended)
    assert any(one.outcome is Outcome.COMPLETED for one in heard.ended)


def test_records_of_several_choices_are_arrivals_of_as_many() -> None:
    lines = [
        {"headgate": "1", "schema": 1},
        {"at": 1.0, "lane": "slow", "tenant": "t", "model": "m", "outcome": "completed", "prompt_tokens": 9}
        | {"output_tokens": 80, "choices": 4},
    ]
    (found,) = read_records("x", [(at, json.dumps(line) + "\n") for at, line in enumerate(lines)])
    assert (found.choices, found.output_tokens, found.tokens) == (4, 20, 89)
