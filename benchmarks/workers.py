"""What several workers cost: CPU per request of a worker, and of the brain that decides for all of them.

    python benchmarks/workers.py            three rounds: one process, then a brain with two and with four workers
    python benchmarks/workers.py --quick    one round with shorter runs; keeps no results

One core has all of the gateway's processes, the other the client and two mock replicas. CPU time is read from /proc,
process by process, over the same window in which the requests are counted at the replicas. So the cost of a request
does not depend on the number of cores. How throughput grows with workers can't be told on two cores, since client,
mocks, brain and workers want one each: requests per second are reported and not judged.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.gateway_figures import CONNECTIONS, MARGIN_S, STREAM_TOKENS, STREAMS, WARM_S
from benchmarks.gateway_peers import COMPILED, MOCKED, Site, headgate_with
from benchmarks.kit import Kit, Processes, ask, compiled, free_port, loading, started, wait_until_serving
from benchmarks.peers import ROOT
from benchmarks.report import CpuTime, Report, Row, Samples, judge, machine, median_grid, verdict_grid
from rich.console import Console

RESULTS = Path(__file__).resolve().parent / "results" / "workers.json"
CASES = {"one": 1, "two": 2, "four": 4}
NAMES = {"one": "one process", "two": "2 workers", "four": "4 workers"}
LOADS = {
    "requests": {"conc": CONNECTIONS, "n": 4},
    "streams": {"conc": STREAMS, "stream": 1, "itl": 0, "n": STREAM_TOKENS},
}
SHOWN = {
    "requests_us": "unstreamed: CPU µs per request, workers or the one process",
    "requests_brain_us": "unstreamed: CPU µs per request, brain",
    "requests_s": "unstreamed: requests/s, all of the gateway on one core",
    "streams_us": f"streamed, {STREAM_TOKENS} tokens: CPU µs per request, workers or the one process",
    "streams_brain_us": f"streamed, {STREAM_TOKENS} tokens: CPU µs per request, brain",
}
MOST_WORKER, MOST_BRAIN_US = 1.1, 35.0
ROWS = [
    Row(
        f"{NAMES[case]}, {load}: a worker's CPU per request, over one process's",
        f"{case}.{load}_us",
        f"one.{load}_us",
        "≤",
        MOST_WORKER,
    )
    for case in ("two", "four")
    for load in LOADS
] + [
    Row(
        f"{NAMES[case]}, unstreamed: the brain's CPU µs per request",
        f"{case}.requests_brain_us",
        None,
        "≤",
        MOST_BRAIN_US,
    )
    for case in ("two", "four")
]


@dataclass(frozen=True, slots=True)
class Running:
    first: Processes
    port: int
    replicas: tuple[int, ...]
    workers: int

    def cpu_s(self) -> tuple[float, float]:
        """(of what serves clients, of the brain) so far."""
        pid = self.first.first.pid
        if self.workers == 1:
            return self.first.cpu_s(), 0.0
        brain, *workers = sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        return sum(map(_cpu_s, workers)), _cpu_s(brain)

    def requests(self) -> int:
        pages = [ask(port, "GET", "/metrics")[1] for port in self.replicas]
        lines = [line for page in pages for line in page.splitlines() if line.startswith("mock_requests_total ")]
        return sum(int(line.split()[1]) for line in lines)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def ready(kit: Kit, key: str, workers: int, cores: tuple[int, int]) -> Iterator[Running]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = (free_port(), free_port())
        for port in replicas:
            mock = stack.enter_context(started(kit.replica(port), cores[1]))
            wait_until_serving(mock.first, port, key)
        site = Site(free_port(), replicas, folder, key, None, COMPILED)
        path = folder / "headgate.yaml"
        path.write_text(json.dumps({"replicas": [{"url": url} for url in site.urls], **MOCKED}))
        command = headgate_with(site, ["--config", str(path), "--workers", str(workers)])
        gateway = stack.enter_context(started(command, cores[0]))
        wait_until_serving(gateway.first, site.port, key)
        time.sleep(2 * WARM_S)  # until every worker listens
        yield Running(gateway, site.port, replicas, workers)


def measure(kit: Kit, key: str, case: str, cores: tuple[int, int], seconds: float, samples: Samples) -> None:
    with ready(kit, key, CASES[case], cores) as running:
        for load, flags in LOADS.items():
            command = kit.load(running.port, "closed", key, warm=WARM_S, dur=seconds + MARGIN_S, **flags)
            with loading(command, cores[1]) as client:
                time.sleep(WARM_S)
                began, before, seen = time.monotonic(), running.cpu_s(), running.requests()
                time.sleep(seconds)
                took, after, requests = time.monotonic() - began, running.cpu_s(), running.requests() - seen
                client.finished(15.0)
            samples[f"{case}.{load}_us"].append(1e6 * (after[0] - before[0]) / requests)
            samples[f"{case}.{load}_brain_us"].append(1e6 * (after[1] - before[1]) / requests)
            samples[f"{case}.{load}_s"].append(requests / took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--kit", type=Path, default=Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit"))
    )
    args = parser.parse_args()
    console = Console()
    samples: Samples = defaultdict(list)
    cores = sorted(os.sched_getaffinity(0))[:2]
    spent, key = CpuTime.now(), f"sk-{secrets.token_hex(24)}"
    rounds = 1 if args.quick else 3
    os.sched_setaffinity(0, {cores[1]})
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        for index in range(rounds):
            for case in CASES if index % 2 == 0 else reversed(CASES):
                measure(kit, key, case, (cores[0], cores[1]), 2.0 if args.quick else 5.0, samples)
                console.print(
                    f"round {index + 1}, {NAMES[case]}: {median(samples[f'{case}.requests_us']):.1f} µs",
                    highlight=False,
                )
    facts = machine() | {
        "rounds": rounds,
        "share_of_the_machine_others_used": f"{spent.others_of_all(CpuTime.now()):.0%}",
    }
    verdicts = [judge(row, samples) for row in ROWS]
    overview = median_grid("median", SHOWN, NAMES, samples)
    for grid in (overview, verdict_grid(verdicts)):
        console.print(grid.table("Workers and their brain"))
    if not args.quick:
        Report("Workers and their brain", "benchmarks/workers.py", facts, verdicts, samples, (overview,)).keep(RESULTS)
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
