"""How long a stream stands still beside 100 bodies of 1 MB, valid and hostile, and whether health checks are answered.

The gateway alone on one core; streams, bodies and a mock replica on the other. README.md beside this file says what
each figure means.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.bodies_load import BODIES, CONNECTIONS, GAP_US, KINDS, SIZE, STREAMS
from benchmarks.gateway_peers import COMPILED, Site, headgate_command
from benchmarks.kit import Command, Kit, compiled, free_port, loading, started, wait_until_serving
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import CpuTime, Report, Row, Samples, judge, machine, verdict_grid

TITLE = "100 bodies of 1 MB beside 50 streams"
RESULTS = ROOT / "benchmarks" / "results" / "bodies.json"
SECONDS = 10.0
SLOTS = 256
ROWS = [
    Row("largest gap of a stream over the control run's, s", "gap_over", None, "≤", 0.05),
    Row("/health/live p99 over the control run's, s", "live_over", None, "≤", 0.02),
    Row("bodies answered, of 100", "answered", None, "≥", BODIES),
    Row("answered 5xx, or not at all", "odd", None, "≤", 0),
    Row("largest gap, s", "gap_most", None),
    Row("… in the control run", "control_gap_most", None),
    Row("/health/live p99, s", "live_p99", None),
    Row("… in the control run", "control_live_p99", None),
]


def _load(mode: str, port: int) -> Command:
    script = Path(__file__).with_name("bodies_load.py")
    return Command([sys.executable, str(script), mode, str(port), str(SECONDS)])


def run_once(kit: Kit, copy: Path, with_bodies: bool) -> dict[str, Any]:
    ours, rest = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replica = free_port()
        wait_until_serving(stack.enter_context(started(kit.replica(replica), rest)).first, replica, "none")
        site = Site(free_port(), (replica,), folder, "none", SLOTS, copy)
        wait_until_serving(stack.enter_context(started(headgate_command(site), ours)).first, site.port, "none")
        modes = ("bodies", "streams") if with_bodies else ("streams",)
        loads = {mode: stack.enter_context(loading(_load(mode, site.port), rest, talks=True)).process for mode in modes}
        for load in loads.values():
            assert load.stdout is not None
            if (said := load.stdout.readline().strip()) != b"ready":
                raise Unusable(f"the load did not begin: {said!r}")
        found: dict[str, Any] = {}
        for load in loads.values():
            assert load.stdin is not None
            load.stdin.write(b"go\n")
            load.stdin.flush()
        for mode, load in loads.items():
            try:
                said, _ = load.communicate(timeout=SECONDS * 6)
            except subprocess.TimeoutExpired:
                raise Unusable(f"{mode} did not end") from None
            try:
                found[mode] = json.loads(said)
            except ValueError:
                raise Unusable(f"{mode}: {said[-300:]!r}") from None
    return found


def measure(kit: Kit, copy: Path) -> tuple[dict[str, float], dict[str, int]]:
    control = run_once(kit, copy, False)["streams"]
    found = run_once(kit, copy, True)
    streams, counted = found["streams"], found["bodies"]
    figures = {**streams, **{f"control_{name}": value for name, value in control.items()}}
    figures["gap_over"] = streams["gap_most"] - control["gap_most"]
    figures["live_over"] = streams["live_p99"] - control["live_p99"]
    figures["answered"] = sum(counted.values())
    figures["odd"] = sum(count for status, count in counted.items() if not status.isdigit() or int(status) >= 500)
    return figures, counted


def run(args: argparse.Namespace, console: Console) -> int:
    samples: Samples = {}
    before = CpuTime.now()
    counted: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        for index in range(args.rounds):
            found, counted = measure(kit, args.copy)
            for figure, value in found.items():
                samples.setdefault(figure, []).append(value)
            shown = ", ".join(f"{figure} {value:.4g}" for figure, value in found.items())
            console.print(f"round {index + 1} of {args.rounds}: {shown}; {counted}", highlight=False)
    found_rows = [judge(row, samples) for row in ROWS]
    facts = machine() | {
        "rounds": f"{args.rounds}; figures are medians",
        "bodies": f"{BODIES} of {SIZE} bytes, {len(KINDS)} kinds, over {CONNECTIONS} connections in {SECONDS:g} s",
        "streams": f"{STREAMS}, a token each {GAP_US // 1000} ms",
        "answered": ", ".join(f"{count} × {status}" for status, count in sorted(counted.items())),
        "others used": f"{before.others_of_all(CpuTime.now()):.0%} of the machine",
    }
    console.print(verdict_grid(found_rows).table(TITLE))
    Report(TITLE, "benchmarks/bodies.py", facts, found_rows, samples).keep(args.out)
    return 1 if any(row.passed is False for row in found_rows) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--kit", type=Path, default=Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit"))
    )
    parser.add_argument("--copy", type=Path, default=COMPILED, help="the copy of Headgate to run; src: the sources")
    parser.add_argument("--out", type=Path, default=RESULTS)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        return run(parser.parse_args(), console)
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
