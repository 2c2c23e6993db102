"""Plans the number of replicas for a workload, and their cost.

    answer = plan(config, [arrivals], profile, price=2.5)

The answer is where a fleet should be run: enough replicas that the load is 65 % of their capacity, which is measured,
and never fewer than keep every percentile. The fewest that do are reported too, found by simulating: more replicas are
no worse, so their number is doubled until all SLOs are kept, and the gap then halved. The fewest are on the edge: their
number depends on the slowest few requests that were drawn. Whether a lane is better off with replicas of its own is
found the same way. An SLO that a lone request on an idle replica misses is reported as such: no number of replicas
helps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile
from headgate.model.errors import UsageError
from headgate.report.results import KINDS, Results, Target
from headgate.report.words import count
from headgate.sim.fleet import Failure
from headgate.sim.intake import SimIntake
from headgate.sim.planning.curve import LOADS, OPERATING, Curve, capacity, curve, faster, offered, span_s
from headgate.sim.planning.impossible import Impossible, alone, whatever
from headgate.sim.planning.trial import ReplicaSplit, Say, Trial, Trials, Workload
from headgate.sim.run import Level
from headgate.sim.slo import Judged, name, promised

LOST_AT = 1 / 3
"""When a replica is lost, as a share of the workload's time."""
LEAST_IN_LANE = 20
"""Minimum requests of a lane that may get replicas of its own."""
WORTH = 0.9
"""A lane gets replicas of its own only if the fleet is then at most this share of the shared one."""
MOST_MORE = 4
"""Shared replicas that may be added if the two parts together miss an SLO that each keeps by itself."""


@dataclass(frozen=True, slots=True)
class PlanLittle:
    """Little's law, L = λ·W, each of the three counted by itself."""

    l: float  # noqa: E741
    """Requests in the system, on average over time."""
    lambda_: float
    """Arrivals per second."""
    w: float
    """Seconds that a request is in the system, on average."""

    @property
    def residual(self) -> float:
        return (self.l - self.lambda_ * self.w) / self.l if self.l else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profile: str
    split: ReplicaSplit
    """The answer: the number of replicas, and whether a lane has some of its own."""
    least: ReplicaSplit
    """The fewest replicas that keep every SLO."""
    other: ReplicaSplit | None
    """The fewest replicas of the other kind: with a lane of its own if `least` is shared by all, or the reverse; None:
    there is none."""
    case: Trial
    """The run with the answer's replicas."""
    tokens_per_s: float
    """Prompt and output tokens per second, over the answered requests."""
    price: float | None
    """Price of a replica per hour; None: unknown."""
    curve: Curve
    little: PlanLittle
    twice: Trial
    """The run with the same replicas and twice the traffic."""
    twice_split: ReplicaSplit | None
    """The replicas that twice the traffic takes, found in the same way; None: no number was found."""
    lost: Trial | None
    """The run in which one replica dies after a third of the time, judged over the arrivals from then on; None: there
    is only one replica."""
    least_lost: Trial | None
    """The same with the fewest replicas; None: that is one."""
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        return self.split.replicas

    @property
    def cost_per_hour(self) -> float | None:
        return None if self.price is None else self.price * self.replicas

    @property
    def cost_per_1000_tokens(self) -> float | None:
        per_hour = self.cost_per_hour
        return None if per_hour is None or not self.tokens_per_s else per_hour / (self.tokens_per_s * 3.6)


