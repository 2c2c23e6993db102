"""Reads from a dispatcher what each pool of a fleet is scaled by, where there are several.

The board finds the sources of demand and the room of every pool, and has `policy/scaling/shares.py` attribute the
sources to the pools, once for each moment. Every pool has a reader of its own part. The live fleet and the simulated
one use it.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from headgate.config.fleet import PoolConfig
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.view import ReplicaView
from headgate.policy.scaling.lifecycle import ROUTED, SLEEPING, Lifecycle
from headgate.policy.scaling.member import Demand
from headgate.policy.scaling.pool import ManagedPool
from headgate.policy.scaling.scale import FULL
from headgate.policy.scaling.shares import DemandSource, Key, PoolRoom, PoolShare, attribute, planned, room_of
from headgate.policy.scaling.signals import ArrivalRate, PoolSignals

Plans = Callable[[], Sequence[Mapping[str, float]]]
"""For each rollout, the share of the requests that each version's model is to have room for."""


FAILED_FOR_S = 30.0
"""Seconds from a replica's failure in which its pool counts as one that can't grow: an engine that ends at each start
must not keep a dearer pool from standing in."""


def no_plans() -> Sequence[Mapping[str, float]]:
    return ()


class PoolBoard:
    def __init__(
        self, dispatcher: Dispatcher, pools: Sequence[PoolConfig], ttft_p95: Callable[[str, float], float | None]
    ) -> None:
        self._plans: Plans = no_plans
        """What rollouts will send."""
        self.dispatcher = dispatcher
        self._pools = {pool.name: pool for pool in pools}
        self._ttft_p95 = ttft_p95
        self._managed: dict[str, ManagedPool] = {}
        """By the pool's name."""
        self._rates: dict[Key, ArrivalRate] = {}
        self._failed_at: dict[str, float] = {}
        """By pool: when a replica of it was last seen failed."""
        self._at: float | None = None
        self._shares: dict[str, PoolShare] = {}

    def reader(self, name: str) -> "PartSignals":
        return PartSignals(self, name, self.dispatcher, self._ttft_p95)

    def enter(self, name: str, managed: ManagedPool) -> None:
        """Takes in the pool of this name, made after its reader."""
        self._managed[name] = managed

    def plan_by(self, plans: Plans) -> None:
        """Counts requests for a version as rollouts will have them."""
        self._plans = plans

    def reconfigure(self, pools: Sequence[PoolConfig]) -> None:
        """Takes other prices and scales of the same pools."""
        self._pools = {pool.name: pool for pool in pools}

    def share(self, name: str, now: float) -> PoolShare:
        """The part of the demand that a pool is scaled by."""
        if self._at != now:
            self._at = now
            self._shares = attribute(self.sources(now), self._rooms(now), self._pools)
        return self._shares[name]

    def sources(self, now: float) -> list[DemandSource]:
        """The demand of each model and lane, as rollouts will have it."""
        rates, found = self._rates, []
        self._rates = {}
        for one in self.dispatcher.sources():
            key = one.model, one.lane
            rate = self._rates[key] = rates.get(key) or ArrivalRate()
            tokens_per_s = max(0.0, rate.observe(one.arrived_tokens, now))
            found.append(DemandSource(*key, one.waiting, one.waiting_tokens, one.waiting + one.running, tokens_per_s))
        return planned(found, self._plans())

    def holds(self, models: Sequence[str], model: str, now: float) -> float:
        """The share of the requests for these models that one model's replicas can hold at their target; 1: all, or no
        more of them can come."""
        rooms = [self.room(name, now) for name, pool in self._pools.items() if pool.model == model]
        present = sum(one.waiting + one.running for one in self.dispatcher.sources() if one.model in models)
        if not present or not any(room.grows for room in rooms):
            return 1.0
        return min(1.0, sum(room.now for room in rooms) / present)

    def waiting(self, name: str) -> int:
        """Requests that wait and that this pool could serve."""
        if not self.dispatcher.queued()[0]:
            return 0
        pool, members = self._pools[name], self._managed[name].members.values()
        names = frozenset[str]().union(*(member.replica.names for member in members))
        room = room_of(pool, names, (), 0, 0)
        sources = self.dispatcher.sources()
        return sum(one.waiting for one in sources if one.waiting and room.serves(DemandSource(one.model, one.lane)))

    def slots(self, name: str) -> tuple[int, int]:
        """(limit, requests) of the pool's usable replicas."""
        return self.dispatcher.slots(self._managed[name].members)

    def room(self, name: str, now: float) -> PoolRoom:
        """What a pool holds and could hold."""
        managed, seen = self._managed[name], self.dispatcher.view(now).replicas
        slots, names, requests, warm, others = list[float](), frozenset[str](), 0, 0, 0
        for member in managed.members.values():
            view = seen.get(member.id)
            if view is not None:
                names |= view.replica.names
                requests += view.requests
            if view is not None and member.state in ROUTED:
                slots.append(max(1.0, view.limit * view.share))
            elif not member.gone:
                warm += member.state in (Lifecycle.PARKED, Lifecycle.READY) or member.state in SLEEPING
                others += 1
        if any(member.state is Lifecycle.FAILED for member in managed.members.values()):
            self._failed_at[name] = now
        stuck = managed.stuck or now - self._failed_at.get(name, -inf) < FAILED_FOR_S
        further = 0 if stuck else self._pools[name].scale.max - len(slots) - others
        coming = 0 if stuck else others - warm
        return room_of(self._pools[name], names, slots, requests, max(0, further + coming) + warm)

    def _rooms(self, now: float) -> dict[str, PoolRoom]:
        rooms = {name: self.room(name, now) for name in self._pools}
        pools = self._managed.values()
        others: dict[tuple[frozenset[str], frozenset[str]], list[ReplicaView]] = {}
        for view in self.dispatcher.view(now).replicas.values():
            if not any(view.id in managed.members for managed in pools):
                others.setdefault((view.replica.names, view.replica.lanes), []).append(view)
        for number, ((names, lanes), views) in enumerate(others.items()):
            holds = sum(view.limit * view.usable for view in views)
            requests = sum(view.requests for view in views)
            rooms[f"(fixed {number})"] = PoolRoom(names, lanes, 0.0, holds, holds, requests)
        return rooms


class PartSignals(PoolSignals):
    """Implements `policy/scaling/pool.PoolReader` for one of several pools."""

    def __init__(
        self,
        board: PoolBoard,
        name: str,
        dispatcher: Dispatcher,
        ttft_p95: Callable[[str, float], float | None],
    ) -> None:
        super().__init__(dispatcher, ttft_p95)
        self._board = board
        self._name = name

    def waiting(self) -> int:
        return self._board.waiting(self._name)

    def strained(self) -> bool:
        limit, requests = self._board.slots(self._name)
        return requests >= FULL * limit or self.waiting() > 0

    def demand(self, now: float) -> Demand:
        share = self._board.share(self._name, now)
        self.tokens_per_s, self._lanes = share.tokens_per_s, share.lanes
        return Demand(
            share.waiting,
            share.waiting_tokens,
            share.tokens_per_s,
            self._ratio(now),
            share.present,
            share.carried_tokens_per_s,
            share.may_start,
            share.waiting > 0 and self._dispatcher.wanted_awake(now),
        )
