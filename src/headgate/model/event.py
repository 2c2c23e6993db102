"""Defines the dispatcher's events and commands.

Events are facts that a driver reports; commands are what the driver must carry out. Single tokens are neither: the
dispatcher hears of arrivals, first tokens and ends.
"""

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, ConsideredReplica, QuoteTold
from headgate.model.replica import Replica, ReplicaId
from headgate.model.request import Request

# -- events -----------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True, gc=False):
    request: Request


class QuoteAsked(msgspec.Struct, frozen=True, gc=False):
    """A client asks what this request would meet now; it is not served. It counts as a request of its tenant."""

    request: Request


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    request_id: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The passage is over. `usage`: (prompt, output) tokens as the replica counted them; None: it did not. `first_s`:
    for an unstreamed answer, seconds from sending the request to its first token; None: the replica does not say, or a
    FirstToken event came. `cached`: prompt tokens that the replica found in its cache; None: it does not say."""

    request_id: str
    outcome: Outcome
    usage: tuple[int, int] | None = None
    first_s: float | None = None
    cached: int | None = None


class AttemptFailed(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed: another replica may retry the request, or continue its stream. `refused`: the replica said
    that it is full, which is no fault; `retry_after_s`: seconds until the replica expects room. `unsent`: the replica
    was not reached and nothing was sent. `answered`: the replica reported its failure by an HTTP status, so the request
    may be at fault. `twice`: the request was sent to this replica twice, because the first connection was lost at
    once."""

    request_id: str
    replica_id: ReplicaId
    outcome: Outcome
    refused: bool = False
    message: str = ""
    unsent: bool = False
    answered: bool = False
    retry_after_s: float | None = None
    twice: bool = False


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """A request was being served by this replica before the dispatcher began: a worker has outlived the process that
    decided for it. `begun`: its first token has come."""

    request: Request
    replica_id: ReplicaId
    begun: bool = False


class HedgeWon(msgspec.Struct, frozen=True, gc=False):
    """This replica answered first among the two that had the request. The driver closes the other connection."""

    request_id: str
    replica_id: ReplicaId


class Probed(msgspec.Struct, frozen=True, gc=False):
    """A health check's verdict. `deep`: the check generated a token."""

    replica_id: ReplicaId
    ok: bool
    deep: bool = False


class Reported(msgspec.Struct, frozen=True, gc=False):
    """What an engine says of itself. None: it does not say. `batch`: requests that it computes at once; `kv_ratio`:
    share of its KV memory in use, 0 to 1; `waiting`: requests in a queue of its own."""

    replica_id: ReplicaId
    batch: int | None = None
    kv_ratio: float | None = None
    waiting: float | None = None


class ReplicaJoined(msgspec.Struct, frozen=True, gc=False):
    replica: Replica


class ReplicaLeft(msgspec.Struct, frozen=True, gc=False):
    replica_id: ReplicaId


class ReplicaParked(msgspec.Struct, frozen=True, gc=False):
    """A replica was parked or unparked. A parked replica is known and watched but gets no new requests; those it has
    continue. `ramp`, on unparking: the replica has not served yet and gets only a few requests at first."""

    replica_id: ReplicaId
    parked: bool
    ramp: bool = False


class ReplicaAsleep(msgspec.Struct, frozen=True, gc=False):
    """A parked replica sleeps, or, `waking`, begins to wake up; what it had cached is gone. It is awake with the next
    ReplicaParked. `wake_s`: seconds that waking up is expected to take."""

    replica_id: ReplicaId
    wake_s: float
    waking: bool = False


class Leased(msgspec.Struct, frozen=True, gc=False):
    """Tokens and requests leased from a tenant's shared bucket, in seconds of the tenant's limits; below zero: given
    back. `…_full_s`: seconds from now until the bucket is full."""

    tenant: str
    requests_s: float
    tokens_s: float
    requests_full_s: float
    tokens_full_s: float


class Shared(msgspec.Struct, frozen=True, gc=False):
    """`gateways` gateways share tenants' limits and replicas. This gateway's part of each replica's room runs from
    `low` to `high`, within 0 to 1. Not `connected`: the shared store cannot be reached, and each gateway keeps to its
    part."""

    gateways: int
    low: float
    high: float
    connected: bool


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The dispatcher's `wake_at` has come."""


Event = (
    Arrived
    | QuoteAsked
    | FirstToken
    | Ended
    | AttemptFailed
    | Resumed
    | HedgeWon
    | Probed
    | Reported
    | ReplicaJoined
    | ReplicaLeft
    | ReplicaParked
    | ReplicaAsleep
    | Leased
    | Shared
    | Tick
)

# -- commands ---------------------------------------------------------------------------------------------


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    request_id: str
    replica_id: ReplicaId
    attempt: int
    reason: str
    """Why this replica was chosen: for the record, and for people."""
    seen: tuple[ConsideredReplica, ...] = ()
    """All replicas that were scored."""
    cold: bool = False
    """The replica has not finished a request since it came into use."""
    ahead: Ahead | None = None
    """The queue ahead of the request when it began to wait; None: it did not wait."""
    model: str = ""
    """The fallback model whose replica this is; empty: the request's own model."""
    uncached: int = 0
    """Prompt tokens that the replica is expected to compute."""
    lane: str = ""
    """The lower lane to which the request was relegated; empty: it has its own lane."""
    quote: QuoteTold | None = None
    """When its first token was expected. None: it was not told."""
    woke_s: float = 0.0
    """Seconds of its wait in which this replica woke up from sleep. 0: the request did not wait for that."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The request is refused. `retry_after_s`: seconds after which a retry is worthwhile; None: never."""

    request_id: str
    outcome: Outcome
    message: str
    retry_after_s: float | None = None
    ahead: Ahead | None = None
    quote: QuoteTold | None = None
    """When its first token was expected, where that was told before. None: it was not."""


class Hedge(msgspec.Struct, frozen=True, gc=False):
    """Send the request to this replica as well, because the first has not answered. The first answer wins."""

    request_id: str
    replica_id: ReplicaId
    reason: str
    """Why this replica was chosen."""
    seen: tuple[ConsideredReplica, ...] = ()


class Quote(msgspec.Struct, frozen=True, gc=False):
    """What a request that was asked about would meet now."""

    request_id: str
    admitted: bool
    """Whether it would be sent, or let wait."""
    lane: str = ""
    """The lane that it would be in, after any relegation."""
    told: QuoteTold | None = None
    """When its first token would come. None: it would be refused, or would wait for a replica to become usable."""
    replica_id: ReplicaId | None = None
    """The replica that it would be sent to at once. None: it would wait, or be refused."""
    outcome: Outcome | None = None
    """Why it would be refused. None: it would not be."""
    message: str = ""
    """The same in words, or what it would wait for."""
    retry_after_s: float | None = None
    """Seconds after which the request would be worthwhile. None: now, or never."""
    counted: bool = True
    """Whether the tenant's limits admitted the question itself: it counts as one request, and as no tokens."""


Command = Dispatch | Refuse | Hedge | Quote
