"""Whether what was measured is enough, and how it is shown and kept.

Both benchmarks gather raw values by `server.figure`, judge the medians row by row, print a table, and keep JSON and
Markdown.
"""

import datetime
import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

import headgate

Samples = dict[str, list[float]]
"""All raw values of a figure, by `server.figure`."""
Facts = dict[str, object]


# -- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    value: str
    against: str | None
    """Judged is the ratio of the two medians; without this, the median itself."""
    sense: Literal["≤", "≥"] = "≤"
    limit: float | None = None
    """None: printed, not judged."""
    aim: float | None = None
    """What we want beyond the limit. Missing it fails nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    label: str
    median: float | None
    against: float | None
    bound: str
    passed: bool | None = None
    """None: no bound, or not measured in this run."""
    aim_met: bool | None = None

    @property
    def unjudged(self) -> bool:
        return bool(self.bound) and self.passed is None and self.aim_met is None


def judge(row: Row, samples: Samples) -> Verdict:
    median, against = _median(row.value, samples), _median(row.against, samples)
    if median is None or (row.against and against is None):
        return Verdict(row.label, median, against, _bound(row))
    judged = median / against if against else median
    passed, aim_met = _within(judged, row.sense, row.limit), _within(judged, row.sense, row.aim)
    return Verdict(row.label, median, against, _bound(row), passed, aim_met)


def _median(figure: str | None, samples: Samples) -> float | None:
    return statistics.median(samples[figure]) if figure in samples else None


def _bound(row: Row) -> str:
    def text(limit: float) -> str:
        return f"{row.sense} {limit:g}" + ("×" if row.against else "")

    limit = "" if row.limit is None else text(row.limit)
    aim = "" if row.aim is None else f"aim {text(row.aim)}"
    return ", ".join(filter(None, (limit, aim)))


def _within(judged: float, sense: Literal["≤", "≥"], limit: float | None) -> bool | None:
    if limit is None:
        return None
    return judged <= limit if sense == "≤" else judged >= limit


# -- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grid:
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...] = ()
    """One per row, or none at all."""

    def table(self, title: str) -> Table:
        table = Table(title=title)
        for index, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if index == 0 else "right")
        for index, row in enumerate(self.rows):
            table.add_row(*row, style=self.styles[index] if self.styles else "")
        return table

    def markdown(self) -> list[str]:
        lines = ["| " + " | ".join(self.headings) + " |", "|---" + "|--:" * (len(self.headings) - 1) + "|"]
        return lines + ["| " + " | ".join(row) + " |" for row in self.rows]


def verdict_grid(verdicts: Sequence[Verdict]) -> Grid:
    headings = ("figure", "median", "against", "ratio", "bound", "verdict")
    styles = tuple({True: "green", False: "bold red", None: ""}[verdict.passed] for verdict in verdicts)
    return Grid(headings, tuple(_cells(verdict) for verdict in verdicts), styles)


def _cells(verdict: Verdict) -> tuple[str, ...]:
    compared = ""
    if verdict.median and verdict.against:
        compared = f"{number(verdict.median / verdict.against)}×"
    return (verdict.label, number(verdict.median), number(verdict.against), compared, verdict.bound, _word(verdict))


def _word(verdict: Verdict) -> str:
    if verdict.passed is False:
        return "FAIL"
    if verdict.aim_met:
        return "pass, aim met" if verdict.passed else "aim met"
    if verdict.passed:
        return "pass"
    if verdict.aim_met is False:
        return "aim missed"
    return "–" if verdict.bound else ""


def median_grid(corner: str, figures: dict[str, str], servers: dict[str, str], samples: Samples) -> Grid:
    """All servers side by side. Both dicts go from the key in `samples` to the name that is shown."""
    rows = [
        (name, *(number(_median(f"{server}.{figure}", samples)) for server in servers))
        for figure, name in figures.items()
    ]
    return Grid((corner, *servers.values()), tuple(rows))


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 else f"{value:.3g}"


# -- what is kept ---------------------------------------------------------------------------------


def machine() -> Facts:
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "headgate": headgate.__version__,
    }


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Spent so far, in seconds; a later one minus this says who used the machine meanwhile."""

    there: float
    """By all cores, idle or not."""
    busy: float
    ours: float
    """By this process and its ended children."""
    kept: float
    """By the host, which ran something else on cores that wanted to run."""

    @classmethod
    def now(cls) -> "CpuTime":
        ticks = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
        idle, per_s = sum(ticks[3:5]), os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks) / per_s, (sum(ticks) - idle) / per_s, sum(os.times()[:4]), ticks[7] / per_s)

    def others_of_busy(self, now: "CpuTime") -> float:
        """The share of the CPU time spent that was not ours."""
        return max(0.0, 1 - (now.ours - self.ours) / (now.busy - self.busy))

    def others_of_all(self, now: "CpuTime") -> float:
        """The share of the whole machine that others used, or the host kept from us."""
        return max(0.0, (now.busy - self.busy - now.ours + self.ours) / (now.there - self.there))

    def kept_of_all(self, now: "CpuTime") -> float:
        return (now.kept - self.kept) / (now.there - self.there)


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    script: str
    facts: Facts
    verdicts: Sequence[Verdict]
    samples: Samples
    more: tuple[Grid, ...] = ()
    """Tables without a verdict, shown before it."""

    def keep(self, out: Path) -> None:
        rounded = {figure: [round(value, 4) for value in values] for figure, values in self.samples.items()}
        result = {"facts": self.facts, "rows": [asdict(verdict) for verdict in self.verdicts], "samples": rounded}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        out.with_suffix(".md").write_text(self._markdown())

    def _markdown(self) -> str:
        lines = [f"# {self.title}", "", f"Written by `{self.script}`.", ""]
        lines += [f"- {name.replace('_', ' ')}: {fact}" for name, fact in self.facts.items()]
        for grid in (*self.more, verdict_grid(self.verdicts)):
            lines += ["", *grid.markdown()]
        return "\n".join(lines) + "\n"
