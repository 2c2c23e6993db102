"""How many replicas does it take, and what does that cost?

    answer = plan(config, [arrivals], profile, price=2.5)

The fewest replicas with which every percentile is kept, found by simulating: more are never worse, so that their number
is doubled until all is kept, and the gap then halved. Whether a lane is better off with replicas of its own is found
the same way. An SLO that a lone request on an idle replica misses is answered with that: no number of replicas helps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from msgspec.structs import replace

from headgate.model.errors import StartupError
from headgate.model.gateway_config import GatewayConfig
from headgate.policy.profile import Profile, Shape
from headgate.report.results import Results, Target
from headgate.report.words import count, ms, percent
from headgate.sim.curve import OPERATING, Curve, curve, faster, offered, span_s
from headgate.sim.fleet import Failure
from headgate.sim.intake import Intake
from headgate.sim.run import Level
from headgate.sim.slo import Judged, judge, name, promised, worst
from headgate.sim.trial import Case, Say, Split, Trials, Workload
from headgate.workload.arrival import Arrival

MOST_ALONE = 1000
"""Requests of each lane that are tried alone."""
LOST_AT = 1 / 3
"""When a replica is lost, as a share of the workload."""


@dataclass(frozen=True, slots=True)
class Little:
    """L = λ·W, each counted by itself."""

    l: float  # noqa: E741
    """Requests in the system, on average over time."""
    lambda_: float
    """Arrivals a second."""
    w: float
    """Seconds that a request is there, on average."""

    @property
    def residual(self) -> float:
        return (self.l - self.lambda_ * self.w) / self.l if self.l else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profile: str
    split: Split
    """The fewest replicas, and whether a lane has some of its own."""
    other: Split | None
    """The best the other way: a lane of its own where all share, or the reverse; None: there is none."""
    case: Case
    tokens_per_s: float
    """Prompt and output, of what was answered."""
    price: float | None
    """Of a replica for an hour."""
    curve: Curve
    little: Little
    twice: Case
    """The same replicas, and twice the traffic."""
    twice_split: Split | None
    """What twice the traffic takes; None: no number was found."""
    lost: Case | None
    """One replica gone a third of the way, and what came from then on; None: there was only one."""
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        return self.split.replicas

    @property
    def comfortable(self) -> int:
        """Replicas with which the load is in the middle of where a fleet should be run, if that is more."""
        return max(self.replicas, ceil(self.replicas * self.curve.now / (sum(OPERATING) / 2) - 1e-9))

    @property
    def cost_per_hour(self) -> float | None:
        return None if self.price is None else self.price * self.replicas

    @property
    def cost_per_1000_tokens(self) -> float | None:
        per_hour = self.cost_per_hour
        return None if per_hour is None or not self.tokens_per_s else per_hour / (self.tokens_per_s * 3.6)


@dataclass(frozen=True, slots=True)
class Impossible:
    """No number of replicas keeps this, and why."""

    judged: Judged
    why: str

    def __str__(self) -> str:
        return f"no number of replicas keeps {name(self.judged.target)} within {ms(self.judged.target.within_s)} ms: {self.why}"


def plan(
    config: GatewayConfig,
    workloads: Sequence[Workload],
    profile: Profile,
    *,
    slos: Sequence[Target] = (),
    price: float | None = None,
    slots: int | None = None,
    level: Level = "gateway",
    say: Say = lambda text: None,
) -> Plan | Impossible:
    """All of the workloads must be kept; more than one, where they are drawn by chance. `slos` empty: what the config
    promises its lanes. `slots`: requests that a replica is given at once."""
    if not workloads or min(len(workload) for workload in workloads) < 2:
        raise StartupError("there is nothing to plan for: the workload has fewer than two requests")
    lanes = [_lane_of(config, workload) for workload in workloads]
    present = list(dict.fromkeys(lane for found in lanes for lane in found))
    targets = tuple(one for one in (slos or promised(config)) if one.lane is None or one.lane in present)
    if not targets:
        raise StartupError(f"no SLO is about a lane of the workload, which has {', '.join(present)}")
    trials = Trials(config, profile, slots, level, say)
    impossible = _alone(trials, workloads[0], lanes[0], targets)
    if impossible is not None:
        return impossible
    guess = ceil(offered(workloads[0], profile))
    shared = trials.fewest(workloads, targets, guess, "all lanes")
    own_lane = _longest_lane(workloads[0], lanes[0])
    split = _with_own(trials, workloads, lanes, own_lane, targets, guess) if own_lane else None
    if isinstance(shared, Case):
        if split is None:
            return Impossible(*_whatever(shared))
        best, other = split, None
    elif split is not None and split.replicas < shared:
        best, other = split, Split(shared)
    else:
        best, other = Split(shared), split
    return _answer(trials, workloads, lanes, targets, best, other, price)
