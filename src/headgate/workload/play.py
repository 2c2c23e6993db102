"""Turns a trace into a schedule of another rate, length or speed."""

import heapq
import random
from collections.abc import Callable, Iterator
from itertools import count, islice

import msgspec

from headgate.workload.arrival import Arrival

AGAIN = 1 << 36
"""Added to the ids of a prefix when its trace repeats or a request is doubled: then it is another text."""
JITTER_S = 1.0
"""Maximum seconds between a request and its double."""
Timed = tuple[float, int, Arrival]
"""The new time in seconds, the number of earlier copies of the row, and the row; the row's own time no longer
counts."""


class Trace:
    """Rows at their own times, repeated as often as needed."""

    def __init__(self, rows: tuple[Arrival, ...], start_s: float = 0.0) -> None:
        self._rows = rows = tuple(row for row in rows if row.at_s >= start_s) if start_s else rows
        self._begin = rows[0].at_s
        span = rows[-1].at_s - self._begin
        self.period_s = span * len(rows) / (len(rows) - 1) if span > 0 else float(len(rows))
        """Seconds from one beginning to the next: the last gap is as long as the others are on average."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rate(self) -> float:
        return len(self) / self.period_s

    def at(self, index: int) -> float:
        """Time of a row in seconds, with rows counted through all repetitions."""
        rounds, index = divmod(index, len(self))
        return rounds * self.period_s + self._rows[index].at_s - self._begin

    def play(self, scale: float = 1.0, *, once: bool = False) -> Iterator[Timed]:
        """Yields the rows `scale` times as slow; without end, unless `once`."""
        for rounds in range(1) if once else count():
            for row in self._rows:
                yield (rounds * self.period_s + row.at_s - self._begin) * scale, rounds, row

    def at_rate(self, rate: float, fill_s: float | None) -> Iterator[Timed]:
        """Stretched or squeezed so that exactly `rate * fill_s` of its rows fill that time: the offered rate is then
        the requested one, however uneven the trace. `fill_s` None: the whole trace, once."""
        if fill_s is None:
            return self.play(self.rate / rate, once=True)
        rows = max(1, round(rate * fill_s))
        return islice(self.play(fill_s / (self.at(rows) or 1.0)), rows)

    def thinned(self, rate: float, scale: float, rng: random.Random, *, once: bool = False) -> Iterator[Timed]:
        """Rows at their own times, `scale` times as slow, with requests left out or doubled at random."""
        copies = rate * scale / self.rate
        held: list[tuple[float, int, int, Arrival]] = []
        order = count()
        for at, rounds, row in self.play(scale, once=once):
            while held and held[0][0] <= at:
                yield _timed(heapq.heappop(held))
            for copy in range(int(copies) + (rng.random() < copies % 1.0)):
                moved = at if copy == 0 else at + rng.uniform(0.0, JITTER_S)
                heapq.heappush(held, (moved, next(order), rounds + 1000 * copy, row))
        while held:
            yield _timed(heapq.heappop(held))


def _timed(held: tuple[float, int, int, Arrival]) -> Timed:
    at, _, rounds, row = held
    return at, rounds, row


def placed(at_s: float, rounds: int, row: Arrival) -> Arrival:
    """The row at its new time."""
    if rounds and row.prefix:
        prefix = tuple(block + rounds * AGAIN for block in row.prefix)
        return msgspec.structs.replace(row, at_s=at_s, prefix=prefix)
    return msgspec.structs.replace(row, at_s=at_s)


# -- times out of nothing ---------------------------------------------------------------------------------------


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    return _summed(lambda: rng.expovariate(rate))


def gamma(rate: float, cv: float, rng: random.Random) -> Iterator[float]:
    shape = 1 / cv**2
    scale = 1 / (shape * rate)
    return _summed(lambda: rng.gammavariate(shape, scale))


def constant(rate: float) -> Iterator[float]:
    return (index / rate for index in count())


def _summed(gap: Callable[[], float]) -> Iterator[float]:
    at = 0.0
    while True:
        at += gap()
        yield at
