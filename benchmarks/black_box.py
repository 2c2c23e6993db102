"""Whether a profile that was fitted from outside says the same as the true one.

`headgate fit URL` measures an engine whose profile is known: an emulated H100, and the embedded engine, whose true
profile is fitted from its own step log. Both profiles are then simulated under the same arrivals at shares of what the
true one does at most; each percentile should be within 10 %.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402
from benchmarks.report import Grid, Report, Samples, Verdict, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

from headgate.config.gateway import GatewayConfig  # noqa: E402
from headgate.engine.runner.profile_file import fitted, load  # noqa: E402
from headgate.machine.profile import PROFILES, Profile  # noqa: E402
from headgate.report.results import Results  # noqa: E402
from headgate.sim.fleet import SimFleet, SimGroup  # noqa: E402
from headgate.sim.run import run  # noqa: E402
from headgate.workload.load import Workload  # noqa: E402

LEVELS = (0.5, 0.7, 0.85)
SHARES = (0.5, 0.9)
FIGURES = ("ttft", "tpot", "e2e")
WITHIN = 0.10
CROWD = 1500
SEEDS = (1, 2, 3)
FOR_EVER_S = 1e5


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    mix: str
    requests: int
    engine: tuple[str, ...]
    probe: tuple[str, ...]
    known: str | None = None
    """Its true profile. None: fitted from its step log."""


CASES = (
    Case(
        name="h100",
        title="emulated H100",
        mix="chat=poisson:rate=9,prompt=40-800,output=20-200;docs=gamma:cv=2,rate=1,prompt=1000-6000,output=20-200",
        requests=4000,
        engine=("--emulate", "h100-llama3-8b"),
        probe=("--budget", "90"),
        known="h100-llama3-8b",
    ),
    Case(
        name="engine",
        title="embedded engine",
        mix="chat=poisson:rate=6,prompt=8-60,output=8-32;docs=poisson:rate=1,prompt=100-400,output=8-32",
        requests=1000,
        engine=("--slots", "8", "--context", "1024", "--threads", "1", "--draft-batch", "0"),
        probe=("--budget", "80", "--longest", "512", "--concurrency", "8"),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--note", help="about how it was run, to be kept with the result")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "black_box.json")
    args = parser.parse_args()
    console = Console(highlight=False)
    samples: Samples = {}
    verdicts: list[Verdict] = []
    rows: list[tuple[str, ...]] = []
    facts = machine()
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        with TemporaryDirectory() as folder:
            true, found, said = measured(case, Path(folder), console)
        most = capacity(case, true)
        facts[case.title] = f"engine {' '.join(case.engine)}; fit {' '.join(case.probe)}: {said}; 100 % is {most:.4g}/s"
        for level in LEVELS:
            for row in compared(case, level, level * most, (true, found), samples):
                verdicts.append(row[0])
                rows.append(row[1])
    grid = Grid(("figure", "true profile, ms", "from outside, ms", "off by"), tuple(rows))
    console.print(grid.table("Simulated with either"), verdict_grid(verdicts).table("Is it the same?"))
    facts |= {"note": args.note} if args.note else {}
    Report("A profile from outside", "benchmarks/black_box.py", facts, verdicts, samples, (grid,)).keep(args.out)
    console.print(f"wrote {args.out}")
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


def measured(case: Case, folder: Path, console: Console) -> tuple[Profile, Profile, str]:
    """The true profile, the one from outside, and what `headgate fit` said of it."""
    log, out = folder / "steps.jsonl", folder / f"{case.name}.json"
    like = folder / "like.json"
    with engine(case, log) as url:
        if case.known is None:
            # Sizes only: they are what an operator has configured.
            slow = case.mix.replace("rate=6", "rate=0.8").replace("rate=1", "rate=0.1")
            headgate("bench", url, "--load", slow, "--duration", "30", "--allow-lag")
            headgate("fit", str(log), str(like))
        command = ("fit", url, str(out), *case.probe, "--like", case.known or str(like))
        said = headgate(*command).strip().splitlines()
        console.print("\n".join(said))
    true = PROFILES[case.known] if case.known else fitted(log, case.name)
    return true, load(out), said[-1].strip()


@contextmanager
def engine(case: Case, log: Path) -> Iterator[str]:
    command = (sys.executable, "-m", "headgate", "engine", *case.engine, "--port", "0", "--step-log", str(log))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("Ready on "):
                break
        yield line.split()[2]
    finally:
        process.terminate()
        process.communicate()


def headgate(*words: str) -> str:
    """What it said on standard error."""
    done = subprocess.run([sys.executable, "-m", "headgate", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"headgate {' '.join(words)}: {done.stderr}")
    return done.stderr


def capacity(case: Case, profile: Profile) -> float:
    """Requests a second while all slots are taken."""
    config = GatewayConfig()
    lanes = tuple(replace(lane, wait_bound_s=FOR_EVER_S, queue_limit=10 * CROWD) for lane in config.lanes)
    crowd = Workload(case.mix, rate=CROWD, requests=CROWD).arrivals(SEEDS[0])
    done = run(replace(config, lanes=lanes), crowd, SimFleet(members=(SimGroup(profile=profile),)), SEEDS[0])
    return len(done.results) / done.span_s


def compared(
    case: Case, level: float, rate: float, profiles: tuple[Profile, Profile], samples: Samples
) -> Iterator[tuple[Verdict, tuple[str, ...]]]:
    results = [[simulated(case, rate, profile, seed) for seed in SEEDS] for profile in profiles]
    for figure in FIGURES:
        for share in SHARES:
            true, found = (
                float(np.median([np.quantile(one.values(figure), share) for one in runs])) for runs in results
            )
            off = found / true - 1.0
            label = f"{case.title}, {level:.0%}: {figure} p{100 * share:g}"
            samples[f"{case.name}.{round(100 * level)}.{figure}.p{100 * share:g}"] = [true, found]
            verdict = Verdict(label, abs(off), None, f"≤ {WITHIN:.0%}", abs(off) <= WITHIN)
            yield verdict, (label, f"{true * 1e3:.2f}", f"{found * 1e3:.2f}", f"{off:+.1%}")


def simulated(case: Case, rate: float, profile: Profile, seed: int) -> Results:
    arrivals = Workload(case.mix, rate=rate, requests=case.requests).arrivals(seed)
    return run(GatewayConfig(), arrivals, SimFleet(members=(SimGroup(profile=profile),)), seed).results


if __name__ == "__main__":
    sys.exit(main())
