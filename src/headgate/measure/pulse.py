"""Measures this process's own delays: how late the event loop is, and how long the garbage collector stopped it.

A late loop delays every stream alike, and no replica is to blame for it.
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
"""Seconds of lag samples that are kept."""
PAUSE_S = 0.005
"""Minimum length of a pause that is kept: shorter ones explain no slow request."""
PAUSES = 1024


@dataclass(frozen=True, slots=True)
class Pause:
    kind: Literal["gc", "loop"]
    at: float
    """When the pause began; a loop's pause begins when its timer was due."""
    took_s: float


class Lag:
    """How late the loop was in the last minute, one sample per EVERY_S seconds."""

    __slots__ = ("_late",)

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=round(LAG_S / EVERY_S))

    def add(self, late_s: float) -> None:
        """Adds a sample, and those that were missed meanwhile: a loop that stops for a second misses twenty. Without
        them the worst moments would have the fewest samples."""
        self._late.extend(_missed(late_s, self._late.maxlen or 1))

    def quantile(self, q: float) -> float | None:
        """Seconds of lag at quantile `q`; None: there is no sample yet."""
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
        """The latest pauses, oldest first."""
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
        """Called by the garbage collector before and after a collection; whichever thread runs it, all threads wait.

        The collector may run so deep inside a parse that no further call is possible: that collection is not measured.
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
