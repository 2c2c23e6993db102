"""How long did the slowest few take? Quantiles of durations in bounded memory.

Buckets grow by a constant factor, so an answer is off by at most `error` of itself, whatever the durations are: the
middle of the bucket in which the asked-for one lies. Two sketches add up bucket by bucket to exactly the sketch of
everything, across slices of time, lanes and processes. From a microsecond to a day there are some 2 500 buckets at
0.5 %, and there is nothing outside: the bound needs no collapsing.
"""

from collections.abc import Mapping, Sequence
from math import ceil, isfinite, log
from typing import Any

LEAST_S = 1e-6
"""Anything shorter is counted as zero."""
MOST_S = 86_400.0
"""Anything longer is counted as this."""
ZERO = -1_000_000
"""The bucket of zero, below all others so that buckets sort by duration."""
FINEST = 0.0031
"""Finer than this there would be more than 4 096 buckets."""


class Grid:
    """Where buckets end: bucket i holds what is above growth^(i-1), up to growth^i."""

    __slots__ = ("_scale", "error", "growth", "highest", "lowest")

    def __init__(self, error: float) -> None:
        if not FINEST <= error <= 0.2:
            raise ValueError(f"expected an error from {FINEST:g} to 0.2, got {error!r}")
        self.error = error
        self.growth = (1 + error) / (1 - error)
        self._scale = 1 / log(self.growth)
        self.lowest = ceil(log(LEAST_S) * self._scale)
        self.highest = ceil(log(MOST_S) * self._scale)

    def index(self, value_s: float) -> int:
        if value_s >= LEAST_S:
            return ceil(log(value_s) * self._scale) if value_s < MOST_S else self.highest
        return ZERO

    def value(self, index: int) -> float:
        """The duration that is off by the same share for the shortest and the longest in the bucket."""
        return 0.0 if index == ZERO else float(2 * self.growth**index / (1 + self.growth))

    def has(self, index: int) -> bool:
        return index == ZERO or self.lowest <= index <= self.highest


GRID = Grid(0.005)
"""What all figures use, so that all of them can be added up."""


class Sketch:
    __slots__ = ("buckets", "count", "grid", "max", "min", "sum")

    def __init__(self, error: float = 0.005) -> None:
        self.grid = GRID if error == GRID.error else Grid(error)
        self.buckets: dict[int, int] = {}
        """How many by bucket of the grid."""
        self.count = 0
        self.sum = 0.0
        self.min: float | None = None
        self.max: float | None = None

    @classmethod
    def of(cls, buckets: dict[int, int], total: float) -> "Sketch":
        """Of what was counted elsewhere by GRID; it keeps `buckets`. The extremes are as good as any quantile."""
        sketch = cls()
        sketch.buckets = buckets
        sketch.count = sum(buckets.values())
        sketch.sum = total
        if buckets:
            sketch.min, sketch.max = GRID.value(min(buckets)), GRID.value(max(buckets))
        return sketch

    def add(self, value_s: float, count: int = 1) -> None:
        if count < 1 or not isfinite(value_s):
            raise ValueError(f"expected a finite number of seconds, once or more; got {value_s!r} {count!r} times")
        index = self.grid.index(value_s)
        self.buckets[index] = self.buckets.get(index, 0) + count
        self.count += count
        self.sum += value_s * count
        self.min = value_s if self.min is None else min(self.min, value_s)
        self.max = value_s if self.max is None else max(self.max, value_s)

    def merge(self, other: "Sketch") -> None:
        """As if everything in the other had been added to this one."""
        if other.grid.error != self.grid.error:
            raise ValueError(f"can't add a sketch with error {other.grid.error:g} to one with {self.grid.error:g}")
        if other.min is None or other.max is None:
            return
        add_up(self.buckets, other.buckets)
        self.count += other.count
        self.sum += other.sum
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

    def quantiles(self, qs: Sequence[float]) -> list[float | None]:
        """Several at once, from the lowest to the highest, for hardly more than the price of one."""
        if any(not 0 <= q <= 1 for q in qs) or list(qs) != sorted(qs):
            raise ValueError(f"expected shares from 0 to 1 in ascending order, got {list(qs)}")
        if self.min is None or self.max is None:
            return [None] * len(qs)
        answers: list[float | None] = []
        indexes = iter(sorted(self.buckets))
        index, seen = ZERO, 0
        for q in qs:
            rank = q * (self.count - 1)
            while seen <= rank:
                index = next(indexes)
                seen += self.buckets[index]
            answers.append(max(0.0, self.min, min(self.max, self.grid.value(index))))
        return answers

    def share(self, within_s: float) -> float | None:
        """The share that took no longer, the bound's own bucket included; None: nothing was added."""
        if not self.count:
            return None
        last = self.grid.index(within_s)
        return sum(count for index, count in self.buckets.items() if index <= last) / self.count

    # -- to other processes ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        buckets = [[index, self.buckets[index]] for index in sorted(self.buckets)]
        return {"error": self.grid.error, "sum": self.sum, "min": self.min, "max": self.max, "buckets": buckets}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Sketch":
        """From another process, so nothing is taken for granted. Raises ValueError."""
        try:
            sketch = cls(float(plain["error"]))
            for index, count in plain["buckets"]:
                whole = isinstance(index, int) and isinstance(count, int)
                if not whole or count < 1 or not sketch.grid.has(index) or index in sketch.buckets:
                    raise ValueError(f"bucket {index!r} with count {count!r}")
                sketch.buckets[index] = count
            sketch.count = sum(sketch.buckets.values())
            sketch.sum = _finite(plain["sum"])
            if sketch.buckets:
                sketch.min, sketch.max = _finite(plain["min"]), _finite(plain["max"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a sketch: {error}") from error
        return sketch


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"expected a finite number, got {value!r}")
    return number


def add_up(buckets: dict[int, int], more: Mapping[int, int]) -> None:
    for index, count in more.items():
        buckets[index] = buckets.get(index, 0) + count


def take_out(buckets: dict[int, int], less: Mapping[int, int]) -> None:
    """The reverse; what was never added up must not be taken out."""
    for index, count in less.items():
        left = buckets[index] - count
        if left:
            buckets[index] = left
        else:
            del buckets[index]
