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
from headgate.policy.dispatch.passage import LaneQueue, ModelQueue
from headgate.policy.dispatch.queues import LONG_PROMPT
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.tenants.fair import FairQueue
from headgate.policy.tenants.standing_room import (
    LANE_MEMORY_S,
    MOST_KEPT,
    NamedTenants,
    asked_for,
    count,
    for_tenants,
    most_kept,
)

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
        index: RouteIndex,
        model_queues: dict[str | None, ModelQueue],
        lanes: dict[str, Lane],
        tiers: dict[str, Tier],
        expected: NamedTenants,
    ) -> None:
        """`model_queues` is the dispatcher's own dict."""
        self._index = index
        self._model_queues = model_queues
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

    def next(self, model_queue: ModelQueue, blocked: list[LaneQueue], now: float) -> tuple[LaneQueue, Request] | None:
        """The lane to serve and its next request: lanes below their reserve before all others, by priority; otherwise
        the lane that was served least for its weight. None: no request may go."""
        best: tuple[LaneQueue, Request] | None = None
        best_key = (inf, inf)
        for lane_queue in model_queue.lanes.values():
            lane = lane_queue.lane
            if not len(lane_queue.queue) or lane_queue in blocked:
                continue
            room, used = self._index.capacity(model_queue.model, lane.name)
            request = self._next_of(lane_queue, room, used, now)
            if request is None:
                continue
            owed = lane_queue.running < int(lane.reserve * room)
            key = (float(lane.priority), 0.0) if owed else (inf, lane_queue.tally.served)
            if best is None or key < best_key:
                best, best_key = (lane_queue, request), key
        return best

    def _next_of(self, lane_queue: LaneQueue, room: int, used: int, now: float) -> Request | None:
        """The first request, in the order of tenants' turns, that may go. None: none may."""
        request = lane_queue.queue.peek()
        while request is not None and self._at_its_cap(request.tenant, self._slots(lane_queue, request)):
            lane_queue.queue.hold(request.tenant)
            self._holding.setdefault(request.tenant, []).append(lane_queue.queue)
            request = lane_queue.queue.peek()
        if request is None or not self._lane_may_go(lane_queue, request, room, used, now):
            return None
        if self._tenant_may_go(lane_queue, request, room, used, now):
            return request
        for other in lane_queue.queue.heads():
            capped = self._at_its_cap(other.tenant, self._slots(lane_queue, other))
            if not capped and self._tenant_may_go(lane_queue, other, room, used, now):
                return other
        return None

    def may_go(self, lane_queue: LaneQueue, request: Request, now: float) -> bool:
        """Whether this request may go now: low lanes and long prompts are held back first as the fleet fills up; an
        idle fleet takes any request that its caps allow."""
        if self._at_its_cap(request.tenant, self._slots(lane_queue, request)):
            return False
        room, used = self._index.capacity(lane_queue.model_queue.model, lane_queue.lane.name)
        may = self._lane_may_go(lane_queue, request, room, used, now)
        return may and self._tenant_may_go(lane_queue, request, room, used, now)

    def wants_room(self, lane_queue: LaneQueue, request: Request, now: float) -> bool:
        """Whether free slots of a replica are kept for this request until there is one for each of its choices. Not for
        a tenant at its fair share of the slots while others are expected: the request would keep them out."""
        if self._at_its_cap(request.tenant, self._slots(lane_queue, request)):
            return False
        room, used = self._index.capacity(lane_queue.model_queue.model, lane_queue.lane.name)
        if not self._lane_may_go(lane_queue, request, room, used, now, slots=1):
            return False
        others = lane_queue.model_queue.comers[lane_queue.lane.name].others(request.tenant, self.expected)
        return not others or self.light(lane_queue, request)

    def _slots(self, lane_queue: LaneQueue, request: Request) -> int:
        """Slots that this request takes: one for each of its choices, and at most the mean number of slots of a
        replica."""
        if request.choices == 1:
            return 1
        room, _ = self._index.capacity(lane_queue.model_queue.model, lane_queue.lane.name)
        replicas = self._index.usable(lane_queue.model_queue.model, lane_queue.lane.name)
        return min(request.choices, max(1, room // max(1, replicas)))

    # -- tenants ----------------------------------------------------------------------------------------------

    def runs(self, lane_queue: LaneQueue, tenant: str, change: int) -> None:
        """Counts `change` more slots of this tenant at replicas; negative: fewer."""
        lane_queue.tally.running += change
        count(lane_queue.model_queue.running, tenant, change)
        if change < 0 and tenant in self._holding:
            self._let_go(tenant)

    def capped_at(self, lane_queue: LaneQueue, request: Request) -> int | None:
        """The tenant's limit of requests at replicas at once, if this request would exceed it. None: it would not."""
        tenant = request.tenant
        return self.expected.concurrency[tenant] if self._at_its_cap(tenant, self._slots(lane_queue, request)) else None

    def _at_its_cap(self, tenant: str, slots: int) -> bool:
        caps = self.expected.concurrency
        if tenant not in caps:
            return False
        running = 0
        for model_queue in self._model_queues.values():
            running += model_queue.running.get(tenant, 0)
        return running + min(slots, caps[tenant]) > caps[tenant]

    def _let_go(self, tenant: str) -> None:
        for queue in self._holding.pop(tenant, ()):
            queue.let_go(tenant)

    def light(self, lane_queue: LaneQueue, request: Request) -> bool:
        """Whether the tenant uses less than its fair share of the slots, while others are expected."""
        model_queue, comers = lane_queue.model_queue, lane_queue.model_queue.comers[lane_queue.lane.name]
        if not comers.others(request.tenant, self.expected):
            return False
        room, _ = self._index.capacity(model_queue.model, lane_queue.lane.name)
        share = comers.share(request.tenant, request.weight, self.expected)
        return model_queue.running.get(request.tenant, 0) < max(1.0, room * share)

    def _tenant_may_go(self, lane_queue: LaneQueue, request: Request, room: int, used: int, now: float) -> bool:
        """Whether the tenant may take a slot now. A tenant at its fair share leaves the last slots to other expected
        tenants, and to lanes below their reserve."""
        if not used:
            return True
        used += self._slots(lane_queue, request) - 1
        if room - used > MOST_KEPT:
            return True
        most = most_kept(room)
        if request.relegated:  # it has no share here, and must not take what its own lane would leave to others
            return room - used > most
        if room - used > most or self.light(lane_queue, request):
            return True
        model_queue, lane, kept = lane_queue.model_queue, lane_queue.lane, 0
        others = model_queue.comers[lane.name].others(request.tenant, self.expected)
        if others and not model_queue.quick(request.tenant, lane.wait_bound_s, now):
            kept = for_tenants(room)
        if lane_queue.running >= int(lane.reserve * room) and self._reserve_short(
            lane_queue, request.tenant, room, now
        ):
            kept = max(kept, 1)
        return room - used > min(most, kept + self._above_wanted(lane_queue, request.tenant, room, now))

    # -- lanes ------------------------------------------------------------------------------------------------

    def _lane_may_go(
        self, lane_queue: LaneQueue, request: Request, room: int, used: int, now: float, slots: int = 0
    ) -> bool:
        """Whether the lane may take `slots` slots for this request now. 0: as many as the request takes."""
        lane = lane_queue.lane
        slots = slots or self._slots(lane_queue, request)
        if lane.concurrency is not None and lane_queue.running + min(slots, lane.concurrency) > lane.concurrency:
            return False
        if self._reserved and self._kept_for_others(lane_queue, slots):
            return False
        if used:
            used += slots - 1
        if lane.hold_above >= 1.0 and lane.priority <= self._first and request.uncached_tokens <= LONG_PROMPT:
            return True
        held = used >= lane.hold_above * room
        if not held and used and room - used <= 1 and most_kept(room):
            held = self._above_wanted(lane_queue, request.tenant, room, now)
        if not held and lane.priority > self._first and 2 * used >= room:
            held = room - used <= self._headroom(lane_queue, room)
        if held and lane_queue.running >= max(1, int(self._share(lane) * room)):
            return False  # the lane has its share, and the remaining slots are for others
        return (
            used == 0
            or not self.prefilled_in_turn(lane_queue, request.uncached_tokens)
            or not self._enough_to_prefill(lane_queue)
        )

    def _above_wanted(self, lane_queue: LaneQueue, tenant: str, room: int, now: float) -> bool:
        """Whether a slot stays free for a lane of higher priority. Not where this lane has less than its own reserve or
        share: it would starve."""
        if lane_queue.running >= max(1, int(max(lane_queue.lane.reserve, self._share(lane_queue.lane)) * room)):
            for lane, asked in self._with_reserve:
                if lane.priority < lane_queue.lane.priority and self._comes(
                    lane_queue.model_queue, lane, asked, tenant, room, now
                ):
                    return True
        return False

    def _reserve_short(self, lane_queue: LaneQueue, tenant: str, room: int, now: float) -> bool:
        """Whether an expected lane of the same or a lower priority has less than its reserve."""
        for lane, asked in self._with_reserve:
            if lane.name != lane_queue.lane.name and lane.priority >= lane_queue.lane.priority:
                running = _at_work(lane_queue.model_queue, lane.name, self._tiers)
                if running < int(lane.reserve * room) and self._comes(
                    lane_queue.model_queue, lane, asked, tenant, room, now
                ):
                    return True
        return False

    def _comes(self, model_queue: ModelQueue, lane: Lane, asked: bool, tenant: str, room: int, now: float) -> bool:
        """Whether requests of this lane are expected, and a request of this tenant could keep them from a slot."""
        if int(lane.reserve * room) < 1 or model_queue.quick(tenant, lane.wait_bound_s, now):
            return False
        used_at = model_queue.used_at.get(lane.name)
        return asked or (used_at is not None and now - used_at <= LANE_MEMORY_S)

    def prefilled_in_turn(self, lane_queue: LaneQueue, uncached_tokens: int) -> bool:
        """Whether a prompt with this many tokens to compute is sent only while replicas have few prompts in prefill: a
        long one, and any of a low lane."""
        return uncached_tokens > LONG_PROMPT or lane_queue.lane.priority > self._first

    def _headroom(self, lane_queue: LaneQueue, room: int) -> int:
        """Slots to keep free for higher-priority lanes with requests running, so that their next requests need not
        wait."""
        most = 0
        for lane in self._lanes.values():
            if lane.reserve > 0 and lane.priority < lane_queue.lane.priority:
                running = _at_work(lane_queue.model_queue, lane.name, self._tiers)
                most = max(most, min(int(lane.reserve * room), ceil(HEADROOM * sqrt(running))))
        return most

    def _kept_for_others(self, lane_queue: LaneQueue, slots: int) -> bool:
        """Whether the free slots are the reserve of other tiers. An idle fleet takes a request of any tier."""
        room, used = self._index.capacity(lane_queue.model_queue.model, lane_queue.lane.name)
        kept = 0
        for tier in self._tiers.values():
            if tier.name != lane_queue.tier and tier.reserve > 0:
                tallies = lane_queue.model_queue.tallies
                running = sum([tallies[lane, tier.name].running for lane in self._lanes])
                kept += max(0, int(tier.reserve * room) - running)
        return used > 0 and room - used - slots < kept

    def _share(self, lane: Lane) -> float:
        return lane.weight / sum(other.weight for other in self._lanes.values())

    def _enough_to_prefill(self, lane_queue: LaneQueue) -> bool:
        """Whether replicas have as many prompts in prefill as they need that go before this one. Prompts of less urgent
        lanes do not count: an engine leaves them for a more urgent one, and beside two of 100 000 tokens nearly all
        others were refused. A short prompt does not wait for its own lane's long ones."""
        prefills = tokens = 0
        priority = lane_queue.lane.priority
        for other in lane_queue.model_queue.lanes.values():
            if not other.prefills or other.lane.priority > priority:
                continue
            if lane_queue.long or not other.long or other.lane is not lane_queue.lane:
                prefills += other.prefills
                tokens += other.prefill_tokens
        replicas = self._index.usable(lane_queue.model_queue.model, lane_queue.lane.name)
        return prefills >= PREFILLS_EACH * replicas and tokens >= LONG_PROMPT * replicas


def _at_work(model_queue: ModelQueue, lane: str, tiers: dict[str, Tier]) -> int:
    """Slots that a lane uses at the model's replicas."""
    running = 0
    for tier in tiers:
        running += model_queue.tallies[lane, tier].running
    return running
