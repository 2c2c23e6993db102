"""Says in one sentence what a simulation or a plan found."""

from collections.abc import Sequence

from headgate.report.first import answered
from headgate.report.results import Results
from headgate.report.summary import LaneSummary
from headgate.report.words import ms, percent, rate
from headgate.sim.planning.plan import Plan
from headgate.sim.planning.trial import Trial
from headgate.sim.slo import Judged, judge_all, name, worst


def simulated(results: Results, summaries: dict[str, LaneSummary]) -> str:
    """Whether every promise was kept, and which was nearest to its bound or missed by most."""
    judged = [one for one in judge_all(results, results.promises) if one.value_s is not None]
    near = worst(judged)
    if near is None or not summaries[""].completed:
        return answered(results, summaries)
    whole = summaries[""]
    load = f"at {rate(whole.offered_per_s)} requests/s"
    share = whole.availability
    away = "" if share in (None, 1.0) else f"; {percent(share or 0.0)} are answered"
    missed = [one for one in judged if not one.kept]
    if not missed:
        kept = "The only promise is" if len(judged) == 1 else f"All {len(judged)} promises are"
        return f"{kept} kept {load}; nearest to its bound is {_of(near)}{away}."
    verb = "is" if len(missed) == 1 else "are"
    return f"{len(missed)} of {len(judged)} promises {verb} missed {load}, by most {_of(near)}{away}."


def planned(plan: Plan) -> str:
    """How many replicas to buy, the minimum, and what losing one of each breaks."""
    many, least = plan.replicas, plan.least.replicas
    said = f"Buy {many}" + (f", at least {least}" if least < many else ", the fewest that keep every promise")
    if plan.cost_per_hour is not None:
        said += f", for {plan.cost_per_hour:.2f} an hour"
    losses = [_lost(many, plan.lost)]
    if least < many:
        losses.append(_lost(least, plan.least_lost))
    return f"{said}; {', '.join(losses)}."


def _lost(many: int, case: Trial | None) -> str:
    if case is None:
        return "losing the only one stops everything"
    if case.kept:
        return f"losing one of {many} breaks nothing"
    missed = sorted(case.missed, key=lambda one: -one.use)
    more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
    return f"losing one of {many} breaks {name(missed[0].target)}{more}"


def _of(one: Judged) -> str:
    return f"{name(one.target)}, {one.words}, promised {ms(one.target.within_s)} ms"


def compared(sentences: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each run: its title and its sentence."""
    return [sentence if len(sentences) == 1 else f"{title}: {sentence}" for title, sentence in sentences]
