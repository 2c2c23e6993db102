"""Headgate's data path beside the Rust routers' and nginx.

Each gateway is alone on one core, with the same two mock replicas and the same load generator on another; they take
turns. README.md beside this file says what each figure means.
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks import gateway_before
from benchmarks.gateway_figures import DIRECT, LOADS, MEMORY, Bench, Plan, measure_gateway, news
from benchmarks.gateway_peers import GATEWAYS, PEERS, installed
from benchmarks.kit import compiled
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import (
    CpuTime,
    Facts,
    Grid,
    Report,
    Row,
    Samples,
    Verdict,
    judge,
    machine,
    median_grid,
    verdict_grid,
)

TITLE = "Headgate's gateway beside others"
RESULTS = ROOT / "benchmarks" / "results" / "gateway.json"
OURS = "headgate"
NOISY = 0.15
"""Share of the machine in others' hands beyond which even ratios are chance."""
ROUTING = "routing"  # the decision alone, in a child process
FIGURES = (*LOADS, *MEMORY, ROUTING)


# -- the rounds -----------------------------------------------------------------------------------


def measure(bench: Bench, console: Console) -> None:
    """One gateway alive at a time, and one figure of all of them before the next: a shared core may be a third slower
    two minutes later, and what is compared should have had the same one."""
    for index in range(bench.plan.rounds):
        for figure in bench.plan.figures:
            console.print(f"round {index + 1} of {bench.plan.rounds}: {figure} …", highlight=False)
            for name in (OURS,) if figure == ROUTING else (DIRECT, *bench.plan.gateways):
                noted, known = len(bench.notes), {key: len(values) for key, values in bench.samples.items()}
                measure_routing(bench) if figure == ROUTING else measure_gateway(bench, name, figure)
                if found := news(bench.samples, known):
                    console.print(f"  {name}: {found}", style="dim", highlight=False)
                for note in bench.notes[noted:]:
                    console.print(note, style="yellow", markup=False)


def measure_routing(bench: Bench) -> None:
    with tempfile.NamedTemporaryFile() as out:
        argv = [sys.executable, str(ROOT / "benchmarks" / "routing.py"), "--json", out.name]
        done = subprocess.run(argv, capture_output=True, text=True)
        try:
            ratio = float(json.load(out)["balanced"]["ratio"])  # the default algorithm
        except (ValueError, LookupError, TypeError):
            bench.notes.append(f"{ROUTING}: {(done.stderr or done.stdout)[-300:]}")
        else:
            bench.samples[f"{OURS}.routing_ratio"].append(ratio)


# -- the verdict ----------------------------------------------------------------------------------

SHOWN = {
    "requests_s": "requests/s, 64 connections",
    "request_cpu_ms": "CPU ms per request",
    "requests_busy": "its core's share in use",
    "tokens_s": "streamed tokens/s, 32 streams",
    "token_cpu_us": "CPU µs per token",
    "tokens_busy": "its core's share in use",
    "added_p50_ms": "added TTFT p50, ms, 10 streams/s",
    "added_p99_ms": "added TTFT p99, ms",
    "ttft_host_kept": "of the machine kept back by the host meanwhile",
    "idle_mb": "MB idle",
    "streams_mb": "MB more for 1 000 streams",
}
ROWS = (
    Row("requests/s, 64 connections, over sglang-router", "headgate.requests_s", "sglang.requests_s", "≥", 2, 3),
    Row("the same over nginx", "headgate.requests_s", "nginx.requests_s"),
    Row("the same over smg", "headgate.requests_s", "smg.requests_s"),
    Row("CPU ms per request, over sglang-router", "headgate.request_cpu_ms", "sglang.request_cpu_ms", "≤", 0.5),
    Row("the same, ms", "headgate.request_cpu_ms", None, "≤", None, 0.08),
    Row("the same over nginx", "headgate.request_cpu_ms", "nginx.request_cpu_ms"),
    Row("the same over smg", "headgate.request_cpu_ms", "smg.request_cpu_ms"),
    Row("streamed tokens/s, 32 streams, over the best router", "headgate.tokens_s", "best.tokens_s", "≥", 1.0, 1.5),
    Row("the same over nginx", "headgate.tokens_s", "nginx.tokens_s"),
    Row("CPU µs per streamed token, over the best router", "headgate.token_cpu_us", "best.token_cpu_us", "≤", 1.0, 0.7),
    Row("the same over nginx", "headgate.token_cpu_us", "nginx.token_cpu_us"),
    Row("added TTFT p99, ms, above nginx's in the same round", "headgate.above_nginx_ms", None, "≤", 2, 1),
    Row("memory for 1 000 held streams, MB", "headgate.streams_mb", None, "≤", 40, 25),
    Row("routing decision at 1 000 replicas, over 10", "headgate.routing_ratio", None, "≤", 2, 1.3),
)
ROUTERS = ("sglang", "vllm", "smg")
"""The best of these is to be beaten. nginx decides nothing, and LiteLLM is never the best."""


