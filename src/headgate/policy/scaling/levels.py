"""How long is a number of replicas kept after it was last needed?

For the cooldown, at first. A number that is given up and soon needed again was given up too early: from then on it is
kept four times as long, then eight times. So bursts that come back every few minutes do not start and stop the same
replica each time. Once it is not missed for long, the time goes back. This is for small pools: one replica of thirty
that comes and goes follows the load, and to keep it cost a tenth more replica-hours over a day.
"""

from dataclasses import dataclass
from math import inf

LONGER, MOST = 4.0, 8.0
"""How much longer a number is kept that was missed, and for how long at most, in cooldowns."""
LARGE = 12
"""Replicas of a pool in which no number is kept for longer than a cooldown; in one of half as many, four times as
long at most."""
SOON = 3.0
"""A number is missed if it is needed again within so many times what it was kept for."""


@dataclass(slots=True)
class _Level:
    needed_at: float = -inf
    given_up_at: float = -inf
    times: float = 1.0
    """Cooldowns that it is kept for."""


class Levels:
    """Of one pool. As many are remembered as it ever had replicas."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        """Of one replica, of two, …"""

    def need(self, count: int, now: float) -> None:
        """So many would do at this moment."""
        self._grow(count)
        for level in self._levels[:count]:
            level.needed_at = now

    def kept(self, now: float, cooldown_s: float, *, patient: bool = True) -> int:
        """The most that were needed not long enough ago to do with fewer. Not patient: what was missed before does not
        count."""
        for count in range(len(self._levels), 0, -1):
            level = self._levels[count - 1]
            if now - level.needed_at <= cooldown_s * (level.times if patient else 1.0):
                return count
        return 0

    def changed(self, before: int, after: int, now: float, cooldown_s: float) -> None:
        """So many serve from now on."""
        self._grow(max(before, after))
        for level in self._levels[after:before]:
            level.given_up_at = now
        for count, level in enumerate(self._levels[before:after], before + 1):
            if now - level.given_up_at <= SOON * cooldown_s * level.times:
                level.times = max(1.0, min(MOST, (LARGE / count) ** 2, LONGER * level.times))
            elif level.given_up_at > -inf:
                level.times = max(1.0, level.times / LONGER)

    def patience(self, count: int) -> float:
        """How many cooldowns this number is kept for."""
        return self._levels[count - 1].times if 0 < count <= len(self._levels) else 1.0

    def _grow(self, count: int) -> None:
        while len(self._levels) < count:
            self._levels.append(_Level())
