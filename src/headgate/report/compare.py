"""Decides which differences between results are real, for every percentile of every lane.

A difference is called real if resampling both runs says so (see statistics.py) even though many differences are looked
at: Holm's rule keeps the chance that any of a comparison's verdicts is a mistake at 5 %.

Where both results had the same arrivals, as a simulation and its what-if have, they are compared pairwise: both are
resampled by the same stretches of time. A burst that made a stretch slow in both cancels out, and the difference alone
is left. Treated as two independent runs, such a difference would be lost among the bursts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headgate.report.results import FIGURES, Floats, Results
from headgate.report.statistics import Resampled, block_count, blocks, drawn_shares, weights
from headgate.report.words import figure_name, level_name, ms, percent

LEVELS = (0.5, 0.95, 0.99)
BEYOND = 20
"""Requests that must lie beyond a percentile in both runs for a verdict."""
CHANCE = 0.05

Verdict = Literal["real", "not told apart", "too few"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    lane: str
    what: str
    """`p99 TTFT`, `good`, `refused` or `failed`."""
    unit: Literal["ms", "%"]
    before: float
    after: float
    """Seconds, or shares."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the change: relative for milliseconds, in shares for shares. None: no interval."""
    chance: float | None = None
    """Probability that equal runs differ by this much; None: too few requests to say."""
    verdict: Verdict = "too few"

    @property
    def change(self) -> float:
        if self.unit == "%":
            return self.after - self.before
        return self.after / self.before - 1 if self.before else math.inf if self.after else 0.0

    @property
    def change_words(self) -> str:
        return f"{_signed(self.change)} {'%' if self.unit == 'ms' else 'points'}"

    @property
    def interval_words(self) -> str:
        return "" if self.low is None or self.high is None else f"[{_signed(self.low)}, {_signed(self.high)}]"

    def __str__(self) -> str:
        """One line, such as: p99 TTFT fast: 412 → 198 ms, −52 % [−58, −44], real"""
        if self.unit == "ms":
            said = f"{ms(self.before)} → {ms(self.after)} ms"
        else:
            said = f"{percent(self.before)} → {percent(self.after)}"
        change = f"{self.change_words} {self.interval_words}".rstrip()
        verdict = "too few requests to say" if self.verdict == "too few" else self.verdict
        return f"{self.what} {self.lane or 'all lanes'}: {said}, {change}, {verdict}"


def compare(before: Results, after: Results, *, seed: int = 0) -> list[FigureDifference]:
    """Compares lane by lane; lanes that only one result has are left out. With several lanes, all together come
    last."""
    rng = np.random.default_rng(seed)
    paired = same_arrivals(before, after)
    lanes: list[str | None] = [lane for lane in before.lanes if lane in after.lanes]
    if len(lanes) != 1:
        lanes.append(None)
    found: list[FigureDifference] = []
    for lane in lanes:
        for figure in FIGURES:
            found += _percentiles(before, after, lane, figure, LEVELS, rng, paired)
        found += _shares(before, after, lane, rng, paired)
    return judged(found)


