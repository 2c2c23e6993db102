"""Describes one replica of a fleet, its load, and the demand on the whole pool."""

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import OVER, Lifecycle, LifecycleEvent, next_state
from headgate.policy.scaling.placement import PoolMember

OVERDUE = 2.0
"""Multiple of what a wake-up is expected to take after which another replica is woken too."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on the whole pool; policy/scaling/placement.PoolView explains each field."""

    waiting: int = 0
    waiting_tokens: int = 0
    tokens_per_s: float = 0.0
    p95_ratio: float | None = None
    present: float | None = None
    carried_tokens_per_s: float | None = None
    may_start: bool = True
    held: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One replica's load, and the share of its capacity that health allows."""

    requests: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    slots: int = 1
    share: float = 1.0
    """0: the replica is out. Below 1: it ramps up."""
    use: float = 0.0
    """Taken share of its scarcest resource other than slots."""
    binding: str = ""
    """Name of that resource."""


class PoolCounts(NamedTuple):
    """One of several pools at one moment."""

    wanted: dict[str, int]
    """Replicas that should be in a state: serving, parked."""
    replicas: dict[str, int]
    """Replicas in each state."""
    members: tuple[ReplicaId, ...]
    waiting: int
    """Requests that wait and that this pool grows for."""
    price: float | None
    """Per replica and hour; None: it has none."""


@dataclass(slots=True, eq=False)
class Member:
    """A replica of the fleet, from its start to its end."""

    replica: Replica
    asked_at: float
    """When its start began, on the clock."""
    since: float
    state: Lifecycle = Lifecycle.STARTING
    why: str = "started"
    then_park: bool = False
    """While it drains: it is parked afterwards, not stopped."""
    then_serve: bool = False
    """While it wakes up: it serves afterwards, and does not stay parked."""
    sleepless_until: float = -inf
    """When it may be told to sleep again, after it did not."""
    drained_by: float = 0.0
    """While it drains to be stopped: when its remaining requests are cut off."""
    comes_back: bool = False
    """It failed, and its fleet starts it again."""
    out_since: float | None = None
    """Since when health keeps it out; None: it is well."""
    cold_start: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase of its start; empty: not known."""

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    @property
    def gone(self) -> bool:
        """It has ended, and is not started again."""
        return self.state in OVER and not self.comes_back

    def seen(self, work: Work, wake_s: float, now: float) -> PoolMember:
        """The replica as the Scaler sees it. One that is out or being started again counts as starting: others stand
        in, and no further one is started. `wake_s`: seconds to expect of a wake-up."""
        coming = self.out_since is not None or self.state is Lifecycle.FAILED
        return PoolMember(
            id=self.id,
            state=Lifecycle.STARTING if coming else self.state,
            since=self.since,
            then_park=self.then_park,
            then_serve=self.then_serve,
            overdue=self.state is Lifecycle.WAKING and now - self.since > OVERDUE * wake_s,
            sleepless=now < self.sleepless_until,
            requests=work.requests,
            outstanding_tokens=work.tokens,
            cached_tokens=work.cached_tokens,
            slots=work.slots,
            use=work.use,
            binding=work.binding,
        )

    def happened(self, happened: LifecycleEvent, why: str, now: float) -> bool:
        """Applies the event; returns whether it changed the state."""
        after = next_state(self.state, happened)
        if after is self.state:
            return False
        self.state, self.since, self.why = after, now, why
        return True
