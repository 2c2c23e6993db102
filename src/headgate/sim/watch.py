"""Probes the simulated replicas as upkeep/prober.py does, and tells the dispatcher; nothing is really sent."""

from headgate.model.event import Probed, ReplicaJoined
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.replicas.utilisation import RESOURCES, Said, Use
from headgate.sim.gateway import SimGateway, SimulatedReplica
from headgate.sim.world import World

FIRST_PAUSE_S = 0.05
"""First pause between probes, in seconds: a starting replica is probed often, so that no request waits longer than the
start takes."""
USE_S = 1.0
"""Seconds between two measurements of the fleet's utilisation."""
_NOTHING: dict[str, float] = {}


class SimProber:
    """Probes one replica from now on."""

    def __init__(
        self,
        world: World,
        gateway: SimGateway,
        replica: Replica,
        stand_in: SimulatedReplica,
        interval_s: float,
        deep_s: float,
    ) -> None:
        self._world = world
        self._gateway = gateway
        self._replica = replica
        self._stand_in = stand_in
        self._interval_s = interval_s
        self._deep_s = deep_s
        gateway.replicas[replica.id] = stand_in
        gateway.hear(ReplicaJoined(replica))
        self._look_first(FIRST_PAUSE_S)

    def _look_first(self, pause_s: float) -> None:
        world = self._world
        if not self._stand_in.alive:
            world.at(world.now + pause_s, self._look_first, min(self._interval_s, pause_s * 1.5))
            return
        self._gateway.hear(Probed(self._replica.id, ok=True))
        world.at(world.now + self._interval_s, self._look)
        world.at(world.now + self._deep_s, self._look_deep)

    def _look(self, _: None) -> None:
        self._gateway.hear(Probed(self._replica.id, self._stand_in.alive))
        self._world.at(self._world.now + self._interval_s, self._look)

    def _look_deep(self, _: None) -> None:
        self._gateway.hear(Probed(self._replica.id, self._stand_in.alive, deep=True))
        self._world.at(self._world.now + self._deep_s, self._look_deep)


class UseWatch:
    """Measures the fleet's utilisation as a gateway does, from now on, and adds up the samples."""

    def __init__(self, world: World, gateway: SimGateway) -> None:
        self._world = world
        self._gateway = gateway
        self._sums = dict.fromkeys(RESOURCES, 0.0)
        self._counts = dict.fromkeys(RESOURCES, 0)
        gateway.dispatcher.gauges_from(self._said)
        world.at(world.now, self._look)

    @property
    def mean(self) -> Use:
        found = {name: self._sums[name] / count for name, count in self._counts.items() if count}
        return Use(**found)

    def _said(self, replica_id: ReplicaId) -> Said:
        stand_in = self._gateway.replicas.get(replica_id)
        return _NOTHING if stand_in is None else stand_in.gauges

    def _look(self, _: None) -> None:
        use = self._gateway.dispatcher.utilisation(self._world.now)
        for name, value in use.known.items():
            self._sums[name] += value
            self._counts[name] += 1
        self._world.at(self._world.now + USE_S, self._look)
