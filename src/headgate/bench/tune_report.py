"""Reports what `headgate tune` found: a table, a snippet for the config, a JSON file, a page with two plots."""

import json
import math
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from headgate.bench.lines import Level
from headgate.bench.tuned import Tuned
from headgate.model.labels import plain
from headgate.report import svg
from headgate.report.words import count, ms, rate


def snippet(tuned: Tuned) -> str:
    """The recommended settings as YAML for headgate.yaml."""
    advice = tuned.advice
    assert advice is not None
    lines = [
        f"# measured by `headgate tune` on {', '.join(tuned.options.urls)}",
        "classify:",
        f"  fast_below_tokens: {advice.fast_below_tokens}",
        f"  long_above_tokens: {advice.long_above_tokens}",
    ]
    if advice.slots is not None:
        each = max(1, advice.slots // len(tuned.options.urls))
        lines += ["replicas:"] + [f"- {{url: {json.dumps(url)}, slots: {each}}}" for url in tuned.options.urls]
        lines += ["lanes:", f"  long: {{concurrency: {advice.long_concurrency}}}"]
    return "\n".join(lines) + "\n"


def show(tuned: Tuned, out: Console) -> None:
    advice, prefill = tuned.advice, tuned.prefill
    assert advice is not None
    assert prefill is not None
    out.print(f"[bold]{tuned.model}[/], {tuned.asked} requests", highlight=False)
    out.print(
        f"  alone: {ms(prefill.fixed_s)} ms and {plain(prefill.token_s * 1e6)} µs for each token of the prompt",
        highlight=False,
    )
    table = Table(
        title=f"{tuned.prompt} tokens in, {tuned.options.output} out", box=None, padding=(0, 1), title_justify="left"
    )
    for name in ("at once", "asked", "TTFT p50", "p95", "TPOT p50", "p95", "tokens/s", ""):
        table.add_column(name, justify="right")
    for level in sorted(tuned.levels, key=lambda level: level.concurrency):
        kept = "[green]kept[/]" if level.keeps(tuned.ttft_s, tuned.tpot_s) else "[red]broken[/]"
        table.add_row(
            str(level.concurrency), count(level.requests), _ms(level.ttft_p50_s), _ms(level.ttft_p95_s),
            _ms(level.tpot_p50_s), _ms(level.tpot_p95_s), rate(level.tokens_per_s), kept,
        )  # fmt: skip
    out.print(table)
    for reason in (*advice.why, *tuned.notes):
        out.print(f"  {reason}", markup=False, soft_wrap=True)
    out.print()
    out.print(snippet(tuned), markup=False, soft_wrap=True)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None or math.isinf(seconds) else ms(seconds)


def write_json(path: Path, tuned: Tuned) -> None:
    path.write_text(json.dumps(as_dict(tuned), indent=1) + "\n")


def as_dict(tuned: Tuned) -> dict[str, Any]:
    advice, prefill = tuned.advice, tuned.prefill
    assert advice is not None
    assert prefill is not None
    return {
        "model": tuned.model,
        "urls": list(tuned.options.urls),
        "sla": {"ttft_p95_s": tuned.ttft_s, "tpot_p95_s": tuned.tpot_s},
        "prefill": {
            "fixed_s": prefill.fixed_s,
            "token_s": prefill.token_s,
            "dominates_from_tokens": prefill.dominates_from,
        },
        "alone": [{"prompt_tokens": one.prompt_tokens, "ttft_s": one.ttft_s} for one in tuned.alone],
        "levels": [_level(level, level.keeps(tuned.ttft_s, tuned.tpot_s)) for level in tuned.levels],
        "advice": {
            "fast_below_tokens": advice.fast_below_tokens,
            "long_above_tokens": advice.long_above_tokens,
            "slots": advice.slots,
            "long_concurrency": advice.long_concurrency,
            "why": list(advice.why),
        },
        "notes": tuned.notes,
        "config": snippet(tuned),
    }


def _level(level: Level, kept: bool) -> dict[str, Any]:
    return {
        "concurrency": level.concurrency,
        "requests": level.requests,
        "failed": level.failed,
        "ttft_p50_s": _finite(level.ttft_p50_s),
        "ttft_p95_s": _finite(level.ttft_p95_s),
        "tpot_p50_s": level.tpot_p50_s,
        "tpot_p95_s": level.tpot_p95_s,
        "tokens_per_s": level.tokens_per_s,
        "kept": kept,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


# -- the page -----------------------------------------------------------------------------------------------------


def write_html(path: Path, tuned: Tuned) -> None:
    css = (files("headgate.report") / "page.css").read_text()
    advice = tuned.advice
    assert advice is not None
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in (*advice.why, *tuned.notes))
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>headgate tune: {escape(tuned.model)}</title><style>{css}</style>"
        f"<header><h1>{escape(tuned.model)}: where the lines lie</h1></header><main>"
        f"<h2>One at a time <small>time to the first token by prompt tokens</small></h2>"
        f"<section class=panel>{lengths_plot(tuned)}</section>"
        f"<h2>Many at once <small>time to the first token against output tokens/s</small></h2>"
        f"<section class=panel>{levels_plot(tuned)}{_legend(tuned)}</section>"
        f"<h2>What to set</h2><ul>{reasons}</ul><pre>{escape(snippet(tuned))}</pre></main></html>\n"
    )


