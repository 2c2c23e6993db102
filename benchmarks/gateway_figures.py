"""What is measured on one gateway, and how."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.awake import kept_awake
from benchmarks.gateway_peers import COMPILED, GATEWAYS, Site
from benchmarks.kit import Kit, Load, Processes, ask, free_port, loading, started, wait_until_serving
from benchmarks.peers import Unusable
from benchmarks.report import CpuTime, Samples, number

DIRECT = "direct"
CONNECTIONS, STREAMS, HELD, STREAMS_PER_S = 64, 32, 1000, 10
WARM_S, MARGIN_S, SETTLE_S, DRAIN_S = 0.5, 0.5, 1.0, 15.0
STREAM_TOKENS = 256
PACED_RUNS, HOST_KEEPS = 3, 0.005
"""A paced run during which the host kept back more of the machine is made again, so often at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rounds: int
    load_s: float
    """How long each of the two full-rate figures is watched."""
    open_s: float
    """How long streams arrive for the TTFT figure."""
    hold_within_s: float
    """A gateway that cannot hold the streams by then has no memory figure."""
    gateways: tuple[str, ...]
    figures: tuple[str, ...]


# -- one gateway, ready ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """What outlives a gateway: the tools, the plan, what was measured and what could not be."""

    kit: Kit
    plan: Plan
    cores: tuple[int, int]
    """The gateway's; everybody else's."""
    samples: Samples
    notes: list[str]
    key: str
    copies: dict[str, Path] = field(default_factory=dict)
    """The compiled copy that a gateway which is Headgate runs, where it is not this tree's."""


@dataclass(frozen=True, slots=True)
class Target:
    bench: Bench
    name: str
    port: int
    replicas: tuple[int, ...]
    processes: Processes | None
    """None: no gateway, the client asks the first replica itself."""

    def add(self, figure: str, value: float) -> None:
        self.bench.samples[f"{self.name}.{figure}"].append(value)

    def seen(self, counter: str) -> int:
        """By both replicas together."""
        pages = [ask(port, "GET", "/metrics")[1] for port in self.replicas]
        return sum(int(value) for page in pages for value in re.findall(rf"^{counter} (\d+)", page, re.MULTILINE))

    def load(self, mode: str, **flags: object) -> AbstractContextManager[Load]:
        command = self.bench.kit.load(self.port, mode, self.bench.key, **flags)
        return loading(command, self.bench.cores[1])


@contextmanager
def ready(bench: Bench, name: str, slots: int | None) -> Iterator[Target]:
    """A fresh gateway before two fresh replicas."""
    ours, rest = bench.cores
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = (free_port(), free_port())
        for port in replicas:
            mock = stack.enter_context(started(bench.kit.replica(port), rest))
            wait_until_serving(mock.first, port, bench.key)
        if name == DIRECT:
            yield Target(bench, name, replicas[0], replicas, None)
            return
        site = Site(free_port(), replicas, folder, bench.key, slots, bench.copies.get(name, COMPILED))
        gateway = stack.enter_context(started(GATEWAYS[name].command(site), ours))
        wait_until_serving(gateway.first, site.port, bench.key)
        if name in bench.copies:
            insist_on(site.copy, gateway)
        yield Target(bench, name, site.port, replicas, gateway)


def insist_on(copy: Path, gateway: Processes) -> None:
    """Raises Unusable unless the gateway runs this very copy, compiled: a path that leads elsewhere would compare a
    copy with itself, or with the interpreter, and nothing in the figures would say so."""
    if f"{copy}/headgate__mypyc" not in Path(f"/proc/{gateway.first.pid}/maps").read_text():
        raise Unusable(f"the gateway does not run the compiled modules in {copy}")


# -- measurements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a closed-loop run, without its beginning and its end."""

    seconds: float
    cpu_s: float
    requests: int
    """That reached the replicas."""
    counted: dict[str, Any]


def watched(target: Target, **flags: object) -> Window:
    seconds = target.bench.plan.load_s
    with target.load("closed", warm=WARM_S, dur=seconds + MARGIN_S, **flags) as load:
        time.sleep(WARM_S)
        before = sample(target)
        time.sleep(seconds)
        after = sample(target)
        counted = load.finished(DRAIN_S)
    return Window(after[0] - before[0], after[1] - before[1], after[2] - before[2], counted)


def sample(target: Target) -> tuple[float, float, int]:
    cpu_s = target.processes.cpu_s() if target.processes else 0.0
    return time.monotonic(), cpu_s, target.seen("mock_requests_total")


