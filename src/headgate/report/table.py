"""Renders results for a terminal: a table for each lane."""

from math import inf

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headgate.report.first import answered
from headgate.report.results import FIGURES, LEVELS, Results
from headgate.report.summary import LaneSummary, kept
from headgate.report.words import count, interval_ms, interval_short, level_name, ms, ms_or_missed, percent, rate

MOST_REASONS = 6
WIDE = 124


def render(results: Results, summaries: dict[str, LaneSummary], width: int = 80) -> RenderableType:
    """The whole report, all lanes together last, then what it is about; on a wide console intervals stand beside their
    percentiles."""
    parts: list[RenderableType] = [Text.from_markup(f"[bold]{escape(results.title)}[/]")]
    shown = [summaries[lane] for lane in results.lanes]
    if len(shown) != 1:
        shown.append(summaries[""])
    for summary in shown:
        parts += ["", _heading(summary), _lane(results, summary, width >= WIDE)]
        parts += _reasons(summary)
    parts += [Text(f"! {note}", style="yellow") for note in results.notes]
    if results.facts:
        parts += ["", *(Text(f"  {name}: {value}", style="dim") for name, value in results.facts.items())]
    return Group(*parts)


def show(results: Results, summaries: dict[str, LaneSummary], console: Console) -> None:
    """Prints what came of it in one sentence, then the whole report."""
    console.print(Text(answered(results, summaries), "bold"))
    console.print()
    console.print(render(results, summaries, console.width))


def _heading(summary: LaneSummary) -> Text:
    said = [f"{count(summary.requests)} requests, {rate(summary.offered_per_s)}/s"]
    said.append(f"{count(summary.completed)} completed")
    if summary.availability is not None:
        said.append(f"answered {percent(summary.availability)} of {count(summary.asked)} that asked")
    if summary.good is not None:
        low, high = summary.good.low, summary.good.high
        about = "" if low is None or high is None else f" [{percent(low)}–{percent(high)}]"
        said.append(f"good {percent(summary.good.value)}{about}, {rate(summary.good_per_s or 0.0)}/s")
    split = [f"{status}: {count(n)}" for status, n in ((429, summary.refused_429), (503, summary.refused_503)) if n]
    said.append(f"refused {count(summary.refused)}" + (f" ({', '.join(split)})" if split else ""))
    said.append(f"errors {count(summary.failed)}")
    said.append(f"{rate(summary.output_tokens_per_s)} tokens/s")
    return Text.assemble((summary.lane or "all lanes", "bold"), "  ", " · ".join(said))


def _lane(results: Results, summary: LaneSummary, wide: bool) -> RenderableType:
    """Not wide: intervals and marks stand below their percentile, so that 80 columns are enough, as in a file."""
    if not summary.figures:
        missed = f", {count(summary.missed)} got no answer: every promise is missed" if summary.missed else ""
        return Text(f"  nothing was completed{missed}", style="bold red" if summary.missed else "dim")
    between = " " if wide else "\n"
    table = Table(box=None, padding=(0, 2) if wide else (0, 0, 0, 1), pad_edge=True)
    table.add_column("ms", justify="left", style="dim", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True, overflow="fold")
    for level in LEVELS:
        table.add_column(level_name(level), justify="right", no_wrap=True, overflow="fold")
    for figure, spread in summary.figures.items():
        apart = summary.missed > 0 and figure in summary.arrivals
        cells: list[Text] = []
        for level in LEVELS:
            estimate = spread.levels[level]
            cell = Text(ms(estimate.value))
            if interval := interval_ms(estimate) if wide else interval_short(estimate):
                cell.append(f"{between}{interval}", "dim")
            if not apart:
                _promised(results, summary, figure, level, cell, between)
            cells.append(cell)
        table.add_row(FIGURES[figure], ms(spread.mean_s), *cells)
        if apart:
            table.add_row(" of all", "", *_over_all(results, summary, figure, between))
    if not summary.missed:
        return table
    about = f"  of the served; of all: all arrivals, {count(summary.missed)} of which got no answer"
    return Group(table, Text(about, style="dim"))


def _over_all(results: Results, summary: LaneSummary, figure: str, between: str) -> list[Text]:
    cells = []
    for level in LEVELS:
        value = summary.arrivals[figure][level]
        cell = Text(ms_or_missed(value), "bold red" if value == inf else "")
        _promised(results, summary, figure, level, cell, between)
        cells.append(cell)
    return cells


def _promised(results: Results, summary: LaneSummary, figure: str, level: float, cell: Text, between: str) -> None:
    """Adds a mark for each promise: kept or not, over all arrivals."""
    for target in results.promises:
        if target.figure == figure and target.level == level and target.lane in (None, summary.lane):
            was_kept = kept(summary, target)
            mark = f"{between}{'✓' if was_kept else '✗'}≤{ms(target.within_s)}"
            cell.append(mark, "green" if was_kept else "bold red")


def _reasons(summary: LaneSummary) -> list[Text]:
    if not summary.reasons:
        return []
    first = list(summary.reasons.items())[:MOST_REASONS]
    said = ", ".join(f"{count(n)} × {reason}" for reason, n in first)
    more = len(summary.reasons) - len(first)
    return [Text(f"  not ok: {said}" + (f", and {more} more reasons" if more else ""), style="dim")]
