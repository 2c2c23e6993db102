"""Writes and reads results as JSON: the keys of `vllm bench serve`, and under `headgate` all the rest.

`figures` cover the served, `arrivals` all arrivals: see arrivals.py. vLLM's own keys cover the served. Lists have one
entry per request, in order of arrival, however the request ended. Unlike vLLM's, latencies count from when a request
was due, not from when it was sent; `failed` counts, as in vLLM, all that was not completed, including refusals.
"""

from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headgate import __version__
from headgate.model.errors import UsageError
from headgate.report.results import KINDS, LEVELS, Floats, Results, Rows, Target
from headgate.report.statistics import Estimate
from headgate.report.summary import LaneSummary, Spread
from headgate.report.words import level_name

SCHEMA = 1
VLLM_NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}


def as_dict(results: Results, summaries: dict[str, LaneSummary]) -> dict[str, Any]:
    """Figures, and under `rows` every request, so that files can be compared."""
    everything = summaries[""]
    duration = max(results.duration_s, 1e-9)
    found: dict[str, Any] = {
        "duration": results.duration_s,
        "num_prompts": len(results),
        "request_rate": everything.offered_per_s,
        "completed": everything.completed,
        "failed": everything.requests - everything.completed,
        "total_input_tokens": everything.prompt_tokens,
        "total_output_tokens": everything.output_tokens,
        "request_throughput": everything.completed_per_s,
        "request_goodput": everything.good_per_s,
        "output_throughput": everything.output_tokens_per_s,
        "total_token_throughput": (everything.prompt_tokens + everything.output_tokens) / duration,
        "max_concurrent_requests": _most_at_once(results),
    }
    for figure, name in VLLM_NAMES.items():
        _add(found, name, results.values(figure))
    gaps = [gap for gap, ok in zip(results.gaps, results.ok, strict=False) if ok]
    _add(found, "itl", np.concatenate(gaps) if gaps else np.array([]))
    found |= {
        "input_lens": results.prompt_tokens.tolist(),
        "output_lens": np.where(results.ok, results.output_tokens, 0).tolist(),
        "ttfts": _list(np.nan_to_num(results.ttft_s)),
        "itls": [_list(gap) for gap in results.gaps],
        "latencies": _list(np.nan_to_num(results.e2e_s)),
        "start_times": _list(results.at_s),
        "errors": [results.reasons[index] for index in results.why.tolist()],
    }
    found["headgate"] = {
        "version": __version__,
        "schema": SCHEMA,
        "source": results.source,
        "title": results.title,
        "facts": results.facts,
        "notes": results.notes,
        "goodput": [_target(target) for target in results.goodput],
        "promises": [_target(target) for target in results.promises],
        "lanes": {lane: _summary(summaries[lane]) for lane in results.lanes},
        "all": _summary(everything),
    }
    found["headgate"]["rows"] = {
        "lanes": results.lanes,
        "lane": results.lane.tolist(),
        "kind": [KINDS[index] for index in results.kind.tolist()],
        "ttft_s": _list(results.ttft_s),
        "tpot_s": _list(results.tpot_s),
        "max_gap_s": _list(results.max_gap_s),
        "e2e_s": _list(results.e2e_s),
        "queue_s": _list(results.queue_s),
        "lag_s": _list(results.lag_s),
    }
    return found


def write(
    path: Path,
    results: Results,
    summaries: dict[str, LaneSummary],
    *,
    more: dict[str, Any] | None = None,
) -> None:
    """`more`: further keys beside those of as_dict."""
    data = msgspec.json.encode({**(more or {}), **as_dict(results, summaries)})
    try:
        path.write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from None


