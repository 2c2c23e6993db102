"""Whether the simulator says what really happens. The same arrivals live and simulated, at several loads.

Live twice at each load, so that it is known how much two live runs differ; a simulated percentile should be within 10 %
of their mean, or within their difference where that is more. Loads are shares of what the fleet does at most, which is
found by simulating a crowd; 95 % is shown and not judged. How long steps of the embedded engine take is learned from
the step logs of all other loads, and of three more before, between and after the live runs: never from the load itself,
and from the same hour, since a shared machine is not equally fast all the time.

What is there already (in .bench/fidelity) is not measured again, and with --budget-s it stops after that number of
seconds and says what is missing: call it again. It needs a quiet machine: live is in real time, on cores kept from
halting (awake.py).
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.local_fleet import modules  # noqa: E402

sys.path.insert(0, str(modules()))  # what the live side runs, and a simulation is three times as fast on it

import numpy as np  # noqa: E402
from benchmarks.fidelity_cases import CALIBRATION_S, CASES, Bench, TooSlow  # noqa: E402
from benchmarks.report import Grid, Report, Samples, Verdict, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

from headgate.report.results import Results  # noqa: E402

LEVELS = (0.5, 0.7, 0.85, 0.95)
JUDGED = (0.5, 0.7, 0.85)
FIGURES = ("ttft", "tpot", "e2e")
WITHIN, AIM = 0.10, 0.05


def percentile(results: Results, figure: str, share: float) -> float:
    return float(np.quantile(results.values(figure), share))


def measure(bench: Bench, levels: list[float], runs: int, until: float, say: Any) -> list[str]:
    """What is missing, as far as there is time; what is then still missing."""
    steps = [(number, level) for number in range(1, runs + 2) for level in (None, *levels)]
    missing = [one for one in steps if not bench.is_there(*one, runs)]
    for index, (number, level) in enumerate(missing):
        lasts_s = CALIBRATION_S if level is None else bench.case.requests / bench.rate(level)
        if time.monotonic() + lasts_s + 30 > until:
            return [told(bench, *one) for one in missing[index:]]
        say(told(bench, number, level))
        try:
            bench.calibrate(number) if level is None else bench.live(level, number)
        except TooSlow as error:
            say(f"  not kept: {error}")
            return [told(bench, number, level)]
    return []


def told(bench: Bench, number: int, level: float | None) -> str:
    return f"{bench.case.title}, {'its step log' if level is None else f'live at {level:.0%}'}, {number}"


def compared(bench: Bench, level: float, runs: int, samples: Samples) -> tuple[list[Verdict], list[tuple[str, ...]]]:
    """Rows of one case at one load."""
    case = bench.case
    live = [bench.results(level, number) for number in range(1, runs + 1) if bench.kept(level, number).is_file()]
    if not live:
        return [], []
    drawn = [simulated.results for simulated in bench.simulated(level)]
    verdicts, rows = [], []
    for figure in FIGURES:
        for share in case.percentiles:
            seen = [percentile(results, figure, share) for results in live]
            said = float(np.median([percentile(results, figure, share) for results in drawn]))
            mean = sum(seen) / len(seen)
            spread, off = (max(seen) - min(seen)) / mean, said / mean - 1.0
            label = f"{case.title}, {level:.0%}: {figure.upper() if figure != 'e2e' else figure} p{100 * share:g}"
            key = f"{case.name}.{round(100 * level)}.{figure}.p{100 * share:g}"
            samples[f"{key}.live_ms"], samples[f"{key}.simulated_ms"] = [1e3 * one for one in seen], [1e3 * said]
            within = max(WITHIN, spread)
            judged = level in JUDGED
            bound = f"± {within:.0%}, aim ± {AIM:.0%}" if judged else ""
            passed, aim = (abs(off) <= within, abs(off) <= AIM) if judged else (None, None)
            verdicts.append(Verdict(label, 1e3 * said, 1e3 * mean, bound, passed, aim))
            rows.append((label, *(f"{1e3 * one:.1f}" for one in seen), *[""] * (runs - len(seen)), f"{1e3 * said:.1f}",
                         f"{off:+.1%}", f"{spread:.1%}" if len(seen) > 1 else ""))  # fmt: skip
    refused = [f"{np.count_nonzero(~one.ok)}" for one in live]
    rows.append((f"{case.title}, {level:.0%}: not completed, of {case.requests}", *refused, *[""] * (runs - len(live)),
                 f"{np.median([np.count_nonzero(~one.ok) for one in drawn]):.0f}", "", ""))  # fmt: skip
    return verdicts, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=sorted(CASES), action="append", help="else those that need no GPU")
    parser.add_argument("--level", type=float, action="append", help="a share, such as 0.7; else all")
    parser.add_argument("--runs", type=int, default=2, help="live ones, at each load")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin nothing that would take longer")
    parser.add_argument("--report", action="store_true", help="measure nothing: compare what is there")
    parser.add_argument("--note", help="about how it was run, to be kept with the result")
    parser.add_argument("--state", type=Path, default=HERE.parent / ".bench" / "fidelity")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "fidelity.json")
    args = parser.parse_args()
    console, until = Console(highlight=False), time.monotonic() + args.budget_s
    benches = [Bench(CASES[name], args.state, modules(), console.print) for name in args.case or ("fleet", "engine")]
    levels, missing = args.level or list(LEVELS), []
    if not args.report:
        for bench in benches:
            missing += measure(bench, levels, args.runs, until, console.print)
        if missing:
            console.print("still missing: " + "; ".join(missing))
            return 3
    samples: Samples = {}
    verdicts: list[Verdict] = []
    rows: list[tuple[str, ...]] = []
    for bench in benches:
        for level in levels:
            more, lines = compared(bench, level, args.runs, samples)
            verdicts += more
            rows += lines
    if not rows:
        console.print("nothing has been measured yet")
        return 3
    live = tuple(f"live {number}, ms" for number in range(1, args.runs + 1))
    grid = Grid(("figure", *live, "simulated", "off by", "live runs differ"), tuple(rows))
    console.print(grid.table("Live and simulated"), verdict_grid(verdicts).table("Is it what really happens?"))
    facts = {**machine(), **{bench.case.name: describe(bench) for bench in benches}}
    facts |= {"note": args.note} if args.note else {}
    Report("Live against simulated", "benchmarks/fidelity.py", facts, verdicts, samples, (grid,)).keep(args.out)
    console.print(f"wrote {args.out}")
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


def describe(bench: Bench) -> str:
    case = bench.case
    command = " ".join(map(str, case.engine))
    return f"{case.replicas} × engine {command}; {case.mix}; {case.requests} requests; 100 % is {bench.capacity:.4g}/s"


if __name__ == "__main__":
    sys.exit(main())
