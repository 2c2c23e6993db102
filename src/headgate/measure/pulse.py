"""Is this process itself in time? How late the event loop is, and how long the garbage collector stopped everything.

A loop that is late delays every stream alike, and no replica is to blame for it.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headgate.model.clock import Clock

EVERY_S = 0.05
LAG_S = 60.0
"""How far back lag is looked at."""
PAUSE_S = 0.005
"""Shorter ones are nobody's reason for anything."""
PAUSES = 1024


@dataclass(frozen=True, slots=True)
class Pause:
    kind: Literal["gc", "loop"]
    at: float
    """When it began; the loop's by the time at which it was first missed."""
    took_s: float


class Lag:
    """How late the loop was, each sample for the same little piece of the last minute."""

    __slots__ = ("_late",)

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=round(LAG_S / EVERY_S))

    def add(self, late_s: float) -> None:
        """A loop that stands for a second misses twenty looks at it: they count as they would have been found, or the
        worst moments would be those that are looked at least."""
        self._late.extend(_missed(late_s, self._late.maxlen or 1))

    def quantile(self, q: float) -> float | None:
        """None: it has not been looked at yet."""
        ordered = sorted(self._late)
        return ordered[int(q * (len(ordered) - 1))] if ordered else None

    @property
    def max(self) -> float | None:
        return max(self._late, default=None)


def _missed(late_s: float, most: int) -> Iterator[float]:
    looks = min(most, 1 + int(late_s / EVERY_S))
    for look in range(looks):
        yield late_s - look * EVERY_S


class Pulse:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lag = Lag()
        self.pauses: deque[Pause] = deque(maxlen=PAUSES)
        """The latest, oldest first."""
        self.gc_pauses = 0
        self.gc_pause_s = 0.0
        self._gc_began: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop()
        self._loop = loop
        gc.callbacks.append(self.on_gc)
        self._look_later(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not None:
            self._loop = None
            gc.callbacks.remove(self.on_gc)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self.clock() + EVERY_S
        self._timer = loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        late_s = max(0.0, self.clock() - self._due)
        self.lag.add(late_s)
        if late_s >= PAUSE_S:
            self.pauses.append(Pause("loop", self._due, late_s))
        if self._loop is not None:
            self._look_later(self._loop)

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector before and after; in whichever thread, all of them stand still.

        The collector may run in the depths of a parse where no call is left: then that one collection is not measured.
        """
        try:
            self._time_collection(phase)
        except RecursionError:
            self._gc_began = None

    def _time_collection(self, phase: str) -> None:
        now = self.clock()
        if phase == "start":
            self._gc_began = now
        elif self._gc_began is not None:
            began, self._gc_began = self._gc_began, None
            took_s = now - began
            self.gc_pauses += 1
            self.gc_pause_s += took_s
            if took_s >= PAUSE_S:
                self.pauses.append(Pause("gc", began, took_s))
