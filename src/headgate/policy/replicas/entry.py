"""Defines the entry of one replica in the book (policy/replicas/book.py): all that the policies keep of it.

Only the book and the policies that it calls write an entry. Each policy has a part of its own.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from headgate.model.replica import Load, ReplicaId
from headgate.policy.replicas.gradient import GradientLimit
from headgate.policy.replicas.health import HealthEntry
from headgate.policy.replicas.prefix_index import PrefixLinks
from headgate.policy.replicas.session_ring import Ring

MOST_OWED_S: Final = 30.0
"""Maximum seconds of prefill work that a replica is assumed to have: a wrong pace is forgotten as soon."""


@dataclass(slots=True, eq=False)
class ReplicaGroup:
    """Replicas that serve the same model and lanes at the same price, and their sums."""

    names: frozenset[str]
    """Model names that they serve. Empty: any."""
    lanes: frozenset[str]
    price: float = 0.0
    """Price of each of them per hour."""
    ring: Ring = field(default_factory=Ring)
    ready: list[tuple[float, int, "IndexEntry"]] = field(default_factory=list)
    """Replicas that are usable and have a free slot, least loaded first, then first come: order numbers make ties the
    same everywhere."""
    replicas: int = 0
    usable: int = 0
    limit: int = 0
    """Requests that all of them may have at once."""
    room: int = 0
    turn: float = 0.0
    """The highest turn that was used: a replica that comes back continues from there."""


@dataclass(slots=True, eq=False)
class IndexEntry:
    """A replica's place in the index, and what was last counted of it."""

    id: ReplicaId
    load: Load
    number: int
    group: ReplicaGroup
    token_limit: int | None
    entry: tuple[float, int, "IndexEntry"] | None = None
    """The replica's place in `ready`. None: it is not there."""
    turn: float = 0.0
    requests: int = 0
    usable: bool = False
    limit: int = 0
    room: int = 0


class Closed:
    """A replica that refused a request or could not be reached."""

    __slots__ = ("entry", "opened", "refusals", "refused_at", "seat", "try_at")

    def __init__(self, entry: "ReplicaEntry", seat: IndexEntry) -> None:
        self.entry = entry
        self.seat = seat
        self.refusals = 0
        """Tries refused in a row."""
        self.refused_at = -inf
        self.try_at = inf
        """When the replica is looked at next."""
        self.opened = False
        """Whether the time that the replica named, or its back-off, has passed."""


class PrefillOwed:
    """Seconds of prefill work that a replica was given and has not had the time for."""

    __slots__ = ("busy", "owed_s", "sent_tokens")

    def __init__(self, sent_tokens: int) -> None:
        self.sent_tokens = sent_tokens
        self.owed_s = 0.0
        self.busy = 0.0

    def look(self, load: Load, passed_s: float, share: float) -> None:
        """Takes in the time since the last look. `share`: the weight of that time in the average."""
        more, self.sent_tokens = load.sent_tokens - self.sent_tokens, load.sent_tokens
        owed_s = min(MOST_OWED_S, self.owed_s + more * (load.pace.token_s or 0.0))
        busy_s = min(owed_s, passed_s)
        # A replica that has sent every first token has no prefill left, whatever was expected.
        self.owed_s = owed_s - busy_s if load.prefill_tokens > 0 else 0.0
        self.busy += share * (busy_s / passed_s - self.busy)


@dataclass(slots=True, eq=False)
class ReplicaEntry:
    """One replica in the book."""

    id: ReplicaId
    links: PrefixLinks
    """Prefixes that it has seen."""
    seat: IndexEntry | None = None
    """Its load and its place in the index. None: the replica was parked before it joined."""
    health: HealthEntry | None = None
    """None: the replica was parked before it joined."""
    found: GradientLimit | None = None
    """The limit that is found by watching its latency. None: its slots are known."""
    batch: int | None = None
    """Requests that its engine says it computes at once. None: it has not said."""
    closed: Closed | None = None
    """None: it has not refused a request of late, and could be reached."""
    owed: PrefillOwed | None = None
    """None: not measured yet."""
    parked: bool = False
    """The replica is known and probed, and is given no requests."""
    wake_s: float | None = None
    """While it sleeps or wakes up: seconds that waking up is expected to take. None: it is awake."""
    woken_at: float = inf
    """When it was last told to wake up; inf: not since it fell asleep."""
    awake_at: float = -inf
    """When it last woke up."""
    unseen: bool = False
    """The replica has joined and not answered yet."""
    came: int = 0
    """Number of the replica's last coming into use, counted over all replicas. 0: it was never in use."""


def new_entry(replica_id: ReplicaId, parked: bool = False) -> ReplicaEntry:
    return ReplicaEntry(replica_id, PrefixLinks(replica_id), parked=parked)
