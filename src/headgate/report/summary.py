"""Summarises results in the figures that tables, JSON and plots share."""

from dataclasses import dataclass, field

import numpy as np

from headgate.report import arrivals, statistics
from headgate.report.arrivals import CUT_OFF
from headgate.report.results import FIGURES, KINDS, LEVELS, Results, Target
from headgate.report.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of one lane."""

    count: int
    mean_s: float
    std_s: float
    levels: dict[float, Estimate]
    """Percentiles in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSummary:
    lane: str
    """Empty: all lanes."""
    requests: int
    completed: int
    refused: int
    refused_429: int
    refused_503: int
    failed: int
    """Requests that are neither ok nor refused, by the server's fault or the client's."""
    unfinished: int
    """Requests cut off when the run was ended; they count as failed."""
    reasons: dict[str, int]
    """Number of requests that are not ok by reason, most frequent first."""
    good: Estimate | None
    """Good share of all requests; None: no bounds for goodput were given."""
    offered_per_s: float
    completed_per_s: float
    good_per_s: float | None
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    asked: int = 0
    """Requests that asked for an answer: without the client's own errors and refusals of a tenant over its own
    limit."""
    missed: int = 0
    """Requests among `asked` that were refused, failed or were cut off."""
    figures: dict[str, Spread] = field(default_factory=dict)
    """Figures of the served; only figures that any request has."""
    arrivals: dict[str, dict[float, float]] = field(default_factory=dict)
    """Percentiles over all arrivals; inf: it falls on a request that got no answer."""

    @property
    def availability(self) -> float | None:
        """Answered share of `asked`; None: no request asked."""
        return (self.asked - self.missed) / self.asked if self.asked else None


OF_ARRIVALS = ("ttft", "tpot", "max_gap", "e2e")


def summarise(results: Results, seed: int = 0) -> dict[str, LaneSummary]:
    """Summaries by lane, in the order of `results.lanes`; under "" all lanes together. `seed`: of the bootstrap."""
    rng = np.random.default_rng(seed)
    lanes = {lane: _lane(results, lane, rng) for lane in results.lanes}
    return {**lanes, "": _lane(results, None, rng)}


def _lane(results: Results, lane: str | None, rng: np.random.Generator) -> LaneSummary:
    mine = results.of_lane(lane)
    kind, why = results.kind[mine], results.why[mine]
    counts = {name: int((kind == index).sum()) for index, name in enumerate(KINDS)}
    reasons = {
        results.reasons[index]: count
        for index, count in enumerate(np.bincount(why[kind != 0], minlength=len(results.reasons)).tolist())
        if count
    }
    refused = {results.reasons[i]: int(n) for i, n in enumerate(np.bincount(why[kind == 1])) if n}
    requests, completed = int(mine.sum()), counts["ok"]
    duration = max(results.duration_s, 1e-9)
    good = results.good[mine] if results.goodput else None
    outputs = int(results.output_tokens[mine & results.ok].sum())
    turned_away = int((arrivals.missed(results) & mine).sum())
    over_all = {figure: _over_all(results, figure, lane) for figure in OF_ARRIVALS}
    return LaneSummary(
        lane=lane or "",
        requests=requests,
        completed=completed,
        refused=counts["refused"],
        refused_429=sum(n for reason, n in refused.items() if reason.startswith("429")),
        refused_503=sum(n for reason, n in refused.items() if reason.startswith("503")),
        failed=counts["failed"] + counts["client"],
        unfinished=reasons.get(CUT_OFF, 0),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        good=None if good is None else statistics.share(good, rng),
        offered_per_s=requests / max(_offered_s(results), 1e-9),
        completed_per_s=completed / duration,
        good_per_s=None if good is None else float(good.sum()) / duration,
        prompt_tokens=int(results.prompt_tokens[mine & results.ok].sum()),
        output_tokens=outputs,
        output_tokens_per_s=outputs / duration,
        asked=completed + turned_away,
        missed=turned_away,
        arrivals={figure: levels for figure, levels in over_all.items() if levels},
        figures={name: spread for name in FIGURES if (spread := _spread(results, name, lane, rng)) is not None},
    )


def _offered_s(results: Results) -> float:
    """Seconds from the first arrival to the last, and one mean gap more."""
    n = len(results)
    return 0.0 if n < 2 else float(results.at_s[-1] - results.at_s[0]) * n / (n - 1)


def _spread(results: Results, figure: str, lane: str | None, rng: np.random.Generator) -> Spread | None:
    values = results.values(figure, lane)
    if not len(values):
        return None
    estimates = statistics.estimate(values, LEVELS, rng)
    levels = dict(zip(LEVELS, estimates, strict=True))
    return Spread(len(values), float(values.mean()), float(values.std()), levels)


def _over_all(results: Results, figure: str, lane: str | None) -> dict[float, float]:
    served, missed = arrivals.arrivals(results, figure, lane)
    if not len(served) and missed <= 0:
        return {}
    return {level: arrivals.quantile(served, missed, level) for level in LEVELS}


def kept(summary: LaneSummary, target: Target) -> bool | None:
    """Whether a promised percentile was kept, over all arrivals; None: there are no values to tell by."""
    levels = summary.arrivals.get(target.figure)
    if levels is None:
        spread = summary.figures.get(target.figure)  # queue: known only for the served
        levels = {} if spread is None else {level: found.value for level, found in spread.levels.items()}
    if target.level is None or target.level not in levels:
        return None
    return levels[target.level] <= target.within_s
