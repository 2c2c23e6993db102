"""Runs `headgate bench`: offers a load, measures the answers, and reports them as a table, a file and a page."""

from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.bench.beside import Added
from headgate.bench.measure import measure
from headgate.bench.options import BenchOptions
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import UsageError
from headgate.report import html_page, json_file, table
from headgate.report.summary import summarise
from headgate.report.words import ms

INTERRUPTED = 130
SEEN_S = 5e-6
"""Seconds below which a figure would be printed as zero."""


def run(
    options: BenchOptions, out: Console | None = None, err: Console | None = None, *, clock: Clock = monotonic
) -> int:
    """Returns the exit code. Raises StartupError, with a message of one line, for a run that can't start."""
    out, err = out or Console(highlight=False), err or Console(stderr=True, highlight=False)
    for path in (options.json, options.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path} can't be written: there is no folder {path.absolute().parent}")
    measured = uvloop.run(measure(options, err, clock))
    summaries = summarise(measured.results, options.seed)
    table.show(measured.results, summaries, out)
    for reason, message in measured.messages.items():
        out.print(Text(f"  {reason}: {message[:300]}", style="dim"))
    if measured.direct is not None:
        out.print()
        out.print(added_table(measured.added))
    if options.json is not None:
        more: dict[str, Any] = {"model_id": measured.results.facts.get("model", ""), "label": options.title or None}
        more["lanes_used"] = measured.lanes
        if measured.direct is not None:
            direct = json_file.as_dict(measured.direct, summarise(measured.direct, options.seed))
            more["direct"] = {"results": direct, "added": [item.as_dict() for item in measured.added]}
        json_file.write(options.json, measured.results, summaries, more=more)
        err.print(f"wrote {options.json}", markup=False)
    if options.html is not None:
        both = [measured.results] if measured.direct is None else [measured.results, measured.direct]
        html_page.write(options.html, both, seed=options.seed, command=options.command)
        err.print(f"wrote {options.html}", markup=False)
    if measured.behind and not options.allow_lag:
        err.print(f"headgate: {measured.behind} (or --allow-lag)", markup=False, soft_wrap=True)
        return 1
    if measured.interrupted:
        return INTERRUPTED
    if not summaries[""].completed:
        err.print("headgate: not one request was completed", markup=False)
        return 1
    return 0


def added_table(found: list[Added]) -> Table:
    shown = Table(title="What the gateway adds, ms", box=None, padding=(0, 1), title_justify="left", title_style="bold")
    shown.add_column("", style="dim", overflow="fold")
    for name in ("direct", "through", "added", "95 %"):
        shown.add_column(name, justify="right", no_wrap=True)
    for item in found:
        if max(item.direct_s, item.through_s) < SEEN_S:
            continue
        low, high = item.added.low, item.added.high
        interval = "" if low is None or high is None else f"{ms(low)} to {ms(high)}"
        name = f"{item.what} {item.lane}".strip()
        shown.add_row(name, ms(item.direct_s), ms(item.through_s), ms(item.added.value), interval)
    return shown
