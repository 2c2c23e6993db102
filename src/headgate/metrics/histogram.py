"""Counts durations between a few edges since the process began, for scrapers to add up."""

from bisect import bisect_left, bisect_right
from math import inf
from typing import Final

from headgate.model.quantile import GRID, LEAST_S, ZERO

FIRST_TOKEN_EDGES = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
TOKEN_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_EDGES: tuple[float, ...] = tuple(0.01 * 2**step for step in range(14))
"""Edges in seconds, as in the GenAI semantic conventions: time to the first token, between tokens, of whole answers."""
CUT: Final = -1


class Edges:
    """The edges of one figure. A duration's bucket of GRID says between which edges it is, unless an edge cuts that
    bucket."""

    __slots__ = ("places", "values")

    def __init__(self, values: tuple[float, ...]) -> None:
        self.values = values
        self.places = [_place(values, index) for index in range(GRID.size)]
        """By bucket, the number of edges below all of it; CUT: an edge cuts the bucket; the duration decides."""


class Histogram:
    __slots__ = ("edges", "exemplars", "numbers", "sum")

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.numbers = [0] * (len(edges.values) + 1)
        """Durations by the first edge that they do not exceed; the last: beyond all edges."""
        self.sum = 0.0
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        """By place in `numbers`, the latest duration with a trace: the trace's id, the duration in seconds, the wall
        clock's time."""

    def exemplify(self, value: float, trace: str, wall: float) -> None:
        """Takes the trace of a duration that is counted."""
        self.exemplars[bisect_left(self.edges.values, value)] = (trace, value, wall)

    def see(self, value: float, index: int) -> None:
        """Takes a duration; `index` is its bucket of GRID. `count` counts it later, unless an edge cuts the bucket."""
        self.sum += value
        if self.edges.places[index] == CUT:
            self.numbers[bisect_left(self.edges.values, value)] += 1

    def add(self, value: float) -> None:
        """Counts a duration at once, without its bucket of GRID."""
        self.sum += value
        self.numbers[bisect_left(self.edges.values, value)] += 1

    def see_many(self, value: float, index: int, number: int) -> None:
        """Counts `number` equal durations completely: `count` is not called for these."""
        self.sum += value * number
        place = self.edges.places[index]
        self.numbers[bisect_left(self.edges.values, value) if place == CUT else place] += number

    def count(self, index: int, number: int) -> None:
        """Counts `number` durations that `see` took in this bucket."""
        place = self.edges.places[index]
        if place != CUT:
            self.numbers[place] += number


def _place(edges: tuple[float, ...], index: int) -> int:
    least = GRID.upto(index - 1) * (1 - 1e-9) if index > ZERO + 1 else LEAST_S if index else -inf
    most = GRID.upto(index) * (1 + 1e-9) if index not in (ZERO, GRID.size - 1) else inf if index else LEAST_S
    below = bisect_left(edges, least)
    return below if below == bisect_right(edges, most) else CUT