def plan(
    config: GatewayConfig,
    workloads: Sequence[Workload],
    profile: Profile,
    *,
    slos: Sequence[Target] = (),
    price: float | None = None,
    slots: int | None = None,
    level: Level = "gateway",
    loads: Sequence[float] = LOADS,
    say: Say = lambda text: None,
    usual: Workload | None = None,
) -> Plan | Impossible:
    """Returns a plan that keeps the SLOs in all workloads; give more than one if they are drawn by chance. `slos`
    empty: the targets that the config promises its lanes. `slots`: requests that a replica is given at once; None: the
    profile's. `loads`: the points of the curve. `usual`: the workload that the load is measured by; None: the first
    workload."""
    if not workloads or min(len(workload) for workload in workloads) < 2:
        raise UsageError("there is nothing to plan for: the workload has fewer than two requests")
    lanes = [_lane_of(config, workload) for workload in workloads]
    present = list(dict.fromkeys(lane for found in lanes for lane in found))
    targets = tuple(one for one in (slos or promised(config)) if one.lane is None or one.lane in present)
    if not targets:
        raise UsageError(f"no SLO is about a lane of the workload, which has {', '.join(present)}")
    trials = Trials(config, profile, slots, level, say)
    impossible = alone(trials, workloads[0], lanes[0], targets)
    if impossible is not None:
        return impossible
    guess = ceil(offered(workloads[0], profile))
    shared = trials.fewest(workloads, targets, guess, "all lanes")
    own_lane = _longest_lane(workloads[0], lanes[0])
    split = _with_own(trials, workloads, lanes, own_lane, targets, guess) if own_lane else None
    if isinstance(shared, Trial):
        if split is None:
            return whatever(shared)
        best, other = split, None
    elif split is not None and split.replicas <= WORTH * shared:
        best, other = split, ReplicaSplit(shared)
    else:
        best, other = ReplicaSplit(shared), split
    each, load = _each(trials, usual or workloads[0]), offered(usual or workloads[0], profile)
    split = _operating(trials, workloads, targets, best, load / each, "the operating point")
    twice = [faster(one, 2.0, most=len(one)) for one in workloads]
    twice_split = _operating(trials, twice, targets, split, 2 * load / each, "twice the traffic")
    return _answer(trials, workloads, twice, targets, (split, best, other, twice_split), price, loads)


# -- where to run it ----------------------------------------------------------------------------------------


def _each(trials: Trials, workload: Workload) -> float:
    """Returns the seconds of work that one replica completes per second."""
    trials.say("what a replica can do")
    many = max(1, ceil(offered(workload, trials.profile)))
    fleet = trials.fleet(ReplicaSplit(many))
    return max(1e-9, capacity(trials.config, workload, trials.profile, fleet, trials.level, 1) / many)


