"""What is run live and simulated beside it. A fleet of emulated replicas, and our own engine with a real model.

Both sides get the same config file, the same arrivals, and `completions` with exactly the tokens that an arrival says:
a chat template would add some that the workload does not know of.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.awake import kept_awake
from benchmarks.kit import free_port
from benchmarks.local_fleet import Program, engines, gateway, stretched_lanes

from headgate.config import file as config_file
from headgate.config.gateway import GatewayConfig
from headgate.engine.runner.profile_file import fitted
from headgate.machine.profile import PROFILES
from headgate.report import json_file
from headgate.report.results import Results
from headgate.sim.fleet import SimFleet, SimGroup, dilated
from headgate.sim.run import Simulated, run
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

SEED, CALIBRATION_SEED = 11, 12
CROWD = 3000
"""Requests at once, to find what a fleet can do."""
FOR_EVER_S = 1e5
CALIBRATION_S = 60


class TooSlow(Exception):
    """The client or the machine could not keep up, so that the run says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    title: str
    mix: str
    requests: int
    percentiles: tuple[float, ...]
    replicas: int
    slots: int
    """Requests that the gateway gives each at once."""
    engine: tuple[object, ...]
    """Its command line."""
    stretched: float = 1.0
    """What the lanes promise is stretched by it, as the replicas are."""
    profile: str | None = None
    """None: fitted from the engine's own step log."""
    calibration: str = ""
    """The load for that."""
    draws: int = 1
    """How often it is simulated, each time with other chance; the median counts."""


FLEET = Case(
    name="fleet",
    title="4 emulated H100",
    mix="chat=poisson:rate=9,prompt=40-300,output=6-18;docs=gamma:cv=2,rate=1,prompt=600-2500,output=10-30",
    requests=20_000,
    percentiles=(0.5, 0.9, 0.99),
    replicas=4,
    slots=32,
    engine=("--emulate", "h100-llama3-8b", "--dilate", 2.0),
    stretched=2.0,
    profile="h100-llama3-8b",
)
ENGINE = Case(
    name="engine",
    title="the embedded engine",
    mix="chat=poisson:rate=6,prompt=4-8,output=4-12;docs=poisson:rate=1,prompt=16-32,output=4-12",
    # Short ones, and so many: of 120, a single encounter of seven moved the 90th percentile by a fifth.
    requests=480,
    percentiles=(0.5, 0.9),
    replicas=1,
    slots=8,
    # One thread, so that gateway and client have a core; no drafts: whether one is right depends on the text.
    engine=("--slots", 8, "--context", 1024, "--threads", 1, "--draft-batch", 0),
    stretched=8.0,
    calibration="chat=gamma:cv=3,rate=2.4,prompt=4-8,output=4-12;docs=gamma:cv=2,rate=0.4,prompt=16-32,output=4-12",
    draws=7,
)
GPU = Case(
    name="gpu",
    title="Llama-3-8B's shape on a GPU",
    mix="chat=poisson:rate=9,prompt=100-1000,output=60-160;docs=gamma:cv=2,rate=1,prompt=2000-8000,output=40-120",
    requests=400,
    percentiles=(0.5, 0.9, 0.99),
    replicas=1,
    slots=128,
    # A folder with the config.json of Llama-3-8B: its weights are random.
    engine=("--model", ".bench/llama3-8b", "--device", "cuda", "--slots", 128, "--context", 16384),
    calibration="chat=gamma:cv=3,rate=8,prompt=100-1000,output=60-160;"
    "docs=gamma:cv=2,rate=0.9,prompt=2000-8000,output=40-120",
    draws=3,
)
CASES = {case.name: case for case in (FLEET, ENGINE, GPU)}


