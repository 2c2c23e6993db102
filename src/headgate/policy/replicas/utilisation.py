"""Measures how full a fleet is, by whichever of its resources is scarcest.

Slots alone do not tell: long prompts fill a replica with one of its hundred slots taken. So each resource is measured
by itself, 0 to 1, and the largest is the utilisation that is warned of, scaled by, shown and planned with:

    slots     requests at usable replicas, of those they may have; or the engine's own batch, where that is fuller
    prefill   share of time that replicas need for the prompts they are sent, at the pace they were seen to have
    kv        share of KV memory in use, where engines report it
    tokens    outstanding tokens, of those that replicas may have, where that is limited
    waiting   share of time in which requests wait for a replica, and not for a cap of their own lane or tenant

Where there is always something to do, `waiting` is never more than the share of time in which replicas are busy: it
does not overstate, and it covers what the others can't see. Replicas that serve the same models and lanes are a group;
of several groups the fullest counts, since free replicas of another group do not help it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Final

from headgate.model.replica import Load, ReplicaId
from headgate.policy.replicas.entry import IndexEntry, PrefillOwed, ReplicaEntry
from headgate.policy.replicas.index import RouteIndex

RESOURCES: Final = ("prefill", "slots", "kv", "tokens", "waiting")
LOOK_S: Final = 1.0
"""Minimum seconds between two measurements over time."""
SMOOTH_S: Final = 15.0
"""Seconds over which measurements over time are averaged, about."""
QUEUES: Final = 0.1
"""Requests waiting in an engine, per running request, at which it is full: for engines that do not report how many they
can run."""

Said = Mapping[str, float]
"""What an engine reports of its own load; see replica/gauges.py."""
_NOTHING: Final[dict[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Use:
    """Share of each resource that is taken, 0 to 1. None: unknown."""

    prefill: float | None = None
    slots: float | None = None
    kv: float | None = None
    tokens: float | None = None
    waiting: float | None = None

    @property
    def known(self) -> dict[str, float]:
        """The resources that are known, by name."""
        found = {
            "prefill": self.prefill, "slots": self.slots, "kv": self.kv, "tokens": self.tokens,
            "waiting": self.waiting,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    @property
    def binding(self) -> str:
        """The resource that is fullest. Empty: none is known."""
        known = self.known
        return max(known, key=lambda name: known[name], default="")

    @property
    def largest(self) -> float | None:
        """The utilisation. None: no replica is usable."""
        return max(self.known.values(), default=None)


def words(resource: str) -> str:
    """The name of a resource in messages, as in "80 % of the replicas' slots"."""
    return {
        "prefill": "the replicas' time for prompts",
        "slots": "the replicas' slots",
        "kv": "the replicas' KV memory",
        "tokens": "the tokens that replicas may have outstanding",
        "waiting": "the time, with requests that wait for a replica,",
    }.get(resource, "the replicas' room")


class _Sum:
    """Sums over the replicas of one group."""

    __slots__ = ("kv", "kv_of", "prefill", "prefill_of", "slots", "slots_of", "tokens", "tokens_of")

    def __init__(self) -> None:
        self.prefill = self.prefill_of = self.kv = self.kv_of = self.slots = self.slots_of = 0.0
        self.tokens = self.tokens_of = 0.0


class Utilisation:
    """Reads the dispatcher's own figures, and what engines report. The dispatcher's driver calls `look` about once a
    second, and `read` may be called at any time. The dispatcher decides nothing by it."""

    def __init__(self, index: RouteIndex, held_up: Callable[[], bool]) -> None:
        """`held_up`: whether requests wait for usable replicas."""
        self.said: Callable[[ReplicaId], Said] = lambda _: _NOTHING
        """What an engine reports of itself. The reader of engines' gauges sets this."""
        self._index = index
        self._held_up = held_up
        self._waiting = 0.0
        self._at: float | None = None

    def look(self, now: float) -> None:
        """Takes in what has happened since the last look. Sooner than LOOK_S after that one it does nothing."""
        entries = self._index.entries.values()
        if self._at is None:
            self._at = now
            for entry in entries:
                if entry.seat is not None:
                    entry.owed = PrefillOwed(entry.seat.load.sent_tokens)
            return
        passed_s = now - self._at
        if passed_s < LOOK_S:
            return
        self._at = now
        share = 1.0 - exp(-passed_s / SMOOTH_S)
        self._waiting += share * (float(self._held_up()) - self._waiting)
        for entry in entries:
            if entry.seat is not None:
                load, owed = entry.seat.load, entry.owed
                if owed is None or owed.sent_tokens > load.sent_tokens:  # it is new, or its count began anew
                    owed = entry.owed = PrefillOwed(load.sent_tokens)
                owed.look(load, passed_s, share)

    def read(self) -> Use:
        """Utilisation of the whole fleet: for each resource that of the fullest group."""
        sums: dict[int, _Sum] = {}
        for entry in self._index.entries.values():
            if entry.seat is not None and entry.seat.load.usable > 0:
                self._add(entry, entry.seat, sums)
        if not sums:
            return Use()
        parts = sums.values()
        return Use(
            prefill=_most((one.prefill, one.prefill_of) for one in parts),
            slots=_most((one.slots, one.slots_of) for one in parts),
            kv=_most((one.kv, one.kv_of) for one in parts),
            tokens=_most((one.tokens, one.tokens_of) for one in parts),
            waiting=self._waiting,
        )

    def of(self, replica_id: ReplicaId) -> Use:
        """Utilisation of one replica. Nothing is known of a replica that has left or may not be used."""
        entry, sums = self._index.entries.get(replica_id), dict[int, _Sum]()
        if entry is None or entry.seat is None or entry.seat.load.usable <= 0:
            return Use()
        self._add(entry, entry.seat, sums)
        one = sums[id(entry.seat.group)]
        return Use(
            prefill=_share(one.prefill, one.prefill_of),
            slots=_share(one.slots, one.slots_of),
            kv=_share(one.kv, one.kv_of),
            tokens=_share(one.tokens, one.tokens_of),
        )

    def busy(self, replica_id: ReplicaId) -> float | None:
        """Share of its time that one replica needs for the prompts sent from here. None: its pace is unknown."""
        entry = self._index.entries.get(replica_id)
        return None if entry is None or entry.seat is None else _busy(entry, entry.seat.load)

    def _add(self, entry: ReplicaEntry, seat: IndexEntry, sums: dict[int, _Sum]) -> None:
        load, token_limit = seat.load, seat.token_limit
        total = sums.get(id(seat.group))
        if total is None:
            total = sums[id(seat.group)] = _Sum()
        said = self.said(seat.id)
        room = max(1, seat.limit or int(load.limit * load.usable))
        total.slots += room * max(min(1.0, load.requests / room), _own_batch(said))
        total.slots_of += room
        busy = _busy(entry, load)
        if busy is not None:
            total.prefill += busy
            total.prefill_of += 1.0
        kv = said.get("kv_ratio")
        if kv is not None:
            total.kv += max(0.0, min(1.0, kv))
            total.kv_of += 1.0
        if token_limit is not None:
            total.tokens += min(load.tokens, token_limit)
            total.tokens_of += max(1, token_limit)


def _busy(entry: ReplicaEntry, load: Load) -> float | None:
    return None if entry.owed is None or load.pace.token_s is None else entry.owed.busy


def _own_batch(said: Said) -> float:
    """How full an engine's batch is by its own report, 0 to 1: others may send it requests, too, and it may have fewer
    slots than it is believed to have. 0: it reports no batch limit and no queue."""
    running, waiting, limit = said.get("batch_size", 0.0), said.get("waiting", 0.0), said.get("batch_limit")
    if limit is not None and limit > 0:
        return max(0.0, min(1.0, (running + waiting) / limit))
    return 1.0 if waiting >= 1.0 and waiting >= QUEUES * running else 0.0


def _share(taken: float, of: float) -> float | None:
    return taken / of if of > 0 else None


def _most(parts: Iterable[tuple[float, float]]) -> float | None:
    return max((taken / of for taken, of in parts if of > 0), default=None)
