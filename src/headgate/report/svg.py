"""Draws plots as inline SVG: axes, lines, dots, bars. Colours are CSS variables of the page, so that it is light or
dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from headgate.model.labels import plain
from headgate.report.results import Floats

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 20, 10, 24
COLOURS = 6
DASHES = ("", "6 3", "2 3", "8 3 2 3")


def colour(index: int) -> str:
    return f"var(--c{index % COLOURS})"


def dash(index: int) -> str:
    return DASHES[index // COLOURS % len(DASHES)]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to shares of an axis."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def share(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shares(self, values: Floats) -> Floats:
        if self.log:
            found: Floats = np.log(np.maximum(values, self.low) / self.low) / math.log(self.high / self.low)
            return found
        return (values - self.low) / (self.high - self.low)


def linear(high: float, name: Callable[[float], str] = plain, *, many: int = 5, exact: bool = False) -> Scale:
    """A scale from 0 to a round number above `high`; `exact`: to `high` itself."""
    high = max(high, 1e-9)
    step = 10 ** math.floor(math.log10(high / many))
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= many)
    top = high if exact else math.ceil(high / step - 1e-9) * step
    return Scale(0.0, top, tuple((i * step, name(i * step)) for i in range(int(top / step + 1e-9) + 1)))


def logarithmic(low: float, high: float, name: Callable[[float], str]) -> Scale:
    """A scale of decades, with 2 and 5 between if there are few."""
    low, high = max(low, 1e-9), max(high, low * 1.5, 1e-9)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    marks = [10.0**power * step for power in range(first, last + 1) for step in steps]
    bottom = max((mark for mark in marks if mark <= low * 1.0001), default=marks[0])
    top = min((mark for mark in marks if mark >= high * 0.9999), default=marks[-1])
    shown = tuple((mark, name(mark)) for mark in marks if bottom <= mark <= top)
    return Scale(bottom, top, shown, log=True)


class Plot:
    """A plot, drawn from the back to the front."""

    def __init__(self, x: Scale, y: Scale, *, title: str, height: int = HEIGHT) -> None:
        self._x, self._y, self._height = x, y, height
        self._title = title
        self._parts: list[str] = []
        self._labels: list[str] = []
        """Drawn on top of everything."""
        self._axes()

    def x(self, value: float) -> float:
        return LEFT + self._x.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self._height - BOTTOM - self._y.share(value) * (self._height - TOP - BOTTOM)

    def line(self, xs: Floats, ys: Floats, colour: str, *, dash: str = "", width: float = 1.8, title: str = "") -> None:
        if len(xs):
            self._path(self._points(xs, ys), f'stroke="{colour}" stroke-width="{width}"{_dashed(dash)}', title)

    def steps(self, edges: Floats, ys: Floats, colour: str, *, dash: str = "", title: str = "") -> None:
        """A constant from each edge to the next."""
        self.line(np.repeat(edges, 2)[1:-1], np.repeat(ys, 2), colour, dash=dash, width=1.4, title=title)

    def bars(self, edges: Floats, bottoms: Floats, tops: Floats, colour: str, title: str = "") -> None:
        shapes = []
        for left, right, bottom, top in zip(edges[:-1], edges[1:], bottoms, tops, strict=True):
            if top > bottom:
                x0, x1, y0, y1 = self.x(left), self.x(right), self.y(bottom), self.y(top)
                shapes.append(f"M{x0:.1f} {y0:.1f}V{y1:.1f}H{x1 - 0.4:.1f}V{y0:.1f}z")
        if shapes:
            self._parts.append(f'<path fill="{colour}" d="{"".join(shapes)}">{_title(title)}</path>')

    def dots(
        self, xs: Floats, ys: Floats, colour: str, *, size: float = 3.2, opacity: float = 0.5, title: str = ""
    ) -> None:
        """Draws each dot as a line of no length with round ends: a tenth of the size of circles."""
        if len(xs):
            pairs = zip(self._xs(xs), self._ys(ys), strict=True)
            shape = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in pairs)
            style = f'stroke="{colour}" stroke-width="{size}" stroke-linecap="round" opacity="{opacity}"'
            self._path(shape, style, title)

    def whisker(self, x: float, low: float, high: float, value: float, colour: str, title: str) -> None:
        at = self.x(x)
        shape = f"M{at:.1f} {self.y(low):.1f}V{self.y(high):.1f}"
        inner = f'<path d="{shape}" stroke="{colour}" stroke-width="5" stroke-opacity="0.28"/>'
        dot = f'<circle cx="{at:.1f}" cy="{self.y(value):.1f}" r="3" fill="{colour}"/>'
        self._parts.append(f"<g>{_title(title)}{inner}{dot}</g>")

    def level(self, y: float, name: str, colour: str) -> None:
        """A line to stay under, with its name above it on the left."""
        if not self._y.low <= y <= self._y.high:
            return
        at = self.y(y)
        self._path(
            f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", f'stroke="{colour}" stroke-width="1.2" stroke-dasharray="2 3"', name
        )
        self.label(LEFT + 4, at - 3, name, colour)

    def mark(self, x: float, y: float, colour: str, title: str) -> None:
        """Marks the percentile at which a promise applies."""
        if self._y.low <= y <= self._y.high and self._x.low <= x <= self._x.high:
            at, top = self.x(x), self.y(y)
            shape = f"M{at - 4:.1f} {top - 7:.1f}h8l-4 7z"
            self._parts.append(f'<path d="{shape}" fill="{colour}">{_title(title)}</path>')

    def ticks(self, xs: Sequence[float], top: float, colour: str, title: str) -> None:
        """Short strokes at these pixels."""
        shape = "".join(f"M{x:.1f} {top:.1f}v6" for x in xs)
        self._path(shape, f'stroke="{colour}" stroke-width="1.2"', title)

    def upright(self, x: float, name: str, colour: str) -> None:
        """A vertical line, with its name at the top."""
        at = self.x(x)
        self._path(f"M{at:.1f} {TOP}V{self._height - BOTTOM}", f'stroke="{colour}" stroke-dasharray="2 3"', name)
        self.label(at + 4, TOP + 8, name, colour)

    def label(self, x: float, y: float, text: str, colour: str) -> None:
        """Text that is readable over anything below it."""
        style = f'class="label" style="fill:{colour}"'
        self._labels.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>')

    def text(self, x: float, y: float, text: str, *, anchor: str = "start") -> None:
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self) -> str:
        label = escape(self._title, quote=True)
        return (
            f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{label}" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(self._parts + self._labels)}</svg>'
        )

    # ------------------------------------------------------------------------------------------------------------

    def _axes(self) -> None:
        bottom = self._height - BOTTOM
        grid = "".join(f"M{LEFT} {self.y(value):.1f}H{WIDTH - RIGHT}" for value, _ in self._y.ticks)
        self._parts.append(f'<path class="grid" d="{grid}"/>')
        for value, name in self._y.ticks:
            self.text(LEFT - 6, self.y(value) + 3.5, name, anchor="end")
        for value, name in self._x.ticks:
            at = self.x(value)
            self._parts.append(f'<path class="grid" d="M{at:.1f} {bottom}v4"/>')
            self.text(at, bottom + 15, name, anchor="middle")

    def _xs(self, values: Floats) -> list[float]:
        found: list[float] = (LEFT + self._x.shares(values) * (WIDTH - LEFT - RIGHT)).tolist()
        return found

    def _ys(self, values: Floats) -> list[float]:
        bottom = self._height - BOTTOM
        found: list[float] = (bottom - self._y.shares(values) * (bottom - TOP)).tolist()
        return found

    def _points(self, xs: Floats, ys: Floats) -> str:
        pairs = [f"{x:.1f} {y:.1f}" for x, y in zip(self._xs(xs), self._ys(ys), strict=True)]
        return "M" + "L".join(pairs)

    def _path(self, shape: str, style: str, title: str) -> None:
        self._parts.append(f'<path fill="none" d="{shape}" {style}>{_title(title)}</path>')


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """A legend from entries of name, colour and dash."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path d="M0 4H22" fill="none" stroke="{colour}" '
        f'stroke-width="3"{_dashed(dash)}/></svg>{escape(name)}</li>'
        for name, colour, dash in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
