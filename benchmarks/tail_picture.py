"""Draws the picture of the interactive tail: light or dark as the page it is on."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.tail_figures import OURS, figures
from benchmarks.tail_load import Point
from benchmarks.tail_mix import INTERACTIVE, LANES, Setup
from benchmarks.tail_site import NAMES

from headgate.report import svg

WIDTH, HEIGHT = 960, 716
LEFT, RIGHT, GAP = 62, 18, 56
CLASSES = {"headgate": "ours", "nginx": "p1", "sglang": "p2", "vllm": "p3"}
DASHES = {"nginx": "7 4", "sglang": "2 4", "vllm": "9 3 2 3"}
MISSED = "a refusal or failure"
APART = 15.0
"""Pixels between two names, at least."""
STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a; }
.title { font-size: 19px; font-weight: 650; fill: #1f2328; }
.sub { font-size: 14px; font-weight: 600; fill: #1f2328; }
.small { font-size: 12px; }
.card { fill: #ffffff; }
.grid { stroke: #8c959f; stroke-opacity: .28; fill: none; }
.promise { stroke: #bf8700; stroke-dasharray: 5 4; fill: none; }
text.promise { stroke: none; fill: #9a6700; }
.line { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.ours { --c: #0a7d55; } .p1 { --c: #c2410c; } .p2 { --c: #6d4ad6; } .p3 { --c: #0969da; }
.line, .dot, .bar, text.name { stroke-width: 2; }
.line { stroke: var(--c); } .dot, .bar { fill: var(--c); } text.name { fill: var(--c); font-weight: 600; }
.ours.line { stroke-width: 4; } text.ours.name { font-size: 15px; font-weight: 700; }
.band { fill: var(--c); opacity: .14; } .lost { fill: #8c959f; opacity: .22; } .away { fill: #bf8700; opacity: .75; }
.hollow { fill: #ffffff; stroke: var(--c); stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .sub { fill: #e6edf3; } .card { fill: #0d1117; }
  .promise { stroke: #d29922; } text.promise { fill: #e3b341; }
  .ours { --c: #3fb98a; } .p1 { --c: #f0883e; } .p2 { --c: #a78bfa; } .p3 { --c: #58a6ff; }
  .band { opacity: .2; } .lost { opacity: .3; } .away { fill: #d29922; } .hollow { fill: #0d1117; }
}
</style>"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A rectangle with scales."""

    left: float
    top: float
    width: float
    height: float
    x: svg.Scale
    y: svg.Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.left + self.x.share(x) * self.width, self.top + (1 - self.y.share(y)) * self.height

    def axes(self) -> list[str]:
        parts = []
        for value, name in self.y.ticks:
            _, y = self.at(self.x.low, value)
            parts.append(f'<path class="grid" d="M{self.left:.1f} {y:.1f}h{self.width:.1f}"/>')
            parts.append(_text(self.left - 8, y + 4, name, anchor="end"))
        for value, name in self.x.ticks:
            x, _ = self.at(value, self.y.low)
            parts.append(_text(x, self.top + self.height + 20, name, anchor="middle"))
        return parts


