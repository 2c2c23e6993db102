"""Chooses which lane, tenant and request go next, and whether the request may go now.

Lanes with a reserve go first while they use less than their reserve; of the others, the lane that was served least for
its weight. As the fleet fills up, low lanes and long prompts are held back first, tiers keep their reserves, and the
last slots stay free for expected requests of other tenants and lanes (standing_room.py).
"""

from math import ceil, inf, sqrt
from typing import Final

from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.dispatch.fair import FairQueue
from headgate.policy.dispatch.queues import LONG_PROMPT, LaneQueue, ModelQueue
from headgate.policy.dispatch.standing_room import (
    LANE_MEMORY_S,
    MOST_KEPT,
    NamedTenants,
    asked_for,
    count,
    for_tenants,
    most_kept,
)
from headgate.policy.replicas.index import RouteIndex

PREFILLS_EACH: Final = 2
"""Prompts of low lanes, and long prompts, that a replica may have in prefill at once; more, if they come to less than
LONG_PROMPT tokens. More than two would end no sooner, and occupy slots that a more urgent request could use; a single
one would leave the replica without work until the next is sent."""
HEADROOM: Final = 2.0
"""Slots that lower lanes leave free for a lane with a reserve, in square roots of its running requests, and at most its
reserve: the lane may grow by this many requests by chance before a slot comes back."""


