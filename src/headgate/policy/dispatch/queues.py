"""Keeps the requests in progress, and the queues in which they wait: for each model, lane and tier two, one of them for
long prompts and requests for several choices.

Only the dispatcher and its parts write these objects.
"""

from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from headgate.model.lane import Lane
from headgate.model.record import Ahead
from headgate.model.replica import Load, ReplicaId
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.dispatch.fair import DrainRate, FairQueue
from headgate.policy.dispatch.limits import Grant
from headgate.policy.dispatch.standing_room import MOST_TENANTS, QUICK, Comers, NamedTenants, Turnover
from headgate.policy.replicas.index import RouteIndex

LONG_PROMPT: Final = 512
"""Prompt tokens above which a prefill is long: it delays all other first tokens of its replica for a while."""
MOST_POOLS: Final = 64
"""Maximum models whose queues, running requests and slot times are kept; more are kept only while they have
requests."""
MOST_LOOKED_AT: Final = 64
"""Maximum running requests examined, oldest first, to predict when a slot comes back."""
HOLD_S: Final = 0.25
LONGEST_HOLD_S: Final = 8.0
"""First and maximum seconds for which a request is not tried, from its third refusal on; it doubles each time."""


class Passage:
    """One request in progress, from its arrival to its end."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = (
        "ahead",
        "attempts",
        "before",
        "begun",
        "broke_at",
        "charged",
        "decodes",
        "first_token_at",
        "grant",
        "hedged",
        "load",
        "lost_s",
        "prefilling",
        "race",
        "refusals",
        "request",
        "sent_at",
        "since",
        "spared",
        "stands_in",
        "state",
        "suspects",
        "tried",
        "width",
    )

    def __init__(self, request: Request, grant: Grant | None, state: "LaneQueue") -> None:
        self.request = request
        self.grant = grant
        self.state = state
        """The queue where the request waits and is counted: found once, since the replicas that serve a model may
        change meanwhile."""
        self.load: Load | None = None
        """The replica that has the request, even if that replica has left the fleet meanwhile. None: the request
        waits."""
        self.attempts = 0
        """Times the request was sent."""
        self.spared = 0
        """Attempts that do not count against the retry limit: the replica refused, could not be reached, or streamed
        the answer for a while."""
        self.refusals = 0
        """Times the request had to wait because replicas said that they are full."""
        self.lost_s = 0.0
        """Seconds spent at replicas that then failed: the request did not wait in that time."""
        self.broke_at = -inf
        """When a replica last failed the request. -inf: none did."""
        self.suspects: tuple[ReplicaId, ...] = ()
        """Replicas that answered the request with an error, and were not blamed: the request itself may be at fault."""
        self.tried: frozenset[ReplicaId] = request.unfit
        self.charged = 0
        """Tokens charged to the tenant's turn when the request was sent: the prompt, and the expected output of all
        choices but one."""
        self.width = 1
        """Slots that the request takes at its replica."""
        self.sent_at = 0.0
        self.before = 0
        """Prompt tokens that waited for prefill at the replica when the request was sent there."""
        self.since = -inf
        """When the oldest attempt that is not over was sent: a second replica may have the request since later. -inf:
        it was never sent, or there is no hedging."""
        self.first_token_at: float | None = None
        self.decodes = False
        """Whether the request counts as decoding: its first token was heard, or, for an unstreamed answer, is assumed
        to have been generated."""
        self.race: Race | None = None
        """The second replica of a hedged request, while neither has answered. None: no second replica has it."""
        self.hedged = False
        """Whether the request was sent to a second replica, which is done once, or has ended."""
        self.begun = False
        """Whether the client has received output, from this replica or from one before."""
        self.stands_in = ""
        """The model that answers in place of the requested one. Empty: the requested model answers."""
        self.ahead: Ahead | None = None
        """What was queued when the request began to wait. None: nothing was, or it never waited."""
        self.prefilling = 0
        """Times the request is counted among its lane's prefills: once for each replica that has it."""


class Race:
    """The second replica of a hedged request."""

    __slots__ = ("load", "sent_at")

    def __init__(self, load: Load, sent_at: float) -> None:
        self.load = load
        self.sent_at = sent_at


@dataclass(slots=True, eq=False)
class TierTally:
    """What one tier of one lane uses of one pool."""

    weight: float
    running: int = 0
    served: float = 0.0
    """Tokens sent, divided by the weight of lane and tier: the smallest goes next."""


