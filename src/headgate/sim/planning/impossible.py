"""Finds the SLO that no number of replicas can keep, and the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
from msgspec.structs import replace

from headgate.machine.profile import Profile
from headgate.machine.step_features import StepFeatures
from headgate.report.results import Results, Target
from headgate.report.words import count, ms, percent
from headgate.sim.planning.trial import ReplicaSplit, Trial, Trials, Workload
from headgate.sim.slo import Judged, name, worst
from headgate.workload.arrival import Arrival

MOST_ALONE = 1000
"""Maximum requests of each lane that are tried alone."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """An SLO that no number of replicas keeps, and the reason."""

    judged: Judged
    why: str

    def __str__(self) -> str:
        target = self.judged.target
        return f"no number of replicas keeps {name(target)} within {ms(target.within_s)} ms: {self.why}"


def alone(trials: Trials, workload: Workload, lanes: list[str], targets: Sequence[Target]) -> Impossible | None:
    """Returns the worst SLO missed by requests that have a replica for themselves; None: all are kept."""
    chosen: list[Arrival] = []
    for lane in dict.fromkeys(lanes):
        mine = [arrival for arrival, of in zip(workload, lanes, strict=True) if of == lane]
        chosen += mine[:: ceil(len(mine) / MOST_ALONE)]
    chosen.sort(key=lambda arrival: arrival.at_s)
    apart, at_s = [], 0.0
    for arrival in chosen:
        apart.append(replace(arrival, at_s=at_s))
        at_s += 1.5 * _alone_s(arrival, trials.profile) + 1.0
    case = trials.case(apart, ReplicaSplit(1), targets, seed=1)
    if case.kept:
        return None
    missed = worst(case.missed)
    assert missed is not None
    return Impossible(missed, _why_alone(case.simulated.results, missed, trials.profile))


def _alone_s(arrival: Arrival, profile: Profile) -> float:
    """Returns about how many seconds a request takes on an idle replica."""
    prompt, steps = arrival.prompt_tokens, ceil(arrival.prompt_tokens / profile.chunk_limit)
    prefill = steps * profile.cost.fixed + profile.step_s(StepFeatures(prefill=prompt, pairs=prompt * prompt))
    return prefill + profile.steps_s(StepFeatures(decodes=1, context=prompt + 1), arrival.output_tokens)


def _why_alone(results: Results, missed: Judged, profile: Profile) -> str:
    target, value = missed.target, missed.value_s
    assert value is not None
    if not isfinite(value):
        return f"{_reasons(results, target)}, even of requests that come one at a time"
    column = np.where(results.of_lane(target.lane) & results.ok, results.figure(target.figure), np.nan)
    at = int(np.nanargmin(np.abs(column - value)))
    prompt, output = int(results.prompt_tokens[at]), int(results.output_tokens[at])
    said = f"even alone on an idle {profile.name} it is {ms(value)} ms"
    if target.figure == "ttft":
        return f"{said}, which is what a prompt of {count(prompt)} tokens takes; shorter ones or a faster replica would"
    if target.figure in ("tpot", "gap", "max_gap"):
        return f"{said}, which is how long a step takes with one sequence; only a faster replica would"
    first = ms(float(results.ttft_s[at]))
    return f"{said}: {first} ms, then {count(output)} tokens one by one; shorter answers or a faster replica would"


def whatever(case: Trial) -> Impossible:
    """Returns the worst SLO of a trial that is missed with every number of replicas that was tried."""
    missed = worst(case.missed)
    assert missed is not None
    why = "and it was no better with half as many"
    if missed.turned_away:
        why = _reasons(case.simulated.results, missed.target)
    return Impossible(missed, f"with {case.replicas} replicas it is still {missed.words}, {why}")


def _reasons(results: Results, target: Target) -> str:
    mine = results.of_lane(target.lane)
    away = results.why[mine & ~results.ok]
    if not len(away):
        return "nobody is turned away"
    most = results.reasons[int(np.bincount(away).argmax())]
    return f"{percent(len(away) / max(1, int(mine.sum())))} are turned away, mostly with {most}"
