"""Defines what a Prober asks of, and reports to, the keeper of all replicas."""

from typing import Protocol

from headgate.model.replica import Replica, ReplicaId
from headgate.policy.replicas.health import Standing
from headgate.replica.detect import Card


class ProbeOwner(Protocol):
    """The keeper of the replicas: a Prober asks it and reports to it."""

    def said(self, replica_id: ReplicaId, cards: list[Card]) -> None:
        """The replica has listed its models: when it first answers, and with every deep check."""

    def found(self, replica: Replica) -> None:
        """The replica's kind is known now."""

    def standing(self, replica_id: ReplicaId) -> Standing | None:
        """What the dispatcher thinks of the replica. None: it is not in the fleet."""

    def sent(self, replica_id: ReplicaId) -> float | None:
        """A number that changes with each request that the replica is sent. None: it has some right now, or has
        left."""

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        """Whether requests that run at the replica have had tokens from it since then."""
