"""Renders results as one self-contained page: no script, no font, no address to fetch from."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from headgate import __version__
from headgate.model.errors import UsageError
from headgate.report import charts, svg
from headgate.report.charts import ChartSeries
from headgate.report.compare import FigureDifference, compare
from headgate.report.first import answered
from headgate.report.results import FIGURES, LEVELS, Results
from headgate.report.summary import LaneSummary, kept, summarise
from headgate.report.words import count, interval_ms, level_name, ms, ms_or_missed, percent, rate

ABOUT = {
    "ttft": "time to first token",
    "tpot": "mean time per token after the first",
    "max_gap": "longest gap between two tokens of a request",
    "e2e": "from when it was due to its end",
    "queue": "waiting for a turn, as the server tells it",
}
OF_SERVED = "of the served"
"""The requests that the plots of percentiles cover; tables give percentiles over all arrivals too."""


def write(
    path: Path,
    results: Sequence[Results],
    *,
    seed: int = 0,
    names: Sequence[str] | None = None,
    more: Sequence[tuple[str, str]] = (),
    first: Sequence[str] | None = None,
    command: str = "",
) -> None:
    page = render(results, seed=seed, names=names, more=more, first=first, command=command)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from None


def render(
    results: Sequence[Results],
    *,
    seed: int = 0,
    names: Sequence[str] | None = None,
    more: Sequence[tuple[str, str]] = (),
    first: Sequence[str] | None = None,
    command: str = "",
) -> str:
    """Renders one result, or several side by side with a verdict on each difference from the first. `more`: further
    sections, each a heading and the caller's own HTML. `first`: the answer in a sentence or two; None: what came of
    each result. `command`: what made the page, without secrets; empty: unknown."""
    names = list(names or (one.title for one in results))
    summaries = [summarise(one, seed) for one in results]
    single = len(results) == 1
    common = {
        key: value for key, value in results[0].facts.items() if all(one.facts.get(key) == value for one in results)
    }
    if first is None:
        said = [answered(one, found) for one, found in zip(results, summaries, strict=True)]
        first = said if single else [f"{name}: {one}" for name, one in zip(names, said, strict=True)]
    context = {
        "first": first,
        "command": command,
        "title": results[0].title if single else " · ".join(names),
        "css": Markup(_resource("page.css")),
        "version": __version__,
        "notes": list(dict.fromkeys(note for one in results for note in one.notes)),
        "levels": [level_name(level) for level in LEVELS],
        "facts": list(common.items()),
        "runs": [_run(one, name, found, common) for one, name, found in zip(results, names, summaries, strict=True)],
        "sections": _one(results[0], summaries[0]) if single else _several(results, names, summaries),
        "differences": [
            (f"{names[0]} → {name}", *_told_apart(compare(results[0], other, seed=seed)))
            for name, other in zip(names[1:], results[1:], strict=True)
        ],
        "more": [(heading, Markup(body)) for heading, body in more],
    }
    return _template().render(context)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_resource("page.html"))


def _resource(name: str) -> str:
    return files("headgate.report").joinpath(name).read_text(encoding="utf-8")


# -- pictures -------------------------------------------------------------------------------------------------


def _one(results: Results, summaries: dict[str, LaneSummary]) -> list[tuple[str, str, list[Any], bool]]:
    """The sections for one result: its lanes are the lines."""
    lanes = [
        ChartSeries(lane, results, summaries[lane], lane, svg.colour(index), svg.dash(index))
        for index, lane in enumerate(results.lanes)
    ]
    legend = _legend(lanes)
    tails = [
        _panel(FIGURES[name], ABOUT[name], charts.percentiles(name, lanes, f"{FIGURES[name]} by percentile"), legend)
        for name in FIGURES
    ]
    figure = "ttft" if len(results.values("ttft")) else "e2e"
    name = FIGURES[figure]
    time = [
        _panel(f"{name} over time", "each dot a request", charts.over_time(figure, lanes, f"{name} over time"), legend),
        _panel(
            "Requests a second",
            "by when they ended; line: offered",
            charts.throughput([results], ["requests over time"])[0],
            _kinds(),
        ),
        _panel(
            "Output tokens a second",
            "one lane upon the other",
            charts.tokens(results, lanes, "output tokens over time"),
            legend,
        ),
    ]
    return [
        section for section in (_section("Percentiles", tails, OF_SERVED), _section("Over time", time)) if section[2]
    ]


def _several(
    results: Sequence[Results], names: Sequence[str], summaries: Sequence[dict[str, LaneSummary]]
) -> list[tuple[str, str, list[Any], bool]]:
    """The sections for several results: the results are the lines, and each lane has its own plots; over time the
    results stand side by side, on one scale."""
    everyone = list(dict.fromkeys(lane for one in results for lane in one.lanes))
    sections = []
    for lane in everyone:
        lines = [
            ChartSeries(name, one, found[lane], lane, svg.colour(index), svg.dash(index))
            for index, (one, name, found) in enumerate(zip(results, names, summaries, strict=True))
            if lane in one.lanes
        ]
        title = f"{lane}: {{}} by percentile"
        panels = [
            _panel(
                FIGURES[name], ABOUT[name], charts.percentiles(name, lines, title.format(FIGURES[name])), _legend(lines)
            )
            for name in FIGURES
        ]
        sections.append(_section(f"Percentiles: {lane}", panels, OF_SERVED, beside=True))
    figure = "ttft" if any(len(one.values("ttft")) for one in results) else "e2e"
    top = max((float(values.max()) for one in results if len(values := one.values(figure))), default=None)
    titles = [f"{name}: requests over time" for name in names]
    drawn = charts.throughput(results, titles)
    through = [_panel(name, "", plot, _kinds()) for name, plot in zip(names, drawn, strict=True)]
    scatter = []
    for one, name, found in zip(results, names, summaries, strict=True):
        lanes = [
            ChartSeries(lane, one, found[lane], lane, svg.colour(index), svg.dash(index))
            for index, lane in enumerate(everyone)
            if lane in one.lanes
        ]
        scatter.append(
            _panel(name, "", charts.over_time(figure, lanes, f"{name}: {figure} over time", top_s=top), _legend(lanes))
        )
    sections.append(_section(f"{FIGURES[figure]} over time", scatter, "each dot a request", beside=True))
    sections.append(_section("Requests a second", through, "by when they ended; line: offered", beside=True))
    return [section for section in sections if section[2]]


def _section(
    heading: str, panels: list[dict[str, Any] | None], small: str = "", *, beside: bool = False
) -> tuple[str, str, list[Any], bool]:
    return heading, small, [panel for panel in panels if panel is not None], beside


def _panel(title: str, small: str, drawn: str, legend: str) -> dict[str, Any] | None:
    return {"title": title, "small": small, "svg": Markup(drawn), "legend": Markup(legend)} if drawn else None


def _legend(series: Sequence[ChartSeries]) -> str:
    return svg.legend([(one.name, one.colour, one.dash) for one in series])


def _kinds() -> str:
    colours = ("var(--served)", "var(--warning)", "var(--critical)")
    return svg.legend(
        [
            *((name, colour, "") for name, colour in zip(charts.NAMES, colours, strict=True)),
            ("offered", "var(--text)", ""),
        ]
    )


# -- words ----------------------------------------------------------------------------------------------------


def _run(results: Results, name: str, summaries: dict[str, LaneSummary], common: dict[str, str]) -> dict[str, Any]:
    lanes = [_lane(results, summaries[lane], svg.colour(index)) for index, lane in enumerate(results.lanes)]
    if len(results.lanes) != 1:
        lanes.append(_lane(results, summaries[""], ""))
    facts = [(key, value) for key, value in results.facts.items() if key not in common]
    return {"name": name, "requests": count(len(results)), "facts": facts, "lanes": lanes}


def _lane(results: Results, summary: LaneSummary, colour: str) -> dict[str, Any]:
    said = [
        ("requests", f"{count(summary.requests)}, {rate(summary.offered_per_s)}/s"),
        ("completed", f"{count(summary.completed)}, {rate(summary.completed_per_s)}/s"),
    ]
    if summary.availability is not None:
        said.append(("answered", f"{percent(summary.availability)} of {count(summary.asked)} that asked"))
    if summary.good is not None:
        low, high = summary.good.low, summary.good.high
        interval = "" if low is None or high is None else f" [{percent(low)}–{percent(high)}]"
        said.append(("good", f"{percent(summary.good.value)}{interval}, {rate(summary.good_per_s or 0.0)}/s"))
    refused = [f"{status}: {count(n)}" for status, n in ((429, summary.refused_429), (503, summary.refused_503)) if n]
    said.append(("refused", count(summary.refused) + (f" ({', '.join(refused)})" if refused else "")))
    said.append(("errors", count(summary.failed)))
    said.append(("output tokens/s", rate(summary.output_tokens_per_s)))
    said += [(reason, f"× {count(n)}") for reason, n in list(summary.reasons.items())[:6]]
    rows = []
    for figure, spread in summary.figures.items():
        apart = summary.missed > 0 and figure in summary.arrivals
        cells = [_cell(results, summary, figure, level, judged=not apart) for level in LEVELS]
        name = f"{FIGURES[figure]}, served" if apart else FIGURES[figure]
        rows.append({"name": name, "mean": ms(spread.mean_s), "cells": cells})
        if apart:
            over_all = [_of_arrivals(results, summary, figure, level) for level in LEVELS]
            rows.append({"name": f"{FIGURES[figure]}, all arrivals", "mean": "", "cells": over_all})
    return {"name": summary.lane or "all lanes", "colour": colour, "said": said, "rows": rows}


def _of_arrivals(results: Results, summary: LaneSummary, figure: str, level: float) -> dict[str, Any]:
    value = ms_or_missed(summary.arrivals[figure][level])
    return {"value": value, "interval": "", "promises": _promises(results, summary, figure, level)}


def _cell(results: Results, summary: LaneSummary, figure: str, level: float, *, judged: bool) -> dict[str, Any]:
    estimate = summary.figures[figure].levels[level]
    promises = _promises(results, summary, figure, level) if judged else []
    return {"value": ms(estimate.value), "interval": interval_ms(estimate), "promises": promises}


def _promises(results: Results, summary: LaneSummary, figure: str, level: float) -> list[dict[str, Any]]:
    return [
        {"kept": kept(summary, target), "within": ms(target.within_s)}
        for target in results.promises
        if target.figure == figure and target.level == level and target.lane in (None, summary.lane) and summary.lane
    ]


def _told_apart(found: list[FigureDifference]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Splits the differences into the real ones and the others."""
    shown = [(one.verdict == "real", _difference(one)) for one in found]
    return [one for real, one in shown if real], [one for real, one in shown if not real]


def _difference(found: FigureDifference) -> dict[str, str]:
    shown = ms if found.unit == "ms" else percent
    worse = found.change < 0 if found.what == "good" else found.change > 0
    return {
        "what": f"{found.what} {found.lane or 'all lanes'}",
        "before": shown(found.before),
        "after": shown(found.after),
        "change": found.change_words,
        "interval": found.interval_words,
        "verdict": found.verdict,
        "css": "real" if found.verdict == "real" else "unsure",
        "way": "worse" if worse else "better",
    }
