"""Compares this tree's compiled Headgate with an earlier compiled copy of it: `gateway.py --before PATH`.

In each of five rounds the earlier copy, this one, the earlier copy again and sglang-router take turns on the same core,
in one order and then in the other. A ratio is one of medians. What the earlier copy makes against itself, round by
round, is the A/A spread: a difference within it is chance, and if its median is further from 1 than the bound, nothing
is proved.
"""

import argparse
import os
import secrets
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.gateway_figures import Bench, Plan, measure_gateway, news
from benchmarks.gateway_peers import COMPILED, GATEWAYS, installed
from benchmarks.kit import compiled
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import (
    CpuTime,
    Report,
    Row,
    Samples,
    Verdict,
    judge,
    machine,
    median_grid,
    number,
    verdict_grid,
)
from rich.console import Console

TITLE = "Headgate beside itself before"
RESULTS = ROOT / "benchmarks" / "results" / "gateway_before.json"
OURS, BEFORE, AGAIN, PEER = "headgate", "before", "again", "sglang"
TURNS = (BEFORE, OURS, AGAIN, PEER)
MOST = 1.05
"""CPU per request, over before."""
NOISY = 0.15
"""Share of the machine in others' hands beyond which even ratios are chance."""
SHOWN = {
    "requests_s": "requests/s, 64 connections",
    "request_cpu_ms": "CPU ms per request",
    "tokens_s": "streamed tokens/s, 32 streams",
    "token_cpu_us": "CPU µs per token",
}
ROWS = (
    Row("CPU ms per request, over before", "headgate.request_cpu_ms", "before.request_cpu_ms", "≤", MOST),
    Row("A/A: before over itself", "again.request_cpu_ms", "before.request_cpu_ms"),
    Row("CPU ms per request, over sglang-router", "headgate.request_cpu_ms", "sglang.request_cpu_ms", "≤", 0.5),
    Row("requests/s, over before", "headgate.requests_s", "before.requests_s"),
    Row("A/A: before over itself", "again.requests_s", "before.requests_s"),
    Row("requests/s, over sglang-router", "headgate.requests_s", "sglang.requests_s", "≥", None, 2),
    Row("CPU µs per streamed token, over before", "headgate.token_cpu_us", "before.token_cpu_us"),
    Row("A/A: before over itself", "again.token_cpu_us", "before.token_cpu_us"),
    Row("CPU µs per streamed token, over sglang-router", "headgate.token_cpu_us", "sglang.token_cpu_us"),
)


def copy_in(path: Path) -> Path:
    """`path` is a compiled copy, or a tree in which one was built."""
    for copy in (path, path / "build" / "compiled"):
        if (copy / "headgate").is_dir() and any(copy.glob("headgate__mypyc*.so")):
            return copy.resolve()
    raise Unusable(f"no compiled Headgate in {path} or {path}/build/compiled: `make install compiled` there")


def plan_of(args: argparse.Namespace, turns: tuple[str, ...]) -> Plan:
    return Plan(
        rounds=1 if args.quick else args.rounds,
        load_s=1.5 if args.quick else 6.0,
        open_s=0.0,
        hold_within_s=0.0,
        gateways=turns,
        figures=(args.only,) if args.only else ("requests", "tokens"),
    )


def measure(bench: Bench, console: Console) -> None:
    for index in range(bench.plan.rounds):
        for figure in bench.plan.figures:
            console.print(f"round {index + 1} of {bench.plan.rounds}: {figure} …", highlight=False)
            for name in bench.plan.gateways if index % 2 == 0 else reversed(bench.plan.gateways):
                noted, known = len(bench.notes), {key: len(values) for key, values in bench.samples.items()}
                measure_gateway(bench, name, figure)
                console.print(f"  {name}: {news(bench.samples, known)}", style="dim", highlight=False)
                for note in bench.notes[noted:]:
                    console.print(note, style="yellow", markup=False)


def ratios(samples: Samples, figure: str) -> list[float]:
    """The earlier copy over itself, round by round."""
    first, second = samples.get(f"{BEFORE}.{figure}", []), samples.get(f"{AGAIN}.{figure}", [])
    return [b / a for a, b in zip(first, second, strict=False)]


def spread(samples: Samples, figure: str) -> str:
    found = ratios(samples, figure)
    return f"{number(min(found))} to {number(max(found))}×" if found else "not measured"


def exit_status(verdicts: list[Verdict], bench: Bench, others: float) -> int:
    """1: a bound is missed. 2: the machine is noisy, or its noise is larger than the difference that is looked for."""
    between = ratios(bench.samples, "request_cpu_ms")
    unsure = not between or abs(statistics.median(between) - 1) > MOST - 1
    if others > NOISY or unsure or any(verdict.unjudged for verdict in verdicts):
        return 2
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


def compare(args: argparse.Namespace, console: Console) -> int:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Unusable("it takes two cores: one is the gateway's alone")
    before, ours = copy_in(args.before), copy_in(COMPILED)
    facts, spent = machine(), CpuTime.now()
    peers, notes = installed((PEER,))
    os.sched_setaffinity(0, {cores[1]})
    plan = plan_of(args, tuple(name for name in TURNS if name != PEER or peers))
    copies = {OURS: ours, BEFORE: before, AGAIN: before}
    with tempfile.TemporaryDirectory() as folder:
        kit, key = compiled(args.kit, Path(folder)), f"sk-{secrets.token_hex(24)}"
        bench = Bench(kit, plan, (cores[0], cores[1]), defaultdict(list), notes, key, copies)
        measure(bench, console)
    others = spent.others_of_all(CpuTime.now())
    facts |= {GATEWAYS[peer].name: found for peer, found in peers.items()} | {"rounds": plan.rounds}
    facts["share_of_the_machine_others_used"] = f"{others:.0%}"
    for figure, name in (("request_cpu_ms", "CPU_per_request"), ("requests_s", "requests/s")):
        facts[f"A/A_spread_of_{name},_round_by_round"] = spread(bench.samples, figure)
    if bench.notes:
        facts["not_measured"] = "; ".join(dict.fromkeys(note.splitlines()[0] for note in bench.notes))
    return conclude(args, bench, facts, others, console)


def conclude(args: argparse.Namespace, bench: Bench, facts: dict[str, object], others: float, console: Console) -> int:
    verdicts = [judge(row, bench.samples) for row in ROWS if row.value in bench.samples or not args.only]
    shown = {figure: label for figure, label in SHOWN.items() if f"{OURS}.{figure}" in bench.samples}
    overview = median_grid("median", shown, {key: GATEWAYS[key].name for key in bench.plan.gateways}, bench.samples)
    console.print(overview.table("Side by side"), verdict_grid(verdicts).table(TITLE))
    console.print(f"A/A spread of CPU per request, round by round: {spread(bench.samples, 'request_cpu_ms')}")
    style = "bold red" if others > NOISY else ""
    console.print(f"Others used {others:.0%} of the machine; beyond {NOISY:.0%} even ratios are chance.", style=style)
    status = exit_status(verdicts, bench, others)
    if out := args.out or (RESULTS if status != 2 and not (args.quick or args.only) else None):
        Report(TITLE, "benchmarks/gateway.py --before", facts, verdicts, dict(bench.samples), (overview,)).keep(out)
        console.print(f"written: {out} and {out.with_suffix('.md').name}", highlight=False)
    return status
