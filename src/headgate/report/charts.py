"""Draws the plots of a tail: percentiles on a scale that stretches it, requests over time, and throughput."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headgate.model.labels import plain
from headgate.report import svg
from headgate.report.results import Floats, Results, Target
from headgate.report.summary import LaneSummary
from headgate.report.words import count, figure_name, interval_ms, level_name, ms

MOST_DOTS = 2500
"""Maximum dots per lane; the slowest requests are always among them."""
BINS = 80


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One line of a plot."""

    name: str
    results: Results
    summary: LaneSummary
    lane: str | None
    colour: str
    dash: str = ""


def percentiles(figure: str, series: Sequence[ChartSeries], title: str) -> str:
    """Latency by percentile: nines are evenly spaced, so that p99 and p99.9 have as much room as p90. Whiskers are 95 %
    intervals. Empty if no request has the figure."""
    drawn = [(one, one.results.values(figure, one.lane)) for one in series]
    drawn = [(one, np.sort(values) * 1e3) for one, values in drawn if len(values)]
    targets = _targets(figure, series)
    if not drawn or max(float(values[-1]) for _, values in drawn) <= 0:
        return ""
    lows = [float(np.quantile(values, 0.02)) for _, values in drawn]
    highs = [float(values[-1]) for _, values in drawn]
    low = max(min(lows), max(highs) / 1e5, 1e-3)
    high = max([*highs, *(target.within_s * 1e3 for target, _ in targets)])
    nines = _nines(max(len(values) for _, values in drawn))
    plot = svg.Plot(
        svg.Scale(0.0, nines[-1][0], nines),
        svg.logarithmic(low, high, _ms_tick),
        title=title,
    )
    _draw_targets(plot, targets)
    for target, colour in targets:
        if target.level is not None:
            plot.mark(_nine(target.level), target.within_s * 1e3, colour, _name(target))
    for one, values in drawn:
        xs = np.linspace(0.0, min(nines[-1][0], math.log10(len(values)) if len(values) > 1 else 0.1), 240)
        ys = np.quantile(values, 1 - 10**-xs)
        plot.line(xs, np.maximum(ys, low), one.colour, dash=one.dash, title=one.name)
        for level, estimate in one.summary.figures[figure].levels.items():
            if estimate.low is None or estimate.high is None or _nine(level) > nines[-1][0]:
                continue
            said = f"{one.name} {level_name(level)} {figure_name(figure)}: {ms(estimate.value)} ms"
            bottom, top, middle = (max(end * 1e3, low) for end in (estimate.low, estimate.high, estimate.value))
            plot.whisker(_nine(level), bottom, top, middle, one.colour, f"{said} [{interval_ms(estimate)}]")
    return plot.svg()


def over_time(figure: str, series: Sequence[ChartSeries], title: str, *, top_s: float | None = None) -> str:
    """Each request by when it was due; refused and failed requests are a row of ticks at the top."""
    if not series:
        return ""
    results = series[0].results
    values = [one.results.values(figure, one.lane) for one in series]
    if not any(len(found) for found in values):
        return ""
    everything = np.concatenate(values) * 1e3
    high = float(everything.max()) if top_s is None else top_s * 1e3
    low = max(float(np.quantile(everything, 0.005)), high / 1e5, 1e-3)
    targets = _targets(figure, series)
    plot = svg.Plot(
        svg.linear(max(float(results.at_s.max()), 1e-3), _s_tick, many=8, exact=True),
        svg.logarithmic(low, max([high * 1.2, *(target.within_s * 1e3 for target, _ in targets)]), _ms_tick),
        title=title,
    )
    for one in series:
        column = one.results.figure(figure)
        mine = one.results.of_lane(one.lane) & one.results.ok & ~np.isnan(column)
        at, value = _some(one.results.at_s[mine], column[mine] * 1e3)
        plot.dots(at, value, one.colour, title=one.name, opacity=0.75 if len(at) < 400 else 0.45)
    _draw_targets(plot, targets)
    mine = np.zeros(len(results), np.bool_)
    for one in series:
        mine |= one.results.of_lane(one.lane)
    for kinds, colour, name in (((1,), "var(--warning)", "refused"), ((2, 3), "var(--critical)", "failed")):
        chosen = results.at_s[mine & np.isin(results.kind, kinds)]
        if len(chosen):
            top = svg.TOP + (0 if name == "refused" else 7)
            edges = sorted({round(plot.x(float(at)), 1) for at in chosen})
            plot.ticks(edges, top, colour, f"{count(len(chosen))} {name}")
    return plot.svg()


