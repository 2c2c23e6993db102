"""What the dispatcher hears, and what it answers.

Events are facts a driver reports; commands are what it must carry out. Single tokens are neither: the dispatcher hears
of arrivals, first tokens and ends.
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
    """The passage is over. `usage` is (prompt, output) tokens as the replica counted them, if it did. `first_s`: of an
    answer in one piece whose replica tells, seconds from its sending to its first token; None: it does not tell, or a
    FirstToken was heard."""

    request_id: str
    outcome: Outcome
    usage: tuple[int, int] | None = None
    first_s: float | None = None


class AttemptFailed(msgspec.Struct, frozen=True, gc=False):
    """The replica broke off: another may try, or go on with what it began. `refused`: it said that it is full, which is
    no fault; `retry_after_s`: when it said it would have room again. `unsent`: there was nobody to say anything, and
    nothing was sent. `answered`: it said itself that it failed, by an HTTP status: the request may be what is wrong.
    `twice`: it was sent there twice, since its first connection was lost at once."""

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
    """Of the two replicas that had it this one answered first. The other one's connection is closed."""

    request_id: str
    replica_id: ReplicaId


class Probed(msgspec.Struct, frozen=True, gc=False):
    """A health check's verdict. `deep`: a token was really generated."""

    replica_id: ReplicaId
    ok: bool
    deep: bool = False


class ReplicaJoined(msgspec.Struct, frozen=True, gc=False):
    replica: Replica


class ReplicaLeft(msgspec.Struct, frozen=True, gc=False):
    replica_id: ReplicaId


class ReplicaParked(msgspec.Struct, frozen=True, gc=False):
    """A parked replica is known and watched, and gets nothing; what it is doing goes on. `ramp`, with the end of it: it
    has not served yet, and gets a few at first."""

    replica_id: ReplicaId
    parked: bool
    ramp: bool = False


class Leased(msgspec.Struct, frozen=True, gc=False):
    """Taken from a tenant's shared bucket, in seconds of its limits; below zero: given back. And how long the bucket
    takes from now until it is full."""

    tenant: str
    requests_s: float
    tokens_s: float
    requests_full_s: float
    tokens_full_s: float


class Shared(msgspec.Struct, frozen=True, gc=False):
    """So many gateways share tenants' limits and replicas; from `low` to `high`, of 0 to 1, is this one's part of each
    replica's room. Not `connected`: what they share can't be reached, and each keeps to its part."""

    gateways: int
    low: float
    high: float
    connected: bool


class Tick(msgspec.Struct, frozen=True, gc=False):
    """`wake_at` has come."""


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
    """Why this replica: for the record, and for people."""
    seen: tuple[ConsideredReplica, ...] = ()
    """All that were looked at."""
    cold: bool = False
    """It has not finished a request since it came into use."""
    ahead: Ahead | None = None
    """What it had to wait for."""
    model: str = ""
    """Whose replica it is, where that is not the model it arrived with but one of its fallbacks; empty: its own."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """`retry_after_s` is when it is worth coming back; None: never."""

    request_id: str
    outcome: Outcome
    message: str
    retry_after_s: float | None = None
    ahead: Ahead | None = None


class Hedge(msgspec.Struct, frozen=True, gc=False):
    """Send it to this replica as well, since the first has not answered. Whoever does first is the one."""

    request_id: str
    replica_id: ReplicaId
    reason: str
    """Why this replica."""
    seen: tuple[ConsideredReplica, ...] = ()


Command = Dispatch | Refuse | Hedge
