"""Chooses the edges of the gateway's histograms.

Edges are those of the GenAI semantic conventions, and finer around each bound that a lane promises: a promise whose
bound falls between two edges can't be checked from a histogram. All lanes have the same edges, so that series add up.
"""

from collections.abc import Iterable

from headgate.measure.windows import ANSWER, E2E, GAP, QUEUE, TPOT, TTFT
from headgate.metrics.histogram import DURATION_EDGES, FIRST_TOKEN_EDGES, TOKEN_EDGES, Edges
from headgate.model.lane import Lane
from headgate.policy.promises.promise import promises

CONVENTION = {
    TTFT: FIRST_TOKEN_EDGES,
    TPOT: TOKEN_EDGES,
    E2E: DURATION_EDGES,
    GAP: TOKEN_EDGES,
    ANSWER: TOKEN_EDGES,
    # The conventions have no edges for queue time; as a part of the time to the first token it has the same.
    QUEUE: FIRST_TOKEN_EDGES,
}
INDEX = {"ttft": TTFT, "tpot": TPOT, "e2e": E2E, "gap": GAP, "answer": ANSWER}
AROUND = (1.0, 0.9, 1.1, 0.8, 1.25)
"""Edges as shares of each bound. The bounds themselves come first: with very many lanes not all edges fit."""
MOST_EDGES = 64
"""Maximum edges per figure. Each costs a line for every series."""


def edges(lanes: Iterable[Lane]) -> list[Edges]:
    """The edges for each figure, in the order of the figures' indexes."""
    bounds: list[list[float]] = [[] for _ in CONVENTION]
    for lane in lanes:
        for promise in promises(lane):
            bounds[INDEX[promise.figure]].append(promise.within_s)
        bounds[QUEUE].append(lane.wait_bound_s)
    return [Edges(_with_bounds(CONVENTION[figure], bounds[figure])) for figure in (TTFT, TPOT, E2E, QUEUE, GAP, ANSWER)]


def _with_bounds(convention: tuple[float, ...], bounds: list[float]) -> tuple[float, ...]:
    found = {_round(edge) for edge in convention}
    for share in AROUND:
        for bound in bounds:
            if len(found) < MOST_EDGES:
                found.add(_round(bound * share))
    return tuple(sorted(found))


def _round(edge: float) -> float:
    """0.9 × 0.5 is 0.45, not 0.45000000000000001: edges are names, and must be the same everywhere."""
    return float(f"{edge:.6g}")
