"""Says which replicas are up, starting, waking, parked, asleep or down, and whether that is an outage.

A replica that gets no requests is not therefore down: it may be parked, draining or starting. No usable replica is an
outage unless that is intended: a fleet scaled to zero waits for its next request. This module decides which is which
for alerts, metrics, the page and the doctor alike.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

from headgate.model.replica import ReplicaId
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.view import ReplicaView
from headgate.policy.promises.promise import FleetReading
from headgate.policy.promises.words import about_outage
from headgate.policy.replicas.health import Standing
from headgate.policy.replicas.signs import HealthState
from headgate.policy.scaling.member import PoolCounts

Condition = Literal["up", "starting", "waking", "parked", "asleep", "down"]
CONDITIONS: tuple[Condition, ...] = ("up", "starting", "waking", "parked", "asleep", "down")

START_S = 60.0
"""Seconds after which a replica that was never up, and is not warming, is down, and no replica at all is an outage."""
_COMING = ("starting", "warming")
_APART = ("ready", "draining", "parked", "stopped")
"""Lifecycle states in which a replica that the gateway started is meant to get no requests."""
_SLEEPING: dict[str | None, Condition] = {"dozing": "asleep", "asleep": "asleep", "waking": "waking"}


class ProbePhase(Protocol):
    """The part of upkeep/prober.py that is used here."""

    @property
    def phase(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def unwell(self) -> str: ...


class FleetNews(Protocol):
    """What is used here of the object that starts and stops replicas."""

    def lifecycle(self, replica_id: ReplicaId) -> str | None: ...
    def news(self) -> dict[str, Any]: ...
    def counts(self, now: float) -> dict[str, PoolCounts]: ...


class ReplicaStanding(NamedTuple):
    """Where one replica stands, as the admin API and the page tell it."""

    seen: ReplicaView
    condition: Condition
    state: str
    """One word for people: the condition, or the replica's progress within it."""
    lifecycle: str | None
    """State of its life in the fleet that started it. None: no fleet did."""
    why: str
    """What put the replica into its state."""
    since: float | None
    """Since when its health has been what it is. None: unknown."""


