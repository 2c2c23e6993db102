"""Draws the picture of the gap figure: `python benchmarks/picture.py [RESULT.json] > docs/images/gap.svg`.

Each dot is a token of a running stream: when it came, and how long after the one before. A 1 500-token prompt is sent
at zero.
"""

import json
import sys
from itertools import pairwise
from math import log10
from pathlib import Path

WIDTH, PANEL, LEFT, TOP = 860, 120, 64, 64
SECONDS = (-1.0, 22.0)
TALLEST_MS = 10_000.0
SERVERS = (("headgate", "Headgate", "#0a7d55"), ("llama", "llama.cpp's server", "#c2410c"))
RESULT = Path(__file__).parent / "results" / "engine.json"
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.grid { stroke: #8c959f55; }
@media (prefers-color-scheme: dark) { text { fill: #9198a1; } .title { fill: #e6edf3; } .card { fill: #0d1117; } }
.card { fill: #ffffff; }
@media (prefers-color-scheme: dark) { .card { fill: #0d1117; } }
</style>"""


def x(second: float) -> float:
    low, high = SECONDS
    return LEFT + (second - low) / (high - low) * (WIDTH - LEFT - 16)


def height(gap_ms: float) -> float:
    """Logarithmic from 5 ms up: 10 ms and 8 s must both be seen."""
    share = log10(max(gap_ms, 5.0) / 5.0) / log10(TALLEST_MS / 5.0)
    return share * (PANEL - 12)


def panel(name: str, colour: str, stamps: list[float], top: float) -> list[str]:
    base = top + PANEL
    worst = max(later - earlier for earlier, later in pairwise(stamps) if later > 0)
    parts = [f'<text class="title" x="{LEFT}" y="{top - 8}">{name}: longest gap {worst * 1e3:,.0f} ms</text>']
    for ms, label in ((10, "10 ms"), (100, "0.1 s"), (1000, "1 s"), (10_000, "10 s")):
        y = base - height(ms)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for earlier, later in pairwise(stamps):
        if SECONDS[0] <= later <= SECONDS[1]:
            y = base - height((later - earlier) * 1e3)
            parts.append(f'<circle cx="{x(later):.1f}" cy="{y:.1f}" r="2.2" fill="{colour}" fill-opacity=".75"/>')
    return parts


def draw(samples: dict[str, list[float]]) -> str:
    bottom = TOP + 2 * (PANEL + 48)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 8}" role="img">',
        "<title>Gaps between the tokens of a running stream while a 1 500-token prompt arrives</title>",
        STYLE,
        f'<rect class="card" width="{WIDTH}" height="{bottom + 8}" rx="8"/>',
        f'<text x="{LEFT}" y="24">Gap before each token of a running stream; 1 500 prompt tokens arrive at 0 s.</text>',
    ]
    for index, (server, name, colour) in enumerate(SERVERS):
        parts += panel(name, colour, samples[f"{server}.token_at_s"], TOP + index * (PANEL + 48))
    zero = f'x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{TOP - 4}" y2="{bottom - 48}"'
    parts.append(f'<line {zero} stroke="#8c959f" stroke-dasharray="3 3"/>')
    for second in range(0, int(SECONDS[1]) + 1, 5):
        parts.append(f'<text x="{x(second):.1f}" y="{bottom - 26}" text-anchor="middle">{second} s</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    sys.stdout.write(draw(json.loads(chosen.read_text())["samples"]))
