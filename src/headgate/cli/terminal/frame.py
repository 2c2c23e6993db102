"""Draws one frame of `headgate top`: the verdict, lanes, replicas and the slowest requests, in the lines there are.

What does not fit is counted, never cut off unsaid: lanes come first, then the replicas that are not up, then the
slowest requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.client import exact
from headgate.explain.explanation import seconds
from headgate.report.words import percent, rate

STYLES: Final = {
    "ok": "green", "idle": "dim", "unknown": "dim", "warning": "yellow", "critical": "bold red", "up": "green",
    "starting": "cyan", "waking": "cyan", "parked": "dim", "asleep": "dim", "down": "bold red",
}  # fmt: skip
BADGES: Final = {"ok": "✓ ok", "idle": "· idle", "unknown": "· few", "warning": "! risk", "critical": "✗ bad"}
MARKS: Final = {"ok": "✓", "idle": "·", "warning": "!", "critical": "✗"}
KEYS: Final = "q quit  ↑↓ choose  enter why  i record an incident  ? help"
HELP: Final = (
    ("q, ctrl-C", "leave"),
    ("↑ ↓, k j", "choose one of the slowest requests"),
    ("enter, w", "say where each millisecond of it went"),
    ("esc, backspace", "back to the overview"),
    ("i", "record the last minute now: headgate incident show"),
    ("?", "this page, and back"),
)
WIDE: Final = 76
"""Columns from which on every figure of a lane is shown."""
ROOMY: Final = 110
"""Columns from which on a lane's badge says in words what is wrong."""
FIGURES: Final = (
    ("TTFT p50", "ttft", "p50", False), ("p95", "ttft", "p95", False), ("p99", "ttft", "p99", True),
    ("TPOT p99", "tpot", "p99", False), ("e2e p95", "e2e", "p95", False),
)  # fmt: skip
"""A column's heading, its figure and percentile, and whether it is shown where there is little room."""
LEAST_REPLICAS: Final = 2
"""Lines that replicas get even where the slowest requests could fill all."""


@dataclass(frozen=True, slots=True)
class TopView:
    """What a person has chosen to see."""

    chosen: str = ""
    """Id of the chosen request; empty: none."""
    trouble: str = ""
    """Why what is shown is not up to date; empty: it is."""
    said: str = ""
    """Answer to the last key, for the last line."""


def frame(state: dict[str, Any], width: int, height: int | None, view: TopView) -> Group:
    """`height` None: as many lines as it takes."""
    lanes, replicas, slowest = state["lanes"], _worst_first(state["replicas"]), state["slowest"]
    head: list[RenderableType] = [_line(_verdict(state, view), width), _line(_totals(state), width), Text("")]
    head.append(_lanes(lanes, width))
    left = None if height is None else height - 4 - len(lanes) - 2  # a heading, and the last line
    parts = head
    many_replicas, many_slow = _room(left, len(replicas), len(slowest))
    if many_replicas:
        parts += [Text(""), _replicas(replicas, many_replicas, width)]
    if many_slow:
        parts += [Text(""), _slowest(slowest, many_slow, width, view.chosen)]
    if height is not None:
        used = 4 + len(lanes) + (many_replicas and many_replicas + 2) + (many_slow and many_slow + 2)
        parts += [Text("")] * max(0, height - 1 - used)
        parts.append(_line(Text(view.said or KEYS, "bold" if view.said else "dim"), width))
    return Group(*parts)


def _room(left: int | None, replicas: int, slow: int) -> tuple[int, int]:
    """Lines for replicas and for the slowest requests, without their headings and the empty lines before them."""
    if left is None:
        return replicas, slow
    left -= 3  # an empty line and two headings; the first empty line is counted with the lanes
    if left < 1:
        return 0, 0
    for_replicas = min(replicas, max(LEAST_REPLICAS, left - slow), left)
    return for_replicas, max(0, min(slow, left - for_replicas))


def help_page(width: int) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for keys, what in HELP:
        table.add_row(keys, what)
    about = Text(
        "Figures are of the last minute, percentiles of the requests that were served; the slowest are of five minutes."
    )
    return Group(Text("headgate top", "bold"), Text(""), table, Text(""), about)


def paged(console: Console, shown: RenderableType, width: int, height: int, from_line: int) -> tuple[Group, int]:
    """A part of something long, `height` lines of it, and the line it begins at: never beyond the last page."""
    lines = console.render_lines(shown, console.options.update(width=width, height=None), pad=False)
    begin = max(0, min(from_line, len(lines) - height))
    texts = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines[begin : begin + height]]
    return Group(*texts), begin


# -- the parts -----------------------------------------------------------------------------------------------


def _verdict(state: dict[str, Any], view: TopView) -> Text:
    if view.trouble:
        return Text(f"✗ {clean(view.trouble)}", "bold red")
    verdict = state["verdict"]
    return Text(f"{MARKS.get(verdict['level'], '·')} {clean(verdict['text'])}", STYLES.get(verdict["level"], ""))


