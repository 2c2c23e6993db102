"""Keeps which parked replicas sleep, so that requests wait for one to wake up instead of being refused.

A replica that sleeps gets no requests, like any parked one. The fleet wakes it when the serving replicas are nearly
full; meanwhile a request may wait longer, by as much as a wake-up is expected to take, and is not refused for a
forecast that was made without that replica. No more requests are held so than the sleeping replicas have room for. One
that has woken up counts for as long again as that takes: until then the forecast has not seen what it takes off the
queue.
"""

from math import inf
from typing import Final, NamedTuple

from headgate.model.replica import ReplicaId
from headgate.policy.replicas.entry import ReplicaEntry
from headgate.policy.replicas.prefix_index import PrefixIndex

LATE: Final = 2.0
"""Multiple of the expected time after which a wake-up is no longer counted on."""
FRESH_S: Final = 1.0
"""Seconds for which a held request counts as a reason to wake a replica."""


class WakeUp(NamedTuple):
    """What the replicas that sleep can do for a request."""

    room: int
    """Requests that they will be able to have at once."""
    wake_s: float
    """Seconds that a wake-up is expected to take: the longest of theirs. 0: they are awake by now."""


class Sleepers:
    def __init__(self, known: dict[ReplicaId, ReplicaEntry], prefixes: PrefixIndex) -> None:
        """`known`: the entries of the book."""
        self._known: Final = known
        self._prefixes: Final = prefixes
        self._entries: list[ReplicaEntry] = []
        self._woken: list[tuple[float, ReplicaEntry]] = []
        """Those that woke up of late, and until when they count."""
        self._held_at = -inf
        """When a request was last held that would have been refused."""

    def add(self, replica_id: ReplicaId, wake_s: float, waking: bool, now: float) -> None:
        """A parked replica sleeps, or begins to wake up: what it had cached is gone."""
        entry = self._known.get(replica_id)
        if entry is None or not entry.parked:
            return
        if entry.wake_s is None:
            self._entries.append(entry)
        self._prefixes.forget(entry.links)
        entry.wake_s = wake_s
        entry.woken_at = now if waking else inf

    def wakes(self, entry: ReplicaEntry, now: float) -> None:
        """The replica is awake."""
        wake_s = entry.wake_s
        if wake_s is not None:
            self.remove(entry)
            entry.awake_at = now
            self._woken = [(until, other) for until, other in self._woken if until > now and other is not entry]
            self._woken.append((now + wake_s, entry))

    def remove(self, entry: ReplicaEntry) -> None:
        if entry.wake_s is not None:
            self._entries.remove(entry)
            entry.wake_s = None

    def of(self, model: str | None, lane: str | None, now: float) -> WakeUp | None:
        """What sleeping replicas can do for a request of this model and lane. None: none of them serves it, or those
        that do should be awake by now."""
        room, longest_s = 0, 0.0
        for entry in self._entries:
            wake_s = entry.wake_s
            if wake_s is not None and now - entry.woken_at <= LATE * wake_s and (more := _room(entry, model, lane)):
                room += more
                longest_s = max(longest_s, wake_s)
        for until, entry in self._woken:
            if until > now and not entry.parked:
                room += _room(entry, model, lane)
        return WakeUp(room, longest_s) if room else None

    def hold(self, now: float) -> None:
        """A request is held that would have been refused without the sleeping replicas."""
        self._held_at = now

    def wanted(self, now: float) -> bool:
        """Whether requests were held of late, and replicas still sleep."""
        return bool(self._entries) and now - self._held_at <= FRESH_S


def _room(entry: ReplicaEntry, model: str | None, lane: str | None) -> int:
    """Requests of this model and lane that the replica can have at once; 0: it does not serve them, or has left."""
    seat = entry.seat
    if seat is None:
        return 0
    names, lanes = seat.group.names, seat.group.lanes
    serves = (not names or model in names) and (not lanes or lane in lanes)
    return int(seat.load.limit) if serves else 0
