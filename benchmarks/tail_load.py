"""One point of the picture: a load through a gateway, and everything that came of it, request by request."""

import asyncio
import gzip
import json
import os
import resource
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop
from benchmarks.peers import Unusable
from benchmarks.tail_mix import SEED, Setup
from benchmarks.tail_site import Alive, Work, alive

from headgate.bench.asker import Asker, Asking
from headgate.bench.player import Player, RunTally
from headgate.bench.shot import Shot
from headgate.model.clock import monotonic
from headgate.report.arrivals import CUT_OFF
from headgate.report.results import Rows
from headgate.workload.arrival import Arrival

WARM_S, WARM_LOAD = 8.0, 0.4
DRAIN_S = 20.0
"""How long answers may still come after the last arrival. Then a request that waits is cut off, and counts with what
it has waited so far: less than the truth."""
SETTLED = 1 / 6
"""What is passed over of a run before tokens are counted: queues are still filling."""


@dataclass(slots=True)
class Point:
    """What was seen of one load through one gateway."""

    load: float
    gateway: str
    seconds: float
    offered_per_s: float = 0.0
    at_s: list[float] = field(default_factory=list)
    lane: list[str] = field(default_factory=list)
    streamed: list[bool] = field(default_factory=list)
    """Empty in points of before there were others."""
    kind: list[str] = field(default_factory=list)
    """ok, refused, failed, or cut: not over when the run was."""
    why: list[str] = field(default_factory=list)
    ttft_s: list[float | None] = field(default_factory=list)
    tpot_s: list[float | None] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    """Until its end, or until it was cut off."""
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    prompt_per_s: float = 0.0
    output_per_s: float = 0.0
    """Tokens that the engines computed, after the first sixth."""
    idle: float = 0.0
    """Share of the machine that was idle."""
    cores: dict[str, float] = field(default_factory=dict)
    """Cores in use, by engines, gateway and client."""
    spare: float = 0.0
    """Share of the machine that these left; others may have used it, at a lower priority."""
    behind_s: float = 0.0
    preempted: float = 0.0
    lag_p99_s: float = 0.0
    client_behind: str = ""

    def keep(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(asdict(self)).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> "Point":
        return cls(**json.loads(gzip.decompress(path.read_bytes())))


class LaneAsker(Asker):
    """Says in the body what is batch, in OpenAI's own words, so that an engine behind any gateway knows."""

    def _body(self, arrival: Arrival) -> bytes:
        body = super()._body(arrival)
        return body[:-1] + b',"service_tier":"flex"}' if arrival.lane == "batch" else body


class Watcher(Player):
    """Keeps what is known of requests that never ended, too."""

    point: Point

    def _over(self, shot: Shot) -> None:
        point, arrival = self.point, shot.arrival
        point.at_s.append(round(arrival.at_s, 4))
        point.lane.append(arrival.label)
        point.streamed.append(arrival.stream)
        kind = "cut" if shot.why == CUT_OFF else "failed" if shot.kind == "client" else shot.kind
        point.kind.append(kind)
        point.why.append(shot.why)
        point.ttft_s.append(None if shot.ttft_s is None else round(shot.ttft_s, 5))
        point.tpot_s.append(None if shot.tpot_s is None else round(shot.tpot_s, 5))
        point.took_s.append(round(shot.e2e_s, 4))
        point.prompt.append(arrival.prompt_tokens)
        point.output.append(shot.tokens)
        super()._over(shot)


def measure(setup: Setup, load: float, gateway: str, seconds: float) -> Point:
    with alive(setup, gateway) as site:
        return uvloop.run(_run(setup, load, gateway, seconds, site))


async def _run(setup: Setup, load: float, gateway: str, seconds: float, site: Alive) -> Point:
    asker = LaneAsker((f"http://127.0.0.1:{site.port}",), Asking(ignore_eos=True, model="mock", seed=SEED), monotonic)
    point = Point(load, gateway, seconds)
    try:
        await _play(setup, WARM_LOAD, WARM_S, asker, Point(WARM_LOAD, gateway, WARM_S), None)
        await _play(setup, load, seconds, asker, point, site)
    finally:
        await asker.close()
    return point


async def _play(setup: Setup, load: float, seconds: float, asker: Asker, point: Point, site: Alive | None) -> None:
    arrivals = list(setup.workload(load, seconds).arrivals(SEED + (site is None)))
    tally = RunTally()
    player = Watcher(iter(arrivals), asker, Rows(), tally, monotonic)
    player.point = point
    loop = asyncio.get_running_loop()
    stop = loop.call_later(seconds + DRAIN_S, player.stop)
    watching = None if site is None else loop.create_task(_watch(point, site, seconds))
    try:
        await player.play()
        if watching is not None:
            await watching
    finally:
        stop.cancel()
        if watching is not None:
            watching.cancel()
    point.offered_per_s = len(arrivals) / seconds
    point.lag_p99_s = tally.lag.quantile(0.99) or 0.0
    point.client_behind = tally.behind
    if not any(kind == "ok" for kind in point.kind):
        raise Unusable(f"not one request was answered: {next(iter(tally.messages.values()), 'no reason given')[:300]}")


async def _watch(point: Point, site: Alive, seconds: float) -> None:
    """While requests arrive: what the machine and everybody on it does, and once settled, what the engines do."""
    before, roles = _idle_and_all(), _roles(site)
    began = time.perf_counter()
    await asyncio.sleep(SETTLED * seconds)
    settled_at, first = time.perf_counter(), await asyncio.to_thread(Work.of, site.engine_ports)
    await asyncio.sleep(began + seconds - time.perf_counter())
    after, took = _idle_and_all(), time.perf_counter() - began
    ended = _roles(site)
    last_at, last = time.perf_counter(), await asyncio.to_thread(Work.of, site.engine_ports)
    work = last.since(first)
    point.prompt_per_s = work.prompt / (last_at - settled_at)
    point.output_per_s = work.output / (last_at - settled_at)
    point.behind_s, point.preempted = last.behind_s, last.preempted
    point.idle = (after[0] - before[0]) / (after[1] - before[1])
    point.cores = {role: round((ended[role] - roles[role]) / took, 3) for role in roles}
    point.spare = 1 - sum(point.cores.values()) / len(os.sched_getaffinity(0))


def _idle_and_all() -> tuple[float, float]:
    ticks = [float(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _roles(site: Alive) -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "engines": sum(engine.cpu_s() for engine in site.engines),
        "gateway": site.gateway.cpu_s(),
        "client": own.ru_utime + own.ru_stime,
    }


def take_precedence() -> bool:
    """Over whatever else runs on this machine; all of ours alike. Only root may."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except OSError:
        return False
    return True