def _operating(
    trials: Trials,
    workloads: Sequence[Workload],
    targets: Sequence[Target],
    least: ReplicaSplit,
    busy: float,
    about: str,
) -> ReplicaSplit:
    """Returns replicas for a load that fills `busy` of them, at 65 % each and no part smaller than in `least`. The
    result is tried, and replicas are added while it misses an SLO."""
    many = max(least.replicas, ceil(busy / (sum(OPERATING) / 2) - 1e-9))
    own = least.own * many // least.replicas
    split = least
    for more in range(MOST_MORE * 2):
        split = ReplicaSplit(max(least.shared, many - own) + more * max(1, many // 8), least.lane, own)
        if trials.worst(workloads, split, targets, about).kept:
            break
    return split


# -- one lane by itself -------------------------------------------------------------------------------------


def _lane_of(config: GatewayConfig, workload: Workload) -> list[str]:
    """Returns the lane of each arrival, before the intake has learned the usual length of answers."""
    intake = SimIntake(config)
    return [intake.request(arrival, 0, 0.0)[0].lane for arrival in workload]


def _longest_lane(workload: Workload, lanes: list[str]) -> str:
    """Returns the lane with by far the longest prompts, which might be better off by itself; empty: none."""
    prompts: dict[str, list[int]] = {}
    for arrival, lane in zip(workload, lanes, strict=True):
        prompts.setdefault(lane, []).append(arrival.prompt_tokens)
    means = {lane: sum(found) / len(found) for lane, found in prompts.items() if len(found) >= LEAST_IN_LANE}
    if len(means) < 2:
        return ""
    *_, second, first = sorted(means, key=lambda lane: means[lane])
    return first if means[first] >= 2 * means[second] else ""


def _with_own(
    trials: Trials,
    workloads: Sequence[Workload],
    lanes: Sequence[list[str]],
    lane: str,
    targets: Sequence[Target],
    guess: int,
    about: str = "",
) -> ReplicaSplit | None:
    """Returns the fewest replicas with some for this lane alone. The two parts do not affect each other, so each is
    searched by itself; then both are tried together. None: the SLOs can't be kept that way."""
    found = []
    for mine in (True, False):
        parts = [
            [arrival for arrival, of in zip(workload, lane_of, strict=True) if (of == lane) is mine]
            for workload, lane_of in zip(workloads, lanes, strict=True)
        ]
        asked = [target for target in targets if target.lane is None or (target.lane == lane) is mine]
        fewest = trials.fewest(parts, asked, 1 if mine else guess, f"{about}{'only' if mine else 'without'} {lane}")
        if isinstance(fewest, Trial):
            return None
        found.append(fewest)
    for more in range(MOST_MORE):
        split = ReplicaSplit(found[1] + more, lane, found[0])
        if trials.worst(workloads, split, targets, f"{about}together").kept:
            return split
    return None


# -- the answer ---------------------------------------------------------------------------------------------


def _answer(
    trials: Trials,
    workloads: Sequence[Workload],
    twice: Sequence[Workload],
    targets: Sequence[Target],
    found: tuple[ReplicaSplit, ReplicaSplit, ReplicaSplit | None, ReplicaSplit],
    price: float | None,
    loads: Sequence[float],
) -> Plan:
    workload, say = workloads[0], trials.say
    best, least, other, twice_split = found
    case = trials.worst(workloads, best, targets, "the operating point")
    results = case.simulated.results
    tokens = int((results.prompt_tokens + results.output_tokens)[results.ok].sum())
    say("the latency curve")
    drawn = curve(trials.config, workload, trials.profile, trials.fleet(best), trials.level, loads=loads)
    enough = trials.worst(twice, twice_split, targets, "twice the traffic").kept
    lost = _lost(trials, workloads, best, targets)
    return Plan(
        profile=trials.profile.name,
        split=best,
        least=least,
        other=other,
        case=case,
        tokens_per_s=tokens / span_s(workload),
        price=price,
        curve=drawn,
        little=_little(case),
        twice=trials.case(twice[0], best, targets, 1),
        twice_split=twice_split if enough else None,
        lost=lost,
        least_lost=lost if least == best else _lost(trials, workloads, least, targets),
        notes=tuple(_notes(results, case.judged)),
    )


def _lost(
    trials: Trials, workloads: Sequence[Workload], split: ReplicaSplit, targets: Sequence[Target]
) -> Trial | None:
    """The worst run in which one of these replicas dies, of the draws up to the first that misses an SLO; where a lane
    has replicas of its own, one of each kind dies in turn. None: there is only one replica."""
    if split.replicas < 2:
        return None
    trials.say(f"one of {split} lost")
    # Replicas of a lane's own come first; see Trials.fleet.
    kinds = (0, split.own) if split.own else (0,)
    worst: Trial | None = None
    for number, workload in enumerate(workloads):
        at_s = workload[0].at_s + LOST_AT * span_s(workload)
        for lost in kinds:
            case = trials.case(workload, split, targets, number + 1, (Failure(lost, at_s),), at_s)
            if worst is None or case.strain > worst.strain:
                worst = case
        if worst is not None and not worst.kept:
            break
    return worst


def _little(case: Trial) -> PlanLittle:
    simulated = case.simulated
    results, span = simulated.results, max(simulated.span_s, 1e-9)
    return PlanLittle(simulated.present_s / span, len(results) / span, float(results.e2e_s.mean()))


def _notes(results: Results, judged: Sequence[Judged]) -> list[str]:
    """Returns what a reader must know before believing the answer."""
    notes = []
    too_long = int((results.kind == KINDS.index("client")).sum())
    if too_long:
        notes.append(f"{count(too_long)} requests do not fit the replicas' context, and were left out")
    for one in judged:
        beyond = one.count * (1 - (one.target.level or 1.0))
        if one.count > 0 and beyond < 1:
            notes.append(f"{name(one.target)} is of {count(one.count)} requests only: it is the slowest of them")
    return notes
