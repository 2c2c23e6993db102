"""Do the figures agree with each other? Little's law, L = λ·W, from counters that do not know of one another.

L is how many are in a lane, as sampled; λ how many come, counted at their end and by what is still open; W how long
those stay that left. In the long run the law holds for any queue whatever: a residual that stays away from zero means
that one of the three is counted wrongly, or that the load is changing faster than requests end.
"""

from collections import deque
from dataclasses import dataclass

from headgate.model.outcome import Outcome

LITTLE_S = 300.0
"""Looked at so far back: long against most requests, or those that were cut by the edges would be all one sees."""
MARK_S = 5.0
LEAST_L = 0.05
"""An emptier lane than this has no residual worth a number: what it is divided by."""
TURNED_AWAY = frozenset(
    outcome.value
    for outcome in (
        Outcome.INVALID, Outcome.TOO_LONG, Outcome.UNKNOWN_MODEL, Outcome.UNAUTHORIZED, Outcome.OVER_LIMIT,
        Outcome.LANE_FULL, Outcome.WOULD_WAIT_TOO_LONG, Outcome.QUEUE_FULL, Outcome.NOT_READY,
    )
)  # fmt: skip
"""Never got in, unless they waited for longer than AT_ONCE_S: for a tenant's own concurrency, or until another tenant
took their place in a full queue. Counted as arrivals that stayed no time, they would leave λ·W as it is, and make λ and
W useless."""
AT_ONCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Little:
    l: float  # noqa: E741
    """Mean number in the lane, waiting or running."""
    lambda_: float
    """Arrivals per second."""
    w: float
    """Mean seconds from arrival to the end."""

    @property
    def residual(self) -> float:
        """(L − λW) / L."""
        return (self.l - self.lambda_ * self.w) / max(self.l, LEAST_L)


class Law:
    """One lane's counters, all of which only grow; what they were a while ago is marked every few seconds."""

    __slots__ = ("_area", "_at", "_marks", "_open", "left", "stayed_s")

    def __init__(self) -> None:
        self.left = 0
        """Requests that were in and are not any more."""
        self.stayed_s = 0.0
        """What they stayed, together."""
        self._area = 0.0
        """Of the number in the lane over time."""
        self._at: float | None = None
        self._open = 0
        self._marks: deque[tuple[float, float, int, float, int]] = deque(maxlen=int(LITTLE_S / MARK_S) + 1)

    def sample(self, in_system: int, now: float) -> None:
        """So many are in the lane. Between two samples the number is taken to have changed steadily."""
        if self._at is not None and now > self._at:
            self._area += (self._open + in_system) / 2 * (now - self._at)
        self._at, self._open = now, in_system
        if not self._marks or now - self._marks[-1][0] >= MARK_S:
            self._marks.append((now, self._area, self.left, self.stayed_s, in_system))

    def read(self) -> Little | None:
        """None: nothing is known yet."""
        if self._at is None:
            return None
        since = next((mark for mark in self._marks if mark[0] >= self._at - LITTLE_S), self._marks[-1])
        at, area, left, stayed_s, were_open = since
        passed_s, gone = self._at - at, self.left - left
        if passed_s <= 0 or not gone:
            return None
        arrived = max(0, gone + self._open - were_open)
        return Little((self._area - area) / passed_s, arrived / passed_s, (self.stayed_s - stayed_s) / gone)
