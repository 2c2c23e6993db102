"""Describes a replica as the controller knows it, and keeps the fleet's cold starts, decisions and changes of state."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.model.clock import Clock
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import Lifecycle, LifecycleEvent, next_state

NOTES = 256
"""Decisions and changes of state to keep, the latest."""
STARTS = 32
"""Cold starts to keep, the latest."""
RECENT_STARTS = 5


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on the whole pool; policy/scaling/scale.PoolView explains each field."""

    waiting: int = 0
    waiting_tokens: int = 0
    tokens_per_s: float = 0.0
    p95_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One replica's load, and the share of its capacity that health allows."""

    requests: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    slots: int = 1
    share: float = 1.0
    """0: the replica is out. Below 1: it ramps up."""
    use: float = 0.0
    """Taken share of its scarcest resource other than slots."""
    binding: str = ""
    """Name of that resource."""


class Hands(Protocol):
    """What the controller can do to the gateway; wiring/fleet.py implements it."""

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        """Watches the replica without sending requests; `ready` is called once the replica has been warmed up."""

    def leave(self, replica_id: ReplicaId) -> None:
        """Forgets the replica. Its requests in flight may finish."""

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        """Sets whether the replica gets requests; `ramp`: only a few at first."""

    def waiting(self) -> int:
        """Requests without a replica. Called often."""

    def strained(self) -> bool:
        """Whether requests wait, or the serving replicas are nearly full. Called often."""

    def demand(self, now: float) -> Demand: ...

    def work(self, replica_id: ReplicaId, now: float) -> Work:
        """Returns an empty Work for an unknown replica."""

    async def answers(self, replica_id: ReplicaId) -> bool:
        """Whether a server answers at its address yet."""

    async def cold_start(self, replica_id: ReplicaId) -> dict[str, float]:
        """Seconds of each phase of its start, as the replica reports them; empty: it does not."""


@dataclass(slots=True, eq=False)
class Member:
    replica: Replica
    asked_at: float
    """When its start began, on the clock."""
    since: float
    state: Lifecycle = Lifecycle.STARTING
    why: str = "started"
    then_park: bool = False
    """While it drains: it is parked afterwards, not stopped."""
    drained_by: float = 0.0
    """While it drains to be stopped: when its remaining requests are cut off."""
    comes_back: bool = False
    """It failed, and its fleet starts it again."""
    out_since: float | None = None
    """Since when health keeps it out; None: it is well."""
    cold_start: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    def happened(self, happened: LifecycleEvent, why: str, now: float) -> bool:
        """Applies the event; returns whether it changed the state."""
        after = next_state(self.state, happened)
        if after is self.state:
            return False
        self.state, self.since, self.why = after, now, why
        return True


@dataclass(frozen=True, slots=True)
class Note:
    """One line about what the fleet did, for people to read."""

    wall: float
    kind: str
    """decision, replica or trouble"""
    text: str
    reasons: tuple[str, ...] = ()
    replica: ReplicaId | None = None


class Book:
    """Bounded memory of what happened to the fleet."""

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self.notes: deque[Note] = deque(maxlen=NOTES)
        self.starts: deque[dict[str, Any]] = deque(maxlen=STARTS)

    def note(self, kind: str, text: str, reasons: tuple[str, ...] = (), replica: ReplicaId | None = None) -> Note:
        note = Note(self._wall(), kind, text, reasons, replica)
        self.notes.append(note)
        return note

    def started(self, replica_id: ReplicaId, took_s: float, phases: dict[str, float]) -> None:
        self.starts.append({"replica": replica_id, "wall": self._wall(), "took_s": took_s, "phases": phases})

    def start_s(self, guess: float) -> float:
        """Seconds to expect of a start: the longest of the last few, since it is waited for; without any, `guess`."""
        return max((start["took_s"] for start in list(self.starts)[-RECENT_STARTS:]), default=guess)
