"""Checks that independent counters agree, by Little's law, L = λ·W.

L is the mean number of requests in a lane, as sampled; λ the arrivals per second, counted as the requests that left
plus the change in open ones; W the mean seconds that those stayed that left. In the long run the law holds for any
queue: a residual that stays away from zero means that one of the three is counted wrongly, or that the load changes
faster than requests end.
"""

from collections import deque
from dataclasses import dataclass

from headgate.model.outcome import Outcome

LITTLE_S = 300.0
"""Seconds over which the law is checked: long against most requests, or requests cut by its edges would dominate."""
MARK_S = 5.0
LEAST_L = 0.05
"""Minimum L by which the residual is divided: an emptier lane has no meaningful residual."""
TURNED_AWAY = frozenset(
    outcome.value
    for outcome in (
        Outcome.INVALID, Outcome.TOO_LONG, Outcome.UNKNOWN_MODEL, Outcome.UNAUTHORIZED, Outcome.OVER_LIMIT,
        Outcome.LANE_FULL, Outcome.WOULD_WAIT_TOO_LONG, Outcome.QUEUE_FULL, Outcome.NOT_READY,
    )
)  # fmt: skip
"""Outcomes of requests that never entered the lane, unless they waited for longer than AT_ONCE_S: for a tenant's own
concurrency, or until another tenant took their place in a full queue. Counted as arrivals that stayed no time, they
would leave λ·W as it is, and make λ and W useless."""
AT_ONCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Little:
    l: float  # noqa: E741
    """Mean number of requests in the lane, waiting or running."""
    lambda_: float
    """Arrivals per second."""
    w: float
    """Mean seconds from a request's arrival to its end."""

    @property
    def residual(self) -> float:
        """(L − λW) / L."""
        return (self.l - self.lambda_ * self.w) / max(self.l, LEAST_L)


class Law:
    """One lane's counters, all of which only grow; their values are marked every MARK_S seconds."""

    __slots__ = ("_area", "_at", "_marks", "_open", "left", "stayed_s")

    def __init__(self) -> None:
        self.left = 0
        """Requests that entered the lane and have left it."""
        self.stayed_s = 0.0
        """Seconds that those requests stayed, in total."""
        self._area = 0.0
        """Integral over time of the number of requests in the lane, in request-seconds."""
        self._at: float | None = None
        self._open = 0
        self._marks: deque[tuple[float, float, int, float, int]] = deque(maxlen=int(LITTLE_S / MARK_S) + 1)

    def sample(self, in_system: int, now: float) -> None:
        """Takes the number of requests in the lane. Between two samples it is taken to have changed linearly."""
        if self._at is not None and now > self._at:
            self._area += (self._open + in_system) / 2 * (now - self._at)
        self._at, self._open = now, in_system
        if not self._marks or now - self._marks[-1][0] >= MARK_S:
            self._marks.append((now, self._area, self.left, self.stayed_s, in_system))

    def read(self) -> Little | None:
        """The law over the last LITTLE_S; None: no request left in that time, or there is at most one sample."""
        if self._at is None:
            return None
        since = next((mark for mark in self._marks if mark[0] >= self._at - LITTLE_S), self._marks[-1])
        at, area, left, stayed_s, were_open = since
        passed_s, gone = self._at - at, self.left - left
        if passed_s <= 0 or not gone:
            return None
        arrived = max(0, gone + self._open - were_open)
        return Little((self._area - area) / passed_s, arrived / passed_s, (self.stayed_s - stayed_s) / gone)