def draw(setup: Setup, points: Sequence[Point]) -> str:
    samples = figures(setup, points)
    loads = sorted({point.load for point in points})
    # Ours is drawn last, above the others.
    gateways = sorted({point.gateway for point in points}, key=lambda name: (name == OURS, name))

    def series(gateway: str, figure: str) -> list[tuple[float, float]]:
        keys = {load: f"{gateway}.{load:g}.{figure}" for load in loads}
        return [(load, samples[key][0]) for load, key in keys.items() if key in samples]

    half = (WIDTH - LEFT - RIGHT - GAP) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(_said(setup, samples, loads, gateways))}</title>",
        STYLE,
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        _text(24, 36, "Interactive time to first token, p99", "title"),
        _text(24, 56, f"of the served, by the load offered; behind each gateway: {setup.replicas} × {setup.briefly}"),
        _text(24, 73, f"hollow: over all arrivals it is {MISSED}, which is never in time", "small"),
    ]
    tails = {gateway: series(gateway, f"{INTERACTIVE}.ttft_p99") for gateway in gateways}
    parts += _tail_panel(setup, samples, tails, Panel(LEFT, 84, WIDTH - LEFT - RIGHT, 300, *_tail_scales(setup, tails)))
    goods = {gateway: series(gateway, "good_tokens") for gateway in gateways}
    high = max(value for line in goods.values() for _, value in line)
    few = [load for load in loads if load != 0.8]  # there is no room for it beside 1×
    scales = svg.Scale(0.0, max(loads) * 1.03, _loads(few)), svg.linear(high * 1.1, _thousands, many=4)
    parts.append(_text(LEFT - 38, 446, "Goodput: tokens/s of answers in time", "sub"))
    parts += _goodput_panel(goods, Panel(LEFT, 462, half, 200, *scales))
    at = 2.0 if 2.0 in loads else max(loads)
    left = LEFT + half + GAP
    parts.append(_text(left - 20, 446, f"What all that asked got at {at:g}× capacity, by lane", "sub"))
    parts.append(_text(left + 64, 672, "in colour: in time; grey: late, or nothing; amber: refused", "small"))
    parts += _lanes_panel(samples, at, gateways, left, half)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _tail_scales(setup: Setup, tails: dict[str, list[tuple[float, float]]]) -> tuple[svg.Scale, svg.Scale]:
    loads = sorted({load for line in tails.values() for load, _ in line})
    values = [value * 1e3 for line in tails.values() for _, value in line]
    high = max(max(values) * 1.3, setup.slo_s * 1e3 * 1.5)
    return (
        svg.Scale(0.0, max(loads) * 1.27, _loads(loads)),
        svg.logarithmic(min(values) * 0.7, high, lambda ms: f"{ms / 1e3:g} s" if ms >= 1e3 else f"{ms:g} ms"),
    )


def _tail_panel(
    setup: Setup, samples: dict[str, list[float]], tails: dict[str, list[tuple[float, float]]], panel: Panel
) -> list[str]:
    parts = panel.axes()
    _, y = panel.at(0.0, setup.slo_s * 1e3)
    parts.append(f'<path class="promise" d="M{panel.left:.1f} {y:.1f}h{panel.width:.1f}"/>')
    parts.append(_text(panel.left + panel.width, y + 16, f"promised: {setup.slo_s:g} s", "promise", anchor="end"))
    ends: list[tuple[float, float, str, str]] = []
    for gateway, line in tails.items():
        spots = [panel.at(load, value * 1e3) for load, value in line]
        shown = CLASSES[gateway]
        if gateway == OURS:
            parts.append(_band(panel, samples, line))
        parts.append(_line(spots, shown, DASHES.get(gateway, "")))
        for (load, value), (x, y) in zip(line, spots, strict=True):
            least = "≥ " if samples[f"{gateway}.{load:g}.{INTERACTIVE}.at_least"][0] else ""
            over_all = _over_all(samples, gateway, load)
            said = f"{NAMES[gateway]} at {load:g}×: p99 {least}{_time(value)} of the served, {over_all} of all arrivals"
            size = 4.5 if gateway == OURS else 3.2
            dot = "hollow" if over_all == MISSED else "dot"
            parts.append(f'<circle class="{dot} {shown}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">{_hint(said)}</circle>')
        load, value = line[-1]
        least = "≥ " if samples[f"{gateway}.{load:g}.{INTERACTIVE}.at_least"][0] else ""
        ends.append((spots[-1][0] + 12, spots[-1][1] + 4, shown, f"{NAMES[gateway]}  {least}{_time(value)}"))
    parts += [_text(x, y, name, f"{shown} name") for x, y, shown, name in _apart(ends)]
    parts.append(
        _text(panel.left + panel.width, panel.top + panel.height + 38, "load, × what the fleet can do", anchor="end")
    )
    return parts


def _band(panel: Panel, samples: dict[str, list[float]], line: list[tuple[float, float]]) -> str:
    """95 % of resamples."""
    ends = {load: samples[f"{OURS}.{load:g}.{INTERACTIVE}.ttft_p99_interval"] for load, _ in line}
    upper = [panel.at(load, high * 1e3) for load, (_, high) in ends.items()]
    lower = [panel.at(load, low * 1e3) for load, (low, _) in ends.items()]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon class="band ours" points="{outline}">{_hint("95 % interval")}</polygon>'


def _over_all(samples: dict[str, list[float]], gateway: str, load: float) -> str:
    """The interactive p99 over all arrivals."""
    where = f"{gateway}.{load:g}.{INTERACTIVE}"
    if samples.get(f"{where}.missed_p99", [0.0])[0]:
        return MISSED
    found = samples.get(f"{where}.arrivals_p99")
    return "unknown" if found is None else _time(found[0])


