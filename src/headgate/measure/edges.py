"""Chooses the edges of the gateway's histograms.

Edges are those of the GenAI semantic conventions, and finer around each bound that a lane promises: a promise whose
bound falls between two edges can't be checked from a histogram. All lanes have the same edges, so that series add up.
"""

from collections.abc import Iterable

from headgate.measure.windows import ANSWER, E2E, GAP, QUEUE, TPOT, TTFT
from headgate.metrics.histogram import DURATION_EDGES, FIRST_TOKEN_EDGES, TOKEN_EDGES, Edges
from headgate.model.lane import Lane

CONVENTION = {
    TTFT: FIRST_TOKEN_EDGES,
    TPOT: TOKEN_EDGES,
    E2E: DURATION_EDGES,
    GAP: TOKEN_EDGES,
    ANSWER: TOKEN_EDGES,
    # The conventions have no edges for queue time; as a part of the time to the first token it has the same.
    QUEUE: FIRST_TOKEN_EDGES,
}
AROUND = (1.0, 0.9, 1.1, 0.8, 1.25)
"""Edges as shares of each bound. The bounds themselves come first: with very many lanes not all edges fit."""
MOST_EDGES = 64
"""Maximum edges per figure. Each costs a line for every series."""


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
