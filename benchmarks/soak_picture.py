"""Draws the gateway's resident memory over a soak."""

from benchmarks.picture import STYLE

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 260, 64, 16, 56, 40


def draw(at_s: list[float], resident_mb: list[float], full_s: float, half_s: float, growth_mb: float) -> str:
    """`full_s`: when the ring of records was full; `half_s`: from when on growth is judged."""
    last, most = max(at_s), max(resident_mb) * 1.1
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(second: float) -> float:
        return LEFT + second / last * inner

    def y(mb: float) -> float:
        return TOP + tall * (1 - mb / most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Resident memory of the gateway during a soak</title>",
        STYLE,
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text class="title" x="{LEFT}" y="24">Resident memory of the gateway, MB</text>',
        f'<text x="{LEFT}" y="42">Second half after the ring of records is full: {growth_mb:+.2f} MB</text>',
    ]
    step = next(step for step in (10, 20, 50, 100, 200, 500, 1000, 10_000) if most / step <= 6)
    for mb in range(0, int(most) + 1, step):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mb):.1f}" y2="{y(mb):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(mb) + 4:.1f}" text-anchor="end">{mb}</text>')
    for second, label in ((full_s, "ring full"), (half_s, "judged from here")):
        line = f'x1="{x(second):.1f}" x2="{x(second):.1f}" y1="{TOP}" y2="{TOP + tall}"'
        parts.append(f'<line {line} stroke="#8c959f" stroke-dasharray="3 3"/>')
        parts.append(f'<text x="{x(second) + 4:.1f}" y="{TOP + tall - 6}">{label}</text>')
    points = " ".join(f"{x(second):.1f},{y(mb):.1f}" for second, mb in zip(at_s, resident_mb, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#0a7d55" stroke-width="2"/>')
    unit, name = (60, "min") if last >= 300 else (1, "s")
    every = max(1, round(last / unit / 6))
    parts += [
        f'<text x="{x(tick * unit):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{tick} {name}</text>'
        for tick in range(0, int(last / unit) + 1, every)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"
