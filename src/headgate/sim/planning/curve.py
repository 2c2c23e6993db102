"""Measures how latency grows with load: the same fleet and workload, played faster and slower.

Load is the offered work as a share of what the fleet can do, both in seconds of work. Requests can't be counted
instead: the mix changes under overload, when long prompts are held back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from msgspec.structs import replace

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile
from headgate.report.arrivals import missed
from headgate.report.results import Floats
from headgate.sim.fleet import SimFleet
from headgate.sim.run import Level, run
from headgate.workload.arrival import Arrival

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
OPERATING = (0.6, 0.7)
"""The load at which a fleet should be run: before latency bends."""
LEAST_S = 120.0
"""Minimum seconds of a workload; a shorter one is repeated."""
MOST = 10_000
"""Maximum requests of one point."""
WARM = 0.25
"""Share of a saturated run that is skipped, until its queues are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    load: float
    requests_per_s: float
    use: float
    """Mean share in use of the replicas' scarcest resource."""
    ttft_s: tuple[float, float, float]
    """p50, p95 and p99 over the served requests, of all lanes."""
    e2e_s: tuple[float, float, float]
    lanes: dict[str, float]
    """The p95 of the time to first token, by lane."""
    turned_away: float

    @property
    def operating(self) -> bool:
        return OPERATING[0] <= self.load <= OPERATING[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    capacity_per_s: float
    """Requests per second of this mix that the fleet can serve, with full queues."""
    now: float
    """The workload's own load."""
    points: tuple[Point, ...]


def work_s(arrival: Arrival, profile: Profile) -> float:
    """Returns the seconds that a request adds to full steps."""
    cost, prompt, output = profile.cost, arrival.prompt_tokens, arrival.output_tokens
    prefill = prompt * (cost.per_prefill + cost.per_token_beyond + cost.per_pair * prompt)
    return prefill + output * (cost.per_decode + cost.per_token_beyond + cost.per_context * (prompt + output / 2))


def offered(arrivals: Sequence[Arrival], profile: Profile) -> float:
    """Returns the offered load, in seconds of work per second."""
    return sum(work_s(arrival, profile) for arrival in arrivals) / span_s(arrivals)


def span_s(arrivals: Sequence[Arrival]) -> float:
    """Returns the seconds from the first to the last arrival, plus one gap."""
    between = arrivals[-1].at_s - arrivals[0].at_s
    return max(between, 1e-6) * len(arrivals) / max(1, len(arrivals) - 1)


def faster(arrivals: Sequence[Arrival], times: float, least_s: float = 0.0, most: int = MOST) -> list[Arrival]:
    """Returns the arrivals `times` as fast, repeated from the start until they last `least_s`, and `most` of them at
    most."""
    period_s, began = span_s(arrivals) / times, arrivals[0].at_s
    made: list[Arrival] = []
    for turn in count():
        for arrival in arrivals:
            at_s = turn * period_s + (arrival.at_s - began) / times
            if len(made) >= most or (turn and at_s >= least_s):
                return made
            made.append(replace(arrival, at_s=at_s))
        if (turn + 1) * period_s >= least_s:
            return made
    raise AssertionError("it counts for ever")


def capacity(
    config: GatewayConfig, arrivals: Sequence[Arrival], profile: Profile, fleet: SimFleet, level: Level, seed: int
) -> float:
    """Returns the seconds of work that the fleet completes per second when there is always more to do."""
    done, times = 0.0, 2.0 * fleet.replicas / max(1e-9, offered(arrivals, profile))
    while True:
        squeezed = faster(arrivals, times, LEAST_S / 2)
        results = run(config, squeezed, fleet, seed, level).results
        until_s = squeezed[-1].at_s
        ends = results.at_s + results.e2e_s
        counted = results.ok & (ends >= WARM * until_s) & (ends <= until_s)
        rows = zip(results.prompt_tokens[counted].tolist(), results.output_tokens[counted].tolist(), strict=True)
        work = sum(work_s(Arrival(0.0, prompt, output), profile) for prompt, output in rows)
        found = work / ((1 - WARM) * until_s)
        if found <= 1.05 * done or not results.ok.all():
            return max(found, done)
        done, times = found, 2.0 * times


def curve(
    config: GatewayConfig,
    arrivals: Sequence[Arrival],
    profile: Profile,
    fleet: SimFleet,
    level: Level,
    seed: int = 1,
    loads: Sequence[float] = LOADS,
) -> Curve:
    most = capacity(config, arrivals, profile, fleet, level, seed)
    now = offered(arrivals, profile) / most
    rate = len(arrivals) / span_s(arrivals)
    points = []
    for load in loads:
        simulated = run(config, faster(arrivals, load / now, LEAST_S), fleet, seed, level)
        results = simulated.results
        values, away = results.values("ttft"), missed(results, own_limits=True)
        if not len(values):
            continue
        lanes = {lane: results.values("ttft", lane) for lane in results.lanes}
        points.append(
            Point(
                load=load,
                requests_per_s=rate * load / now,
                use=simulated.use,
                ttft_s=_three(values),
                e2e_s=_three(results.values("e2e")),
                lanes={lane: float(np.quantile(found, 0.95)) for lane, found in lanes.items() if len(found)},
                turned_away=float(away.sum() / max(1, (away | results.ok).sum())),
            )
        )
    return Curve(capacity_per_s=rate / now, now=now, points=tuple(points))


def _three(values: Floats) -> tuple[float, float, float]:
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
    return p50, p95, p99
