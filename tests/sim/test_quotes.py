"""Requests are told the same of their first token in the simulator: the dispatcher is the gateway's own."""

import random
from math import ceil

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.quotes import judged
from headgate.sim.fleet import Delays, SimFleet, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.run import Level, run
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from tests.sim.scene import CONFIG, NO_DELAYS, machine, poisson


class Told:
    def __init__(self) -> None:
        self.found: list[tuple[QuoteTold, SimTicket]] = []

    def begin(self, world: World, dispatcher: Dispatcher) -> None:
        """There is nothing to prepare."""

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        if ticket.quote is not None:
            arrived, first = ticket.request.arrived, ticket.first_at
            ttft_s = first - arrived if first is not None and ticket.request.stream else None
            became = judged(ticket.quote, ttft_s, now - arrived, outcome)
            assert became is not None
            self.found.append((became, ticket))


@pytest.mark.parametrize("level", ["step", "gateway"])
def test_most_of_what_is_told_is_kept_at_either_level(level: Level) -> None:
    told = Told()
    fleet = SimFleet(members=(SimGroup(profile=machine(), count=2),), delays=NO_DELAYS)
    run(CONFIG, poisson(3, 12.0, 4000), fleet, 3, level, onlooker=told)
    kept = [quote.kept for quote, _ in told.found if quote.kept is not None]
    assert len(kept) > 3000
    assert 0.98 <= sum(kept) / len(kept) <= 0.998
    shown = {quote.lane for quote, _ in told.found if quote.p99_s is not None}
    assert shown >= {"fast", "slow"}


def test_who_asks_in_the_simulator_is_told_what_the_request_is_told() -> None:
    world, dispatcher = World(), dispatcher_for(GatewayConfig(), random.Random(1))
    gateway = SimGateway(world, dispatcher, SimIntake(CONFIG, dispatcher.lanes), Delays(), lambda *_: None)
    arrival = Arrival(at_s=0.0, prompt_tokens=100, output_tokens=5)
    quote = gateway.quote(arrival)
    assert (quote.admitted, quote.told, quote.message) == (True, None, "no replica is usable; it would wait up to "
        f"{ceil(dispatcher._refusals.no_replica_wait_s)} s for one")  # fmt: skip
    assert not gateway.tickets
    assert dispatcher.under_way == 0
