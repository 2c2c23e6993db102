"""How did a request end? One word for counting; the error carries the detail."""

from enum import Enum
from typing import Literal


class Outcome(Enum):
    COMPLETED = "completed"
    TIME_CAP = "time_cap"
    """Ended when its generation had taken as long as its lane allows, with what there was."""
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
    """Refused on arrival."""
    WAITED_TOO_LONG = "waited_too_long"
    """Refused when its waiting bound was reached."""
    NO_REPLICA = "no_replica"
    """Nobody can serve it, and nobody came in time."""
    REPLICA_FAILED = "replica_failed"
    REPLICA_STALLED = "replica_stalled"
    OUT_OF_TIME = "out_of_time"
    """Its answer in one piece was not complete when its lane's time was over: there was nothing to end it with."""
    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    ENGINE_FAILED = "engine_failed"

    # By identity, as they are compared. Enum has one of its own, in Python, and every request is counted by outcome.
    __hash__ = object.__hash__

    @property
    def kind(self) -> "Kind":
        """Whose doing it was."""
        return KINDS[self]


Kind = Literal["ok", "refused", "failed", "client"]
"""refused: too much at once, come back later. failed: our fault. Both are what the error budget is spent on, but for a
tenant that is over its own limit."""
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
"""Ends that say nothing of whether we answer: the client's own fault or will, and a tenant over its own limit. All
others asked for an answer, and availability is the share of those that got one."""
MISSED: frozenset[Outcome] = frozenset(
    outcome for outcome, kind in KINDS.items() if kind in ("refused", "failed") and outcome not in ASIDE
)
"""Asked for an answer and got none, or not all of it."""