def _goodput_panel(goods: dict[str, list[tuple[float, float]]], panel: Panel) -> list[str]:
    parts = panel.axes()
    for gateway, line in goods.items():
        spots = [panel.at(*pair) for pair in line]
        parts.append(_line(spots, CLASSES[gateway], DASHES.get(gateway, "")))
        for (load, value), (x, y) in zip(line, spots, strict=True):
            said = f"{NAMES[gateway]} at {load:g}×: {value:,.0f} tokens/s in time".replace(",", " ")
            size = 3.6 if gateway == OURS else 2.6
            parts.append(
                f'<circle class="dot {CLASSES[gateway]}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">{_hint(said)}</circle>'
            )
    return parts


def _lanes_panel(
    samples: dict[str, list[float]], load: float, gateways: list[str], left: float, width: float
) -> list[str]:
    """A bar for each lane and gateway: how many of those who asked were answered in time, and how many refused."""
    names = {"fast": "interactive", "slow": "code", "long": "documents", "batch": "batch"}
    order = sorted(gateways, key=list(CLASSES).index)
    parts = []
    label, row, top = 84.0, 50.0, 462.0
    room = width - label - 40
    for index, lane in enumerate(LANES):
        y = top + index * row
        parts.append(_text(left - 20, y + 24, names[lane]))
        for place, gateway in enumerate(order):
            where = f"{gateway}.{load:g}.{lane}"
            if f"{where}.good" not in samples:
                continue
            asked = max(1.0, samples[f"{where}.requests"][0])
            share, refused = samples[f"{where}.good"][0] / asked, samples[f"{where}.refused"][0] / asked
            at = y + place * 9.6
            said = f"{NAMES[gateway]}, {names[lane]}: {share:.0%} in time, {refused:.0%} refused"
            parts.append(
                f'<rect class="lost" x="{left + label - 20:.1f}" y="{at:.1f}" width="{room:.1f}" height="7.6" rx="2"/>'
            )
            parts.append(
                f'<rect class="bar {CLASSES[gateway]}" x="{left + label - 20:.1f}" y="{at:.1f}" '
                f'width="{max(1.0, room * share):.1f}" height="7.6" rx="2">{_hint(said)}</rect>'
            )
            if refused:
                parts.append(
                    f'<rect class="away" x="{left + label - 20 + room * (1 - refused):.1f}" y="{at:.1f}" '
                    f'width="{room * refused:.1f}" height="7.6" rx="2">{_hint(said)}</rect>'
                )
            if gateway == OURS:
                parts.append(_text(left + label - 12 + room, at + 8.5, f"{share:.0%}", "ours name small"))
    return parts


# -- pieces ---------------------------------------------------------------------------------------


def _loads(loads: list[float]) -> tuple[tuple[float, str], ...]:
    return tuple((load, f"{load:g}×") for load in loads)


def _thousands(value: float) -> str:
    return "0" if not value else f"{value / 1e3:g} k"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _line(spots: list[tuple[float, float]], shown: str, dash: str) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="line {shown}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in spots)}"{dashed}/>'


def _apart(ends: list[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """From the top down, none over another."""
    placed: list[tuple[float, float, str, str]] = []
    for x, y, shown, name in sorted(ends, key=lambda end: end[1]):
        placed.append((x, max(y, placed[-1][1] + APART) if placed else y, shown, name))
    return placed


def _said(setup: Setup, samples: dict[str, list[float]], loads: list[float], gateways: list[str]) -> str:
    figures_of = []
    for gateway in reversed(gateways):
        times = [samples.get(f"{gateway}.{load:g}.{INTERACTIVE}.ttft_p99") for load in loads]
        said = ", ".join(
            f"{_time(time[0])} at {load:g}× ({_over_all(samples, gateway, load)} of all arrivals)"
            for load, time in zip(loads, times, strict=True)
            if time
        )
        figures_of.append(f"{NAMES[gateway]}: {said}")
    return f"Interactive time to first token at p99 of the served, {setup.replicas} × {setup.says}. " + "; ".join(
        figures_of
    )


def _text(x: float, y: float, text: str, shown: str = "", *, anchor: str = "start") -> str:
    named = f' class="{shown}"' if shown else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _hint(text: str) -> str:
    return f"<title>{escape(text)}</title>"
