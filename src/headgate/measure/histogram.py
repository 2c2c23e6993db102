"""Counts durations between a few edges since the process began, for scrapers to add up.

Edges are those of the GenAI semantic conventions, and finer around each bound that a lane promises: a promise whose
bound falls between two edges can't be checked from a histogram. All lanes have the same edges, so that series add up.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf
from typing import Final

from headgate.measure.windows import ANSWER, E2E, GAP, QUEUE, TPOT, TTFT
from headgate.model.lane import Lane
from headgate.model.quantile import GRID, LEAST_S, ZERO

CONVENTION = {
    TTFT: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    TPOT: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    E2E: tuple(0.01 * 2**step for step in range(14)),
    GAP: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ANSWER: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    # The conventions have no edges for queue time; as a part of the time to the first token it has the same.
    QUEUE: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
}
AROUND = (1.0, 0.9, 1.1, 0.8, 1.25)
"""Edges as shares of each bound. The bounds themselves come first: with very many lanes not all edges fit."""
MOST_EDGES = 64
"""Maximum edges per figure. Each costs a line for every series."""
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


def edges(lanes: Iterable[Lane]) -> list[Edges]:
    """The edges for each figure, in the order of the figures' indexes."""
    bounds: list[list[float | None]] = [[] for _ in CONVENTION]
    for lane in lanes:
        bounds[TTFT] += [lane.ttft_target_s, lane.ttft_p50_s, lane.ttft_p99_s]
        bounds[TPOT] += [lane.tpot_p50_s]
        bounds[GAP] += [lane.gap_target_s]
        bounds[E2E] += [lane.e2e_p95_s, lane.e2e_p99_s]
        bounds[QUEUE] += [lane.wait_bound_s]
        bounds[ANSWER] += [lane.gap_target_s]
    return [Edges(_with_bounds(CONVENTION[figure], bounds[figure])) for figure in (TTFT, TPOT, E2E, QUEUE, GAP, ANSWER)]


def _with_bounds(convention: tuple[float, ...], bounds: list[float | None]) -> tuple[float, ...]:
    found = {_round(edge) for edge in convention}
    for share in AROUND:
        for bound in bounds:
            if bound is not None and len(found) < MOST_EDGES:
                found.add(_round(bound * share))
    return tuple(sorted(found))


def _round(edge: float) -> float:
    """0.9 × 0.5 is 0.45, not 0.45000000000000001: edges are names, and must be the same everywhere."""
    return float(f"{edge:.6g}")
