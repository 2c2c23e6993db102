"""A replica as the controller knows it, and what is told of the fleet: cold starts, decisions, changes of state."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.model.clock import Clock
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import Lifecycle, LifecycleEvent, next_state

NOTES = 256
"""Decisions and changes of state that are kept, the latest."""
STARTS = 32
"""Cold starts that are kept, the latest."""
RECENT_STARTS = 5


@dataclass(frozen=True, slots=True)
class Demand:
    """What is wanted of the whole pool; see policy/scaling/scale.PoolView for what each means."""

    waiting: int = 0
    waiting_tokens: int = 0
    tokens_per_s: float = 0.0
    p95_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What one replica has to do, and how much of it health lets be used."""

    requests: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    slots: int = 1
    share: float = 1.0
    """0: it is out. Below 1: it ramps up."""
    use: float = 0.0
    """Share of its scarcest resource beside slots that is taken."""
    binding: str = ""
    """Which that is."""


class Hands(Protocol):
    """What the controller can do to the gateway. wiring/fleet.py has them."""

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        """Have it watched, without any requests; `ready` is called once it has been warmed up."""

    def leave(self, replica_id: ReplicaId) -> None:
        """Know it no more. What it is doing may finish."""

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        """Whether it gets requests; `ramp`: a few at first."""

    def waiting(self) -> int:
        """Requests without a replica. Asked often."""

    def strained(self) -> bool:
        """Whether anybody waits, or those that serve are nearly full. Asked often."""

    def demand(self, now: float) -> Demand: ...

    def work(self, replica_id: ReplicaId, now: float) -> Work:
        """Also of one that is not there, which has none."""

    async def answers(self, replica_id: ReplicaId) -> bool:
        """Whether there is anybody at its address yet."""

    async def cold_start(self, replica_id: ReplicaId) -> dict[str, float]:
        """How long each phase of its start took, as it says itself; empty: it does not."""


@dataclass(slots=True, eq=False)
class Member:
    replica: Replica
    asked_at: float
    """When its start began."""
    since: float
    state: Lifecycle = Lifecycle.STARTING
    why: str = "started"
    then_park: bool = False
    """While it drains: it is kept afterwards, not stopped."""
    drained_by: float = 0.0
    """While it drains to be stopped: when what is left is cut off."""
    comes_back: bool = False
    """It failed, and its fleet starts it again."""
    out_since: float | None = None
    """Since when health has it out; None: it is well."""
    cold_start: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    def happened(self, happened: LifecycleEvent, why: str, now: float) -> bool:
        """Whether that changed anything."""
        after = next_state(self.state, happened)
        if after is self.state:
            return False
        self.state, self.since, self.why = after, now, why
        return True


@dataclass(frozen=True, slots=True)
class Note:
    """One line of what the fleet did, for people."""

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
        """How long a start takes: the longest of the last few, since it is waited for."""
        return max((start["took_s"] for start in list(self.starts)[-RECENT_STARTS:]), default=guess)
