"""What the dispatcher hears, and what it answers.

Events are facts a driver reports; commands are what it must carry out. Single tokens are neither: the dispatcher hears
of arrivals, first tokens and ends.
"""

from dataclasses import dataclass

from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.model.request import Request

# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    request: Request


@dataclass(frozen=True, slots=True)
class FirstToken:
    request_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The passage is over. `usage` is (prompt, output) tokens as the replica counted them, if it did."""

    request_id: str
    outcome: Outcome
    usage: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The replica broke off before the first byte went to the client: another may try. `refused`: it said that it is
    busy, which is no fault."""

    request_id: str
    replica_id: ReplicaId
    outcome: Outcome
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Probed:
    """A health check's verdict. `deep`: a token was really generated."""

    replica_id: ReplicaId
    ok: bool
    deep: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaJoined:
    replica: Replica


@dataclass(frozen=True, slots=True)
class ReplicaLeft:
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Tick:
    """`wake_at` has come."""


Event = Arrived | FirstToken | Ended | AttemptFailed | Probed | ReplicaJoined | ReplicaLeft | Tick

# -- commands ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    request_id: str
    replica_id: ReplicaId
    attempt: int
    reason: str
    """Why this replica: for the record, and for people."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """`retry_after_s` is when it is worth coming back; None: never."""

    request_id: str
    outcome: Outcome
    message: str
    retry_after_s: float | None = None


Command = Dispatch | Refuse
