"""Keeps the requests in progress, and the queues in which they wait: for each model, lane and tier two, one of them for
long prompts and requests for several choices.

Only the dispatcher and its parts write these objects.
"""

from math import inf
from typing import Final

from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.dispatch.passage import LaneQueue, ModelQueue, Passage, TierTally
from headgate.policy.promises.quotes import Quotes
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.tenants.standing_room import Comers

LONG_PROMPT: Final = 512
"""Prompt tokens above which a prefill is long: it delays all other first tokens of its replica for a while."""
MOST_MODEL_QUEUES: Final = 64
"""Maximum models whose queues, running requests and slot times are kept; more are kept only while they have
requests."""
HOLD_S: Final = 0.25
LONGEST_HOLD_S: Final = 8.0
"""First and maximum seconds for which a request is not tried, from its third refusal on; it doubles each time."""


class SetAside:
    """Requests that full replicas refused, and that wait apart from the others. They go first when one of a replica's
    requests ends. When a full replica is tried again with one more request, a request that was not refused before goes
    first: it may be this request alone that replicas refuse, and it would take every try from all that could be
    served."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, Passage]] = {}
        """By id: the moment before which the request is not tried, and the request."""
        self.wake_at = inf
        """When to call `expire`. inf: no request is set aside."""

    def add(self, passage: Passage, now: float) -> None:
        hold_s = min(LONGEST_HOLD_S, HOLD_S * 2.0 ** min(passage.refusals - 3, 16)) if passage.refusals > 2 else 0.0
        self._held[passage.request.id] = (now + hold_s, passage)
        self.wake_at = min(self.wake_at, passage.request.wait_until, now + hold_s if hold_s else inf)

    def drop(self, request_id: str) -> None:
        self._held.pop(request_id, None)
        if not self._held:
            self.wake_at = inf

    def of(self, lane: str) -> int:
        return sum(passage.lane_queue.lane.name == lane for _, passage in self._held.values())

    def due(self, now: float) -> list[Passage]:
        """Requests that may be tried."""
        return [passage for until, passage in self._held.values() if until <= now]

    def expire(self, now: float) -> list[Passage]:
        """Removes and returns the requests whose wait bound has passed."""
        late = [passage for _, passage in self._held.values() if passage.request.wait_until <= now]
        for passage in late:
            del self._held[passage.request.id]
        self.wake_at = inf
        for until, passage in self._held.values():
            self.wake_at = min(self.wake_at, passage.request.wait_until, until if until > now else inf)
        return late


class Queues:
    """All requests in progress, and the queues of all models."""

    def __init__(self, index: RouteIndex, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        self.lanes = lanes
        self.tiers = tiers
        self.passages: Final[dict[str, Passage]] = {}
        """By request id, from arrival to end."""
        self.model_queues: Final[dict[str | None, ModelQueue]] = {}
        """By model. None: the queues of models that no replica names."""
        self.set_aside: Final = SetAside()
        self.quotes: Final = Quotes()
        """What requests in progress were told of their first token, and how that was kept."""
        self._index = index

    def reconfigure(self, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        """A lane that is no longer named stays for the requests in it; tiers are always the same two."""
        self.lanes.update(lanes)
        self.tiers = tiers
        for model_queue in self.model_queues.values():
            for name, lane in self.lanes.items():
                if (name, next(iter(tiers)), False) not in model_queue.lanes:
                    self._open_lane(model_queue, lane)
            for lane_queue in model_queue.lanes.values():
                lane_queue.lane = self.lanes[lane_queue.lane.name]
                lane_queue.tally.weight = lane_queue.lane.weight * tiers[lane_queue.tier].weight

    def of(self, request: Request) -> LaneQueue:
        """The queue of a request: requests for a model that some replica names wait for that model; all others for any
        replica."""
        model = request.model if self._index.by_name(request.model) else None
        model_queue = self.model_queues.get(model)
        if model_queue is None:
            if len(self.model_queues) >= MOST_MODEL_QUEUES:
                self._forget_idle()
            model_queue = self.model_queues[model] = ModelQueue(model)
            for lane in self.lanes.values():
                self._open_lane(model_queue, lane)
        return model_queue.lanes[
            request.lane, request.tier, request.uncached_tokens > LONG_PROMPT or request.choices > 1
        ]

    def _forget_idle(self) -> None:
        """Forgets models without requests, the oldest first, down to half of MOST_MODEL_QUEUES: adapters have names
        too, and replicas may list thousands. What was learned of their tenants and slot times is learned again."""
        in_use = {passage.lane_queue.model_queue.model for passage in self.passages.values()}
        idle = [model for model in self.model_queues if model not in in_use]
        for model in idle[: len(self.model_queues) - MOST_MODEL_QUEUES // 2]:
            del self.model_queues[model]

    def _open_lane(self, model_queue: ModelQueue, lane: Lane) -> None:
        tallies = tuple(TierTally(lane.weight * tier.weight) for tier in self.tiers.values())
        model_queue.comers[lane.name] = Comers()
        for tier, tally in zip(self.tiers, tallies, strict=True):
            model_queue.tallies[lane.name, tier] = tally
            for long in (False, True):
                model_queue.lanes[lane.name, tier, long] = LaneQueue(lane, tier, model_queue, tally, tallies, long)

    # -- waiting ------------------------------------------------------------------------------------------------

    def push(self, passage: Passage, lane_queue: LaneQueue, now: float) -> None:
        lane_queue.queue.push(passage.request)
        lane_queue.model_queue.waiting += 1
        lane_queue.model_queue.wide += passage.request.choices > 1
        lane_queue.drain.backlog(True, now)

    def remove(self, request_id: str, lane_queue: LaneQueue, now: float) -> None:
        """Takes a request out, if it waits there or was set aside."""
        if self.set_aside.wake_at < inf:
            self.set_aside.drop(request_id)
        removed = lane_queue.queue.remove(request_id)
        if removed is not None:
            lane_queue.model_queue.waiting -= 1
            lane_queue.model_queue.wide -= removed.choices > 1
            lane_queue.drain.backlog(len(lane_queue.queue) > 0, now)

    def wait_until(self, passage: Passage, moment: float, now: float) -> None:
        """Lets the request wait at least until `moment`; it is queued again, or for the first time."""
        lane_queue = passage.lane_queue
        self.remove(passage.request.id, lane_queue, now)
        if moment > passage.request.wait_until:
            passage.request = passage.request.but(wait_until=moment)
        self.push(passage, lane_queue, now)

    def take_back(self, passage: Passage) -> None:
        """Refunds the output of several choices that was charged in advance: none is known to have said anything."""
        request = passage.request
        if passage.charged:
            passage.lane_queue.queue.charge(request.tenant, request.weight, passage.uncached - passage.charged)

    # -- counting -----------------------------------------------------------------------------------------------

    def waiting(self, lane: str) -> int:
        """Requests of a lane that wait, those set aside included."""
        lane_queues = (
            lane_queue
            for model_queue in self.model_queues.values()
            for lane_queue in model_queue.lanes.values()
            if lane_queue.lane.name == lane
        )
        return sum(len(lane_queue.queue) for lane_queue in lane_queues) + self.set_aside.of(lane)

    def running(self, lane: str) -> int:
        """Slots that a lane uses at replicas."""
        return sum(
            model_queue.tallies[lane, tier].running for model_queue in self.model_queues.values() for tier in self.tiers
        )

    def held_up(self) -> bool:
        """Whether requests wait for usable replicas, and not for a cap of their own lane or tenant."""
        for model_queue in self.model_queues.values():
            for lane_queue in model_queue.lanes.values() if model_queue.waiting else ():
                cap = lane_queue.lane.concurrency
                waits = lane_queue.queue.peek() is not None and (cap is None or lane_queue.running < cap)
                if waits and self._index.usable(model_queue.model, lane_queue.lane.name):
                    return True
        return False
