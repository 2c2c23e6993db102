"""Headgate's scheduler inside vLLM beside vLLM's own: gaps of running streams while a long prompt is read, first
tokens, tokens per second, texts.

    python benchmarks/vllm_live.py FOLDER &            starts both (benchmarks/vllm_live.py), and says when they listen
    python benchmarks/vllm_gap.py FOLDER               all of it, about 12 minutes on two cores
    python benchmarks/vllm_gap.py FOLDER gaps_200 text some of it; what was measured before is kept

Stock and ours take turns, three of each; a figure is the median of its three. Writes results/vllm_gap.json and .md.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.vllm_live import KINDS, Heard, counted, prompt_of, stream

RESULTS = Path(__file__).resolve().parent / "results"
LONG, SHORT, OPENING = 1500, 60, 24
"""Tokens of the prompts."""
ROUNDS, PAIRS = 3, 5
SETTLED = 12
"""Tokens of each stream before the long prompt is sent."""
AFTER_S = 0.3
"""Seconds after the long prompt's first token that still count: a gap that ends then began before."""
SEED = 20_26
Row = dict[str, Any]


def median(values: list[float]) -> float:
    return statistics.median(values)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def running(socket: str, count: int, rng: random.Random, **wishes: float) -> tuple[list[Heard], list[Any]]:
    """Streams that have settled, and their tasks, which are to be cancelled."""
    streams = [Heard(0.0) for _ in range(count)]
    tasks = [asyncio.create_task(stream(socket, prompt_of(OPENING, rng), 2000, heard, **wishes)) for heard in streams]
    await until(lambda: all(len(heard.tokens) >= SETTLED for heard in streams))
    return streams, tasks


async def ended(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.5)


async def gap(socket: str, kind: str, count: int, target_ms: float, rng: random.Random) -> Row:
    """One long prompt beside `count` streams."""
    streams, tasks = await running(socket, count, rng, gap_ms=target_ms)
    before = [gap_s for heard in streams for gap_s in heard.gaps(0.0, time.monotonic())]
    promised: list[float] = []

    async def watch() -> None:
        while kind == "ours":
            promised.append(await counted(socket, "gap_target_seconds"))
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    long = await stream(socket, prompt_of(LONG, rng), 4, gap_ms=target_ms)
    watching.cancel()
    first = long.tokens[0]
    await until(lambda: all(heard.tokens[-1] > first + AFTER_S for heard in streams))
    gaps = [gap_s for heard in streams for gap_s in heard.gaps(began, first + AFTER_S)]
    await ended([*tasks, watching])
    row = {"largest_s": max(gaps), "p95_s": sorted(gaps)[int(0.95 * (len(gaps) - 1))], "ttft_s": long.ttft_s}
    row["step_s"] = median(before)
    if kind == "ours":
        row["promised_s"] = max([*promised, target_ms / 1e3])
    return row


async def alone(socket: str, kind: str, rng: random.Random) -> Row:
    """A long prompt, and nothing beside it."""
    heard = await stream(socket, prompt_of(LONG, rng), 2)
    await asyncio.sleep(0.3)
    return {"ttft_s": heard.ttft_s}


async def behind(socket: str, kind: str, rng: random.Random) -> Row:
    """A short prompt one second behind a long one."""
    long = asyncio.create_task(stream(socket, prompt_of(LONG, rng), 2))
    await asyncio.sleep(1.0)
    short = await stream(socket, prompt_of(SHORT, rng), 8)
    await long
    await asyncio.sleep(0.3)
    return {"ttft_s": short.ttft_s}


async def decode(socket: str, kind: str, count: int, rng: random.Random) -> Row:
    """Tokens a second of streams and nothing else."""
    streams, tasks = await running(socket, count, rng)
    began, had = time.monotonic(), sum(len(heard.tokens) for heard in streams)
    await asyncio.sleep(4.0)
    took_s, got = time.monotonic() - began, sum(len(heard.tokens) for heard in streams) - had
    await ended(tasks)
    return {"tokens_s": got / took_s}


async def text(socket: str, kind: str, rng: random.Random) -> Row:
    """Greedy texts of twenty prompts, ten at a time beside each other."""
    prompts = [prompt_of(rng.randrange(5, 200), rng) for _ in range(20)]
    said: list[str] = []
    for first in (0, 10):
        heard = await asyncio.gather(*(stream(socket, prompt, 24) for prompt in prompts[first : first + 10]))
        said += [one.text for one in heard]
    return {"said": said}


PARTS: dict[str, tuple[int, Callable[..., Awaitable[Row]], tuple[Any, ...]]] = {
    "gap_1_200": (ROUNDS, gap, (1, 200.0)),
    "gap_4_200": (ROUNDS, gap, (4, 200.0)),
    "gap_1_100": (ROUNDS, gap, (1, 100.0)),
    "gap_4_100": (ROUNDS, gap, (4, 100.0)),
    "alone": (ROUNDS, alone, ()),
    "behind": (ROUNDS, behind, ()),
    "decode_1": (PAIRS, decode, (1,)),
    "decode_8": (PAIRS, decode, (8,)),
    "text": (1, text, ()),
}


