"""Shows scaled days side by side: to people, to programs, and as plots."""

from collections.abc import Sequence
from html import escape
from math import inf
from typing import Any

import numpy as np
from rich.table import Table

from headgate.model.labels import plain
from headgate.report import svg
from headgate.report.words import count, ms, percent
from headgate.sim.scaling.compare import HOUR_S, ORACLE, ScaledDay, hours

HEADINGS = ("", "TTFT p99, ms", "kept", "hours missed", "turned away", "replica-hours", "against the oracle", "starts")
WIDE = 110
"""Minimum terminal columns for unbroken headings."""
PLOT_S = 1800.0
"""Seconds covered by a point of the p99 plot."""
MOST_REASONS = 6


def sentences(cases: Sequence[ScaledDay]) -> list[str]:
    """What each day came to, the cheapest that keeps the promise first; an oracle's, to compare with, last."""
    ranked = sorted(cases, key=lambda case: (case.name == ORACLE, not case.kept, case.replica_hours))
    return [_sentence(case) for case in ranked]


def _sentence(case: ScaledDay) -> str:
    hours_missed = f"{case.hours_missed} hour{'' if case.hours_missed == 1 else 's'}"
    kept = "keeps TTFT p99" if case.kept else f"misses TTFT p99 in {hours_missed}"
    away = f", {percent(1 - case.turned_away)} answered" if case.turned_away else ""
    outcomes, slept = case.outcomes, ""
    if outcomes.asleep_s:
        slept = f" ({outcomes.asleep_s / HOUR_S:.1f} of them asleep, {count(outcomes.wake_ups)} wake-ups)"
    return f"{case.name}: {kept} with {case.replica_hours:.1f} replica-hours{slept}{away}."


def rows(cases: Sequence[ScaledDay]) -> list[tuple[str, ...]]:
    """Returns a row of text for each day."""
    best = next((case.replica_hours for case in cases if case.name == ORACLE), None)
    found: list[tuple[str, ...]] = []
    for case in cases:
        more = "" if best is None else "" if case.name == ORACLE else f"{case.replica_hours / best - 1:+.1%}"
        p99 = "a refusal" if case.p99_s == inf else ms(case.p99_s)
        kept = "yes" if case.kept else "no"
        away, hours_missed = percent(case.turned_away), str(case.hours_missed)
        cost, starts = f"{case.replica_hours:.1f}", count(case.outcomes.starts)
        found.append((case.name, p99, kept, hours_missed, away, cost, more, starts))
    return found


def table(cases: Sequence[ScaledDay], width: int = 80) -> Table:
    """Returns the rows as a table. In a narrow terminal the headings are broken, but no figure is."""
    made = Table(box=None, padding=(0, 1))
    for heading in HEADINGS:
        shown = heading if width >= WIDE else heading.replace("-", "-\n").replace(" ", "\n")
        made.add_column(shown, justify="left" if not heading else "right", no_wrap=True)
    for row in rows(cases):
        made.add_row(*row)
    return made


def section(cases: Sequence[ScaledDay]) -> str:
    """Returns the rows as an HTML table, for a report's page."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(cases))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def as_dict(case: ScaledDay) -> dict[str, Any]:
    outcomes = case.outcomes
    return {
        "name": case.name,
        "ttft_p99_s": None if case.p99_s == inf else case.p99_s,
        "kept": case.kept,
        "turned_away": case.turned_away,
        "hours_missed": case.hours_missed,
        "ttft_p99_by_hour_s": [None if value == inf else value for value in case.by_hour],
        "replica_hours": case.replica_hours,
        "starts": outcomes.starts,
        "wake_ups": outcomes.wake_ups,
        "asleep_hours": outcomes.asleep_s / HOUR_S,
        "requests": len(outcomes.simulated.results),
        "replicas": [
            [sample.at_s, sample.serving, sample.parked, sample.coming, sample.draining, sample.asleep]
            for sample in outcomes.samples[::10]
        ],
        "decisions": len(outcomes.decisions),
    }


def decisions(case: ScaledDay, most: int = 40) -> list[str]:
    """Returns the first `most` changes in the number of serving replicas, each with its reasons."""
    found: list[str] = []
    before = None
    for at_s, decision in case.outcomes.decisions:
        if decision.serving != before and len(found) < most:
            reasons = " ".join(decision.reasons[:MOST_REASONS])
            found.append(f"{_clock(at_s)}  {decision.serving} to serve, {decision.parked} parked. {reasons}")
        before = decision.serving
    return found


# -- plots ----------------------------------------------------------------------------------------------------


def replicas_plot(cases: Sequence[ScaledDay]) -> str:
    """Plots the number of replicas, including those parked or being started."""
    most = max(sample.serving + sample.parked + sample.coming for case in cases for sample in case.outcomes.samples)
    plot = svg.Plot(_day(cases), svg.linear(float(most)), title="Replicas over the day")
    for index, case in enumerate(cases):
        samples = case.outcomes.samples
        xs = np.array([sample.at_s / HOUR_S for sample in samples])
        ys = np.array([float(sample.serving + sample.parked + sample.coming) for sample in samples])
        plot.line(xs, ys, svg.colour(index), title=case.name, width=2.2 if case.name == ORACLE else 1.3)
    return plot.svg()


def p99_plot(cases: Sequence[ScaledDay], within_s: float) -> str:
    """Plots the TTFT p99 of each half hour; at the top where more than 1 % were refused or failed."""
    found = [(case, hours(case.outcomes.simulated.results, PLOT_S)) for case in cases]
    top = 2.0 * within_s
    plot = svg.Plot(_day(cases), svg.linear(top, lambda value: f"{plain(value, 6)} s"), title="TTFT p99 over the day")
    plot.level(within_s, "promised", "var(--critical)")
    for index, (case, values) in enumerate(found):
        xs = np.array([(number + 0.5) * PLOT_S / HOUR_S for number in range(len(values))])
        ys = np.minimum(np.array(values), top)
        plot.line(xs, ys, svg.colour(index), title=case.name, width=2.2 if case.name == ORACLE else 1.3)
    return plot.svg()


def legend(cases: Sequence[ScaledDay]) -> str:
    return svg.legend([(case.name, svg.colour(index), "") for index, case in enumerate(cases)])


def _day(cases: Sequence[ScaledDay]) -> svg.Scale:
    last = max(case.outcomes.samples[-1].at_s for case in cases) / HOUR_S
    return svg.linear(last, lambda value: f"{plain(value, 6)} h", many=8, exact=True)


def _clock(at_s: float) -> str:
    return f"{int(at_s // 3600):02d}:{int(at_s // 60) % 60:02d}:{int(at_s) % 60:02d}"
