"""What the points say. Percentiles per lane, what was in time, and whether that is enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from benchmarks.report import Grid, Row, Samples, Verdict, judge, number
from benchmarks.tail_load import Point
from benchmarks.tail_mix import INTERACTIVE, LANES, Setup
from benchmarks.tail_site import NAMES

from headgate.policy.promises.promise import beyond
from headgate.report.arrivals import quantile
from headgate.report.results import Floats
from headgate.report.statistics import estimate

LEVELS = (0.5, 0.95, 0.99)
OURS = "headgate"
ANY_PACE_S = 0.4
"""For each token of an unstreamed answer where nothing is asked of the pace of a stream."""


@dataclass(frozen=True, slots=True)
class LaneFigures:
    requests: int
    refused: int
    failed: int
    cut: int
    ttft_s: tuple[float, ...]
    """At LEVELS, of what was streamed and not refused. One that was cut off before its first token counts with what it
    had waited."""
    arrivals_s: tuple[float, ...]
    """The same over all arrivals, of which a refused or failed one is never in time; inf: it is one of those."""
    interval_s: tuple[float, float]
    """The interval of the last of the served: 95 %."""
    at_least: bool
    """Whether the last would have been higher, had no request been cut off."""
    good: int
    """Ended well, with first token and pace in time; unstreamed, in the time of both together."""
    good_tokens: int

    @property
    def refused_share(self) -> float:
        return self.refused / max(1, self.requests)


def lane_figures(point: Point, lane: str, ttft_within_s: float, tpot_within_s: float | None) -> LaneFigures:
    mine = [index for index, name in enumerate(point.lane) if name == lane]
    kinds = [point.kind[index] for index in mine]
    values, bounds = [], []
    good = good_tokens = answered = 0
    for index, kind in zip(mine, kinds, strict=True):
        ttft_s, tpot_s = point.ttft_s[index], point.tpot_s[index]
        answered += kind == "ok"
        if ttft_s is not None and kind != "refused":
            values.append(ttft_s)
            slow = tpot_within_s is not None and tpot_s is not None and tpot_s > tpot_within_s
            if kind == "ok" and ttft_s <= ttft_within_s and not slow:
                good += 1
                good_tokens += point.prompt[index] + point.output[index]
        elif not _streamed(point, index):
            within_s = ttft_within_s + point.output[index] * (tpot_within_s or ANY_PACE_S)
            if kind == "ok" and point.took_s[index] <= within_s:
                good += 1
                good_tokens += point.prompt[index] + point.output[index]
        elif kind == "cut":
            bounds.append(point.took_s[index])
    seen: Floats = np.array([*values, *bounds])
    lost = kinds.count("refused") + kinds.count("failed")
    # As many of the lost would have had a first token of their own as of the answered have one.
    missed = beyond(len(values), answered, lost)
    found = estimate(seen, LEVELS, np.random.default_rng(0)) if len(seen) else []
    levels = tuple(one.value for one in found)
    last = found[-1] if found else None
    return LaneFigures(
        requests=len(mine),
        refused=kinds.count("refused"),
        failed=kinds.count("failed"),
        cut=kinds.count("cut"),
        ttft_s=levels,
        arrivals_s=tuple(quantile(seen, missed, level) for level in LEVELS) if mine else (),
        interval_s=(0.0, 0.0) if last is None else (last.low or last.value, last.high or last.value),
        at_least=bool(bounds) and bool(levels) and min(bounds) <= levels[-1],
        good=good,
        good_tokens=good_tokens,
    )


def _streamed(point: Point, index: int) -> bool:
    return not point.streamed or point.streamed[index]


def figures(setup: Setup, points: Sequence[Point]) -> Samples:
    """Everything by `gateway.load.lane.figure` or `gateway.load.figure`."""
    samples: Samples = {}
    for point in points:
        where = f"{point.gateway}.{point.load:g}"
        lanes = {lane: lane_figures(point, lane, ttft_s, tpot_s) for lane, ttft_s, tpot_s in setup.good}
        for lane, found in lanes.items():
            for level, value in zip(LEVELS, found.ttft_s, strict=False):
                samples[f"{where}.{lane}.ttft_p{level * 100:g}"] = [value]
            for level, value in zip(LEVELS, found.arrivals_s, strict=False):
                # JSON has no infinity: where it is missed there is no time, and that is said.
                samples[f"{where}.{lane}.missed_p{level * 100:g}"] = [float(value == inf)]
                if value < inf:
                    samples[f"{where}.{lane}.arrivals_p{level * 100:g}"] = [value]
            samples[f"{where}.{lane}.ttft_p99_interval"] = list(found.interval_s)
            counts = {"requests": found.requests, "refused": found.refused, "failed": found.failed, "cut": found.cut}
            counts |= {"good": found.good, "at_least": int(found.at_least)}
            samples |= {f"{where}.{lane}.{name}": [float(count)] for name, count in counts.items()}
        samples[f"{where}.goodput"] = [sum(found.good for found in lanes.values()) / point.seconds]
        samples[f"{where}.good_tokens"] = [sum(found.good_tokens for found in lanes.values()) / point.seconds]
        samples[f"{where}.tokens"] = [point.prompt_per_s + point.output_per_s]
        samples[f"{where}.output"] = [point.output_per_s]
        samples[f"{where}.idle"] = [point.idle]
        samples[f"{where}.spare"] = [point.spare]
        samples[f"{where}.behind"] = [point.behind_s]
        samples[f"{where}.lag_p99"] = [point.lag_p99_s]
    return samples


# -- the verdict ----------------------------------------------------------------------------------


def verdicts(setup: Setup, points: Sequence[Point], share: float) -> tuple[list[Verdict], Samples]:
    """Also the figures made of several points that were judged."""
    samples = figures(setup, points)
    loads = sorted({point.load for point in points})
    peers = [gateway for gateway in dict.fromkeys(point.gateway for point in points) if gateway != OURS]
    made: Samples = {"share": [share]}

    def ours(load: float, figure: str) -> float | None:
        return samples.get(f"{OURS}.{load:g}.{figure}", [None])[0]

    def p99(gateway: str, load: float) -> float | None:
        return samples.get(f"{gateway}.{load:g}.{INTERACTIVE}.ttft_p99", [None])[0]

    worst = [value for load in loads if (value := p99(OURS, load)) is not None]
    if worst:
        made["worst_p99"] = [max(worst)]
    for load in (0.8, 1.5, 2.0):
        if (value := p99(OURS, load)) is not None:
            made[f"p99_{load:g}"] = [value]
    refused, asked = ours(2.0, f"{INTERACTIVE}.refused"), ours(2.0, f"{INTERACTIVE}.requests")
    if refused is not None and asked:
        made["refused_2"] = [refused / asked]
    for load in loads:
        if (missed := ours(load, f"{INTERACTIVE}.missed_p99")) is not None:
            made["missed_p99"] = [max(missed, made.get("missed_p99", [0.0])[0])]
    for name in ("goodput", "good_tokens"):
        for top in (2.0, 3.0):
            upto = [value for load in loads if load <= top and (value := ours(load, name)) is not None]
            if (value := ours(top, name)) is not None:
                made[f"{name}_{top:g}"] = [value]
                made[f"{name}_peak_{top:g}"] = [max(upto)]
        if whole := [value for load in loads if (value := ours(load, name)) is not None]:
            made[f"{name}_peak"] = [max(whole)]
    computed = [samples[key][0] for key in samples if key.endswith(".tokens")]
    for point in points:
        if (point.gateway, point.load) == (OURS, 2.0):
            made["goodput_most_2"] = [_most_served(point, max(computed)) / point.seconds]
    best = [value for peer in peers if (value := p99(peer, 1.5)) is not None]
    if best:
        made["best_p99_1.5"] = [min(best)]
    for name, gateways in (("tokens", [OURS]), ("best_tokens", peers)):
        most = [samples[key][0] for key in samples if key.endswith(".tokens") and key.split(".")[0] in gateways]
        if most:
            made[name] = [max(most)]
    made["spare"] = [min(point.spare for point in points)]
    return [judge(row, made) for row in rows(setup)], made


def _most_served(point: Point, tokens_per_s: float) -> int:
    """The most requests of this point that could be served at this pace, the smallest first. Of those that were
    refused only the prompt is known, so it is rather too many."""
    left, count = tokens_per_s * point.seconds, 0
    for tokens in sorted(prompt + output for prompt, output in zip(point.prompt, point.output, strict=True)):
        left -= tokens
        if left < 0:
            break
        count += 1
    return count


def rows(setup: Setup) -> list[Row]:
    within, aim = setup.slo_s, setup.target_s
    return [
        Row("interactive share of the tokens offered", "share", None, "≤", 0.4),
        Row("interactive p99 TTFT at the worst load, s", "worst_p99", None, "≤", within, aim),
        Row("interactive p99 TTFT at 2×, over that at 0.8×", "p99_2", "p99_0.8", "≤", 1.5, 1.2),
        Row("interactive refused at 2×, share", "refused_2", None, "≤", 0.01),
        Row("1: interactive p99 over all arrivals is a refusal or failure at some load", "missed_p99", None),
        Row("goodput at 2× over its peak up to there, requests/s", "goodput_2", "goodput_peak_2", "≥", 0.9, 0.95),
        Row("goodput at 3× over its peak up to there, requests/s", "goodput_3", "goodput_peak_3", "≥", 0.9, 0.95),
        Row("goodput at 2× over its peak up to there, tokens/s", "good_tokens_2", "good_tokens_peak_2", "≥", 0.9, 0.95),
        Row("goodput at 3× over its peak up to there, tokens/s", "good_tokens_3", "good_tokens_peak_3", "≥", 0.9, 0.95),
        Row("goodput at 2× over its peak at any load, requests/s", "goodput_2", "goodput_peak", "≥", 0.9, 0.95),
        Row("the same over the most that could be served at 2×", "goodput_2", "goodput_most_2"),
        Row("that most over the peak at any load: if below 0.9, nobody can", "goodput_most_2", "goodput_peak"),
        Row("goodput at 2× over its peak at any load, tokens/s", "good_tokens_2", "good_tokens_peak", "≥", 0.9, 0.95),
        Row("best peer's interactive p99 TTFT at 1.5×, over ours", "best_p99_1.5", "p99_1.5", "≥", 5, 10),
        Row("tokens/s at saturation, over the best peer's", "tokens", "best_tokens", "≥", 0.95),
        Row("CPU that engines, gateway and client left at the busiest point", "spare", None, "≥", setup.spare_least),
    ]


# -- tables ---------------------------------------------------------------------------------------


def grids(setup: Setup, points: Sequence[Point]) -> tuple[Grid, ...]:
    samples = figures(setup, points)
    loads = sorted({point.load for point in points})
    gateways = list(dict.fromkeys(point.gateway for point in points))
    heads = tuple(NAMES[gateway] for gateway in gateways)

    def one(key: str) -> float | None:
        return samples.get(key, [None])[0]

    def lane_cell(gateway: str, load: float, lane: str) -> str:
        where = f"{gateway}.{load:g}.{lane}"
        levels = [one(f"{where}.ttft_p{level * 100:g}") for level in LEVELS]
        if None in levels:
            return "missed / missed / missed" if one(f"{where}.missed_p50") else ""
        times = " / ".join(_seconds(level or 0.0) for level in levels)
        least = "≥ " if one(f"{where}.at_least") else ""
        asked = one(f"{where}.requests") or 1.0
        lost = ", ".join(
            f"{name} {share:.1%}"
            for name in ("refused", "failed", "cut")
            if (share := (one(f"{where}.{name}") or 0.0) / asked) > 0
        )
        served = f"{times.rpartition(' ')[0]} {least}{times.rpartition(' ')[2]}"
        if not lost:
            return served
        over_all = " / ".join(
            "missed"
            if one(f"{where}.missed_p{level * 100:g}")
            else _seconds(one(f"{where}.arrivals_p{level * 100:g}") or 0)
            for level in LEVELS
        )
        return f"{served}; all arrivals {over_all}; {lost}"

    made = []
    for lane in LANES:
        title = f"{lane}: TTFT p50 / p95 / p99 of the served, s; of all arrivals where any were lost"
        cells = [(f"{load:g}×", *(lane_cell(gateway, load, lane) for gateway in gateways)) for load in loads]
        made.append(Grid((title, *heads), tuple(cells)))
    plain = {
        "goodput": "goodput, requests/s",
        "good_tokens": "goodput, tokens/s",
        "tokens": "tokens/s computed",
        "output": "of these generated",
        "spare": "CPU left by engines, gateway and client, share",
        "idle": "idle CPU, share",
        "behind": "engines behind their model, s",
        "lag_p99": "client's lateness at p99, s",
    }
    for figure, title in plain.items():
        cells = [
            (f"{load:g}×", *(number(one(f"{gateway}.{load:g}.{figure}")) for gateway in gateways)) for load in loads
        ]
        made.append(Grid((title, *heads), tuple(cells)))
    return tuple(made)


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
