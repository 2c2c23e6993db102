"""Whether Headgate's own figures tell the truth, and what they cost.

Truth: an independent client measures each request from the moment it was due to be sent, while the gateway measures it
from the arrival of its first byte; over the same run their percentiles must agree, lane by lane. Cost: the same load
through the gateway with and without instruments, in turn.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.gateway_figures import Bench, Plan, Target, measure_requests, measure_tokens, ready, warm_up
from benchmarks.kit import ask, compiled
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import CpuTime, Grid, Report, Row, Samples, judge, machine, number, verdict_grid

TITLE = "Headgate's instruments: truth and cost"
RESULTS = ROOT / "benchmarks" / "results" / "instruments.json"
WITHIN, WITHIN_MS = 0.02, 1.0
QUANTILES = ("p50", "p90", "p99")
Pair = tuple[float, float]
"""The client's, and ours."""
LANES: dict[str, dict[str, object]] = {
    "fast": {"rate": 40, "stream": 1, "ttft": 400_000, "itl": 30_000, "n": 32},
    "slow": {"rate": 10, "stream": 0, "ttft": 1_000_000, "itl": 30_000, "n": 64},
}
"""What makes each lane's requests: what is not streamed is slow. Times are about what the lanes promise: with a tenth
of them, p99 would tell of the machine's hiccups only."""
ROOM = 128
"""Told, not found out: no request is to be refused."""
COST = (
    Row("requests/s with instruments, over without in the same round", "over.requests_s", None, "≥", 0.9),
    Row("tokens/s with instruments, over without in the same round", "over.tokens_s", None, "≥", 0.9),
    Row("CPU per request, likewise", "over.request_cpu_ms", None),
    Row("CPU per token, likewise", "over.token_cpu_us", None),
)


def compare(target: Target, seconds: float) -> dict[str, Pair]:
    """For each lane, figure and quantile, in milliseconds."""
    with ExitStack() as stack:
        loads = {
            lane: stack.enter_context(target.load("open", warm=0, dur=seconds, **flags))
            for lane, flags in LANES.items()
        }
        theirs = {lane: load.finished(seconds + 30) for lane, load in loads.items()}
    time.sleep(0.5)
    state: dict[str, Any] = json.loads(ask(target.port, "GET", "/admin/state")[1])
    ours = {lane["name"]: lane["figures"] for lane in state["lanes"]}
    pairs: dict[str, Pair] = {}
    for lane, counted in theirs.items():
        streamed = (("ttft", "ttft"),) if LANES[lane]["stream"] else ()
        for figure, theirs_name in (*streamed, ("e2e", "lat")):
            for quantile in QUANTILES:
                measured = ours[lane][figure][quantile]
                if measured is None:
                    raise Unusable(f"the gateway has no {figure} for lane {lane}: is it in another?")
                pairs[f"{lane} {figure} {quantile}"] = (counted[theirs_name][quantile], 1e3 * measured)
    return pairs


def typical(runs: list[dict[str, Pair]]) -> dict[str, Pair]:
    """For each figure the one of several runs whose difference is the median."""
    middle = len(runs) // 2
    return {
        figure: sorted((run[figure] for run in runs), key=lambda pair: abs(pair[1] - pair[0]))[middle]
        for figure in runs[0]
    }


def ratios(samples: Samples) -> Samples:
    """With instruments over without, round by round: what changes with the minute meets both."""
    return {
        f"over.{figure}": [
            on / off for on, off in zip(samples[f"headgate.{figure}"], samples[f"uninstrumented.{figure}"], strict=True)
        ]
        for figure in ("requests_s", "tokens_s", "request_cpu_ms", "token_cpu_us")
    }


def agrees(theirs: float, ours: float) -> bool:
    return abs(ours - theirs) <= max(WITHIN * theirs, WITHIN_MS)


def _word(theirs: float, ours: float) -> str:
    return "yes" if agrees(theirs, ours) else "NO"


def run(args: argparse.Namespace, console: Console) -> int:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Unusable("it takes two cores: one is the gateway's alone")
    facts, before = machine(), CpuTime.now()
    os.sched_setaffinity(0, {cores[1]})
    plan = Plan(
        rounds=args.rounds,
        load_s=3.0,
        open_s=0.0,
        hold_within_s=0.0,
        gateways=("headgate", "uninstrumented"),
        figures=(),
    )
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        bench = Bench(kit, plan, (cores[0], cores[1]), defaultdict(list), [], f"sk-{secrets.token_hex(24)}")
        runs = []
        for index in range(args.rounds):
            with ready(bench, "headgate", ROOM) as target:
                rate = sum(int(str(flags["rate"])) for flags in LANES.values())
                console.print(f"truth, round {index + 1} of {args.rounds}: {rate} streams/s for {args.seconds:g} s …")
                runs.append(compare(target, args.seconds))
        pairs = typical(runs)
        for index in range(args.rounds):
            for name in plan.gateways:
                console.print(f"cost, round {index + 1} of {args.rounds}: {name} …", highlight=False)
                with ready(bench, name, None) as target:
                    warm_up(target)
                    measure_requests(target)
                    measure_tokens(target)
    facts["truth"] = f"of {args.rounds} runs of {args.seconds:g} s, the one with the median difference"
    facts["share_of_the_machine_others_used"] = f"{before.others_of_all(CpuTime.now()):.0%}"
    seen = bench.samples | ratios(bench.samples)
    verdicts = [judge(row, seen) for row in COST]
    grid = Grid(
        ("lane, figure, quantile", "client ms", "Headgate ms", "difference", "agrees"),
        tuple(
            (figure, number(theirs), number(ours), f"{ours - theirs:+.2f}", _word(theirs, ours))
            for figure, (theirs, ours) in pairs.items()
        ),
    )
    console.print(grid.table("Truth: within 2 % or 1 ms"), verdict_grid(verdicts).table("Cost"))
    report = Report(TITLE, "benchmarks/instruments.py", facts, verdicts, seen, (grid,))
    report.keep(args.out)
    console.print(f"written: {args.out} and {args.out.with_suffix('.md').name}", highlight=False)
    honest = all(agrees(*pair) for pair in pairs.values())
    return 0 if honest and all(verdict.passed is not False for verdict in verdicts) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the truth run; at most 50: one window")
    parser.add_argument(
        "--kit", type=Path, default=Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit"))
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        return run(parser.parse_args(), console)
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
