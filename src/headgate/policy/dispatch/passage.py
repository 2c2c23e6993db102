"""What the dispatcher keeps of requests on their way, and of the lanes and pools they wait in. Only it writes these."""

from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from headgate.model.lane import Lane
from headgate.model.record import Ahead
from headgate.model.replica import Load, ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.admit import DrainRate
from headgate.policy.dispatch.fair import FairQueue
from headgate.policy.dispatch.limits import Grant
from headgate.policy.dispatch.standing_room import MOST_TENANTS, QUICK, Comers, NamedTenants, Turnover

LONG_PROMPT: Final = 512
"""Prompt tokens above which a prefill is long: it keeps a replica from everybody else's first token for a while."""


MOST_LOOKED_AT: Final = 64
"""Running requests looked at, oldest first, to say when a slot comes back."""


class Passage:
    """One request on its way through."""

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
        """Where it waits and is counted: found once, since who serves which model may change meanwhile."""
        self.load: Load | None = None
        """The replica it is at, whether that has left the fleet meanwhile or not; None while it waits."""
        self.attempts = 0
        """How often it was sent."""
        self.spared = 0
        """Of these, those that do not count: the replica refused, could not be reached, or served it for a while."""
        self.refusals = 0
        """How often it had to wait because replicas said that they are full."""
        self.lost_s = 0.0
        """At replicas that failed before its first token: it did not wait then."""
        self.broke_at = -inf
        """When a replica last failed it."""
        self.suspects: tuple[ReplicaId, ...] = ()
        """Replicas that answered it with an error, and were not blamed: the request itself may be at fault."""
        self.tried: frozenset[ReplicaId] = request.unfit
        self.charged = 0
        """Tokens that its tenant's turn was charged when it was sent: its prompt, and of several choices all but one,
        as if each said as much as is expected."""
        self.width = 1
        """Slots that it has at the replica it is at."""
        self.sent_at = 0.0
        self.before = 0
        """Prompt tokens that its replica had when it was sent there."""
        self.since = -inf
        """When it was sent first, of those sendings that are not over: a second replica may have it since later. -inf:
        it never was, or nobody asks."""
        self.first_token_at: float | None = None
        self.decodes = False
        """Its first token was heard; or, of an answer in one piece, it is taken to be there by now."""
        self.race: Race | None = None
        """The second replica that it is at, while neither has answered."""
        self.hedged = False
        """It was sent to a second one: that is done once."""
        self.begun = False
        """Its client has heard something, from the replica it is at or from one before."""
        self.stands_in = ""
        """The model that answers in place of its own; empty: its own does."""
        self.ahead: Ahead | None = None
        """What stood before it when it began to wait."""
        self.prefilling = 0
        """How often it is counted among its lane's prefills: once for each replica it is at."""


class Race:
    """A passage's second replica."""

    __slots__ = ("load", "sent_at")

    def __init__(self, load: Load, sent_at: float) -> None:
        self.load = load
        self.sent_at = sent_at


class KeptRoom:
    """Free slots of one replica that wait for a request until there is one for each of its choices."""

    __slots__ = ("priority", "replica_id", "request_id")

    def __init__(self, request_id: str, priority: int, replica_id: ReplicaId) -> None:
        self.request_id = request_id
        self.priority = priority
        """Of its lane: those that go before it still get a slot there."""
        self.replica_id = replica_id


@dataclass(slots=True, eq=False)
class TierTally:
    """What one tier of one lane has of one pool."""

    weight: float
    running: int = 0
    served: float = 0.0
    """Tokens sent, over the weight of lane and tier: whoever has had least goes next."""


@dataclass(slots=True, eq=False)
class LaneQueue:
    """One lane's queue for one pool of replicas and one tier. Long prompts have a queue of their own beside it, so that
    nobody is stuck behind one that has to wait for another long prefill to end; and so have requests for several
    choices, which wait for several slots of one replica."""

    lane: Lane
    tier: str
    pool: "ModelQueue"
    tally: TierTally
    tallies: tuple[TierTally, ...]
    """Of all tiers of the lane, its own included."""
    long: bool
    """Whether it is the one for long prompts and several choices."""
    queue: FairQueue = field(default_factory=FairQueue)
    drain: DrainRate = field(default_factory=DrainRate)
    prefills: int = 0
    """Of those whose prompts replicas are given in turn: how many they have and have not answered yet."""
    prefill_tokens: int = 0
    """Their prompts together."""

    @property
    def running(self) -> int:
        """Of the whole lane, at the pool's replicas."""
        running = 0
        for tally in self.tallies:
            running += tally.running
        return running


@dataclass(slots=True, eq=False)
class ModelQueue:
    """Everybody who asks for the same model. None: for any."""

    model: str | None
    lanes: dict[tuple[str, str, bool], LaneQueue] = field(default_factory=dict)
    """By lane, tier, and whether for long prompts and several choices."""
    tallies: dict[tuple[str, str], TierTally] = field(default_factory=dict)
    """By lane and tier."""
    waiting: int = 0
    """In all its lanes. Nobody, most of the time: then whoever comes goes straight to a replica."""
    wide: int = 0
    """Of these, those that ask for several choices."""
    turn: float = 0.0
    """What the lane that went last had been served before: whoever comes to an empty queue starts from there."""
    comers: dict[str, Comers] = field(default_factory=dict)
    """By lane: tenants known to come."""
    used_at: dict[str, float] = field(default_factory=dict)
    """By lane: when a request of it last arrived."""
    running: dict[str, int] = field(default_factory=dict)
    """By tenant: requests at replicas; tenants without any are not in it."""
    sent: dict[str, float] = field(default_factory=dict)
    """By request: when it was sent to the replica it is at; the oldest first."""
    turnover: Turnover = field(default_factory=Turnover)
    turnovers: dict[str, Turnover] = field(default_factory=dict)
    """By tenant; the first to have come is forgotten."""

    def ended(self, tenant: str, held_s: float, now: float) -> None:
        """A slot has come back."""
        self.turnover.ended(held_s, now)
        turnover = self.turnovers.get(tenant)
        if turnover is None:
            if len(self.turnovers) >= MOST_TENANTS:
                del self.turnovers[next(iter(self.turnovers))]
            turnover = self.turnovers[tenant] = Turnover()
        turnover.ended(held_s, now)

    def quick(self, tenant: str, wait_bound_s: float, now: float) -> bool:
        """Whether this tenant's requests give their slots back so quickly that another need not wait long."""
        turnover = self.turnovers.get(tenant)
        running = self.running.get(tenant, 0)
        return turnover is not None and turnover.found_every_s(running, now) <= QUICK * wait_bound_s

    def free_in_s(self, ahead: int, held_s: float, now: float) -> float:
        """Seconds until one more slot than `ahead` has come back, if each is held for `held_s`."""
        rounds, turn = divmod(ahead, max(1, len(self.sent)))
        since = next(islice(self.sent.values(), turn, None), now - held_s) if turn < MOST_LOOKED_AT else now
        return max(0.0, since + (rounds + 1) * held_s - now)

    def arrived(self, request: Request, expected: NamedTenants, now: float) -> None:
        """This tenant and this lane are known to come from now on."""
        self.used_at[request.lane] = now
        self.comers[request.lane].come(request.tenant, request.weight, expected, now)
