"""Whatever raises while a request is served fails that request, and nothing else, in the compiled copy too: its classes
can't be changed for a test (test_barrier.py), but the clock that they all read is given to them."""

import asyncio

import pytest

from headgate.config.gateway import GatewayConfig, TimeoutsConfig
from headgate.model.clock import monotonic
from tests.gateway.test_barrier import (
    QUICK,
    Bang,
    Way,
    case_name,
    refused,
    silent,
    streamed,
    two_replicas,
    unfound,
    whole,
)
from tests.gateway.versions import awaited
from tests.ledger import settled

pytestmark = pytest.mark.timeout(60)
READINGS = 12
"""A request that goes well reads the clock about as often."""


class TrappedClock:
    def __init__(self) -> None:
        self.left = 0
        """Readings until one raises, that one included; 0: none does."""

    def __call__(self) -> float:
        if self.left:
            self.left -= 1
            if not self.left:
                raise Bang
        return monotonic()


@pytest.mark.parametrize("way", [whole, streamed, refused, unfound, silent], ids=case_name)
@awaited
async def test_whichever_reading_of_the_clock_raises_one_request_fails(way: Way) -> None:
    clock = TrappedClock()
    timeouts = QUICK if way is silent else TimeoutsConfig()
    async with two_replicas(GatewayConfig(timeouts=timeouts), clock) as it:
        for reading in range(2, READINGS):  # at the first it holds nothing yet
            before = len(it.records)
            clock.left = reading
            async with asyncio.timeout(8.0):
                await way(it)
                it.leave()
                await settled(it.ledger)
            clock.left = 0
            names = [record.id for record in it.records]
            assert len(names) == len(set(names)) == before + 1, f"one request, one record (reading {reading})"
            again = await it.ask("n=2", stream=True)
            assert again.status == 200
            assert again.body.endswith(b"data: [DONE]\n\n")
            await settled(it.ledger)
