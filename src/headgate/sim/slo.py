"""Was a percentile kept? By all who came: whoever was refused or failed did not get its answer in time either."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from headgate.model.errors import StartupError
from headgate.model.gateway_config import GatewayConfig
from headgate.policy.promise import promises
from headgate.report.results import KINDS, Results, Target
from headgate.report.words import figure_name, level_name, ms

FIGURES = ("ttft", "tpot", "gap", "max_gap", "e2e", "queue")
TURNED_AWAY = [KINDS.index("refused"), KINDS.index("failed")]
HOW = "an SLO is LANE:FIGURE:PERCENTILE:SECONDS, such as fast:ttft:p99:0.5; figures are " + ", ".join(FIGURES)


@dataclass(frozen=True, slots=True)
class Judged:
    target: Target
    value_s: float | None
    """The percentile; inf: so many were refused or failed that it is not of anybody's answer. None: nobody came."""
    count: int
    """Requests that it is of."""
    turned_away: int
    """Of those, refused or failed."""

    @property
    def kept(self) -> bool:
        return self.value_s is None or self.value_s <= self.target.within_s

    @property
    def use(self) -> float:
        """How much of what is allowed it takes; above 1 it is missed."""
        return 0.0 if self.value_s is None else self.value_s / self.target.within_s

    @property
    def words(self) -> str:
        if self.value_s is None:
            return "of nobody"
        return "a refusal" if self.value_s == inf else f"{ms(self.value_s)} ms"

    def __str__(self) -> str:
        return f"{name(self.target)} is {self.words}, promised {ms(self.target.within_s)} ms"


def name(target: Target) -> str:
    level = "" if target.level is None else f" {level_name(target.level)}"
    return f"{target.lane or 'all lanes'} {figure_name(target.figure)}{level}"


def parse(texts: Iterable[str], config: GatewayConfig) -> tuple[Target, ...]:
    """Raises StartupError, with what is wrong in one line. A lane `*` is all of them together."""
    known = [lane.name for lane in config.lanes]
    found = []
    for text in texts:
        parts = re.fullmatch(r"([\w*-]+):([a-z_0-9]+):p(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)s?", text.strip())
        if parts is None:
            raise StartupError(f"{text!r}: {HOW}")
        lane, figure, level, within_s = parts[1], parts[2], float(parts[3]) / 100, float(parts[4])
        if lane != "*" and lane not in known:
            raise StartupError(f"{text!r}: no lane {lane!r}; there are {', '.join(known)}, and * for all")
        if figure not in FIGURES or not 0 < level < 1 or within_s <= 0:
            raise StartupError(f"{text!r}: {HOW}")
        found.append(Target(figure, within_s, None if lane == "*" else lane, level))
    return tuple(found)


def promised(config: GatewayConfig) -> tuple[Target, ...]:
    """What the config promises its lanes."""
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
    """The percentile over all that came in its lane, from `since_s` on. What a request does not have, such as the time
    between the tokens of a single one, is not asked of it; whoever got nothing by its own fault does not count."""
    mine = results.of_lane(target.lane) & (results.at_s >= since_s)
    if target.up_to_tokens is not None:
        mine &= results.output_tokens <= target.up_to_tokens
    if target.figure == "gap":
        return _judge_gaps(results, target, mine)
    column = results.figure(target.figure)
    served = column[mine & results.ok & ~np.isnan(column)]
    turned_away = int(
        (mine & ((results.kind == KINDS.index("refused")) | (results.kind == KINDS.index("failed")))).sum()
    )
    count = len(served) + turned_away
    if not count:
        return Judged(target, None, 0, 0)
    rank = max(1, ceil((target.level or 1.0) * count - 1e-9))
    value = inf if rank > len(served) else float(np.partition(served, rank - 1)[rank - 1])
    return Judged(target, value, count, turned_away)


def _judge_gaps(results: Results, target: Target, mine: NDArray[np.bool_]) -> Judged:
    """The percentile over all gaps; whoever was refused or failed missed as many as an answer has on the average."""
    away = (results.kind == KINDS.index("refused")) | (results.kind == KINDS.index("failed"))
    turned_away, served = int((mine & away).sum()), int((mine & results.ok & ~np.isnan(results.tpot_s)).sum())
    values, many = results.gaps_of(mine & results.ok)
    total = float(many.sum())
    if not total:
        return Judged(target, inf if turned_away else None, turned_away, turned_away)
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(many[order])
    rank = (target.level or 1.0) * (total + turned_away * total / max(1, served))
    at = int(np.searchsorted(upto, rank - 1e-9))
    value = inf if at >= len(upto) else float(values[order[at]])
    return Judged(target, value, served + turned_away, turned_away)


def judge_all(results: Results, targets: Sequence[Target], since_s: float = 0.0) -> tuple[Judged, ...]:
    return tuple(judge(results, target, since_s) for target in targets)


def worst(judged: Iterable[Judged]) -> Judged | None:
    """Whatever is nearest to being missed, or furthest beyond; None: nothing was promised."""
    return max(judged, key=lambda one: one.use, default=None)
