"""Computes what replicas cost per token: replica-hours held, over the tokens of the same time.

A replica is held, and paid for, from the moment its start is asked for until it is gone: also while it starts, is
parked, drains or is out. The number of replicas is integrated over time as it changes, so that the answer does not
depend on how many there happen to be at the moment of the question.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

HOUR_S: Final = 3600
MARK_S: Final = 60.0
"""Seconds between two notes of the sums: the last hour begins at most this much too early."""
MARKS: Final = 62
KEEP_HOURS: Final = 31 * 24 + 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time from some moment until now."""

    held_s: float
    """Replica-seconds."""
    tokens: int
    took_s: float

    def per_1000_tokens(self, price_per_hour: float) -> float | None:
        """Cost per 1 000 tokens; None: there were no tokens."""
        return price_per_hour * self.held_s / HOUR_S / self.tokens * 1000 if self.tokens > 0 else None


class ReplicaHours:
    def __init__(self, now: float) -> None:
        self.total_s = 0.0
        """Replica-seconds since the beginning."""
        self.by_hour: dict[int, float] = {}
        """Replica-seconds by hour of the wall clock (its first second), the oldest first; the last month."""
        self._replicas = 0.0
        self._tokens = 0
        self._at = now
        self._marks: deque[tuple[float, float, int]] = deque([(now, 0.0, 0)], maxlen=MARKS)
        """(time, replica-seconds by then, tokens by then)."""

    def see(self, replicas: float, tokens: int, now: float, wall: float) -> None:
        """Records that `replicas` are held from now on and `tokens` were produced since the beginning. A fraction of a
        replica: other gateways share it and pay for the rest."""
        passed_s = max(0.0, now - self._at)
        held_s = self._replicas * passed_s
        self.total_s += held_s
        if held_s > 0:
            self._add_hours(wall - passed_s, wall)
        self._replicas, self._tokens, self._at = replicas, tokens, max(now, self._at)
        if self._at - self._marks[-1][0] >= MARK_S:
            self._marks.append((self._at, self.total_s, tokens))

    def last_hour(self) -> Stretch:
        """The last hour up to the last look; since the beginning, if that is shorter."""
        since = self._at - HOUR_S
        begin = next((mark for mark in reversed(self._marks) if mark[0] <= since), self._marks[0])
        return Stretch(self.total_s - begin[1], self._tokens - begin[2], self._at - begin[0])

    def _add_hours(self, since: float, until: float) -> None:
        hours = self.by_hour
        while since < until:
            hour = int(since // HOUR_S) * HOUR_S
            part_s = min(until, hour + HOUR_S) - since
            hours[hour] = hours.get(hour, 0.0) + self._replicas * part_s
            since += part_s
        while len(hours) > KEEP_HOURS:
            del hours[next(iter(hours))]