def measure_requests(target: Target) -> None:
    window = watched(target, conc=CONNECTIONS, n=4)
    if not window.requests:
        raise Unusable("no request came through")
    # Counted at the replicas: the client does not count requests that straddle the window's edges, and the slowest
    # gateway has most of its requests there.
    target.add("requests_s", window.requests / window.seconds)
    if target.processes:
        target.add("request_cpu_ms", 1e3 * window.cpu_s / window.requests)
        target.add("requests_busy", window.cpu_s / window.seconds)


def measure_tokens(target: Target) -> None:
    window = watched(target, conc=STREAMS, stream=1, itl=0, n=STREAM_TOKENS)
    tokens_s = window.counted["eps"] * STREAM_TOKENS / (STREAM_TOKENS + 2)  # two events end each stream
    if not tokens_s:
        raise Unusable("no token came through")
    target.add("tokens_s", tokens_s)
    if target.processes:
        target.add("token_cpu_us", 1e6 * window.cpu_s / window.seconds / tokens_s)
        target.add("tokens_busy", window.cpu_s / window.seconds)


def measure_ttft(target: Target) -> None:
    """On top of what the client sees without a gateway in this round: that one is measured first.

    A tenth of a core is in use, so cores would halt between two tokens; see awake.py. What the host keeps back even so
    lands on a few of 250 streams, and those are the p99: such a run says nothing, and is made again.
    """
    runs = []
    for _ in range(PACED_RUNS):
        before = CpuTime.now()
        ttft = paced_ttft(target)
        runs.append((before.kept_of_all(CpuTime.now()), ttft))
        if runs[-1][0] <= HOST_KEEPS:
            break
    kept, ttft = min(runs, key=lambda run: run[0])
    target.add("ttft_host_kept", kept)
    for quantile in ("p50", "p99"):
        target.add(f"ttft_{quantile}_ms", ttft[quantile])
        if target.processes:
            if not (direct := target.bench.samples.get(f"{DIRECT}.ttft_{quantile}_ms")):
                raise Unusable("there is nothing to subtract: the direct run failed")
            target.add(f"added_{quantile}_ms", ttft[quantile] - direct[-1])


def paced_ttft(target: Target) -> dict[str, float]:
    seconds = target.bench.plan.open_s
    flags = {"rate": STREAMS_PER_S, "warm": WARM_S, "dur": seconds, "stream": 1, "ttft": 20_000, "itl": 5000, "n": 64}
    with kept_awake(target.bench.cores), target.load("open", **flags) as load:
        ttft: dict[str, float] = load.finished(WARM_S + seconds + DRAIN_S)["ttft"]
        return ttft


def measure_memory(target: Target) -> None:
    """On a gateway that has served a little, so that what it loads or keeps once is in both readings."""
    if target.processes is None:
        return
    time.sleep(SETTLE_S)
    idle = target.processes.memory_mb()
    # Each lasts a minute: nobody is done before the last has begun.
    with target.load("hold", conc=HELD, dur=120, ramp=500, stream=1, itl=500_000, n=128):
        deadline = time.monotonic() + target.bench.plan.hold_within_s
        while (held := target.seen("mock_active")) < HELD:
            if time.monotonic() > deadline:
                raise Unusable(
                    f"only {held} of {HELD} streams were running after {target.bench.plan.hold_within_s:g} s"
                )
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        target.add("idle_mb", idle)
        target.add("streams_mb", target.processes.memory_mb() - idle)


def warm_up(target: Target) -> None:
    for flags in ({"n": 4}, {"stream": 1, "n": 32}):
        with target.load("closed", conc=16, warm=0, dur=WARM_S, **flags) as load:
            load.finished(DRAIN_S)


Measurement = Callable[[Target], None]
LOADS: dict[str, Measurement] = {
    "requests": measure_requests,
    "tokens": measure_tokens,
    "ttft": measure_ttft,
}
MEMORY: dict[str, Measurement] = {"memory": measure_memory}
"""Measured on a gateway with room for all those streams."""


def measure_gateway(bench: Bench, name: str, figure: str) -> None:
    """One figure of one gateway, started for it; a note where it could not be measured."""
    # Headgate would rightly refuse a thousand streams until it had learned that the replicas take so many.
    slots = HELD if figure in MEMORY else None
    try:
        with ready(bench, name, slots) as target:
            warm_up(target)
            (LOADS | MEMORY)[figure](target)
    except Unusable as error:
        bench.notes.append(f"{name}: {figure}: {error}")


def news(samples: Samples, known: dict[str, int]) -> str:
    """The figures that have come since there were this many values of each."""
    new = {key.split(".")[1]: values[-1] for key, values in samples.items() if len(values) > known.get(key, 0)}
    return ", ".join(f"{figure} {number(value)}" for figure, value in new.items())
