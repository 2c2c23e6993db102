"""9 500 requests at once where there is room for 256: every one is to be answered soon, and health checks too.

The gateway alone on one core; the load generator, a mock replica and the probe on the other. README.md beside this
file says what each figure means.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.gateway_peers import Site, headgate_command
from benchmarks.kit import Kit, ask, compiled, free_port, loading, started, wait_until_serving
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import CpuTime, Report, Row, Samples, judge, machine, verdict_grid

TITLE = "9 500 requests at once"
RESULTS = ROOT / "benchmarks" / "results" / "flood.json"
REQUESTS, SLOTS = 9_500, 256
TTFT_US, GAP_US, TOKENS = 300_000, 20_000, 100
WITHIN_S = 30
PROBE_PAUSE_S = 0.002
ROWS = [
    Row("answered, of 9 500", "answered", None, "≥", REQUESTS),
    Row("refused otherwise than 503 with Retry-After", "odd", None, "≤", 0),
    Row("served, at least the room there is", "served", None, "≥", SLOTS),
    Row("refusal p99 from its first byte on, s", "refusal_own_p99", None, "≤", 1.0),
    Row("the same from when the load generator was started, s", "refusal_p99", None, "≤", 1.0),
    Row("/health/live p99 on new connections meanwhile, s", "live_p99", None, "≤", 0.05),
]


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


class Probe(threading.Thread):
    """Asks over and over, each time on a new connection."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.stop = threading.Event()
        self.took_s: list[float] = []

    def run(self) -> None:
        while not self.stop.wait(PROBE_PAUSE_S):
            began = time.perf_counter()
            if ask(self._port, "GET", "/health/live")[0] == 200:
                self.took_s.append(time.perf_counter() - began)


def measure(kit: Kit) -> dict[str, float]:
    ours, rest = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replica = free_port()
        wait_until_serving(stack.enter_context(started(kit.replica(replica), rest)).first, replica, "none")
        site = Site(free_port(), (replica,), folder, "none", SLOTS)
        wait_until_serving(stack.enter_context(started(headgate_command(site), ours)).first, site.port, "none")
        probe = Probe(site.port)
        began = time.time()
        probe.start()
        flags = {"conc": REQUESTS, "stream": 1, "ttft": TTFT_US, "itl": GAP_US, "n": TOKENS, "dur": WITHIN_S}
        with loading(kit.load(site.port, "burst", "none", **flags), rest) as load:
            try:
                said, _ = load.process.communicate(timeout=WITHIN_S + 10)
            except subprocess.TimeoutExpired:
                raise Unusable("the load generator did not end") from None
        probe.stop.set()
        probe.join()
        counted = json.loads(said)
        records = [
            json.loads(line) for line in ask(site.port, "GET", "/admin/records?limit=20000")[1].splitlines() if line
        ]
    refused = [record for record in records if record.get("status") == 503]
    if not refused:
        raise Unusable(f"nobody was refused: {counted['codes']}")
    return {
        "answered": sum(counted["codes"].values()),
        "served": counted["codes"].get("200", 0),
        "odd": sum(count for code, count in counted["codes"].items() if code not in ("200", "503")),
        "refusal_p99": p99([record["wall"] + record["e2e_s"] - began for record in refused]),
        "refusal_own_p99": p99([record["e2e_s"] for record in refused]),
        "live_p99": p99(probe.took_s),
        "live_most": max(probe.took_s),
        "probes": len(probe.took_s),
    }


def run(args: argparse.Namespace, console: Console) -> int:
    samples: Samples = {}
    before = CpuTime.now()
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        for index in range(args.rounds):
            found = measure(kit)
            for figure, value in found.items():
                samples.setdefault(figure, []).append(value)
            shown = ", ".join(f"{figure} {value:.4g}" for figure, value in found.items())
            console.print(f"round {index + 1} of {args.rounds}: {shown}", highlight=False)
    found_rows = [judge(row, samples) for row in ROWS]
    facts = machine() | {
        "rounds": f"{args.rounds}; figures are medians",
        "room": f"{SLOTS} at once, each answer {TOKENS} tokens {GAP_US // 1000} ms apart",
        "others used": f"{before.others_of_all(CpuTime.now()):.0%} of the machine",
    }
    console.print(verdict_grid(found_rows).table(TITLE))
    Report(TITLE, "benchmarks/flood.py", facts, found_rows, samples).keep(args.out)
    return 1 if any(row.passed is False for row in found_rows) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
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
