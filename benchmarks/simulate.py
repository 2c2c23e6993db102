"""The speed of the simulator. Requests a minute at the gateway's level, times real time step by step; one core each.

Both levels play Azure's conversations on eight emulated H100. Every measurement is a process of its own, interpreted
and, where `make compiled` has built some, with compiled modules; they take turns for some rounds, the median counts.
Time is the process's own CPU time, so that a busy machine matters less; use a quiet one all the same. Judged is what
`make serve` runs: the compiled ones, where there are any.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILDS = {"interpreted": ROOT / "src", "compiled": ROOT / "build" / "compiled"}
REPLICAS, SLOTS = 8, 64
PROFILE = "h100-llama3-8b"
WORKLOAD = "azure-conv"
CAPACITY_PER_S = 105.0
"""Requests of this mix that the fleet serves each second with full queues; `headgate plan` finds it. Loads are
shares of it."""
LOADS = (0.4, 0.65, 0.8)
STEP_S, GATEWAY_S = 60.0, 600.0


def measure(level: str, load: float, seconds: float) -> dict[str, float]:
    """In a process of its own: imported only here, from wherever PYTHONPATH says."""
    from headgate.config.gateway import GatewayConfig
    from headgate.machine.profile import PROFILES
    from headgate.sim.fleet import fleet_of
    from headgate.sim.run import run
    from headgate.workload.load import Workload

    arrivals = list(Workload(WORKLOAD, rate=load * CAPACITY_PER_S, duration_s=seconds).arrivals(1))
    fleet = fleet_of(PROFILES[PROFILE], REPLICAS, SLOTS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    began = time.process_time()
    found = run(GatewayConfig(), arrivals, fleet, 1, "step" if level == "step" else "gateway")
    took = time.process_time() - began
    return {
        "cpu_s": took,
        "times_real": found.span_s / took,
        "requests_per_min": 60 * len(found.results) / took,
        "us_per_request": 1e6 * took / len(found.results),
        "events_per_request": found.events / len(found.results),
        "running_per_replica": found.at_work_s / found.span_s / REPLICAS,
    }


def child(build: str, level: str, load: float, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", level, str(load), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(BUILDS[build])}
    made = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, cwd=HERE)
    found: dict[str, float] = json.loads(made.stdout)
    return found


def main() -> int:
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    from benchmarks.report import CpuTime, Report, Row, Samples, judge, machine, median_grid, verdict_grid
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round; keeps nothing unless --out says where")
    parser.add_argument("--out", type=Path, help="where to keep the result; else results/simulate.json")
    args = parser.parse_args()
    console, samples = Console(highlight=False), Samples()
    builds = [name for name, path in BUILDS.items() if (path / "headgate").is_dir()]
    cut = 0.4 if args.quick else 1.0
    before = CpuTime.now()
    for _ in range(1 if args.quick else args.rounds):
        for build in builds:
            runs = [("gateway", LOADS[1], GATEWAY_S * cut), *(("step", load, STEP_S * cut) for load in LOADS)]
            for level, load, seconds in runs:
                found = child(build, level, load, seconds)
                name = "gateway" if level == "gateway" else f"step{round(100 * load)}"
                for figure, value in found.items():
                    samples.setdefault(f"{build}.{name}.{figure}", []).append(value)
                console.print(
                    f"{build:12} {level:8} load {load:.0%}: {found['times_real']:8.1f} × real time,"
                    f" {found['requests_per_min'] / 1e3:7.0f} k requests/min, {found['us_per_request']:7.1f} µs each"
                )
    judged, load = builds[-1], LOADS[1]
    step = f"{judged}.step{round(100 * load)}.times_real"
    rows = [
        Row(f"gateway level, requests/min, {judged}", f"{judged}.gateway.requests_per_min", None, "≥", 500e3, 1e6),
        Row(f"step level at {load:.0%} load, × real time, {judged}", step, None, "≥", 20, 100),
    ]
    verdicts = [judge(row, samples) for row in rows]
    figures = {"gateway.requests_per_min": "gateway level, requests/min", "gateway.us_per_request": "… µs per request"}
    for load in LOADS:
        figures[f"step{round(100 * load)}.times_real"] = f"step level, × real time at {load:.0%} load"
        figures[f"step{round(100 * load)}.us_per_request"] = "… µs per request"
        figures[f"step{round(100 * load)}.running_per_replica"] = "… sequences running on each replica"
    grid = median_grid("one core", figures, {build: build for build in builds}, samples)
    facts = {
        **machine(),
        "fleet": f"{REPLICAS} × {PROFILE}, {SLOTS} requests each",
        "workload": WORKLOAD,
        "others' share of the CPU time spent": f"{before.others_of_busy(CpuTime.now()):.0%}",
    }
    console.print(grid.table("The simulator"), verdict_grid(verdicts).table("Is it fast enough?"))
    out = args.out or (None if args.quick else HERE / "results" / "simulate.json")
    if out is not None:
        title = "Speed of the simulator"
        Report(title, "benchmarks/simulate.py", facts, verdicts, samples, (grid,)).keep(out)
        console.print(f"wrote {out}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))))
    else:
        sys.exit(main())