def lengths_plot(tuned: Tuned) -> str:
    prefill = tuned.prefill
    assert prefill is not None
    lengths = np.array([one.prompt_tokens for one in tuned.alone], dtype=float)
    times = np.array([one.ttft_s for one in tuned.alone], dtype=float)
    x = svg.logarithmic(float(lengths.min()), float(lengths.max()), _plain)
    least = min(float(times.min()), prefill.ttft_s(float(lengths.min())))
    y = svg.logarithmic(least, float(times.max()), _ms_tick)
    plot = svg.Plot(x, y, title="Time to the first token by prompt length")
    across = np.geomspace(lengths.min(), lengths.max(), 80)
    plot.line(across, prefill.fixed_s + prefill.token_s * across, svg.colour(0), title="fixed + per token")
    plot.dots(lengths, times, svg.colour(1), size=6, opacity=0.8, title="measured")
    at = prefill.dominates_from
    if at is not None and lengths.min() <= at <= lengths.max():
        plot.upright(at, f"{at} tokens: prefill takes over", "var(--warning)")
    plot.level(tuned.ttft_s, f"promised: {plain(tuned.ttft_s * 1e3, 6)} ms", "var(--promise)")
    return plot.svg()


def levels_plot(tuned: Tuned) -> str:
    levels = sorted((level for level in tuned.levels if math.isfinite(level.ttft_p95_s)), key=lambda it: it.concurrency)
    if not levels:
        return "<p>None was measured.</p>"
    rates = np.array([level.tokens_per_s for level in levels])
    p50 = np.array([level.ttft_p50_s for level in levels])
    p95 = np.array([level.ttft_p95_s for level in levels])
    x = svg.linear(float(rates.max()), _plain)
    y = svg.logarithmic(float(min(p50.min(), tuned.ttft_s)), float(max(p95.max(), tuned.ttft_s)), _ms_tick)
    plot = svg.Plot(x, y, title="Time to the first token against tokens a second")
    plot.level(tuned.ttft_s, f"promised: {plain(tuned.ttft_s * 1e3, 6)} ms", "var(--promise)")
    for index, values in enumerate((p50, p95)):
        plot.line(rates, values, svg.colour(index))
        plot.dots(rates, values, svg.colour(index), size=6, opacity=1.0)
    for level in levels:
        plot.label(plot.x(level.tokens_per_s) + 5, plot.y(level.ttft_p95_s) - 5, str(level.concurrency), "var(--muted)")
    return plot.svg()


def _legend(tuned: Tuned) -> str:
    entries = (("TTFT p50", svg.colour(0), ""), ("TTFT p95, with how many at once", svg.colour(1), ""))
    return svg.legend(entries)


def _ms_tick(seconds: float) -> str:
    return f"{plain(seconds * 1e3, 6)} ms"


def _plain(value: float) -> str:
    return plain(value, 6)
