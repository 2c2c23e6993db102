"""Defines the dispatcher's events and commands.

Events are facts that a driver reports; commands are what the driver must carry out. Single tokens are neither: the
dispatcher hears of arrivals, first tokens and ends.
"""

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, ConsideredReplica
from headgate.model.replica import Replica, ReplicaId
from headgate.model.request import Request

# -- events -----------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True, gc=False):
    request: Request


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    request_id: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The passage is over. `usage`: (prompt, output) tokens as the replica counted them; None: it did not. `first_s`:
    for an unstreamed answer, seconds from sending the request to its first token; None: the replica does not say, or a
    FirstToken event came."""

    request_id: str
    outcome: Outcome
    usage: tuple[int, int] | None = None
    first_s: float | None = None


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


class HedgeWon(msgspec.Struct, frozen=True, gc=False):
    """This replica answered first among the two that had the request. The driver closes the other connection."""

    request_id: str
    replica_id: ReplicaId


class Probed(msgspec.Struct, frozen=True, gc=False):
    """A health check's verdict. `deep`: the check generated a token."""

    replica_id: ReplicaId
    ok: bool
    deep: bool = False


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
    | FirstToken
    | Ended
    | AttemptFailed
    | HedgeWon
    | Probed
    | ReplicaJoined
    | ReplicaLeft
    | ReplicaParked
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


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The request is refused. `retry_after_s`: seconds after which a retry is worthwhile; None: never."""

    request_id: str
    outcome: Outcome
    message: str
    retry_after_s: float | None = None
    ahead: Ahead | None = None


class Hedge(msgspec.Struct, frozen=True, gc=False):
    """Send the request to this replica as well, because the first has not answered. The first answer wins."""

    request_id: str
    replica_id: ReplicaId
    reason: str
    """Why this replica was chosen."""
    seen: tuple[ConsideredReplica, ...] = ()


Command = Dispatch | Refuse | Hedge
