"""Decides how long a number of replicas is kept after it was last needed.

At first for one cooldown. A number that is given up and soon needed again was given up too early: from then on it is
kept four times as long, then eight times. So bursts that return every few minutes do not start and stop the same
replica each time. Once the number is not missed for long, the time shrinks again. This is for small pools: one replica
of thirty that comes and goes follows the load, and keeping it cost a tenth more replica-hours over a day.
"""

from dataclasses import dataclass
from math import inf

LONGER, MOST = 4.0, 8.0
"""Factor by which a missed number is kept longer, and the maximum time in cooldowns."""
LARGE = 12
"""Replicas from which on no number is kept for longer than a cooldown; a number of half as many is kept for four
cooldowns at most."""
SOON = 3.0
"""A number is missed if it is needed again within this multiple of the time that it was kept."""


@dataclass(slots=True)
class _Level:
    needed_at: float = -inf
    given_up_at: float = -inf
    times: float = 1.0
    """Cooldowns that the number is kept for."""


class Levels:
    """The levels of one pool. It remembers as many as the pool ever had replicas."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        """The level of one replica, of two, …"""

    def need(self, count: int, now: float) -> None:
        """Records that `count` replicas are needed at this moment."""
        self._grow(count)
        for level in self._levels[:count]:
            level.needed_at = now

    def kept(self, now: float, cooldown_s: float, *, patient: bool = True) -> int:
        """The largest number that was needed too recently to be given up. Not patient: earlier misses do not count."""
        for count in range(len(self._levels), 0, -1):
            level = self._levels[count - 1]
            if now - level.needed_at <= cooldown_s * (level.times if patient else 1.0):
                return count
        return 0

    def changed(self, before: int, after: int, now: float, cooldown_s: float) -> None:
        """Records that `after` replicas serve from now on, instead of `before`."""
        self._grow(max(before, after))
        for level in self._levels[after:before]:
            level.given_up_at = now
        for count, level in enumerate(self._levels[before:after], before + 1):
            if now - level.given_up_at <= SOON * cooldown_s * level.times:
                level.times = max(1.0, min(MOST, (LARGE / count) ** 2, LONGER * level.times))
            elif level.given_up_at > -inf:
                level.times = max(1.0, level.times / LONGER)

    def patience(self, count: int) -> float:
        """Cooldowns that this number is kept for."""
        return self._levels[count - 1].times if 0 < count <= len(self._levels) else 1.0

    def _grow(self, count: int) -> None:
        while len(self._levels) < count:
            self._levels.append(_Level())
