"""Defines what a pool of replicas commands its driver to do, and what it asks."""

from dataclasses import dataclass
from typing import Protocol

from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.placement import PoolView
from headgate.policy.scaling.scale import Decision


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start one more replica; report `start_answered`, and `appeared` once it has an address."""


@dataclass(frozen=True, slots=True)
class JoinReplica:
    """Watch the replica and give it no requests; report `answered` and `warmed`."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class LeaveReplica:
    """Forget the replica. Its requests in flight may finish."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class RouteReplica:
    """Give the replica requests from now on, or none."""

    id: ReplicaId
    on: bool
    ramp: bool = False
    """Only a few at first."""


@dataclass(frozen=True, slots=True)
class StopReplica:
    """End the replica within STOP_GRACE_S; report `stopped`."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class SleepReplica:
    """Put the replica to sleep: it has no requests, and gets none. Report `slept`, or `stays_awake`."""

    id: ReplicaId
    wake_s: float
    """Seconds that waking it up is expected to take."""


@dataclass(frozen=True, slots=True)
class WakeReplica:
    """Wake the replica up, once it has fallen asleep; report `woken`."""

    id: ReplicaId
    wake_s: float


@dataclass(frozen=True, slots=True)
class PoolNote:
    """A line about what the pool did, for people to read."""

    kind: str
    """decision, replica or trouble"""
    text: str
    reasons: tuple[str, ...] = ()
    replica: ReplicaId | None = None


PoolCommand = (
    StartReplica | JoinReplica | LeaveReplica | RouteReplica | StopReplica | SleepReplica | WakeReplica | PoolNote
)


class ScalingPolicy(Protocol):
    def decide(self, view: PoolView, now: float, wall: float) -> Decision: ...


class PoolReader(Protocol):
    """What the pool goes by; policy/scaling/signals.py reads it from a dispatcher."""

    def waiting(self) -> int:
        """Requests without a replica. Called often."""

    def strained(self) -> bool:
        """Whether requests wait, or the serving replicas are nearly full. Called often."""

    def demand(self, now: float) -> Demand: ...

    def work(self, replica_id: ReplicaId, now: float) -> Work:
        """Returns an empty Work for an unknown replica."""
