"""Keeps what happened to the fleet, for people to read: decisions, changes of state and cold starts."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from headgate.model.clock import Clock
from headgate.model.replica import ReplicaId

NOTES = 256
"""Decisions and changes of state to keep, the latest."""
STARTS = 32
"""Cold starts to keep, the latest."""


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