def above_nginx(samples: Samples) -> Samples:
    """Round by round: what a round without a gateway had of the machine's hiccups cancels out."""
    ours, theirs = samples.get(f"{OURS}.ttft_p99_ms", []), samples.get("nginx.ttft_p99_ms", [])
    if not ours or len(ours) != len(theirs):
        return {}
    return {f"{OURS}.above_nginx_ms": [mine - its for mine, its in zip(ours, theirs, strict=True)]}


def best_routers(samples: Samples, gateways: tuple[str, ...]) -> Samples:
    """The best router's values as `best.figure`; nothing where one that was asked for has none."""
    found: Samples = {}
    for figure, best in (("tokens_s", max), ("token_cpu_us", min)):
        keys = [f"{router}.{figure}" for router in ROUTERS if router in gateways]
        if keys and all(key in samples for key in keys):
            medians = {key: statistics.median(samples[key]) for key in keys}
            found[f"best.{figure}"] = samples[best(medians, key=medians.__getitem__)]
    return found


def side_by_side(bench: Bench) -> Grid:
    names = {DIRECT: "no gateway"} | {key: GATEWAYS[key].name for key in bench.plan.gateways}
    measured = {key.partition(".")[2] for key in bench.samples}
    shown = {figure: label for figure, label in SHOWN.items() if figure in measured}
    return median_grid("median", shown, names, bench.samples)


def exit_status(verdicts: list[Verdict], bench: Bench, whole: bool, others: float) -> int:
    """1: a bound is missed. 2: on a noisy machine, without Headgate, or in a whole run without a bound, nothing is
    proved either way."""
    if others > NOISY:
        return 2
    if any(verdict.passed is False for verdict in verdicts):
        return 1
    unmeasured = any(note.startswith((OURS, ROUTING)) for note in bench.notes)
    return 2 if unmeasured or (whole and any(verdict.unjudged for verdict in verdicts)) else 0


# -- the command ----------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="3 without it, 5 with --before")
    parser.add_argument("--quick", action="store_true", help="one round with shorter runs")
    parser.add_argument("--only", choices=FIGURES, help="measure one figure")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {','.join(PEERS)}, or none")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="PATH",
        help="compare with an earlier compiled copy of Headgate only: the copy, or a tree in which `make compiled` ran",
    )
    parser.add_argument(
        "--kit", type=Path, default=Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit"))
    )
    parser.add_argument(
        "--out", type=Path, help="a JSON file; a whole run that judged every bound is kept in benchmarks/results"
    )
    args = parser.parse_args()
    args.peers = tuple(filter(None, args.peers.replace("none", "").split(",")))
    if unknown := set(args.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    if args.before and args.only not in (None, "requests", "tokens"):
        parser.error("--before compares requests and tokens")
    args.rounds = args.rounds or (5 if args.before else 3)
    return args


def plan_of(args: argparse.Namespace, peers: tuple[str, ...]) -> Plan:
    return Plan(
        rounds=1 if args.quick else args.rounds,
        load_s=1.5 if args.quick else 4.0,
        open_s=5.0 if args.quick else 25.0,
        hold_within_s=6.0 if args.quick else 10.0,
        gateways=(OURS, *peers),
        figures=(args.only,) if args.only else FIGURES,
    )


def run(args: argparse.Namespace, console: Console) -> int:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Unusable("it takes two cores: one is the gateway's alone")
    facts, before = machine(), CpuTime.now()
    peers, notes = installed(args.peers)
    for note in notes:
        console.print(note, style="yellow", markup=False)
    os.sched_setaffinity(0, {cores[1]})
    plan = plan_of(args, tuple(peers))
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        bench = Bench(kit, plan, (cores[0], cores[1]), defaultdict(list), notes, f"sk-{secrets.token_hex(24)}")
        measure(bench, console)
    facts |= {GATEWAYS[peer].name: found for peer, found in peers.items()} | {"rounds": plan.rounds}
    return conclude(args, bench, facts, before.others_of_all(CpuTime.now()), console)


def conclude(args: argparse.Namespace, bench: Bench, facts: Facts, others: float, console: Console) -> int:
    facts["share_of_the_machine_others_used"] = f"{others:.0%}"
    if bench.notes:
        facts["not_measured"] = "; ".join(dict.fromkeys(note.splitlines()[0] for note in bench.notes))
    whole = not (args.quick or args.only or set(args.peers) != set(PEERS))
    seen = dict(bench.samples) | best_routers(bench.samples, args.peers) | above_nginx(bench.samples)
    verdicts = [judge(row, seen) for row in ROWS if whole or row.value in seen]
    overview = side_by_side(bench)
    console.print(overview.table("Side by side"), verdict_grid(verdicts).table(TITLE))
    style = "bold red" if others > NOISY else ""
    console.print(f"Others used {others:.0%} of the machine; beyond {NOISY:.0%} even ratios are chance.", style=style)
    status = exit_status(verdicts, bench, whole, others)
    if out := args.out or (RESULTS if whole and status != 2 else None):
        Report(TITLE, "benchmarks/gateway.py", facts, verdicts, dict(bench.samples), (overview,)).keep(out)
        console.print(f"written: {out} and {out.with_suffix('.md').name}", highlight=False)
    return status


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the blocks that end processes run then, too
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        args = arguments()
        return gateway_before.compare(args, console) if args.before else run(args, console)
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
