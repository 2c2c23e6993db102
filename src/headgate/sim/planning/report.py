"""Shows a plan to people, to programs, and as a plot."""

from html import escape
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.model.labels import plain
from headgate.report import svg
from headgate.report.words import count, ms, percent, rate
from headgate.sim.planning.curve import OPERATING, Curve
from headgate.sim.planning.plan import Plan
from headgate.sim.planning.sentence import planned
from headgate.sim.planning.trial import Trial
from headgate.sim.slo import Judged, name

NAMES = ("p50", "p95", "p99")


def render(plan: Plan) -> RenderableType:
    parts: list[RenderableType] = [Text(planned(plan), "bold green")]
    parts += ["", judged_table(plan.case.judged), "", curve_table(plan.curve), ""]
    parts.append(Text.assemble((f"{plan.replicas} × {plan.profile}", "bold"), f"  {how(plan)}"))
    parts += [Text(f"  {line}") for line in sentences(plan)]
    parts += [Text(f"! {note}", style="yellow") for note in plan.notes]
    return Group(*parts)


def how(plan: Plan) -> str:
    """Returns the answer, and the minimum beside it."""
    low, high = OPERATING
    if plan.split == plan.least:
        return f"{plan.split}, the fewest that keep every SLO"
    where = f"to be {percent(low)} to {percent(high)} full"
    return f"{plan.split}, {where}; the fewest that keep every SLO: {plan.least.replicas}"


def sentences(plan: Plan) -> list[str]:
    """Returns the plan's other findings, a line each."""
    said = []
    if plan.other is not None:
        said.append(f"the other way it takes {plan.other.replicas} at least: {plan.other}")
    cost, each = plan.cost_per_hour, plan.cost_per_1000_tokens
    if cost is not None and each is not None:
        said.append(f"costs {cost:.2f} an hour, {each:.6f} per 1{chr(0x202F)}000 tokens")
    said.append(f"load {percent(plan.curve.now)} of the {rate(plan.curve.capacity_per_s)} requests/s that they can do")
    little = plan.little
    said.append(
        f"Little's law: L {little.l:.1f} = λ {little.lambda_:.2f}/s × W {little.w:.2f} s,"
        f" off by {percent(abs(little.residual))}"
    )
    said.append(f"twice the traffic: {_case(plan.twice)}" + _takes(plan))
    if plan.lost is None:
        said.append("one replica lost: nobody is left")
    else:
        said.append(f"one of {plan.replicas} lost: {_case(plan.lost)}")
    if plan.least_lost is not None and plan.least != plan.split:
        said.append(f"one of {plan.least.replicas} lost: {_case(plan.least_lost)}")
    return said


def _takes(plan: Plan) -> str:
    if plan.twice.kept:
        return ""
    if plan.twice_split is None:
        return "; no number of replicas that was tried keeps all"
    return f"; it takes {plan.twice_split.replicas} ({plan.twice_split})"


def _case(case: Trial) -> str:
    away = f", {percent(1 - case.turned_away)} answered" if case.turned_away else ""
    if case.kept:
        return f"all kept{away}"
    missed = "; ".join(str(one) for one in case.missed[:3])
    more = f"; and {len(case.missed) - 3} more" if len(case.missed) > 3 else ""
    return f"missed: {missed}{more}{away}"


