"""Keeps virtual time: one heap of due events, and a clock that jumps from one to the next.

Events due at the same moment happen in the order in which they were scheduled, so that a run depends on its inputs and
its seeds alone. No wall clock, no threads.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class World:
    __slots__ = ("_due", "_number", "events", "now", "stopped")

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.events = 0
        """Events that have happened."""
        self.stopped = False
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0

    def at(self, when: float, act: Callable[[Any], None], about: Any = None) -> None:
        """Calls `act(about)` at `when`; if `when` has passed, now, but after all that is already due."""
        self._number += 1
        heappush(self._due, (when if when > self.now else self.now, self._number, act, about))

    def stop(self) -> None:
        """Ends the run: nothing more happens."""
        self.stopped = True

    def run(self) -> None:
        """Runs until nothing is due, or `stop` is called."""
        due = self._due
        while due and not self.stopped:
            self.now, _, act, about = heappop(due)
            self.events += 1
            act(about)
