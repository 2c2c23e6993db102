"""The moments of a run that others took from it. CPU time that the host kept, or other processes used.

Sampled every 10 ms beside the measurement, from /proc/stat and the CPU time of the processes that are measured. The
kernel counts in hundredths of a second, so a moment is stolen from when at least STOLEN_S of it went elsewhere.
"""

import asyncio
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

EVERY_S = 0.01
STOLEN_S = 0.025
"""CPU time taken by others from which on one gap between two tokens is not counted. The kernel's own work and the
sampling itself come to some 10 ms of 400."""
_TICKS = os.sysconf("SC_CLK_TCK")


def taken_s(ours: tuple[int, ...]) -> float:
    """CPU time so far that was neither idle nor of these processes: others' and what the host kept."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    taken = sum(ticks) - sum(ticks[3:5])
    for pid in ours:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            taken -= int(fields[11]) + int(fields[12])
    return taken / _TICKS


class Watch:
    """Samples while its task runs: `async with asyncio.TaskGroup()` or a task that is cancelled at the end."""

    def __init__(self, *ours: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._ours = (*ours, os.getpid())
        self._clock = clock
        self._at: list[float] = []
        self._taken: list[float] = []

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        self._taken.append(taken_s(self._ours))
        self._at.append(self._clock())

    def stolen_s(self, since: float, until: float) -> float:
        """CPU time that others had between these two moments, by the samples around them."""
        if not self._at:
            return 0.0
        first = max(0, bisect_right(self._at, since) - 1)
        last = min(len(self._at) - 1, bisect_left(self._at, until))
        return max(0.0, self._taken[last] - self._taken[first])

    def stolen(self, since: float, until: float) -> bool:
        return self.stolen_s(since, until) >= STOLEN_S