def judged_table(judged: tuple[Judged, ...]) -> Table:
    about = "all: over all arrivals, of which a refused or failed one is never in time"
    table = Table(box=None, padding=(0, 1), caption=about, caption_justify="left", caption_style="dim")
    table.add_column("SLO, ms", overflow="fold")
    for heading in ("promised", "all", "served", "requests"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in judged:
        value = "–" if one.value_s is None else "refused" if one.value_s == float("inf") else ms(one.value_s)
        style = "green" if one.kept else "bold red"
        served = "–" if one.served_s is None else ms(one.served_s)
        row = (name(one.target), ms(one.target.within_s), Text(value, style=style), served, count(one.count))
        table.add_row(*row)
    return table


def curve_table(curve: Curve) -> Table:
    about = Text.assemble(("Latency of the served against load, ms", "bold"), "  ← operate here")
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, title=about, title_justify="left", title_style="")
    headings = (
        "load",
        "per s",
        "in\nuse",
        *(f"{figure}\n{level}" for figure in ("TTFT", "e2e") for level in NAMES),
    )
    for heading in (*headings, "turned\naway"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for point in curve.points:
        cells = [percent(point.load), rate(point.requests_per_s), percent(point.use)]
        cells += [ms(value) for value in (*point.ttft_s, *point.e2e_s)]
        cells += [percent(point.turned_away), "←" if point.operating else ""]
        table.add_row(*cells, style="bold" if point.operating else "")
    return table


def plot(curve: Curve) -> str:
    """Plots time to first token against load as inline SVG, with the operating range and the workload's load."""
    if not curve.points:
        return ""
    loads = np.array([point.load * 100 for point in curve.points])
    lines = [np.array([point.ttft_s[index] * 1e3 for point in curve.points]) for index in range(3)]
    low, high = min(float(line.min()) for line in lines), max(float(line.max()) for line in lines)
    drawn = svg.Plot(
        svg.linear(100.0, many=10),
        svg.logarithmic(low, high, lambda value: plain(value, 6)),
        title="Time to first token in ms against load in % of capacity",
    )
    edges, bottom = np.array([100 * OPERATING[0], 100 * OPERATING[1]]), np.array([low])
    drawn.bars(edges, bottom, np.array([high]), "color-mix(in srgb, var(--c2) 18%, transparent)", "operate here")
    for index, line in enumerate(lines):
        drawn.line(loads, line, svg.colour(index), title=NAMES[index])
    if curve.now <= 1:
        drawn.upright(100 * curve.now, "this workload", "var(--warning)")
    legend = svg.legend([(level, svg.colour(index), "") for index, level in enumerate(NAMES)])
    heading = "<h3>Time to first token, ms <small>by load, % of what the fleet can do</small></h3>"
    return f'<div class="panel wide">{heading}{legend}{drawn.svg()}</div>'


def section(plan: Plan) -> str:
    """Returns the answer in HTML, for a page about the run."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in sentences(plan))
    head = f"<b>{plan.replicas} × {escape(plan.profile)}</b>: {escape(how(plan))}"
    return f'<div class="panel wide"><p>{head}.</p><ul>{lines}</ul></div>'


def as_dict(plan: Plan) -> dict[str, Any]:
    return {
        "answer": planned(plan),
        "profile": plan.profile,
        "replicas": plan.replicas,
        "shared": plan.split.shared,
        "own": {plan.split.lane: plan.split.own} if plan.split.own else {},
        "fewest_replicas": plan.least.replicas,
        "fewest": str(plan.least),
        "otherwise": None if plan.other is None else {"replicas": plan.other.replicas, "how": str(plan.other)},
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_1000_tokens": plan.cost_per_1000_tokens,
        "tokens_per_s": plan.tokens_per_s,
        "load": plan.curve.now,
        "capacity_per_s": plan.curve.capacity_per_s,
        "slos": [_slo(one) for one in plan.case.judged],
        "little": {
            "l": plan.little.l,
            "lambda": plan.little.lambda_,
            "w": plan.little.w,
            "residual": plan.little.residual,
        },
        "twice": {
            **_outcome(plan.twice),
            "replicas_needed": None if plan.twice_split is None else plan.twice_split.replicas,
        },
        "replica_lost": None if plan.lost is None else _outcome(plan.lost),
        "replica_lost_of_fewest": None if plan.least_lost is None else _outcome(plan.least_lost),
        "curve": [
            {
                "load": point.load,
                "requests_per_s": point.requests_per_s,
                "utilisation": point.use,
                "ttft_s": dict(zip(NAMES, point.ttft_s, strict=True)),
                "e2e_s": dict(zip(NAMES, point.e2e_s, strict=True)),
                "ttft_p95_s_by_lane": point.lanes,
                "turned_away": point.turned_away,
                "answered": 1 - point.turned_away,
                "operating": point.operating,
            }
            for point in plan.curve.points
        ],
        "notes": list(plan.notes),
    }


def _outcome(case: Trial) -> dict[str, Any]:
    return {"kept": case.kept, "turned_away": case.turned_away, "missed": [_slo(one) for one in case.missed]}


def _slo(one: Judged) -> dict[str, Any]:
    finite = one.value_s is not None and one.value_s != float("inf")
    return {
        "lane": one.target.lane,
        "figure": one.target.figure,
        "percentile": None if one.target.level is None else round(100 * one.target.level, 6),
        "within_s": one.target.within_s,
        "value_s": one.value_s if finite else None,
        "arrivals_s": one.value_s if finite else None,
        "missed": one.value_s == float("inf"),
        "served_s": one.served_s,
        "kept": one.kept,
        "requests": one.count,
        "turned_away": one.turned_away,
    }