class Conditions:
    def __init__(
        self,
        dispatcher: Dispatcher,
        watches: Mapping[ReplicaId, ProbePhase] | None = None,
        fleet: Callable[[], FleetNews | None] = lambda: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._watches = {} if watches is None else watches
        self._fleet = fleet
        self.last: FleetReading | None = None
        """The last reading. None: there was none yet."""
        self._any_was_up = False
        self._began = inf
        """Time of the first reading; infinite: there was none yet."""
        self._wanted_none = False
        """No replica is up, and that was intended at some reading since."""

    def of(self, now: float) -> dict[ReplicaId, Condition]:
        """The condition of every known replica."""
        replicas, fleet = self._dispatcher.view(now).replicas, self._fleet()
        return {
            replica_id: self._one(replica, _lifecycle(fleet, replica_id), now)
            for replica_id, replica in replicas.items()
        }

    def standings(self, now: float) -> dict[ReplicaId, ReplicaStanding]:
        """The standing of every known replica."""
        return {one.seen.id: one for one in self.standings_of(self._dispatcher.view(now).replicas.values(), now)}

    def standings_of(self, replicas: Iterable[ReplicaView], now: float) -> list[ReplicaStanding]:
        """The standings of these replicas, for readers that do not need all of them."""
        fleet = self._fleet()
        return [self._standing(replica, fleet, now) for replica in replicas]

    def read(self, now: float) -> FleetReading:
        found = self.of(now)
        self._began = min(self._began, now)
        counts = dict.fromkeys(CONDITIONS, 0)
        for condition in found.values():
            counts[condition] += 1
        down = tuple(replica_id for replica_id, condition in found.items() if condition == "down")
        coming = tuple(replica_id for replica_id, condition in found.items() if condition in ("starting", "waking"))
        self.last = FleetReading(
            up=counts["up"],
            down=down,
            why=next(filter(None, map(self.why, (down or coming)[:8])), ""),
            starting=counts["starting"] + counts["waking"],
            parked=counts["parked"] + counts["asleep"],
            waking=counts["waking"],
            sleeping=counts["asleep"],
            outage=self._outage(counts, now),
            asleep=self._wanted_none,
            unserved=self._unserved(down) if counts["up"] else (),
        )
        return self.last

    def outage(self, now: float) -> str:
        """The message for an outage; empty: there is no outage."""
        fleet = self.read(now)
        return about_outage(fleet) if fleet.outage else ""

    def pools(self, now: float) -> dict[str, PoolCounts]:
        """The pools of the fleet by name; empty: the fleet has no named pools, or there is none."""
        fleet = self._fleet()
        return {} if fleet is None else fleet.counts(now)

    def why(self, replica_id: ReplicaId) -> str:
        """The known reason why a replica is not in use; empty: none is known."""
        watch, standing = self._watches.get(replica_id), self._dispatcher.standing(replica_id)
        if watch is not None and (watch.why or watch.unwell):
            return watch.why or watch.unwell
        # The standing of a replica that health has not ejected yet says why it is in use.
        return (
            standing.why
            if standing is not None and standing.state in (HealthState.EJECTED, HealthState.PROBATION)
            else ""
        )

    # -- one replica ---------------------------------------------------------------------------------------------

    def _standing(self, replica: ReplicaView, fleet: FleetNews | None, now: float) -> ReplicaStanding:
        lifecycle = _lifecycle(fleet, replica.id)
        condition = self._one(replica, lifecycle, now)
        watch, health = self._watches.get(replica.id), replica.standing
        return ReplicaStanding(
            seen=replica,
            condition=condition,
            state=_state(condition, "ready" if watch is None else watch.phase, health),
            lifecycle=lifecycle,
            why=_told(watch, condition) or ("" if health is None else health.why),
            since=None if health is None else health.since,
        )

    def _one(self, replica: ReplicaView, lifecycle: str | None, now: float) -> Condition:
        if lifecycle in _COMING:
            return "starting"
        if lifecycle in _SLEEPING:
            return _SLEEPING[lifecycle]
        if lifecycle in _APART or (lifecycle is None and replica.parked):
            return "parked"
        if replica.in_use:
            self._any_was_up = True
            return "up"
        watch = self._watches.get(replica.id)
        phase = "ready" if watch is None else watch.phase
        new = not replica.came and phase != "failed" and lifecycle != "failed"
        return "starting" if new and (phase == "warming" or now - replica.joined_at < START_S) else "down"

    # -- all of them -----------------------------------------------------------------------------------------------

    def _outage(self, counts: Mapping[Condition, int], now: float) -> bool:
        if counts["up"]:
            self._wanted_none = False
            return False
        if counts["down"]:
            return True
        self._wanted_none = self._wanted_none or self._none_is_wanted(counts)
        late = not counts["starting"] and not counts["waking"] and now - self._began >= START_S
        return (self._any_was_up or late) and not self._wanted_none

    def _none_is_wanted(self, counts: Mapping[Condition, int]) -> bool:
        fleet = self._fleet()
        if fleet is not None and not fleet.news()["wanted"]["serving"]:
            return True
        return counts["parked"] + counts["asleep"] > 0 and not counts["starting"]

    def _unserved(self, down: tuple[ReplicaId, ...]) -> tuple[str, ...]:
        """Lanes and models whose replicas are all down. Few replicas are down, so each of their names is looked up."""
        lanes, models = self._dispatcher.unserved(down)
        return (*(f"lane {name}" for name in lanes), *(f"model {name}" for name in models))


def _told(watch: ProbePhase | None, condition: Condition) -> str:
    """What its prober says is wrong. One failed check of a replica in use says nothing yet."""
    return "" if watch is None else watch.why or ("" if condition == "up" else watch.unwell)


def _lifecycle(fleet: FleetNews | None, replica_id: ReplicaId) -> str | None:
    return None if fleet is None else fleet.lifecycle(replica_id)


def _state(condition: Condition, phase: str, health: Standing | None) -> str:
    """The word never contradicts the condition."""
    if condition in ("parked", "asleep", "waking"):
        return condition
    if condition != "up" and phase != "ready":
        return phase
    state = "ejected" if health is None else health.state.name.lower()
    # A replica that can't be reached is out of use before its probes say so.
    return condition if (condition == "up") != (state in ("up", "ramping")) else state
