"""Finds the cheapest mix of pools that keeps the SLOs: the dearest pools as small as they may be, one after the other.

All pools start at their maximum. Then, from the dearest to the cheapest, each is made as small as the SLOs allow, down
to its minimum: within a pool more replicas are never worse, so that is a search by halves. Requests are routed as live,
the cheapest replicas filled first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headgate.config.fleet import PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile
from headgate.model.replica import Replica
from headgate.report.results import Target
from headgate.sim.fleet import SimFleet, SimGroup, SimSeat
from headgate.sim.run import Level, Simulated, run
from headgate.sim.scaling.pools import member_of, one_model
from headgate.sim.slo import Judged, judge_all, worst
from headgate.workload.arrival import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMix:
    """How many replicas of each pool to have."""

    counts: dict[str, int]
    kept: bool
    """False: not even all that the pools may have keeps the SLOs."""
    nearest: Judged | None
    """The SLO nearest to being missed; None: there are none."""
    simulated: Simulated
    cost: float | None
    """Per hour; None: some pool has no price."""

    def sentence(self, currency: str) -> str:
        told = ", ".join(f"{count} of {name}" for name, count in self.counts.items())
        price = "" if self.cost is None else f", {self.cost:g} {currency} an hour"
        if self.kept:
            return f"Buy {told}{price}."
        return f"No mix keeps the SLOs: {told} is all that the pools may have."

    def as_dict(self) -> dict[str, object]:
        return {"counts": self.counts, "kept": self.kept, "cost_per_hour": self.cost}


def _seats(pool: PoolConfig, member: SimGroup) -> list[SimSeat]:
    """The replicas of a pool, named after it."""
    slots, found = member.slots or member.profile.slots, []
    for number in range(member.count):
        name = f"{pool.name}-{number}"
        made = Replica(id=name, url=f"http://{name}", kind="headgate", slots=slots, lanes=pool.lanes, price=pool.price)
        found.append(SimSeat(made, member))
    return found


def fleet_of_pools(
    config: GatewayConfig, profile: Profile, counts: dict[str, int] | None = None, cold_start_s: float = 0.0
) -> SimFleet:
    """The pools with these numbers of replicas. `counts` None: the fewest that serve. `profile`: that of pools that
    emulate nothing."""
    pools = one_model(config).fleet.pools
    numbers = {pool.name: pool.scale.least for pool in pools} if counts is None else counts
    members: list[SimGroup] = [
        replace(member_of(config, pool, profile, cold_start_s), count=numbers[pool.name]) for pool in pools
    ]
    named = [seat for pool, member in zip(pools, members, strict=True) for seat in _seats(pool, member)]
    return SimFleet(members=tuple(members), named=tuple(named))


def cheapest_mix(
    config: GatewayConfig,
    arrivals: Sequence[Arrival],
    profile: Profile,
    slos: Sequence[Target],
    *,
    seed: int = 0,
    level: Level = "gateway",
    say: Callable[[str], None] = lambda text: None,
) -> PoolMix:
    pools = config.fleet.pools
    counts = {pool.name: pool.scale.max for pool in pools}

    def tried(numbers: dict[str, int]) -> PoolMix:
        say(", ".join(f"{number} of {name}" for name, number in numbers.items()))
        simulated = run(config, iter(arrivals), fleet_of_pools(config, profile, numbers), seed, level)
        judged = judge_all(simulated.results, slos)
        prices = [pool.price for pool in pools]
        known = [price * numbers[pool.name] for pool, price in zip(pools, prices, strict=True) if price is not None]
        cost = sum(known) if len(known) == len(pools) else None
        return PoolMix(
            counts=numbers, kept=all(one.kept for one in judged), nearest=worst(judged), simulated=simulated, cost=cost
        )

    best = tried(counts)
    if not best.kept:
        return best
    for pool in sorted(pools, key=lambda one: -(one.price or 0.0)):
        low, high = pool.scale.min, best.counts[pool.name]
        while low < high:
            middle = (low + high) // 2
            found = tried({**best.counts, pool.name: middle})
            if found.kept:
                best, high = found, middle
            else:
                low = middle + 1
    return best