class Turns:
    def __init__(
        self,
        fleet: RouteIndex,
        pools: dict[str | None, ModelQueue],
        lanes: dict[str, Lane],
        tiers: dict[str, Tier],
        expected: NamedTenants,
    ) -> None:
        """`pools` is the dispatcher's own dict."""
        self._fleet = fleet
        self._pools = pools
        self._holding: dict[str, list[FairQueue]] = {}
        """By tenant: queues in which the tenant has no turn, because it is at its concurrency limit."""
        self.reconfigure(lanes, tiers, expected)

    def reconfigure(self, lanes: dict[str, Lane], tiers: dict[str, Tier], expected: NamedTenants) -> None:
        self._lanes = lanes
        self._tiers = tiers
        self.expected = expected
        self._reserved = any(tier.reserve > 0 for tier in tiers.values())
        self._first = min((float(lane.priority) for lane in lanes.values() if lane.reserve > 0), default=inf)
        """Priority of the most urgent lane with a reserve. inf: no lane has a reserve."""
        self._with_reserve = [(lane, asked_for(lane)) for lane in lanes.values() if lane.reserve > 0]
        """Each lane with a reserve, and whether the operator set that reserve."""
        for tenant in [*self._holding]:
            self._let_go(tenant)

    def next(self, pool: ModelQueue, blocked: list[LaneQueue], now: float) -> tuple[LaneQueue, Request] | None:
        """The lane to serve and its next request: lanes below their reserve before all others, by priority; otherwise
        the lane that was served least for its weight. None: no request may go."""
        best: tuple[LaneQueue, Request] | None = None
        best_key = (inf, inf)
        for state in pool.lanes.values():
            lane = state.lane
            if not len(state.queue) or state in blocked:
                continue
            room, used = self._fleet.capacity(pool.model, lane.name)
            request = self._next_of(state, room, used, now)
            if request is None:
                continue
            owed = state.running < int(lane.reserve * room)
            key = (float(lane.priority), 0.0) if owed else (inf, state.tally.served)
            if best is None or key < best_key:
                best, best_key = (state, request), key
        return best

    def _next_of(self, state: LaneQueue, room: int, used: int, now: float) -> Request | None:
        """The first request, in the order of tenants' turns, that may go. None: none may."""
        request = state.queue.peek()
        while request is not None and self._at_its_cap(request.tenant, self._slots(state, request)):
            state.queue.hold(request.tenant)
            self._holding.setdefault(request.tenant, []).append(state.queue)
            request = state.queue.peek()
        if request is None or not self._lane_may_go(state, request, room, used, now):
            return None
        if self._tenant_may_go(state, request, room, used, now):
            return request
        for other in state.queue.heads():
            capped = self._at_its_cap(other.tenant, self._slots(state, other))
            if not capped and self._tenant_may_go(state, other, room, used, now):
                return other
        return None

    def may_go(self, state: LaneQueue, request: Request, now: float) -> bool:
        """Whether this request may go now: low lanes and long prompts are held back first as the fleet fills up; an
        idle fleet takes any request that its caps allow."""
        if self._at_its_cap(request.tenant, self._slots(state, request)):
            return False
        room, used = self._fleet.capacity(state.pool.model, state.lane.name)
        may = self._lane_may_go(state, request, room, used, now)
        return may and self._tenant_may_go(state, request, room, used, now)

    def wants_room(self, state: LaneQueue, request: Request, now: float) -> bool:
        """Whether free slots of a replica are kept for this request until there is one for each of its choices. Not for
        a tenant at its fair share of the pool while others are expected: the request would keep them out."""
        if self._at_its_cap(request.tenant, self._slots(state, request)):
            return False
        room, used = self._fleet.capacity(state.pool.model, state.lane.name)
        if not self._lane_may_go(state, request, room, used, now, slots=1):
            return False
        others = state.pool.comers[state.lane.name].others(request.tenant, self.expected)
        return not others or self.light(state, request)

    def _slots(self, state: LaneQueue, request: Request) -> int:
        """Slots that this request takes: one for each of its choices, and at most the mean number of slots of a
        replica."""
        if request.choices == 1:
            return 1
        room, _ = self._fleet.capacity(state.pool.model, state.lane.name)
        replicas = self._fleet.usable(state.pool.model, state.lane.name)
        return min(request.choices, max(1, room // max(1, replicas)))

    # -- tenants ----------------------------------------------------------------------------------------------

    def runs(self, state: LaneQueue, tenant: str, change: int) -> None:
        """Counts `change` more slots of this tenant at replicas; negative: fewer."""
        state.tally.running += change
        count(state.pool.running, tenant, change)
        if change < 0 and tenant in self._holding:
            self._let_go(tenant)

    def capped_at(self, state: LaneQueue, request: Request) -> int | None:
        """The tenant's limit of requests at replicas at once, if this request would exceed it. None: it would not."""
        tenant = request.tenant
        return self.expected.concurrency[tenant] if self._at_its_cap(tenant, self._slots(state, request)) else None

    def _at_its_cap(self, tenant: str, slots: int) -> bool:
        caps = self.expected.concurrency
        if tenant not in caps:
            return False
        running = 0
        for pool in self._pools.values():
            running += pool.running.get(tenant, 0)
        return running + min(slots, caps[tenant]) > caps[tenant]

    def _let_go(self, tenant: str) -> None:
        for queue in self._holding.pop(tenant, ()):
            queue.let_go(tenant)

    def light(self, state: LaneQueue, request: Request) -> bool:
        """Whether the tenant uses less than its fair share of the pool, while others are expected."""
        pool, comers = state.pool, state.pool.comers[state.lane.name]
        if not comers.others(request.tenant, self.expected):
            return False
        room, _ = self._fleet.capacity(pool.model, state.lane.name)
        share = comers.share(request.tenant, request.weight, self.expected)
        return pool.running.get(request.tenant, 0) < max(1.0, room * share)

    def _tenant_may_go(self, state: LaneQueue, request: Request, room: int, used: int, now: float) -> bool:
        """Whether the tenant may take a slot now. A tenant at its fair share leaves the last slots to other expected
        tenants, and to lanes below their reserve."""
        if not used:
            return True
        used += self._slots(state, request) - 1
        if room - used > MOST_KEPT:
            return True
        most = most_kept(room)
        if room - used > most or self.light(state, request):
            return True
        pool, lane, kept = state.pool, state.lane, 0
        others = pool.comers[lane.name].others(request.tenant, self.expected)
        if others and not pool.quick(request.tenant, lane.wait_bound_s, now):
            kept = for_tenants(room)
        if state.running >= int(lane.reserve * room) and self._reserve_short(state, request.tenant, room, now):
            kept = max(kept, 1)
        return room - used > min(most, kept + self._above_wanted(state, request.tenant, room, now))

    # -- lanes ------------------------------------------------------------------------------------------------

    def _lane_may_go(
        self, state: LaneQueue, request: Request, room: int, used: int, now: float, slots: int = 0
    ) -> bool:
        """Whether the lane may take `slots` slots for this request now. 0: as many as the request takes."""
        lane = state.lane
        slots = slots or self._slots(state, request)
        if lane.concurrency is not None and state.running + min(slots, lane.concurrency) > lane.concurrency:
            return False
        if self._reserved and self._kept_for_others(state, slots):
            return False
        if used:
            used += slots - 1
        if lane.hold_above >= 1.0 and lane.priority <= self._first and request.prompt_tokens <= LONG_PROMPT:
            return True
        held = used >= lane.hold_above * room
        if not held and used and room - used <= 1 and most_kept(room):
            held = self._above_wanted(state, request.tenant, room, now)
        if not held and lane.priority > self._first and 2 * used >= room:
            held = room - used <= self._headroom(state, room)
        if held and state.running >= max(1, int(self._share(lane) * room)):
            return False  # the lane has its share, and the remaining slots are for others
        return used == 0 or not self.prefilled_in_turn(state, request) or not self._enough_to_prefill(state)

    def _above_wanted(self, state: LaneQueue, tenant: str, room: int, now: float) -> bool:
        """Whether a slot stays free for a lane of higher priority. Not where this lane has less than its own reserve or
        share: it would starve."""
        if state.running >= max(1, int(max(state.lane.reserve, self._share(state.lane)) * room)):
            for lane, asked in self._with_reserve:
                if lane.priority < state.lane.priority and self._comes(state.pool, lane, asked, tenant, room, now):
                    return True
        return False

    def _reserve_short(self, state: LaneQueue, tenant: str, room: int, now: float) -> bool:
        """Whether an expected lane of the same or a lower priority has less than its reserve."""
        for lane, asked in self._with_reserve:
            if lane.name != state.lane.name and lane.priority >= state.lane.priority:
                running = _at_work(state.pool, lane.name, self._tiers)
                if running < int(lane.reserve * room) and self._comes(state.pool, lane, asked, tenant, room, now):
                    return True
        return False

    def _comes(self, pool: ModelQueue, lane: Lane, asked: bool, tenant: str, room: int, now: float) -> bool:
        """Whether requests of this lane are expected, and a request of this tenant could keep them from a slot."""
        if int(lane.reserve * room) < 1 or pool.quick(tenant, lane.wait_bound_s, now):
            return False
        used_at = pool.used_at.get(lane.name)
        return asked or (used_at is not None and now - used_at <= LANE_MEMORY_S)

    def prefilled_in_turn(self, state: LaneQueue, request: Request) -> bool:
        """Whether this prompt is sent only while replicas have few prompts in prefill: a long prompt, and any prompt of
        a low lane."""
        return request.prompt_tokens > LONG_PROMPT or state.lane.priority > self._first

    def _headroom(self, state: LaneQueue, room: int) -> int:
        """Slots to keep free for higher-priority lanes with requests running, so that their next requests need not
        wait."""
        most = 0
        for lane in self._lanes.values():
            if lane.reserve > 0 and lane.priority < state.lane.priority:
                running = _at_work(state.pool, lane.name, self._tiers)
                most = max(most, min(int(lane.reserve * room), ceil(HEADROOM * sqrt(running))))
        return most

    def _kept_for_others(self, state: LaneQueue, slots: int) -> bool:
        """Whether the free slots are the reserve of other tiers. An idle fleet takes a request of any tier."""
        room, used = self._fleet.capacity(state.pool.model, state.lane.name)
        kept = 0
        for tier in self._tiers.values():
            if tier.name != state.tier and tier.reserve > 0:
                tallies = state.pool.tallies
                running = sum([tallies[lane, tier.name].running for lane in self._lanes])
                kept += max(0, int(tier.reserve * room) - running)
        return used > 0 and room - used - slots < kept

    def _share(self, lane: Lane) -> float:
        return lane.weight / sum(other.weight for other in self._lanes.values())

    def _enough_to_prefill(self, state: LaneQueue) -> bool:
        """Whether replicas have as many prompts in prefill as they need that go before this one. Prompts of less urgent
        lanes do not count: an engine leaves them for a more urgent one, and beside two of 100 000 tokens nearly all
        others were refused. A short prompt does not wait for its own lane's long ones."""
        prefills = tokens = 0
        priority = state.lane.priority
        for other in state.pool.lanes.values():
            if not other.prefills or other.lane.priority > priority:
                continue
            if state.long or not other.long or other.lane is not state.lane:
                prefills += other.prefills
                tokens += other.prefill_tokens
        replicas = self._fleet.usable(state.pool.model, state.lane.name)
        return prefills >= PREFILLS_EACH * replicas and tokens >= LONG_PROMPT * replicas


def _at_work(pool: ModelQueue, lane: str, tiers: dict[str, Tier]) -> int:
    """Slots that a lane uses at the pool's replicas."""
    running = 0
    for tier in tiers:
        running += pool.tallies[lane, tier].running
    return running
