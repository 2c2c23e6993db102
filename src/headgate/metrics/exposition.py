"""Writes Prometheus' text format, version 0.0.4, or OpenMetrics for scrapers that ask for it: the same with exemplars,
each of which names the trace of one request.

Unchanged text is made once: the name and labels of every series, and whole histograms in which nothing was counted
since the last scrape. prometheus_client, which makes an object of each sample, takes ten times as long.
"""

from itertools import accumulate
from math import inf, isfinite
from typing import Literal

from headgate.metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
OPEN_CONTENT_TYPE = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
LEAST_RANK = 0.001
"""Smallest quality value above 0 in an Accept header."""
SPARE = 64
"""Label sets remembered beyond twice those in use: replicas come and go."""

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Family:
    """All samples of one name."""

    __slots__ = ("help", "kind", "labels", "name")

    def __init__(self, name: str, kind: Kind, help: str, *labels: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.labels = labels

    def start(self, values: tuple[str, ...]) -> str:
        """The text of a sample's line up to its value."""
        return f"{self.name}{{{self.pairs(values)}}} " if values else f"{self.name} "

    def pairs(self, values: tuple[str, ...]) -> str:
        return ",".join([f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True)])


class _Block:
    """The lines of one series of a histogram."""

    __slots__ = ("_count", "_starts", "_sum", "_text", "_total", "histogram")

    def __init__(self, family: Family, labels: tuple[str, ...], histogram: Histogram) -> None:
        self.histogram = histogram
        name, pairs = family.name, family.pairs(labels)
        self._starts = [f'{name}_bucket{{{pairs},le="{number(e)}"}} ' for e in (*histogram.edges.values, inf)]
        self._sum = f"{name}_sum{{{pairs}}} "
        self._total = f"{name}_count{{{pairs}}} "
        self._count = -1
        self._text = ""

    def open_text(self) -> str:
        """The lines with exemplars: the traces of requests that are counted here."""
        exemplars = self.histogram.exemplars
        if not exemplars:
            return self.text()
        lines = self.text().split("\n")
        for place, (trace, value, wall) in exemplars.items():
            lines[place] += f' # {{trace_id="{trace}"}} {number(value)} {wall:.3f}'
        return "\n".join(lines)

    def text(self) -> str:
        histogram = self.histogram
        count = sum(histogram.numbers)
        if count != self._count:
            lines = [f"{start}{upto}" for start, upto in zip(self._starts, accumulate(histogram.numbers), strict=True)]
            lines.append(f"{self._sum}{number(histogram.sum)}")
            lines.append(f"{self._total}{count}\n")
            self._count, self._text = count, "\n".join(lines)
        return self._text


class _Section:
    """A family's part of the page, and the text remembered from one page to the next."""

    __slots__ = ("blocks", "head", "lines", "open_head", "starts")

    def __init__(self, family: Family) -> None:
        help = family.help.replace("\\", r"\\").replace("\n", r"\n")
        self.head = f"# HELP {family.name} {help}\n# TYPE {family.name} {family.kind}\n"
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        open_help = help.replace('"', r"\"")
        self.open_head = f"# HELP {name} {open_help}\n# TYPE {name} {family.kind}\n"
        self.lines: list[str] = []
        self.starts: dict[tuple[str, ...], str] = {}
        self.blocks: dict[tuple[str, ...], _Block] = {}


class Exposition:
    """A page of metrics: written in any order, rendered family by family, used again for the next scrape."""

    def __init__(self) -> None:
        self._sections: dict[Family, _Section] = {}
        self.open = False
        """Whether histograms and the page are written as OpenMetrics."""

    def sample(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        section = self._sections.get(family)
        if section is None:
            section = self._sections[family] = _Section(family)
        start = section.starts.get(labels)
        if start is None:
            start = section.starts[labels] = family.start(labels)
        section.lines.append(f"{start}{number(value)}\n")

    def histogram(self, family: Family, labels: tuple[str, ...], histogram: Histogram) -> None:
        section = self._sections.get(family)
        if section is None:
            section = self._sections[family] = _Section(family)
        block = section.blocks.get(labels)
        if block is None or block.histogram is not histogram:  # the series was forgotten, and has come back
            block = section.blocks[labels] = _Block(family, labels, histogram)
        section.lines.append(block.open_text() if self.open else block.text())

    def summary(self, family: Family, count: int, total: float) -> None:
        """Writes how often something was measured, and the sum of all measurements; no quantiles."""
        section = self._sections.get(family)
        if section is None:
            section = self._sections[family] = _Section(family)
        section.lines.append(f"{family.name}_count {count}\n{family.name}_sum {number(total)}\n")

    def render(self) -> bytes:
        """Returns the page and begins the next one. A family without samples is not on the page."""
        parts = []
        for section in self._sections.values():
            if section.lines:
                parts.append(section.open_head if self.open else section.head)
                parts += section.lines
            if max(len(section.starts), len(section.blocks)) > 2 * len(section.lines) + SPARE:
                section.starts.clear()
                section.blocks.clear()
            section.lines = []
        if self.open:
            parts.append("# EOF\n")
        return "".join(parts).encode(errors="replace")


def wants_open(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics, and does not prefer text to it."""
    ranks: dict[str, float] = {}
    for taken in accept.lower().split(","):
        kind, *options = [part.strip() for part in taken.split(";")]
        rank = 1.0
        for option in options:
            if option.startswith("q="):
                rank = _rank(option[2:])
        ranks[kind] = max(rank, ranks.get(kind, 0.0))
    text = ranks.get("text/plain", ranks.get("text/*", ranks.get("*/*", 0.0)))
    return ranks.get(OPEN_METRICS, 0.0) >= max(text, LEAST_RANK)


def _rank(said: str) -> float:
    """The quality value; 0, not acceptable, where `said` is not a number from 0 to 1."""
    try:
        rank = float(said)
    except ValueError:
        return 0.0
    return rank if 0.0 <= rank <= 1.0 else 0.0


def number(value: float) -> str:
    if isfinite(value):
        whole = int(value)  # in the compiled copy, all numbers come as floats
        return str(whole) if whole == value and -1e15 < value < 1e15 else repr(value)
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