def throughput(runs: Sequence[Results], titles: Sequence[str]) -> list[str]:
    """Requests per second that completed, were refused or failed, by when they ended; the line is the offered load. One
    plot per run, all on one scale."""
    edges = _edges(runs)
    width = edges[1] - edges[0]
    counted = []
    for results in runs:
        ends = results.at_s + np.nan_to_num(results.e2e_s)
        kinds = (results.kind == 0, results.kind == 1, results.kind > 1)
        rates = [np.histogram(ends[kind], edges)[0] / width for kind in kinds]
        counted.append((rates, np.histogram(results.at_s, edges)[0] / width))
    peak = max(float(max(np.sum(rates, axis=0).max(), offered.max())) for rates, offered in counted)
    plots = []
    for (rates, offered), title in zip(counted, titles, strict=True):
        plot = svg.Plot(
            svg.linear(float(edges[-1]), _s_tick, many=8, exact=True), svg.linear(max(peak, 1e-3)), title=title
        )
        bottom = np.zeros(len(offered))
        for rate, colour, name in zip(
            rates, ("var(--served)", "var(--warning)", "var(--critical)"), NAMES, strict=True
        ):
            plot.bars(edges, bottom, bottom + rate, colour, name)
            bottom = bottom + rate
        plot.steps(edges, offered, "var(--text)", title="offered")
        plots.append(plot.svg())
    return plots


NAMES = ("completed", "refused", "failed")


def tokens(results: Results, series: Sequence[ChartSeries], title: str) -> str:
    """Output tokens per second, lanes stacked; each request's tokens are spread from its first token to its end."""
    if not series:
        return ""
    edges = _edges([results])
    stacked = [token_rate(one.results, one.lane, edges) for one in series]
    peak = float(np.sum(stacked, axis=0).max())
    if peak <= 0:
        return ""
    y = svg.linear(peak, lambda value: count(round(value)))
    plot = svg.Plot(svg.linear(float(edges[-1]), _s_tick, many=8, exact=True), y, title=title)
    bottom = np.zeros(len(edges) - 1)
    for one, rate in zip(series, stacked, strict=True):
        plot.bars(edges, bottom, bottom + rate, one.colour, one.name)
        bottom = bottom + rate
    return plot.svg()


def token_rate(results: Results, lane: str | None, edges: Floats) -> Floats:
    mine = results.of_lane(lane) & results.ok
    many = results.output_tokens[mine]
    end = results.at_s[mine] + np.nan_to_num(results.e2e_s[mine])
    begin = np.minimum(results.at_s[mine] + np.nan_to_num(results.ttft_s[mine]), end - 1e-6)
    by = np.array([float((many * np.clip((edge - begin) / (end - begin), 0, 1)).sum()) for edge in edges])
    rate: Floats = np.diff(by) / np.diff(edges)
    return rate


# -- pieces ---------------------------------------------------------------------------------------------------


def _targets(figure: str, series: Sequence[ChartSeries]) -> list[tuple[Target, str]]:
    """The targets that concern any of the series, each once."""
    found: dict[tuple[str | None, float, float | None], tuple[Target, str]] = {}
    for one in series:
        for target in (*one.results.promises, *one.results.goodput):
            if target.figure != figure or target.lane not in (None, one.lane):
                continue
            colour = one.colour if target.lane is not None and len(series) > 1 else "var(--promise)"
            found.setdefault((target.lane, target.within_s, target.level), (target, colour))
    return list(found.values())


def _draw_targets(plot: svg.Plot, targets: list[tuple[Target, str]]) -> None:
    """Draws the targets; those at the same height share a label."""
    for within_s in sorted({target.within_s for target, _ in targets}):
        mine = [(target, colour) for target, colour in targets if target.within_s == within_s]
        colour = mine[0][1] if len(mine) == 1 else "var(--promise)"
        plot.level(
            within_s * 1e3,
            f"{', '.join(dict.fromkeys(_name(t) for t, _ in mine))} ≤ {_ms_tick(within_s * 1e3)}",
            colour,
        )


def _name(target: Target) -> str:
    level = "" if target.level is None else level_name(target.level)
    return f"{target.lane or ''} {level}".strip() or "good"


def _nine(level: float) -> float:
    return -math.log10(1 - level)


def _nines(values: int) -> tuple[tuple[float, str], ...]:
    levels = [0.0, 0.5, 0.9, 0.99]
    levels += [level for level, needed in ((0.999, 500), (0.9999, 20_000)) if values >= needed]
    return tuple((_nine(level), "min" if level == 0 else level_name(level)) for level in levels)


def _edges(runs: Sequence[Results]) -> Floats:
    span = max(1e-3, *(max(results.duration_s, float(results.at_s.max(initial=0.0))) for results in runs))
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
    width = next((step for step in steps if span / step <= BINS), span / BINS)
    return np.arange(0, math.ceil(span / width) + 1, dtype=np.float64) * width


def _some(at: Floats, value: Floats) -> tuple[Floats, Floats]:
    if len(at) <= MOST_DOTS:
        return at, value
    slowest = np.argpartition(value, -MOST_DOTS // 5)[-MOST_DOTS // 5 :]
    evenly = np.linspace(0, len(at) - 1, MOST_DOTS * 4 // 5).astype(np.int64)
    chosen = np.unique(np.concatenate([slowest, evenly]))
    return at[chosen], value[chosen]


def _ms_tick(value: float) -> str:
    return f"{plain(value / 1000, 6)} s" if value >= 1000 else f"{plain(value, 6)} ms"


def _s_tick(value: float) -> str:
    return f"{plain(value / 3600, 6)} h" if value >= 7200 else f"{plain(value, 6)} s"
