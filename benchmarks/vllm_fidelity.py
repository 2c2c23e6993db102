"""Whether the simulator says what a vLLM with Headgate's scheduler does, by the profile fitted from its step log.

    python benchmarks/vllm_live.py FOLDER &               starts one (benchmarks/vllm_live.py), and says when it listens
    python benchmarks/vllm_fidelity.py FOLDER             about 12 minutes; call it again after an interruption
    python benchmarks/vllm_fidelity.py FOLDER --budget-s 200, --report       as of benchmarks/fidelity.py

The same as benchmarks/fidelity.py does with the embedded engine: the same arrivals live, through a gateway, and
simulated; live twice at each load; a load's own steps do not explain it.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.local_fleet import modules  # noqa: E402

sys.path.insert(0, str(modules()))

import json  # noqa: E402

from benchmarks.fidelity import compared, measure  # noqa: E402
from benchmarks.fidelity_cases import CALIBRATION_S, ENGINE, Bench, TooSlow  # noqa: E402
from benchmarks.kit import free_port  # noqa: E402
from benchmarks.local_fleet import Program, gateway, stretched_lanes  # noqa: E402
from benchmarks.report import Grid, Report, Samples, Verdict, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

from headgate.config import file as config_file  # noqa: E402
from headgate.config.gateway import GatewayConfig  # noqa: E402

LEVELS = (0.5, 0.7, 0.85)
RUNS = 2
FLUSHED_S = 2.0
"""Seconds after which the steps of a load are in the log."""
VLLM = replace(
    ENGINE,
    name="vllm",
    title="vLLM on a CPU",
    mix="chat=poisson:rate=6,prompt=20-60,output=8-24;docs=poisson:rate=1,prompt=200-500,output=8-24",
    requests=90,
    engine=("vllm serve", "--scheduler-cls", "headgate.vllm.scheduler.Scheduler", "(benchmarks/vllm_live.py)"),
    calibration="chat=gamma:cv=3,rate=0.8,prompt=20-60,output=8-24;docs=gamma:cv=2,rate=0.12,prompt=200-500,output=8-24",
)


class VllmBench(Bench):
    """One vLLM that runs all the time; its step log is cut by loads."""

    vllm: Path

    def config(self, ports: list[int]) -> GatewayConfig:
        replica = {"url": f"unix:{self.vllm / 'ours.sock'}", "kind": "vllm", "slots": self.case.slots}
        self._settings.write_text(json.dumps({"lanes": stretched_lanes(self.case.stretched), "replicas": [replica]}))
        return config_file.load(self._settings)

    def _play(
        self, mix: str, rate: float | None, requests: int | None, seed: int, out: Path, step_log: Path | None
    ) -> None:
        self.config([])
        log, port = self.vllm / "steps.jsonl", free_port()
        had = len(log.read_bytes())
        asked: list[object] = ["--load", mix, "--seed", seed, "--json", out.with_suffix(".part"), "--no-progress"]
        asked += ["--endpoint", "completions", "--ignore-eos", "--allow-lag"]
        asked += ["--duration", CALIBRATION_S] if requests is None else ["--rate", rate, "--requests", requests]
        with ExitStack() as stack:
            stack.enter_context(gateway(port, ("--config", self._settings), self.where))
            client = Program("bench", f"http://127.0.0.1:{port}", *asked, where=self.where)
            stack.callback(client.stop)
            said = client.finished(1200)
            time.sleep(FLUSHED_S)
        if client.process.returncode != 0:
            raise TooSlow(said[-1500:])
        out.with_suffix(".part").rename(out)
        if step_log is not None:
            whole = log.read_bytes()
            step_log.write_bytes(whole[: whole.index(b"\n") + 1] + whole[had:])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("vllm", type=Path)
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--note")
    parser.add_argument("--state", type=Path, default=HERE.parent / ".bench" / "vllm-fidelity")
    args = parser.parse_args()
    console, until = Console(highlight=False), time.monotonic() + args.budget_s
    bench = VllmBench(VLLM, args.state, modules(), console.print)
    bench.vllm = args.vllm.resolve()
    if not args.report:
        missing = measure(bench, list(LEVELS), RUNS, until, console.print)
        if missing:
            console.print("still missing: " + "; ".join(missing))
            return 3
    samples: Samples = {}
    verdicts: list[Verdict] = []
    rows: list[tuple[str, ...]] = []
    for level in LEVELS:
        more, lines = compared(bench, level, RUNS, samples)
        verdicts += more
        rows += lines
    live = tuple(f"live {number}, ms" for number in range(1, RUNS + 1))
    grid = Grid(("figure", *live, "simulated", "off by", "live runs differ"), tuple(rows))
    console.print(grid.table("Live and simulated"), verdict_grid(verdicts).table("Is it what really happens?"))
    facts = {**machine(), "vllm": f"{VLLM.mix}; {VLLM.requests} requests; 100 % is {bench.capacity:.4g}/s"}
    facts |= {"note": args.note} if args.note else {}
    report = Report("vLLM, live against simulated", "benchmarks/vllm_fidelity.py", facts, verdicts, samples, (grid,))
    report.keep(HERE / "results" / "vllm_fidelity.json")
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
