"""Defines a Passage, one request in progress, and the queues in which it waits and is counted.

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
from headgate.policy.promises.quotes import OpenQuote
from headgate.policy.replicas.prefix_index import NOTHING_CACHED, CacheGuess
from headgate.policy.tenants.fair import DrainRate, FairQueue
from headgate.policy.tenants.limits import Grant
from headgate.policy.tenants.standing_room import MOST_TENANTS, QUICK, Comers, NamedTenants, Turnover

MOST_LOOKED_AT: Final = 64
"""Maximum running requests examined, oldest first, to predict when a slot comes back."""


@dataclass(slots=True, eq=False)
class TierTally:
    """What one tier of one lane uses of one model's slots."""

    weight: float
    running: int = 0
    served: float = 0.0
    """Tokens sent, divided by the weight of lane and tier: the smallest goes next."""


@dataclass(slots=True, eq=False)
class LaneQueue:
    """One lane's queue for one model and one tier. Long prompts and requests for several choices have a
    queue of their own beside it, so that a short request is not stuck behind a prompt that waits for another long
    prefill to end, or behind a request that waits for several slots of one replica."""

    lane: Lane
    tier: str
    model_queue: "ModelQueue"
    tally: TierTally
    tallies: tuple[TierTally, ...]
    """Tallies of all tiers of the lane, this tier included."""
    long: bool
    """Whether this queue is for long prompts and several choices."""
    queue: FairQueue = field(default_factory=FairQueue)
    drain: DrainRate = field(default_factory=DrainRate)
    arrived_tokens: int = 0
    """Prompt and expected output tokens of all requests that came here."""
    prefills: int = 0
    """Prompts sent to replicas in turn that are not answered yet."""
    prefill_tokens: int = 0
    """Tokens of these prompts."""

    @property
    def running(self) -> int:
        """Slots that the whole lane uses at the model's replicas."""
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


class Passage:
    """One request in progress, from its arrival to its end."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = (
        "ahead",
        "attempts",
        "before",
        "begun",
        "broke_at",
        "cached",
        "charged",
        "decodes",
        "first_token_at",
        "forecast",
        "grant",
        "hedged",
        "held_s",
        "lane_queue",
        "load",
        "lost_s",
        "own_bound_s",
        "prefill_tokens",
        "prefilling",
        "quote",
        "race",
        "refusals",
        "remembered_at",
        "request",
        "resumed",
        "sent_at",
        "since",
        "spared",
        "stands_in",
        "suspects",
        "tried",
        "uncached",
        "width",
    )

    forecast: tuple[int, float] | None
    """(requests ahead, seconds of waiting), as forecast when it began to wait for a usable replica. None: it never
    did."""
    held_s: float
    """Seconds by which it may wait longer because a replica has to wake up for it; 0: none has."""
    own_bound_s: float
    """Maximum wait in the lane that the request was relegated from first; 0: it was not relegated."""
    quote: OpenQuote | None
    """When the first token was told to come. None: nothing was told yet."""
    resumed: bool
    """Whether the request was at its replica before this dispatcher began: what its times say is unknown."""

    def __init__(self, request: Request, grant: Grant | None, lane_queue: "LaneQueue") -> None:
        self.request = request
        self.grant = grant
        self.lane_queue = lane_queue
        """The queue where the request waits and is counted: found once, since the replicas that serve a model may
        change meanwhile."""
        self.load: Load | None = None
        """The replica that has the request, even if that replica has left the fleet meanwhile. None: the request
        waits."""
        self.attempts = 0
        """Times the request was sent."""
        self.spared = 0
        """Attempts that do not count against the retry limit: refused, not reached, or streamed for a while."""
        self.refusals = 0
        """Times the request had to wait because replicas said that they are full."""
        self.lost_s = 0.0
        """Seconds spent at replicas that then failed: the request did not wait in that time."""
        self.held_s = self.own_bound_s = 0.0
        self.broke_at = -inf
        """When a replica last failed the request. -inf: none did."""
        self.suspects: tuple[ReplicaId, ...] = ()
        """Replicas that answered the request with an error, and were not blamed: the request itself may be at fault."""
        self.tried: frozenset[ReplicaId] = request.unfit
        self.charged = 0
        """Tokens charged to the tenant's turn when it was sent: prompt, and expected output of all choices but one."""
        self.width = 1
        """Slots that the request takes at its replica."""
        self.sent_at = 0.0
        self.uncached = request.uncached_tokens
        """Prompt tokens that the replica which has the request is expected to compute; before it is sent, those that
        the best replica would."""
        self.cached = NOTHING_CACHED
        """What that replica is expected to have of the prompt."""
        self.remembered_at = 0
        """The clock of its links when it was sent the prompt."""
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
        self.begun = self.resumed = False
        """Whether the client has received output, from this replica or from one before."""
        self.stands_in = ""
        """The model that answers in place of the requested one. Empty: the requested model answers."""
        self.ahead: Ahead | None = None
        """What was queued when the request began to wait. None: nothing was, or it never waited."""
        self.forecast = self.quote = None
        self.prefilling = 0
        """Times the request is counted among its lane's prefills: once for each replica that has it."""
        self.prefill_tokens = 0
        """Prompt tokens that it is counted with there."""

    def computed(self, usage: tuple[int, int], cached: int | None) -> int:
        """Prompt tokens that the replica computed, where the request is over: as it counted them, or the share of its
        count that was expected."""
        if cached is not None:
            return max(1, usage[0] - cached)
        return max(1, int(usage[0] * self.uncached / max(1, self.request.prompt_tokens)))


class Race:
    """The second replica of a hedged request."""

    __slots__ = ("cached", "load", "sent_at", "uncached")

    def __init__(self, load: Load, sent_at: float, uncached: int, cached: CacheGuess) -> None:
        self.load = load
        self.sent_at = sent_at
        self.uncached = uncached
        """Prompt tokens that this replica is expected to compute."""
        self.cached = cached