async def measured(folder: str, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        rounds, run, more = PARTS[name]
        rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        loads = []
        for turn in range(rounds):
            for kind in KINDS if turn % 2 == 0 else KINDS[::-1]:
                rng = random.Random(f"{SEED} {name} {turn}")
                row = await run(f"{folder}/{kind}.sock", kind, *more, rng)
                rows[kind].append(row)
                loads.append(os.getloadavg()[0])
                shown = {key: value for key, value in row.items() if key != "said"}
                print(name, kind, shown, flush=True)
        rows["load"] = [{"most": max(loads), "least": min(loads)}]
        found[name] = rows
    return found


# -- what is made of it ------------------------------------------------------------------------------------------


def of(found: dict[str, Any], name: str, kind: str, key: str) -> float:
    return median([row[key] for row in found[name][kind]])


def verdicts(found: dict[str, Any]) -> list[tuple[str, str, str, str, str, bool]]:
    """(figure, stock, ours, ratio, pass, whether) of each figure that was measured."""
    rows: list[tuple[str, str, str, str, str, bool]] = []
    for target in (200, 100):
        for count in (1, 4):
            name = f"gap_{count}_{target}"
            if name not in found:
                continue
            stock, ours = (of(found, name, kind, "largest_s") for kind in KINDS)
            ratio = ours / stock
            if target == 200:
                bound, fine = "largest ≤ 300 ms, ≤ 0.1 × stock", ours <= 0.3 and ratio <= 0.1
                shown = ms(ours)
            else:
                promised, p95 = of(found, name, "ours", "promised_s"), of(found, name, "ours", "p95_s")
                bound = f"p95 ≤ 1.5 × promised ({ms(promised)}), largest ≤ 0.1 × stock"
                fine, shown = p95 <= 1.5 * promised and ratio <= 0.1, f"{ms(ours)}, p95 {ms(p95)}"
            what = f"largest gap of {count} stream{'s' if count > 1 else ''}, target {target} ms"
            rows.append((what, ms(stock), shown, f"{ratio:.3f}", bound, fine))
            if target == 200:
                stock, ours = (of(found, name, kind, "ttft_s") for kind in KINDS)
                what = f"TTFT of the long prompt beside {count}"
                rows.append((what, ms(stock), ms(ours), f"{ours / stock:.2f}", "≤ 1.6 × stock", ours <= 1.6 * stock))
    for name, what, most in (
        ("alone", "TTFT of the long prompt alone", 1.05),
        ("behind", "TTFT of 60 tokens 1 s behind", 0.15),
    ):
        if name in found:
            stock, ours = (of(found, name, kind, "ttft_s") for kind in KINDS)
            rows.append((what, ms(stock), ms(ours), f"{ours / stock:.3f}", f"≤ {most} × stock", ours <= most * stock))
    rows += [_decoded(found, count) for count in (1, 8) if f"decode_{count}" in found]
    if "text" in found:
        stocks, ourss = (found["text"][kind][0]["said"] for kind in KINDS)
        same = sum(one == other for one, other in zip(stocks, ourss, strict=True))
        rows.append(("greedy texts that are equal", "", f"{same} of {len(ourss)}", "", "all", same == len(ourss)))
    return rows


def _decoded(found: dict[str, Any], count: int) -> tuple[str, str, str, str, str, bool]:
    name = f"decode_{count}"
    pairs = [[row["tokens_s"] for row in found[name][kind]] for kind in KINDS]
    ratio = median([ours / stock for stock, ours in zip(*pairs, strict=True)])
    stock, ours = (median(one) for one in pairs)
    spread = min(pairs[0]) / stock
    fine = ratio >= min(0.95, spread)
    bound = f"≥ 0.95 × stock, or inside stock's own spread (from {spread:.2f})"
    return (
        f"tokens/s of {count} stream{'s' if count > 1 else ''}",
        f"{stock:.1f}",
        f"{ours:.1f}",
        f"{ratio:.3f}",
        bound,
        fine,
    )


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"


def page(found: dict[str, Any]) -> str:
    loads = [one for rows in found.values() for one in rows["load"]]
    lines = [
        "# Headgate's scheduler inside vLLM",
        "",
        "`benchmarks/vllm_gap.py`: vLLM 0.32 on a CPU (135M model in float32, two cores, --enforce-eager), with its",
        "own scheduler and with Headgate's, in turn. Medians of three of each; tokens/s of five pairs.",
        "The long prompt has 1,500 tokens.",
        f"The machine was shared: its load average was {min(one['least'] for one in loads):.1f} to"
        f" {max(one['most'] for one in loads):.1f} on two cores, vLLM itself included, so milliseconds are larger than",
        "on a quiet one, and one turn may have had more of the machine than the next.",
        "",
        "| figure | stock | ours | ours / stock | pass | |",
        "|---|--:|--:|--:|---|---|",
    ]
    lines += [f"| {' | '.join(row[:5])} | {'yes' if row[5] else '**no**'} |" for row in verdicts(found)]
    steps = [
        f"{name.replace('_', ' ')} {ms(of(found, name, 'stock', 'step_s'))} and {ms(of(found, name, 'ours', 'step_s'))}"
        for name in found if name.startswith("gap")
    ]  # fmt: skip
    lines += ["", f"Median gap before the long prompt, stock and ours: {'; '.join(steps)}.", ""]
    return "\n".join(lines)


def main() -> None:
    folder, names = str(Path(sys.argv[1]).resolve()), sys.argv[2:] or list(PARTS)
    kept = RESULTS / "vllm_gap.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    found.update(asyncio.run(measured(folder, names)))
    found = {name: found[name] for name in PARTS if name in found}
    kept.write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "vllm_gap.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
