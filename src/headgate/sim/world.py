"""What happens next? Virtual time: one heap of what is due, and a clock that jumps from one to the other.

What is due at the same moment happens in the order in which it was asked for, so that a run depends on its inputs and
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
        """That have happened."""
        self.stopped = False
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0

    def at(self, when: float, act: Callable[[Any], None], about: Any = None) -> None:
        """Call `act(about)` then; at once, but after all that is due now, if that has passed."""
        self._number += 1
        heappush(self._due, (when if when > self.now else self.now, self._number, act, about))

    def stop(self) -> None:
        """Let nothing more happen."""
        self.stopped = True

    def run(self) -> None:
        """Until nothing is due, or somebody stops it."""
        due = self._due
        while due and not self.stopped:
            self.now, _, act, about = heappop(due)
            self.events += 1
            act(about)