@dataclass(slots=True, eq=False)
class LaneQueue:
    """One lane's queue for one pool of replicas and one tier. Long prompts and requests for several choices have a
    queue of their own beside it, so that a short request is not stuck behind a prompt that waits for another long
    prefill to end, or behind a request that waits for several slots of one replica."""

    lane: Lane
    tier: str
    pool: "ModelQueue"
    tally: TierTally
    tallies: tuple[TierTally, ...]
    """Tallies of all tiers of the lane, this tier included."""
    long: bool
    """Whether this queue is for long prompts and several choices."""
    queue: FairQueue = field(default_factory=FairQueue)
    drain: DrainRate = field(default_factory=DrainRate)
    prefills: int = 0
    """Prompts sent to replicas in turn that are not answered yet."""
    prefill_tokens: int = 0
    """Tokens of these prompts."""

    @property
    def running(self) -> int:
        """Slots that the whole lane uses at the pool's replicas."""
        running = 0
        for tally in self.tallies:
            running += tally.running
        return running


@dataclass(slots=True, eq=False)
class ModelQueue:
    """Queues and counts of all requests for one model. None: for models that no replica serves by name."""

    model: str | None
    lanes: dict[tuple[str, str, bool], LaneQueue] = field(default_factory=dict)
    """By lane, tier, and whether for long prompts and several choices."""
    tallies: dict[tuple[str, str], TierTally] = field(default_factory=dict)
    """By lane and tier."""
    waiting: int = 0
    """Requests queued in all lanes. Most of the time 0: then an arrival goes straight to a replica."""
    wide: int = 0
    """Queued requests that ask for several choices."""
    turn: float = 0.0
    """`served` of the lane that went last, before it went: a lane whose queue was empty starts from there."""
    comers: dict[str, Comers] = field(default_factory=dict)
    """By lane: expected tenants."""
    used_at: dict[str, float] = field(default_factory=dict)
    """By lane: when a request of it last arrived."""
    running: dict[str, int] = field(default_factory=dict)
    """By tenant: slots in use at replicas; tenants without any are left out."""
    sent: dict[str, float] = field(default_factory=dict)
    """By request: when it was sent to the replica that has it; the oldest first."""
    turnover: Turnover = field(default_factory=Turnover)
    turnovers: dict[str, Turnover] = field(default_factory=dict)
    """By tenant; beyond MOST_TENANTS the earliest entry is forgotten."""

    def ended(self, tenant: str, held_s: float, now: float) -> None:
        """Counts a request of this tenant that has ended and held its slots for `held_s`."""
        self.turnover.ended(held_s, now)
        turnover = self.turnovers.get(tenant)
        if turnover is None:
            if len(self.turnovers) >= MOST_TENANTS:
                del self.turnovers[next(iter(self.turnovers))]
            turnover = self.turnovers[tenant] = Turnover()
        turnover.ended(held_s, now)

    def quick(self, tenant: str, wait_bound_s: float, now: float) -> bool:
        """Whether this tenant's requests release their slots so quickly that another tenant need not wait long."""
        turnover = self.turnovers.get(tenant)
        running = self.running.get(tenant, 0)
        return turnover is not None and turnover.found_every_s(running, now) <= QUICK * wait_bound_s

    def free_in_s(self, ahead: int, held_s: float, now: float) -> float:
        """Seconds until `ahead` + 1 slots have come back, if each is held for `held_s`."""
        rounds, turn = divmod(ahead, max(1, len(self.sent)))
        since = next(islice(self.sent.values(), turn, None), now - held_s) if turn < MOST_LOOKED_AT else now
        return max(0.0, since + (rounds + 1) * held_s - now)

    def arrived(self, request: Request, expected: NamedTenants, now: float) -> None:
        """Notes an arrival: its tenant and its lane are expected from now on."""
        self.used_at[request.lane] = now
        self.comers[request.lane].come(request.tenant, request.weight, expected, now)


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
        return sum(passage.state.lane.name == lane for _, passage in self._held.values())

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

    def __init__(self, fleet: RouteIndex, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        self.lanes = lanes
        self.tiers = tiers
        self.passages: Final[dict[str, Passage]] = {}
        """By request id, from arrival to end."""
        self.pools: Final[dict[str | None, ModelQueue]] = {}
        """By model. None: the queues of models that no replica names."""
        self.set_aside: Final = SetAside()
        self._fleet = fleet

    def reconfigure(self, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        """A lane that is no longer named stays for the requests in it; tiers are always the same two."""
        self.lanes.update(lanes)
        self.tiers = tiers
        for pool in self.pools.values():
            for name, lane in self.lanes.items():
                if (name, next(iter(tiers)), False) not in pool.lanes:
                    self._open_lane(pool, lane)
            for state in pool.lanes.values():
                state.lane = self.lanes[state.lane.name]
                state.tally.weight = state.lane.weight * tiers[state.tier].weight

    def of(self, request: Request) -> LaneQueue:
        """The queue of a request: requests for a model that some replica names wait for that model; all others for any
        replica."""
        model = request.model if self._fleet.by_name(request.model) else None
        pool = self.pools.get(model)
        if pool is None:
            if len(self.pools) >= MOST_POOLS:
                self._forget_pools()
            pool = self.pools[model] = ModelQueue(model)
            for lane in self.lanes.values():
                self._open_lane(pool, lane)
        return pool.lanes[request.lane, request.tier, request.prompt_tokens > LONG_PROMPT or request.choices > 1]

    def _forget_pools(self) -> None:
        """Forgets pools without requests, the oldest first, down to half of MOST_POOLS: adapters have names too, and
        replicas may list thousands. What a pool has learned of its tenants and slot times is learned again."""
        in_use = {passage.state.pool.model for passage in self.passages.values()}
        idle = [model for model in self.pools if model not in in_use]
        for model in idle[: len(self.pools) - MOST_POOLS // 2]:
            del self.pools[model]

    def _open_lane(self, pool: ModelQueue, lane: Lane) -> None:
        tallies = tuple(TierTally(lane.weight * tier.weight) for tier in self.tiers.values())
        pool.comers[lane.name] = Comers()
        for tier, tally in zip(self.tiers, tallies, strict=True):
            pool.tallies[lane.name, tier] = tally
            for long in (False, True):
                pool.lanes[lane.name, tier, long] = LaneQueue(lane, tier, pool, tally, tallies, long)

    # -- waiting ------------------------------------------------------------------------------------------------

    def push(self, passage: Passage, state: LaneQueue, now: float) -> None:
        state.queue.push(passage.request)
        state.pool.waiting += 1
        state.pool.wide += passage.request.choices > 1
        state.drain.backlog(True, now)

    def remove(self, request_id: str, state: LaneQueue, now: float) -> None:
        """Takes a request out, if it waits there or was set aside."""
        if self.set_aside.wake_at < inf:
            self.set_aside.drop(request_id)
        removed = state.queue.remove(request_id)
        if removed is not None:
            state.pool.waiting -= 1
            state.pool.wide -= removed.choices > 1
            state.drain.backlog(len(state.queue) > 0, now)

    def wait_until(self, passage: Passage, moment: float, now: float) -> None:
        """Lets the request wait at least until `moment`; it is queued again, or for the first time."""
        state = passage.state
        self.remove(passage.request.id, state, now)
        if moment > passage.request.wait_until:
            passage.request = passage.request.but(wait_until=moment)
        self.push(passage, state, now)

    def take_back(self, passage: Passage) -> None:
        """Refunds the output of several choices that was charged in advance: none is known to have said anything."""
        request = passage.request
        if passage.charged:
            passage.state.queue.charge(request.tenant, request.weight, request.prompt_tokens - passage.charged)

    # -- counting -----------------------------------------------------------------------------------------------

    def waiting(self, lane: str) -> int:
        """Requests of a lane that wait, those set aside included."""
        states = (state for pool in self.pools.values() for state in pool.lanes.values() if state.lane.name == lane)
        return sum(len(state.queue) for state in states) + self.set_aside.of(lane)

    def running(self, lane: str) -> int:
        """Slots that a lane uses at replicas."""
        return sum(pool.tallies[lane, tier].running for pool in self.pools.values() for tier in self.tiers)

    def held_up(self) -> bool:
        """Whether requests wait for usable replicas, and not for a cap of their own lane or tenant."""
        for pool in self.pools.values():
            for state in pool.lanes.values() if pool.waiting else ():
                cap = state.lane.concurrency
                waits = state.queue.peek() is not None and (cap is None or state.running < cap)
                if waits and self._fleet.usable(pool.model, state.lane.name):
                    return True
        return False
