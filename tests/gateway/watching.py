"""A keeper of replicas for tests, which notes what a Prober tells it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from math import inf
from typing import Any

from headgate.config.gateway import ClassifyConfig
from headgate.config.warm import WarmConfig
from headgate.model.clock import Clock, monotonic
from headgate.model.event import Event, Probed, Reported
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.replicas.health import Standing
from headgate.policy.replicas.signs import HealthState
from headgate.replica.detect import Card
from headgate.replica.http import Connections
from headgate.upkeep.prober import Prober
from headgate.upkeep.warmup import Warmup


class Keeper:
    """An Owner whose dispatcher is the test."""

    def __init__(self) -> None:
        self.told: list[Probed] = []
        self.reported: list[Reported] = []
        self.models: list[str] = []
        self.adapters: frozenset[str] = frozenset()
        self.kinds: list[str | None] = []
        self.state = HealthState.UP
        self.since = 0.0
        self.requests: float | None = 0.0
        self.spoke_at = -inf

    def tell(self, event: Event) -> None:
        if isinstance(event, Reported):
            self.reported.append(event)
        else:
            assert isinstance(event, Probed)
            self.told.append(event)

    def said(self, replica_id: ReplicaId, cards: list[Card]) -> None:
        self.models = [card.id for card in cards]
        self.adapters = frozenset(card.id for card in cards if card.is_adapter)

    def found(self, replica: Replica) -> None:
        self.kinds.append(replica.kind)

    def standing(self, replica_id: ReplicaId) -> Standing | None:
        return Standing(self.state, self.since, "")

    def sent(self, replica_id: ReplicaId) -> float | None:
        return self.requests

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        return self.spoke_at > since


def warmup(clock: Clock = monotonic, **config: Any) -> Warmup:
    return Warmup(WarmConfig(**config), ClassifyConfig(), clock)


@contextlib.asynccontextmanager
async def watching(
    url: str, kind: str | None = None, *, interval_s: float = 0.01, deep_s: float = 60.0, **config: Any
) -> AsyncIterator[tuple[Prober, Keeper]]:
    """A Prober at work on this replica."""
    connections, keeper = Connections(url, clock=monotonic), Keeper()
    replica = Replica(id="r", url=url, kind=kind)
    watch = Prober(replica, connections, keeper.tell, keeper, warmup(**config), interval_s, deep_s)
    task = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield watch, keeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        connections.close()
