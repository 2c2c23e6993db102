"""Judges SLO percentiles over all arrivals: refused and failed requests count as missed. The percentile over the served
requests is given beside it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import UsageError
from headgate.policy.promises.promise import promises
from headgate.report.arrivals import arrivals, missed
from headgate.report.results import Floats, Results, Target
from headgate.report.words import figure_name, level_name, ms

FIGURES = ("ttft", "tpot", "gap", "max_gap", "e2e", "queue")
HOW = "an SLO is LANE:FIGURE:PERCENTILE:SECONDS, such as fast:ttft:p99:0.5; figures are " + ", ".join(FIGURES)


@dataclass(frozen=True, slots=True)
class Judged:
    target: Target
    value_s: float | None
    """The percentile in seconds; inf: it falls on a refused or failed request. None: no request came."""
    count: int
    """Requests that the percentile is taken over."""
    turned_away: int
    """Requests among them that were refused or failed."""
    served_s: float | None = None
    """The percentile over the served requests, in seconds; None: none was served."""

    @property
    def kept(self) -> bool:
        return self.value_s is None or self.value_s <= self.target.within_s

    @property
    def use(self) -> float:
        """The value as a share of the target; above 1 the SLO is missed."""
        return 0.0 if self.value_s is None else self.value_s / self.target.within_s

    @property
    def words(self) -> str:
        if self.value_s is None:
            return "of nobody"
        return "a refusal" if self.value_s == inf else f"{ms(self.value_s)} ms"

    def __str__(self) -> str:
        served = "" if not self.turned_away or self.served_s is None else f" ({ms(self.served_s)} ms over the served)"
        return f"{name(self.target)} is {self.words}{served}, promised {ms(self.target.within_s)} ms"


def name(target: Target) -> str:
    level = "" if target.level is None else f" {level_name(target.level)}"
    return f"{target.lane or 'all lanes'} {figure_name(target.figure)}{level}"


def parse(texts: Iterable[str], config: GatewayConfig) -> tuple[Target, ...]:
    """Parses SLOs. Raises StartupError, one line, for a malformed one. The lane `*` means all lanes together."""
    known = [lane.name for lane in config.lanes]
    found = []
    for text in texts:
        parts = re.fullmatch(r"([\w*-]+):([a-z_0-9]+):p(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)s?", text.strip())
        if parts is None:
            raise UsageError(f"{text!r}: {HOW}")
        lane, figure, level, within_s = parts[1], parts[2], float(parts[3]) / 100, float(parts[4])
        if lane != "*" and lane not in known:
            raise UsageError(f"{text!r}: no lane {lane!r}; there are {', '.join(known)}, and * for all")
        if figure not in FIGURES or not 0 < level < 1 or within_s <= 0:
            raise UsageError(f"{text!r}: {HOW}")
        found.append(Target(figure, within_s, None if lane == "*" else lane, level))
    return tuple(found)


def promised(config: GatewayConfig) -> tuple[Target, ...]:
    """Returns the targets that the config promises its lanes."""
    return tuple(
        Target(
            promise.figure,
            promise.within_s,
            lane.name,
            promise.percentile / 100,
            lane.e2e_p99_tokens if promise.of == "e2e_short" else None,
        )
        for lane in config.lanes
        for promise in promises(lane)
        if promise.figure in FIGURES
    )


def judge(results: Results, target: Target, since_s: float = 0.0) -> Judged:
    """Judges the percentile over all arrivals in the target's lane, from `since_s` on. A request without the figure
    (such as the time between the tokens of a single one) does not count, nor does one that failed by its client's
    fault; one over its tenant's own limits counts as missed."""
    if target.figure == "gap":
        return _judge_gaps(results, target, since_s)
    served, missing = arrivals(
        results, target.figure, target.lane, since_s, own_limits=True, up_to_tokens=target.up_to_tokens
    )
    turned_away = round(missing)
    count = len(served) + turned_away
    if not count:
        return Judged(target, None, 0, 0)
    level = target.level or 1.0
    return Judged(target, _ranked(served, level, count), count, turned_away, _ranked(served, level, len(served)))


def _ranked(served: Floats, level: float, count: int) -> float | None:
    """Returns the percentile over `count` requests, of which only these were served."""
    rank = max(1, ceil(level * count - 1e-9))
    if rank > len(served):
        return inf if count > len(served) else None
    return float(np.partition(served, rank - 1)[rank - 1])


def _judge_gaps(results: Results, target: Target, since_s: float) -> Judged:
    """Judges the percentile over all gaps; each refused or failed request counts as missing the average number of gaps
    per answer."""
    mine = results.of_lane(target.lane) & (results.at_s >= since_s)
    turned_away = int((mine & missed(results, own_limits=True)).sum())
    served = int((mine & results.ok & ~np.isnan(results.tpot_s)).sum())
    values, many = results.gaps_of(mine & results.ok)
    total = float(many.sum())
    if not total:
        return Judged(target, inf if turned_away else None, turned_away, turned_away)
    order = np.argsort(values, kind="stable")
    values, upto = values[order], np.cumsum(many[order])
    level = target.level or 1.0

    def ranked(count: float) -> float:
        at = int(np.searchsorted(upto, level * count - 1e-9))
        return inf if at >= len(upto) else float(values[at])

    value = ranked(total + turned_away * total / max(1, served))
    return Judged(target, value, served + turned_away, turned_away, ranked(total))


def judge_all(results: Results, targets: Sequence[Target], since_s: float = 0.0) -> tuple[Judged, ...]:
    return tuple(judge(results, target, since_s) for target in targets)


def worst(judged: Iterable[Judged]) -> Judged | None:
    """Returns the SLO nearest to being missed, or missed by most; None: there are no SLOs."""
    return max(judged, key=lambda one: one.use, default=None)
