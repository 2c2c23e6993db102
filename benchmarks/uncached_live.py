"""Whether prompts that share a beginning fare live as simulated: four emulated engines, one message, no session.

    python benchmarks/uncached_live.py       ten minutes; writes results/uncached_live.json and .md

The same arrivals live and simulated, with the machinery of benchmarks/fidelity.py: live twice at each load, and a
simulated percentile should be within 10 % of their mean. It needs a quiet machine; what is in .bench/uncached_live is
not measured again. `--quick` sends a few requests, to see that all works, and keeps nothing.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.local_fleet import modules  # noqa: E402

sys.path.insert(0, str(modules()))  # what the live side runs

from benchmarks.fidelity import compared, measure  # noqa: E402
from benchmarks.fidelity_cases import Bench, Case  # noqa: E402
from benchmarks.report import Grid, Report, Samples, Verdict, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

SHARED = Case(
    name="uncached",
    title="4 emulated H100, shared beginnings",
    mix="poisson:rate=1,prefixes=75,shared=6144,prompt=7200,output=100",
    requests=1500,
    percentiles=(0.5, 0.9, 0.99),
    replicas=4,
    slots=32,
    engine=("--emulate", "h100-llama3-8b", "--dilate", 2.0),
    stretched=2.0,
    profile="h100-llama3-8b",
)
LEVELS = (0.5, 0.7)


class SharedBench(Bench):
    @property
    def capacity(self) -> float:
        """Requests a second: a quarter of what eight engines at full speed are offered in results/uncached.md."""
        return 17.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=2, help="live ones, at each load")
    parser.add_argument("--quick", action="store_true", help="60 requests at one load; keeps nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "uncached_live.json")
    args = parser.parse_args()
    console, levels, runs = Console(highlight=False), list(LEVELS), args.runs
    case, folder = SHARED, HERE.parent / ".bench" / "uncached_live"
    if args.quick:
        case, folder, levels, runs = replace(SHARED, requests=60), Path(tempfile.mkdtemp()), [0.5], 1
    bench = SharedBench(case, folder, modules(), console.print)
    if missing := measure(bench, levels, runs, time.monotonic() + 3600.0, console.print):
        console.print("still missing: " + "; ".join(missing))
        return 3
    samples: Samples = {}
    verdicts: list[Verdict] = []
    rows: list[tuple[str, ...]] = []
    for level in levels:
        more, lines = compared(bench, level, runs, samples)
        verdicts += more
        rows += lines
    live = tuple(f"live {number}, ms" for number in range(1, runs + 1))
    grid = Grid(("figure", *live, "simulated", "off by", "live runs differ"), tuple(rows))
    console.print(grid.table("Live and simulated"), verdict_grid(verdicts).table("Is it what really happens?"))
    if not args.quick:
        facts = {**machine(), "fleet": f"{case.replicas} × engine {' '.join(map(str, case.engine))}; {case.mix}"}
        report = Report("Shared beginnings live", "benchmarks/uncached_live.py", facts, verdicts, samples, (grid,))
        report.keep(args.out)
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
