"""Compares the same day with and without forecast and warm pool, and with an oracle's foresight."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.scale import Scaler
from headgate.report.results import Results, Target
from headgate.sim.fleet import SimGroup
from headgate.sim.run import Level
from headgate.sim.scaling.autoscale import MONDAY, Outcomes, Scaled, autoscale
from headgate.sim.scaling.oracle import oracle
from headgate.sim.slo import judge, judge_all
from headgate.workload.arrival import Arrival

HOUR_S = 3600.0
NEITHER, FORECAST, WARM, BOTH, ORACLE = "neither", "forecast", "warm pool", "both", "oracle"
VARIANTS = (NEITHER, FORECAST, WARM, BOTH)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings that all variants share."""

    config: GatewayConfig
    scale: ScaleConfig
    """The scale settings with both forecast and warm pool."""
    member: SimGroup
    arrivals: Callable[[], Iterable[Arrival]]
    targets: tuple[Target, ...]
    """The SLOs that must be kept over the whole day."""
    history: dict[str, object] | None = None
    """What the forecast knows at first; None: nothing."""
    at_first: int | None = None
    """Replicas that serve from the beginning; None: the config's minimum."""
    seed: int = 0
    level: Level = "gateway"
    wall_s: float = MONDAY

    def kept(self, outcomes: Outcomes) -> bool:
        return all(one.kept for one in judge_all(outcomes.simulated.results, self.targets))

    def varied(self, variant: str) -> ScaleConfig:
        scale = self.scale
        if variant in (NEITHER, FORECAST):
            scale = replace(scale, warm=0)
        return replace(scale, forecast=False) if variant in (NEITHER, WARM) else scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledDay:
    name: str
    outcomes: Outcomes
    kept: bool
    p99_s: float
    """TTFT p99 over all arrivals, in seconds; inf: more than 1 % were refused or failed."""
    turned_away: float
    hours_missed: int
    """Hours of the day in which the p99 exceeded its target."""
    by_hour: tuple[float, ...]

    @property
    def replica_hours(self) -> float:
        return self.outcomes.replica_hours


def one(setting: Setting, variant: str) -> ScaledDay:
    scale = setting.varied(variant)
    forecast = None
    if scale.forecast:
        quantile = scale.forecast_quantile
        known = setting.history
        forecast = Forecast(quantile) if known is None else Forecast.from_dict(known, quantile)
    first = scale.least if setting.at_first is None else setting.at_first
    scaled = Scaled(
        member=setting.member,
        scaler=Scaler(scale, forecast),
        at_first=min(max(scale.min, first), scale.max - scale.warm),
        parked_at_first=scale.warm,
        wall_s=setting.wall_s,
    )
    return judged(
        setting,
        variant,
        autoscale(setting.config, setting.arrivals(), scaled, setting.seed, setting.level, title=variant),
    )


def with_foresight(setting: Setting, say: Say = lambda text: None) -> ScaledDay | None:
    """Returns the day with the oracle's schedule; None: no schedule that was tried keeps the SLOs, not even one that
    leaves 60 % of the slots free."""
    found = oracle(
        setting.config,
        setting.arrivals,
        setting.member,
        setting.kept,
        least=setting.scale.least,
        most=setting.scale.max,
        seed=setting.seed,
        wall_s=setting.wall_s,
        say=say,
    )
    return None if found is None else judged(setting, ORACLE, found)


def judged(setting: Setting, name: str, outcomes: Outcomes) -> ScaledDay:
    results = outcomes.simulated.results
    within_s = min((target.within_s for target in setting.targets), default=inf)
    all_day = judge(results, Target("ttft", within_s, None, 0.99))
    by_hour = tuple(hours(results))
    return ScaledDay(
        name=name,
        outcomes=outcomes,
        kept=setting.kept(outcomes),
        p99_s=all_day.value_s or 0.0,
        turned_away=all_day.turned_away / max(1, all_day.count),
        hours_missed=sum(p99 > within_s for p99 in by_hour),
        by_hour=by_hour,
    )


def hours(results: Results, width_s: float = HOUR_S) -> list[float]:
    """Returns the TTFT p99 over the arrivals of each hour, in seconds; inf: too many were refused or failed."""
    count = int(results.at_s.max() // width_s) + 1 if len(results) else 0
    found = []
    for number in range(count):
        mine = (results.at_s >= number * width_s) & (results.at_s < (number + 1) * width_s)
        value = judge(_only(results, mine), Target("ttft", inf, None, 0.99)).value_s
        found.append(value or 0.0)
    return found


def _only(results: Results, mine: object) -> Results:
    columns = ("lane", "kind", "why", "at_s", "ttft_s", "tpot_s", "max_gap_s", "e2e_s", "queue_s", "lag_s",
               "prompt_tokens", "output_tokens")  # fmt: skip
    return replace(results, gaps=(), **{name: getattr(results, name)[mine] for name in columns})
