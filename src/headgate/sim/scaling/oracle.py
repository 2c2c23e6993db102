"""Finds the fewest replicas for a day whose load is known beforehand.

A run with the maximum number of replicas tells how many requests will be in progress at each second. The oracle then
holds, in each five minutes, as many replicas as those requests would fill to a certain share (in all but the busiest
fifth of its seconds), starts them early enough, and stops them at once. It has the same gateway and the same SLOs as
the scalers: the largest share that keeps the SLOs over the day is found by simulating the day again and again. The
share is the same all day: where requests have to wait, one replica more helps about as many of them in any five
minutes. Filled to the last slot, the oracle would keep no SLO, and be no measure for a scaler.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from headgate.config.gateway import GatewayConfig
from headgate.policy.scaling.placement import PoolView, Sorted, settle
from headgate.policy.scaling.scale import Decision
from headgate.report.results import Floats
from headgate.sim.fleet import SimFleet, SimGroup
from headgate.sim.run import run
from headgate.sim.scaling.autoscale import Outcomes, Scaled, autoscale
from headgate.workload.arrival import Arrival

WINDOW_S = 300.0
BUSIEST = 0.2
"""Share of a window's seconds that may be busier than its replicas are planned for; of 0.05, 0.2 and 0.3 the
cheapest."""
FILL = (0.6, 0.9)
TRIES = 6
"""Halvings: the share is found to within half a hundredth."""
EMPTIEST = 0.4
"""The share tried last, if none of those kept the SLOs."""
Kept = Callable[[Outcomes], bool]
Say = Callable[[str], None]


@dataclass(slots=True)
class Schedule:
    """A fixed number of replicas in each window. Decides as a Scaler does."""

    levels: Sequence[int]
    window_s: float = WINDOW_S

    def at(self, now: float) -> int:
        return self.levels[min(int(now / self.window_s), len(self.levels) - 1)]

    def decide(self, view: PoolView, now: float, wall: float) -> Decision:
        # The replicas needed when a start would be over are started now, and serve as soon as they are warm.
        there = Sorted.of(view.members)
        soon = max(self.at(now), self.at(now + view.start_s))
        most = max(self.levels) + len(there.draining)
        actions, reasons = settle(there, serving=soon, parked=0, most=most, keep_s=0.0, now=now)
        return Decision(soon, 0, actions, ("The schedule says so.", *reasons))


def under_way(config: GatewayConfig, arrivals: Iterable[Arrival], member: SimGroup, count: int, seed: int) -> Floats:
    """Returns the requests at replicas, second by second, with `count` replicas."""
    plenty = SimFleet(members=(replace(member, count=count, cold_start_s=0.0),))
    results = run(config, arrivals, plenty, seed, "gateway").results
    began = results.at_s + np.nan_to_num(results.queue_s)
    ended = results.at_s + np.nan_to_num(results.e2e_s)
    edges = np.arange(int(results.at_s.max()) + 2 if len(results) else 2, dtype=np.float64)
    came, went = np.histogram(began, edges)[0], np.histogram(ended, edges)[0]
    found: Floats = np.maximum(0.0, np.cumsum(came) - np.cumsum(went)).astype(np.float64)
    return found


def levels(present: Floats, room: float, least: int, window_s: float = WINDOW_S) -> list[int]:
    """Returns for each window the replicas whose room, `room` requests each, suffices in all but its busiest
    seconds."""
    found = []
    for begin in range(0, len(present), int(window_s)):
        part = present[begin : begin + int(window_s)]
        found.append(max(least, ceil(float(np.quantile(part, 1.0 - BUSIEST)) / room)))
    return found


def oracle(
    config: GatewayConfig,
    arrivals: Callable[[], Iterable[Arrival]],
    member: SimGroup,
    kept: Kept,
    *,
    least: int,
    most: int,
    seed: int = 0,
    wall_s: float = 0.0,
    say: Say = lambda text: None,
) -> Outcomes | None:
    """Returns the run with the fewest replica-hours that keeps the SLOs; None: none does."""
    slots = member.slots or member.profile.slots
    present = under_way(config, arrivals(), member, most, seed)

    def tried(fill: float) -> Outcomes | None:
        planned = [min(most, level) for level in levels(present, slots * fill, least)]
        scaled = Scaled(member=member, scaler=Schedule(planned), at_first=planned[0], wall_s=wall_s)
        outcomes = autoscale(config, arrivals(), scaled, seed, title="oracle")
        good = kept(outcomes)
        say(f"oracle, {fill:.1%} full: {outcomes.replica_hours:.1f} replica-hours, {'kept' if good else 'missed'}")
        return outcomes if good else None

    best: Outcomes | None = None
    low, high = FILL
    for _ in range(TRIES):
        fill = (low + high) / 2
        found = tried(fill)
        if found is None:
            high = fill
        else:
            best, low = found, fill
    return best if best is not None else tried(EMPTIEST)