class Bench:
    """One case, with what is known of it so far in a folder."""

    def __init__(self, case: Case, folder: Path, where: Path, say: Any) -> None:
        self.case, self.folder, self.where, self.say = case, folder, where, say
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / f"{case.name}.yaml"

    # -- what it is ------------------------------------------------------------------------------------------

    def config(self, ports: list[int]) -> GatewayConfig:
        """As the gateway reads it."""
        lanes = stretched_lanes(self.case.stretched)
        replicas = [{"url": f"http://127.0.0.1:{port}", "kind": "headgate", "slots": self.case.slots} for port in ports]
        self._settings.write_text(json.dumps({"lanes": lanes, "replicas": replicas}))  # JSON is YAML
        return config_file.load(self._settings)

    def step_log(self, number: int) -> Path:
        return self.folder / f"{self.case.name}-steps-{number}.jsonl"

    def member(self, level: float | None = None) -> SimGroup:
        """For that load its profile is of the steps at all others: nothing is explained by itself."""
        case = self.case
        if case.profile is not None:
            made = dilated(PROFILES[case.profile], case.stretched)
        else:
            own = () if level is None else self.folder.glob(f"{self._stem(level)}-*")
            first, *more = sorted({*self.folder.glob(f"{case.name}-*steps*")} - {*own})
            made = SimGroup(profile=fitted(first, case.name, *more))
        return replace(made, count=case.replicas, slots=case.slots)

    def _stem(self, level: float) -> str:
        return f"{self.case.name}-{round(100 * level)}"

    @property
    def capacity(self) -> float:
        """Requests a second with all slots taken all the time; found once, by simulating a crowd."""
        known = self.folder / f"{self.case.name}-capacity.json"
        if not known.is_file():
            config = self.config([1 + number for number in range(self.case.replicas)])
            lanes = tuple(replace(lane, wait_bound_s=FOR_EVER_S, queue_limit=10 * CROWD) for lane in config.lanes)
            crowd = Workload(self.case.mix, rate=CROWD, requests=CROWD).arrivals(CALIBRATION_SEED)
            found = run(replace(config, lanes=lanes), crowd, SimFleet(members=(self.member(),)), SEED)
            known.write_text(json.dumps(len(found.results) / found.span_s))
        return float(json.loads(known.read_text()))

    def arrivals(self, level: float) -> Iterator[Arrival]:
        return Workload(self.case.mix, rate=self.rate(level), requests=self.case.requests).arrivals(SEED)

    def rate(self, level: float) -> float:
        return round(level * self.capacity, 3)

    # -- simulated ---------------------------------------------------------------------------------------------

    def simulated(self, level: float) -> list[Simulated]:
        config = self.config([1 + number for number in range(self.case.replicas)])
        fleet = SimFleet(members=(self.member(level),))
        return [
            run(config, self.arrivals(level), fleet, seed, by_stream=True) for seed in range(1, self.case.draws + 1)
        ]

    # -- live --------------------------------------------------------------------------------------------------

    def kept(self, level: float, number: int) -> Path:
        return self.folder / f"{self._stem(level)}-{number}.json"

    def is_there(self, number: int, level: float | None, runs: int) -> bool:
        """Or not needed. A level of None: the step log before the live runs of that number."""
        if level is None:
            return self.case.profile is not None or self.step_log(number).is_file()
        return number > runs or self.kept(level, number).is_file()

    def live(self, level: float, number: int) -> None:
        out = self.kept(level, number)
        steps = None if self.case.profile is not None else out.with_suffix(".steps.jsonl")
        self._play(self.case.mix, self.rate(level), self.case.requests, SEED, out, steps)

    def calibrate(self, number: int) -> None:
        """By a load of its own. What all loads are shares of is known after the first."""
        self._play(
            self.case.calibration, None, None, CALIBRATION_SEED + number, self.folder / "calibration.json",
            self.step_log(number),
        )  # fmt: skip
        self.say(f"  100 % is {self.capacity:.2f}/s")

    def _play(
        self, mix: str, rate: float | None, requests: int | None, seed: int, out: Path, step_log: Path | None
    ) -> None:
        """Fresh engines each time: what one run leaves in a prefix cache, the next would find."""
        ports, port = [free_port() for _ in range(self.case.replicas)], free_port()
        self.config(ports)
        arguments = [*self.case.engine, "--no-banner"] + ([] if step_log is None else ["--step-log", step_log])
        asked: list[object] = ["--load", mix, "--seed", seed, "--json", out.with_suffix(".part"), "--no-progress"]
        asked += ["--endpoint", "completions", "--ignore-eos"]
        if requests is None:  # only its steps are looked at
            asked += ["--duration", CALIBRATION_S, "--allow-lag"]
        else:
            asked += ["--rate", rate, "--requests", requests]
        with ExitStack() as stack:
            stack.enter_context(kept_awake(os.sched_getaffinity(0)))
            made = stack.enter_context(engines(ports, arguments, self.where))
            served = stack.enter_context(gateway(port, ("--config", self._settings), self.where))
            began, before = time.monotonic(), [program.cpu_s() for program in (*made, served)]
            client = Program("bench", f"http://127.0.0.1:{port}", *asked, where=self.where)
            stack.callback(client.stop)
            said = client.finished(1200)
            took = time.monotonic() - began
            spent = [program.cpu_s() - was for program, was in zip((*made, served), before, strict=True)]
        if client.process.returncode != 0:
            raise TooSlow(said[-1500:])
        out.with_suffix(".part").rename(out)
        shares = ", ".join(f"{one / took:.0%}" for one in spent)
        self.say(f"  {out.stem}: {took:.0f} s; engines and gateway took {shares} of a core")

    def results(self, level: float, number: int) -> Results:
        return json_file.read(self.kept(level, number))


if __name__ == "__main__":
    sys.exit("this is a part of benchmarks/fidelity.py")
