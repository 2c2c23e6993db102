"""Joins and retires replicas, each with its connections and a prober that watches it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from headgate.gateway.catalog import Catalog, ModelFacts
from headgate.gateway.gateway import Gateway
from headgate.model.event import ReplicaAsleep, ReplicaJoined, ReplicaLeft, ReplicaParked
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.replicas.health import Standing
from headgate.policy.scaling.member import PoolCounts
from headgate.replica.detect import Card
from headgate.replica.http import Connections
from headgate.upkeep.prober import Prober
from headgate.upkeep.sleep import Rest, Rested
from headgate.upkeep.warmup import Warmup

log = logging.getLogger(__name__)


class FleetView(Protocol):
    """What the fleet, which starts and stops replicas, says of them."""

    def lifecycle(self, replica_id: ReplicaId) -> str | None:
        """The state of a replica's life. None: the fleet does not own it."""

    def news(self) -> dict[str, Any]:
        """How many replicas are wanted and why, and what was decided of late."""

    def counts(self, now: float) -> dict[str, PoolCounts]:
        """Its pools by name, where they have names."""

    def owns(self, replica_id: ReplicaId) -> bool:
        """Whether the fleet owns this replica."""

    def paid_for(self) -> int:
        """Number of the fleet's replicas that are paid for: from being asked for to being gone, whatever they do."""


class ReplicaSet:
    def __init__(
        self,
        gateway: Gateway,
        new_connections: Callable[[Replica], Connections],
        probe_interval_s: float,
        deep_interval_s: float,
        warmup: Warmup,
    ) -> None:
        self.catalog = Catalog(gateway.placing.places, self._describe)
        gateway.acceptor.serve_names(self.catalog)
        self.watches: dict[ReplicaId, Prober] = {}
        self.fleet: FleetView | None = None
        """None: no fleet starts and stops replicas here."""
        self._gateway = gateway
        self._new_connections = new_connections
        self._intervals = (probe_interval_s, deep_interval_s)
        self._warmup = warmup

    def belong_to(self, fleet: FleetView) -> None:
        """A fleet starts and stops replicas here from now on."""
        self.fleet = fleet

    def join(self, replica: Replica, *, parked: bool = False, ready: Callable[[], None] | None = None) -> Prober:
        """Adds a replica. It is used once it has answered; parked: only once `route` says so. `ready` is called when it
        has answered and is warm."""
        if replica.id in self.watches:
            raise ValueError(f"replica {replica.id} is here already")
        connections = self._new_connections(replica)
        self._gateway.placing.join(replica, connections)
        self.catalog.look_again()
        watch = Prober(replica, connections, self._gateway.hear, self, self._warmup, *self._intervals, ready=ready)
        self.watches[replica.id] = watch
        if parked:
            self._gateway.hear(ReplicaParked(replica.id, True))
        self._gateway.hear(ReplicaJoined(replica))
        watch.start()
        return watch

    def url(self, replica_id: ReplicaId) -> str | None:
        """The replica's address. None: it is not known, or has left."""
        watch = self.watches.get(replica_id)
        return None if watch is None else watch.replica.url

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        """Sets whether the replica gets requests from now on. It stays known and watched, and its running requests
        continue."""
        if replica_id in self.watches:
            self._gateway.hear(ReplicaParked(replica_id, not on, ramp))

    async def sleep(self, replica_id: ReplicaId, wake_s: float) -> Rested:
        """Puts a parked replica to sleep. `wake_s`: seconds that waking it up is expected to take."""
        watch = self.watches.get(replica_id)
        if watch is None:
            return Rested(Rest.UNKNOWN, "it has left")
        self._gateway.hear(ReplicaAsleep(replica_id, wake_s))
        return await watch.sleep.fall_asleep(watch.dialect, watch.connections)

    async def wake(self, replica_id: ReplicaId, wake_s: float, limit_s: float) -> str:
        """Wakes a replica. Returns why it did not wake up; empty: it is awake."""
        watch = self.watches.get(replica_id)
        if watch is None:
            return "it has left"
        self._gateway.hear(ReplicaAsleep(replica_id, wake_s, waking=True))
        return await watch.sleep.wake_up(watch.dialect, watch.connections, limit_s)

    def leave(self, replica_id: ReplicaId) -> None:
        """Retires a replica. It gets no more requests; those it has may finish."""
        watch = self.watches.pop(replica_id)
        watch.stop()
        self._gateway.hear(ReplicaLeft(replica_id))
        self._gateway.placing.leave(replica_id)
        self.catalog.look_again()
        watch.connections.retire()
        log.info("replica %s has left", replica_id, extra={"replica": replica_id, "condition": "left"})

    # -- what a Prober asks and tells ---------------------------------------------------------------------------

    def said(self, replica_id: ReplicaId, cards: list[Card]) -> None:
        models, adapters = [card.id for card in cards], frozenset(card.id for card in cards if card.is_adapter)
        self.catalog.said(replica_id, models, adapters, {card.id: ModelFacts.of(card) for card in cards})
        self._gateway.account.know_adapters(self.catalog.adapters)
        self._gateway.placing.listed(replica_id, models, adapters)

    def found(self, replica: Replica) -> None:
        """Notes the replica's kind: from now on the gateway speaks to it as to that engine."""
        self.catalog.found(replica.id, replica.kind)

    def _describe(self, event: ReplicaJoined) -> None:
        """Hands on what was found out of a replica, so that all who keep one have the same."""
        watch = self.watches[event.replica.id]
        watch.described(event.replica)
        self._gateway.placing.join(event.replica, watch.connections)
        self._gateway.hear(event)

    def standing(self, replica_id: ReplicaId) -> Standing | None:
        return self._gateway.dispatcher.standing(replica_id)

    def sent(self, replica_id: ReplicaId) -> float | None:
        return self._gateway.dispatcher.sent_to(replica_id)

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        return self._gateway.spoke(replica_id, since)

    async def close(self) -> None:
        tasks = [watch.stop() for watch in self.watches.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        for watch in self.watches.values():
            watch.connections.close()