def read(path: Path) -> Results:
    """Reads a file of ours, or of `vllm bench serve --save-result --save-detailed`. Raises StartupError."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("ttfts"), list) or "errors" not in data:
        raise UsageError(
            f"{path} has no figures of single requests; write it with headgate bench --json FILE, "
            "or vllm bench serve --save-result --save-detailed"
        )
    ours = data.get("headgate")
    if isinstance(ours, dict) and ours.get("schema") != SCHEMA:
        raise UsageError(f"{path} is of schema {ours.get('schema')}, and this Headgate reads {SCHEMA}")
    try:
        return _ours(data, ours) if isinstance(ours, dict) else _foreign(data, path.stem)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__} {error}") from None


def _ours(data: dict[str, Any], ours: dict[str, Any]) -> Results:
    rows, kept = Rows(), ours["rows"]
    lanes = kept["lanes"]
    columns = zip(
        data["start_times"],
        kept["lane"],
        kept["kind"],
        data["errors"],
        *(kept[f"{name}_s"] for name in ("ttft", "tpot", "max_gap", "e2e", "queue", "lag")),
        data["input_lens"],
        data["output_lens"],
        data["itls"] or [None] * len(data["errors"]),
        strict=True,
    )
    for at, lane, kind, why, ttft, tpot, max_gap, e2e, queue, lag, prompt, output, gaps in columns:
        rows.add(
            at_s=at,
            lane=lanes[lane],
            kind=kind,
            why=why,
            ttft_s=ttft,
            tpot_s=tpot,
            max_gap_s=max_gap,
            e2e_s=e2e,
            queue_s=queue,
            lag_s=lag,
            prompt_tokens=prompt,
            output_tokens=output,
            gaps=gaps,
        )
    return rows.results(
        ours["title"],
        source=ours["source"],
        duration_s=data["duration"],
        goodput=[Target(**target) for target in ours["goodput"]],
        promises=[Target(**target) for target in ours["promises"]],
        facts=ours["facts"],
        notes=ours["notes"],
    )


def _foreign(data: dict[str, Any], title: str) -> Results:
    rows = Rows()
    many = len(data["ttfts"])
    begins = data.get("start_times") or list(range(many))
    begin = min(begins, default=0.0)
    for index, (ttft, gaps, error) in enumerate(zip(data["ttfts"], data["itls"], data["errors"], strict=True)):
        e2e = data["latencies"][index] if data.get("latencies") else ttft + sum(gaps)
        output = data["output_lens"][index]
        rows.add(
            at_s=begins[index] - begin,
            lane="all",
            kind="failed" if error else "ok",
            why=error,
            ttft_s=ttft,
            tpot_s=(e2e - ttft) / (output - 1) if output > 1 else None,
            max_gap_s=max(gaps, default=None),
            e2e_s=e2e,
            prompt_tokens=data["input_lens"][index],
            output_tokens=output,
            gaps=gaps,
        )
    return rows.results(title, source="bench", duration_s=data["duration"])


# -- pieces ---------------------------------------------------------------------------------------------------


def _add(found: dict[str, Any], name: str, values: Floats) -> None:
    """Adds a figure's statistics as vLLM does: 0 where there are no values."""
    values = values if len(values) else np.zeros(1)
    found[f"mean_{name}_ms"] = float(values.mean()) * 1e3
    found[f"median_{name}_ms"] = float(np.median(values)) * 1e3
    found[f"std_{name}_ms"] = float(values.std()) * 1e3
    for level, value in zip(LEVELS, np.quantile(values, LEVELS), strict=True):
        found[f"{level_name(level)}_{name}_ms"] = float(value) * 1e3


def _most_at_once(results: Results) -> int:
    begins = results.at_s
    ends = begins + np.nan_to_num(results.e2e_s)
    # At equal times, an end counts before a begin.
    order = np.lexsort((np.concatenate([np.ones(len(begins)), -np.ones(len(ends))]), np.concatenate([begins, ends])))
    steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])[order]
    return int(np.cumsum(steps).max(initial=0))


def _list(values: Floats) -> list[float]:
    """Rounded to microseconds; NaN becomes null in JSON."""
    found: list[float] = np.round(values, 6).tolist()
    return found


def _target(target: Target) -> dict[str, Any]:
    found = {"figure": target.figure, "within_s": target.within_s, "lane": target.lane, "level": target.level}
    return found if target.up_to_tokens is None else {**found, "up_to_tokens": target.up_to_tokens}


def _estimate(estimate: Estimate, scale: float = 1.0) -> list[float | None]:
    ends = (estimate.value, estimate.low, estimate.high)
    return [None if value is None else round(value * scale, 6) for value in ends]


def _spread(spread: Spread) -> dict[str, Any]:
    levels = {f"{level_name(level)}_ms": _estimate(found, 1e3) for level, found in spread.levels.items()}
    return {"count": spread.count, "mean_ms": spread.mean_s * 1e3, "std_ms": spread.std_s * 1e3, **levels}


def _over_all(levels: dict[float, float]) -> dict[str, Any]:
    """A level is null, and named under `missed`, where it falls on a request that got no answer."""
    return {
        **{f"{level_name(level)}_ms": None if value == inf else value * 1e3 for level, value in levels.items()},
        "missed": [level_name(level) for level, value in levels.items() if value == inf],
    }


def _summary(summary: LaneSummary) -> dict[str, Any]:
    """Percentiles are [value, low, high]: the interval holds 95 % of resamples, null where there are too few values."""
    names = [field.name for field in fields(summary) if field.name not in ("figures", "good", "lane", "arrivals")]
    return {
        **{name: getattr(summary, name) for name in names},
        "good": None if summary.good is None else _estimate(summary.good),
        "availability": summary.availability,
        "figures": {name: _spread(spread) for name, spread in summary.figures.items()},
        "arrivals": {name: _over_all(levels) for name, levels in summary.arrivals.items()},
    }