def same_arrivals(before: Results, after: Results) -> bool:
    """Whether both have the same requests at the same times, so that their rows are pairs."""
    return len(before) == len(after) > 0 and np.array_equal(before.at_s, after.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Each request beside itself, for requests that were answered both times."""

    lane: str
    figure: str
    faster: int
    slower: int
    """Requests that differ by more than one percent."""
    same: int
    change: float
    """Median of the relative changes."""

    def __str__(self) -> str:
        """One line, such as: fast TTFT of each request beside itself: 412 faster, 30 slower, 58 the same; −12 % at the
        median"""
        counts = f"{self.faster} faster, {self.slower} slower, {self.same} the same"
        what = f"{self.lane or 'all lanes'} {figure_name(self.figure)} of each request beside itself"
        return f"{what}: {counts}; {_signed(self.change)} % at the median"


def pairs(before: Results, after: Results, figures: Sequence[str] = ("ttft", "e2e")) -> list[Pairs]:
    """Pairs by lane and figure; empty where the arrivals were not the same."""
    if not same_arrivals(before, after):
        return []
    lanes: list[str | None] = [*before.lanes, None] if len(before.lanes) != 1 else [*before.lanes]
    found = []
    for lane in lanes:
        both = before.of_lane(lane) & before.ok & after.ok
        for figure in figures:
            a, b = before.figure(figure), after.figure(figure)
            mine = both & (a > 0) & ~np.isnan(b)
            if not mine.any():
                continue
            changes = b[mine] / a[mine] - 1
            faster, slower = int((changes < -0.01).sum()), int((changes > 0.01).sum())
            found.append(
                Pairs(
                    lane=lane or "",
                    figure=figure,
                    faster=faster,
                    slower=slower,
                    same=int(mine.sum()) - faster - slower,
                    change=float(np.median(changes)),
                )
            )
    return found


def judged(found: list[FigureDifference]) -> list[FigureDifference]:
    """Applies Holm's rule to all differences that have a chance: the smallest first, each against 5 % divided by those
    left."""
    order = sorted(
        (i for i, difference in enumerate(found) if difference.chance is not None), key=lambda i: _chance(found[i])
    )
    left = len(order)
    real = True
    for index in order:
        real = real and _chance(found[index]) <= CHANCE / left
        found[index] = replace(found[index], verdict="real" if real else "not told apart")
        left -= 1
    return found


def _chance(difference: FigureDifference) -> float:
    return 1.0 if difference.chance is None else difference.chance


def _percentiles(
    before: Results,
    after: Results,
    lane: str | None,
    figure: str,
    levels: tuple[float, ...],
    rng: np.random.Generator,
    paired: bool,
) -> list[FigureDifference]:
    a, b = before.values(figure, lane), after.values(figure, lane)
    if not len(a) or not len(b):
        return []
    if paired:
        drawn_a, drawn_b = _drawn_together(before, after, lane, figure, levels, rng)
    else:
        drawn_a, drawn_b = _drawn(a, levels, rng), _drawn(b, levels, rng)
    return [
        difference(
            f"{level_name(level)} {figure_name(figure)}",
            lane,
            (float(np.quantile(a, level)), float(np.quantile(b, level))),
            (drawn_a[:, i], drawn_b[:, i]),
            level=level,
            requests=min(len(a), len(b)),
        )
        for i, level in enumerate(levels)
    ]


def _drawn(values: Floats, levels: tuple[float, ...], rng: np.random.Generator) -> Floats:
    count = block_count(values)
    return Resampled(values, blocks(len(values), count), count).quantiles(weights(count, rng), levels)


def _drawn_together(
    before: Results, after: Results, lane: str | None, figure: str, levels: tuple[float, ...], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Resamples both by the same stretches of the arrivals. Resamples in which either has no value are left out."""
    count = min(block_count(before.values(figure, lane)), block_count(after.values(figure, lane)))
    weight, block = weights(count, rng), blocks(len(before), count)
    drawn = []
    for results in (before, after):
        column = results.figure(figure)
        mine = results.of_lane(lane) & results.ok & ~np.isnan(column)
        drawn.append(Resampled(column[mine], block[mine], count).quantiles(weight, levels))
    known = ~np.isnan(drawn[0]).any(axis=1) & ~np.isnan(drawn[1]).any(axis=1)
    return drawn[0][known], drawn[1][known]


def difference(
    what: str,
    lane: str | None,
    points: tuple[float, float],
    drawn: tuple[Floats, Floats],
    *,
    level: float,
    requests: int,
) -> FigureDifference:
    """The difference of a percentile in seconds, from its two values and their resamples."""
    plain = FigureDifference(lane=lane or "", what=what, unit="ms", before=points[0], after=points[1])
    beyond = requests * min(level, 1 - level)
    if beyond < BEYOND:
        return plain
    a, b = drawn
    low = high = None
    if min(points) > 0 and min(a.min(), b.min()) > 0:
        steps: Floats = np.log(b / a)
        low, high = (math.expm1(float(end)) for end in np.percentile(steps, [2.5, 97.5]))
        seen = math.log(points[1] / points[0])
    else:
        steps, seen = b - a, points[1] - points[0]
    return replace(plain, low=low, high=high, chance=_between_equals(seen, steps, min(beyond, 2 * math.sqrt(requests))))


def _shares(
    before: Results, after: Results, lane: str | None, rng: np.random.Generator, paired: bool
) -> list[FigureDifference]:
    found = []
    for what in ("good", "refused", "failed"):
        a, b = _hits(before, what, lane), _hits(after, what, lane)
        if a is None or b is None or not len(a) or not len(b) or not (a.any() or b.any()):
            continue
        points = float(a.mean()), float(b.mean())
        plain = FigureDifference(lane=lane or "", what=what, unit="%", before=points[0], after=points[1])
        if min(len(a), len(b)) >= 2 * BEYOND and max(a.sum(), b.sum()) >= BEYOND // 2 and points != (1.0, 1.0):
            if paired and len(a) == len(b):
                count = min(block_count(a), block_count(b))
                weight, block = weights(count, rng), blocks(len(a), count)
                steps = drawn_shares(b, block, weight, count) - drawn_shares(a, block, weight, count)
            else:
                steps = _drawn_shares(b, rng) - _drawn_shares(a, rng)
            low, high = np.percentile(steps, [2.5, 97.5])
            rare = max(min(a.sum(), len(a) - a.sum()), min(b.sum(), len(b) - b.sum()))
            chance = _between_equals(points[1] - points[0], steps, float(rare))
            plain = replace(plain, low=float(low), high=float(high), chance=chance)
        found.append(plain)
    return found


def _hits(results: Results, what: str, lane: str | None) -> Floats | None:
    mine = results.of_lane(lane)
    if what == "good":
        hits: NDArray[np.bool_] | None = results.good[mine] if results.goodput else None
    else:
        hits = results.kind[mine] == 1 if what == "refused" else results.kind[mine] > 1
    return None if hits is None else hits.astype(np.float64)


def _drawn_shares(hits: Floats, rng: np.random.Generator) -> Floats:
    count = block_count(hits)
    return drawn_shares(hits, blocks(len(hits), count), weights(count, rng), count)


def _between_equals(seen: float, steps: Floats, freedom: float) -> float:
    """Probability that equal runs differ by this much, if differences are as wide as resampling shows them. By
    Student's distribution rather than by counting: a thousand resamples can't tell small probabilities from smaller
    ones, and the width itself is uncertain: that of a resampled percentile converges only with the fourth root of the
    number of requests."""
    width = float(np.nanstd(steps))
    if width == 0.0:
        return 1.0 if seen == 0.0 else 0.0
    squared = (seen / width) ** 2
    freedom = max(freedom, 2.0)
    normal = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(squared / freedom))  # Wallace 1959
    return math.erfc(normal / math.sqrt(2))


def _signed(share: float) -> str:
    """The share in percent, with a real minus sign."""
    value = share * 100
    if not math.isfinite(value):
        return "∞"
    digits = 0 if abs(value) >= 9.95 else 1
    return f"{round(value, digits) or 0.0:+.{digits}f}".replace("-", "−") if round(value, 1) else "0"
