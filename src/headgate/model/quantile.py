"""Estimates quantiles of durations in bounded memory.

Buckets grow by a constant factor, so a quantile is off by at most `error` of itself for any distribution: the answer is
the middle of the bucket that holds it. Two sketches add up bucket by bucket to exactly the sketch of all their
durations, across slices of time, lanes and processes. From a microsecond to a day there are some 2 500 buckets at
0.5 %, and shorter or longer durations get no others, so the bound needs no collapsing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, fsum, inf, isfinite, log

LEAST_S = 1e-6
"""Seconds. A shorter duration counts as zero."""
MOST_S = 86_400.0
"""Seconds. A longer duration counts as this."""
ZERO = 0
"""The index of the bucket for zero. The others follow in order of duration."""
FINEST = 0.0031
"""The smallest allowed error: a smaller one would need more than 4 096 buckets."""


class Grid:
    """The bounds of the buckets: each ends at `growth` times the end of the one before it."""

    __slots__ = ("_offset", "_scale", "error", "growth", "size", "values")

    def __init__(self, error: float) -> None:
        if not FINEST <= error <= 0.2:
            raise ValueError(f"expected an error from {FINEST:g} to 0.2, got {error!r}")
        self.error = error
        self.growth = (1 + error) / (1 - error)
        self._scale = 1 / log(self.growth)
        self._offset = 1 - ceil(log(LEAST_S) * self._scale)
        self.size = self._offset + ceil(log(MOST_S) * self._scale) + 1
        middle = 2 / (1 + self.growth)
        self.values = [0.0] + [middle * self.upto(index) for index in range(1, self.size)]
        """Each bucket's representative duration, with the same relative error for the shortest and the longest in
        it."""

    def index(self, value_s: float) -> int:
        if value_s >= LEAST_S:
            return ceil(log(value_s) * self._scale) + self._offset if value_s < MOST_S else self.size - 1
        return ZERO

    def upto(self, index: int) -> float:
        """The upper bound of a bucket other than zero's, in seconds."""
        return float(self.growth ** (index - self._offset))


GRID = Grid(0.005)
"""The grid that all figures use, so that they can be added up."""


class Sketch:
    __slots__ = ("_order", "_sum", "buckets", "count", "grid", "max", "min")

    def __init__(self, error: float = 0.005) -> None:
        self.grid = GRID if error == GRID.error else Grid(error)
        self.buckets: dict[int, int] = {}
        """Count of durations by bucket of the grid."""
        self.count = 0
        self.min: float | None = None
        self.max: float | None = None
        self._sum: float | None = 0.0
        self._order: list[int] | None = None

    @classmethod
    def of(cls, buckets: dict[int, int]) -> "Sketch":
        """Makes a sketch from counts made elsewhere on GRID; it keeps `buckets`. Its sum and extremes are as exact as a
        quantile."""
        sketch = cls()
        sketch.buckets = buckets
        if buckets:
            order = sketch._order = sorted(buckets)
            sketch.count = sum(buckets.values())
            sketch.min, sketch.max = GRID.values[order[0]], GRID.values[order[-1]]
            sketch._sum = None
        return sketch

    @property
    def sum(self) -> float:
        if self._sum is None:
            values = self.grid.values
            self._sum = fsum(count * values[index] for index, count in self.buckets.items())
        return self._sum

    def add(self, value_s: float, count: int = 1) -> None:
        if count < 1 or not isfinite(value_s):
            raise ValueError(f"expected a finite number of seconds, once or more; got {value_s!r} {count!r} times")
        self._sum = self.sum + value_s * count
        index = self.grid.index(value_s)
        self.buckets[index] = self.buckets.get(index, 0) + count
        self.count += count
        self._order = None
        self.min = value_s if self.min is None else min(self.min, value_s)
        self.max = value_s if self.max is None else max(self.max, value_s)

    def merge(self, other: "Sketch") -> None:
        """Adds everything in the other sketch to this one."""
        if other.grid.error != self.grid.error:
            raise ValueError(f"can't add a sketch with error {other.grid.error:g} to one with {self.grid.error:g}")
        if other.min is None or other.max is None:
            return
        if self._sum is not None and other._sum is not None:
            self._sum += other._sum
        else:
            self._sum = None
        for index, count in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + count
        self.count += other.count
        self._order = None
        self.min = other.min if self.min is None else min(self.min, other.min)
        self.max = other.max if self.max is None else max(self.max, other.max)

    def copy(self) -> "Sketch":
        other = Sketch(self.grid.error)
        other.merge(self)
        return other

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """The duration that a share q did not exceed; None: nothing was added."""
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Sequence[float], beyond: float = 0.0) -> list[float | None]:
        """Several quantiles at once, for hardly more than the cost of one. `beyond`: the number of further cases that
        took longer than any bound, such as refused requests; a quantile among them is inf."""
        if any(not 0 <= q <= 1 for q in qs):
            raise ValueError(f"expected shares from 0 to 1, got {list(qs)}")
        if self.min is None or self.max is None:
            return [inf if beyond > 0 else None] * len(qs)
        if self._order is None:
            self._order = sorted(self.buckets)
        upto = list(accumulate(map(self.buckets.__getitem__, self._order)))
        last = self.count + beyond - 1
        found: list[float | None] = []
        for q in qs:
            if q * last >= self.count:
                found.append(inf)
            else:
                middle = self.grid.values[self._order[bisect_right(upto, q * last)]]
                found.append(max(0.0, self.min, min(self.max, middle)))
        return found

    def share(self, within_s: float, beyond: float = 0.0) -> float | None:
        """The share of durations up to `within_s`, its whole bucket included; None: nothing was added. `beyond`: the
        number of further cases that took longer than any bound."""
        if not self.count:
            return 0.0 if beyond > 0 else None
        last = self.grid.index(within_s)
        return sum(count for index, count in self.buckets.items() if index <= last) / (self.count + beyond)
