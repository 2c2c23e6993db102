"""Measures how fast the error budget is spent.

With an availability of 99.9 %, a hundred of a hundred thousand requests for an answer may get none, refused or failed.
Clients' own errors and tenants over their own limits do not count (model/outcome.py, ASIDE). A burn of 1 spends the
budget exactly in its intended time. Each alert looks at two windows, a long one so that the loss matters and a short
one so that it still continues (Google's SRE workbook, chapter 5).
"""

from array import array
from dataclasses import dataclass, field

FIVE_MIN_S, HALF_HOUR_S, HOUR_S, SIX_HOURS_S = 300, 1800, 3600, 21_600
FAST, SLOW = 14.4, 6.0
"""Burns that spend 2 % of a month's budget in an hour, and 5 % in six hours."""
LEAST_FAILED = 5
"""Minimum requests without an answer in the long window. One failure among a quiet night's fifty requests is twenty
times the budget, and no reason to wake an operator."""
SLICE_S = 15


class Meter:
    """Sums over any recent window up to `reach_s` seconds, in a ring of slices.

    Each slice holds the sums at its beginning: any window is one subtraction, however long it is. A window is up to a
    slice longer than asked for, never shorter.
    """

    def __init__(self, columns: int, *, slice_s: int = SLICE_S, reach_s: int = SIX_HOURS_S) -> None:
        self._slice_s = slice_s
        self._slices = reach_s // slice_s + 1
        self._sums = [0.0] * columns
        self._began = [array("d", bytes(8 * self._slices)) for _ in range(columns)]
        self._first: int | None = None
        self._last = 0

    def add(self, now: float, *values: float) -> None:
        self._roll(now)
        for column, value in enumerate(values):
            self._sums[column] += value

    def over(self, window_s: int, now: float) -> tuple[float, ...]:
        self._roll(now)
        assert self._first is not None
        start = max(self._last - window_s // self._slice_s, self._first, self._last - self._slices + 1)
        return tuple(total - began[start % self._slices] for total, began in zip(self._sums, self._began, strict=True))

    def _roll(self, now: float) -> None:
        current = int(now // self._slice_s)
        if self._first is None:
            self._first = self._last = current
        for index in range(max(self._last + 1, current - self._slices + 1), current + 1):
            for total, began in zip(self._sums, self._began, strict=True):
                began[index % self._slices] = total
        self._last = max(self._last, current)


@dataclass(frozen=True, slots=True)
class Availability:
    """The number of requests for an answer, and how they ended."""

    asked: int
    """Requests for an answer, without clients' own errors and tenants over their own limits."""
    refused: int
    failed: int

    @property
    def answered(self) -> int:
        return self.asked - self.missed

    @property
    def missed(self) -> int:
        return self.refused + self.failed

    @property
    def share(self) -> float | None:
        """Share of the requests for an answer that got one; None: there were none."""
        return self.answered / self.asked if self.asked else None


@dataclass(slots=True)
class Burn:
    """One lane's error budget."""

    budget: float
    """Share of requests that may get no answer; 1: nothing is promised."""
    _meter: Meter = field(default_factory=lambda: Meter(3))

    def add(self, asked: int, failed: int, now: float, refused: int = 0) -> None:
        self._meter.add(now, asked, refused, failed)

    def rate(self, window_s: int, now: float) -> float:
        """The burn over the window; 1: the budget lasts exactly its intended time."""
        asked, refused, failed = self._meter.over(window_s, now)
        return (refused + failed) / asked / max(self.budget, 1e-9) if asked else 0.0

    def counts(self, window_s: int, now: float) -> Availability:
        asked, refused, failed = self._meter.over(window_s, now)
        return Availability(int(asked), int(refused), int(failed))

    def score(self, factor: float, long_s: int, short_s: int, now: float) -> float | None:
        """The lower of the two windows' burns as a share of `factor`; None: too few requests went without an answer to
        tell."""
        if self.budget >= 1 or self.counts(long_s, now).missed < LEAST_FAILED:
            return None
        return min(self.rate(long_s, now), self.rate(short_s, now)) / reachable(factor, self.budget)


def reachable(factor: float, budget: float) -> float:
    """A burn that can happen: where a tenth of the requests may fail, nothing burns 14.4 times as much. The limit is
    then halfway from the budget to all requests."""
    return min(factor, (1 + budget) / (2 * max(budget, 1e-9)))
