"""Measures the latency that the gateway adds: the same arrivals through the gateway and straight to the engines, in
turns.

The arrivals are cut into slices. Each slice is played both ways, one after the other and alternately in first place,
and both times from rest: both ways see the same engines at the same time of day, and only the way differs. The texts
differ, or the second way would find the first way's prompts in the prefix cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headgate.report.results import FIGURES, Floats, Results
from headgate.report.statistics import Estimate, Resampled, block_count, weights
from headgate.report.words import figure_name, level_name
from headgate.workload.arrival import Arrival

LEVELS = (0.5, 0.9, 0.99)
BEYOND = 5


def slices(arrivals: Iterator[Arrival], slice_s: float) -> Iterator[tuple[float, list[Arrival]]]:
    """Yields stretches of `slice_s` seconds, each as its begin and its arrivals; empty stretches are left out."""
    begin: float | None = None
    held: list[Arrival] = []
    for arrival in arrivals:
        mine = arrival.at_s // slice_s * slice_s
        if begin is not None and mine != begin:
            yield begin, held
            held = []
        begin = mine
        held.append(arrival)
    if begin is not None:
        yield begin, held


@dataclass(frozen=True, slots=True)
class Added:
    lane: str
    """Empty: all lanes."""
    what: str
    """Level and figure, such as `p99 TTFT`."""
    direct_s: float
    through_s: float
    added: Estimate
    """Through minus direct, in seconds."""

    def as_dict(self) -> dict[str, object]:
        scaled = [
            None if end is None else round(end * 1e3, 6) for end in (self.added.value, self.added.low, self.added.high)
        ]
        return {
            "lane": self.lane,
            "what": self.what,
            "direct_ms": self.direct_s * 1e3,
            "through_ms": self.through_s * 1e3,
            "added_ms": scaled,
        }


def added(through: Results, direct: Results, seed: int = 0) -> list[Added]:
    """The difference of each percentile. Both results are resampled by the same stretches of time: a stretch that was
    slow in both, such as with long prompts, cancels out, and the interval covers the difference alone."""
    if len(through) != len(direct):
        raise ValueError(f"{len(through)} requests one way and {len(direct)} the other")
    rng = np.random.default_rng(seed)
    lanes: list[str | None] = [*through.lanes] if len(through.lanes) > 1 else []
    found = []
    for lane in [*lanes, None]:
        for figure in FIGURES:
            found += _figure(through, direct, lane, figure, rng)
    return found


def _figure(through: Results, direct: Results, lane: str | None, figure: str, rng: np.random.Generator) -> list[Added]:
    if not len(through.values(figure, lane)) or not len(direct.values(figure, lane)):
        return []
    count = min(block_count(through.values(figure, lane)), block_count(direct.values(figure, lane)))
    weight = weights(count, rng)
    drawn: list[Floats] = []
    for results in (through, direct):
        column = results.figure(figure)
        mine = results.of_lane(lane) & results.ok & ~np.isnan(column)
        block = np.arange(len(results)) * count // len(results)
        drawn.append(Resampled(column[mine], block[mine], count).quantiles(weight, LEVELS))
    steps = drawn[0] - drawn[1]
    a, b = through.values(figure, lane), direct.values(figure, lane)
    found = []
    for index, level in enumerate(LEVELS):
        pair = float(np.quantile(a, level)), float(np.quantile(b, level))
        estimate = Estimate(pair[0] - pair[1])
        if min(len(a), len(b)) * min(level, 1 - level) >= BEYOND:
            low, high = np.nanpercentile(steps[:, index], [2.5, 97.5])
            estimate = Estimate(estimate.value, float(low), float(high))
        found.append(Added(lane or "", f"{level_name(level)} {figure_name(figure)}", pair[1], pair[0], estimate))
    return found
