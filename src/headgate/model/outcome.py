"""Defines the Outcome of a request: one word for counting. The error carries the detail."""

from enum import Enum
from typing import Literal


class Outcome(Enum):
    COMPLETED = "completed"
    TIME_CAP = "time_cap"
    """The generation reached its lane's time limit; the client got the answer up to there."""
    CANCELLED = "cancelled"
    """The client left."""
    SLOW_CLIENT = "slow_client"
    """The client did not read what was ready for it."""
    INVALID = "invalid"
    TOO_LONG = "too_long"
    UNKNOWN_MODEL = "unknown_model"
    UNAUTHORIZED = "unauthorized"
    OVER_LIMIT = "over_limit"
    """The tenant has used up its tokens or requests."""
    LANE_FULL = "lane_full"
    WOULD_WAIT_TOO_LONG = "would_wait_too_long"
    """Refused on arrival, because of the predicted wait."""
    WAITED_TOO_LONG = "waited_too_long"
    """Refused when its waiting bound was reached."""
    NO_REPLICA = "no_replica"
    """No usable replica can serve the request, and none became usable in time."""
    REPLICA_FAILED = "replica_failed"
    REPLICA_STALLED = "replica_stalled"
    OUT_OF_TIME = "out_of_time"
    """An unstreamed answer was not complete at its lane's time limit, so there was no partial answer to return."""
    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    ENGINE_FAILED = "engine_failed"

    # By identity, as outcomes are compared. Enum's own hash is Python code, and every request is counted by outcome.
    __hash__ = object.__hash__

    @property
    def kind(self) -> "Kind":
        """Which side caused the outcome."""
        return KINDS[self]


Kind = Literal["ok", "refused", "failed", "client"]
"""ok: answered. refused: overload, so retry later. failed: a fault of the gateway or a replica. client: the client's
own doing. Refusals and failures spend the error budget, except for a tenant over its own limit."""
KINDS: dict[Outcome, Kind] = {
    Outcome.COMPLETED: "ok",
    Outcome.TIME_CAP: "ok",
    Outcome.CANCELLED: "client",
    Outcome.SLOW_CLIENT: "client",
    Outcome.INVALID: "client",
    Outcome.TOO_LONG: "client",
    Outcome.UNKNOWN_MODEL: "client",
    Outcome.UNAUTHORIZED: "client",
    Outcome.OVER_LIMIT: "refused",
    Outcome.LANE_FULL: "refused",
    Outcome.WOULD_WAIT_TOO_LONG: "refused",
    Outcome.WAITED_TOO_LONG: "refused",
    Outcome.NO_REPLICA: "failed",
    Outcome.REPLICA_FAILED: "failed",
    Outcome.REPLICA_STALLED: "failed",
    Outcome.OUT_OF_TIME: "failed",
    Outcome.QUEUE_FULL: "refused",
    Outcome.NOT_READY: "refused",
    Outcome.ENGINE_FAILED: "failed",
}

ASIDE: frozenset[Outcome] = frozenset(
    outcome for outcome, kind in KINDS.items() if kind == "client" or outcome is Outcome.OVER_LIMIT
)
"""Outcomes that availability leaves out: the client's own fault or choice, and a tenant over its own limit. All other
requests asked for an answer, and availability is the share of those that got one."""
MISSED: frozenset[Outcome] = frozenset(
    outcome for outcome, kind in KINDS.items() if kind in ("refused", "failed") and outcome not in ASIDE
)
"""Outcomes of requests that asked for an answer and got none, or only part of one."""