def _totals(state: dict[str, Any]) -> Text:
    totals = state["totals"]
    told = [f"Headgate {state['version']}", f"up {seconds(state['uptime_s'])}"]
    told += [f"{rate(totals['requests_per_s'])} requests/s", f"{rate(totals['tokens_per_s'])} tokens/s"]
    if totals["availability"] is not None:
        told.append(f"answered {percent(totals['availability'])}")
    if totals["utilisation"] is not None:
        told.append(f"{percent(totals['utilisation'])} in use")
    if totals["loop_lag_p99_s"] is not None:
        told.append(f"loop {exact(totals['loop_lag_p99_s'])}")
    return Text(" · ".join(told), "dim")


def _lanes(lanes: Sequence[dict[str, Any]], width: int) -> Table:
    table = _table(width, ("lane", "left"), ("", "left"), ("req/s", "right"), ("wait", "right"), ("run", "right"))
    shown = [column for column in FIGURES if width >= WIDE or column[3]]
    for title, *_ in shown:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("answered", justify="right", no_wrap=True, ratio=1)
    for lane in lanes:
        values = [lane["figures"][figure][level] for _, figure, level, _ in shown]
        table.add_row(
            Text(clean(lane["name"])),
            Text(_badge(lane, width), STYLES.get(lane["state"], "")),
            rate(lane["requests_per_s"]),
            str(lane["waiting"]),
            str(lane["running"]),
            *("–" if value is None else short(value) for value in values),
            "–" if lane["availability"] is None else percent(lane["availability"]),
            style="dim" if lane["state"] == "idle" else "",
        )
    return table


def _badge(lane: dict[str, Any], width: int) -> str:
    """What is wrong with a lane in a few words, where there is room for them."""
    state = lane["state"]
    if width < ROOMY or state not in ("warning", "critical"):
        return BADGES.get(state, str(state))
    return f"{MARKS[state]} {clean(lane.get('badge') or state)}"


def _replicas(replicas: Sequence[dict[str, Any]], most: int, width: int) -> Table:
    cut = len(replicas) > most
    shown = replicas[: most - 1] if cut else replicas
    table = _table(width, (f"replicas: {len(replicas)}", "left"), ("", "left"), ("in use", "right"), ("batch", "right"))
    table.add_column("KV", justify="right", no_wrap=True)
    table.add_column("model, or why not", no_wrap=True, overflow="ellipsis", ratio=1)
    for replica in shown:
        up = replica["condition"] == "up"
        about = (replica["model"] or replica["kind"] or "") if up or not replica["why"] else replica["why"]
        batch, kv = replica["batch_size"], replica["kv_ratio"]
        table.add_row(
            Text(clean(replica["id"]), overflow="ellipsis"),
            Text(replica["state"], STYLES.get(replica["condition"], "")),
            f"{replica['requests']}/{replica['limit']:.0f}",
            "–" if batch is None else f"{batch:.0f}",
            "–" if kv is None else f"{kv:.0%}",
            Text(clean(about), "" if up else "bold"),
        )
    if cut:
        left = replicas[most - 1 :]
        down = sum(one["condition"] == "down" for one in left)
        table.add_row(Text(f"and {len(left)} more" + (f", {down} down" if down else ""), "dim"))
    return table


def _slowest(slowest: Sequence[dict[str, Any]], most: int, width: int, chosen: str) -> Table:
    at = next((index for index, one in enumerate(slowest) if one["id"] == chosen), 0)
    begin = max(0, at - most + 1)
    table = _table(width, ("slowest", "left"), ("lane", "left"), ("ago", "right"), ("TTFT", "right"), ("all", "right"))
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in slowest[begin : begin + most]:
        table.add_row(
            Text(tail(clean(one["id"]), 16)),
            Text(clean(one["lane"])),
            seconds(one["ago_s"]),
            "–" if one["ttft_s"] is None else short(one["ttft_s"]),
            short(one["e2e_s"]),
            Text(clean(one["headline"]), overflow="ellipsis"),
            style="reverse" if one["id"] == chosen else "",
        )
    return table


def _table(width: int, *columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False, width=width)
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return table


def _worst_first(replicas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    order = {"down": 0, "starting": 1, "waking": 1, "up": 2, "parked": 3, "asleep": 4}
    return sorted(replicas, key=lambda one: order.get(one["condition"], 0))


def _line(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def short(value: float) -> str:
    """A duration in at most six characters."""
    if value < 0.9995:
        return f"{value * 1e3:.0f}ms" if value >= 0.00995 else f"{value * 1e3:.1f}ms"
    return f"{value:.2f}s" if value < 9.995 else f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def tail(text: str, most: int) -> str:
    """The end of an id, which tells it from its neighbours."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def clean(text: str) -> str:
    """Without control characters: what an engine or client wrote must not steer the terminal."""
    return "".join(one if one.isprintable() else "·" for one in text)
