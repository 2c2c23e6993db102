"""Defines what the data path of a gateway needs of a dispatcher, so that the dispatcher may be in another process.

`Dispatcher` decides in the process that asks. Of a port that asks another process, `on` returns nothing, and the
commands come later.
"""

from abc import ABC, abstractmethod
from math import inf
from typing import Final

from headgate.model.event import Command, Event
from headgate.model.lane import Lane
from headgate.model.replica import Replica, ReplicaId
from headgate.model.tier import Tier
from headgate.policy.tenants.limits import OverLimit, RateView


class DispatchPort(ABC):
    # A base class and not a Protocol: compiled, its attributes and methods are found without a lookup by name.
    def __init__(self, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        self.lanes: Final = lanes
        self.tiers = tiers
        self.unfinished: list[Command] = []
        """Commands that the last event has led to so far."""
        self.wake_at = inf
        """When a Tick is due; inf: never."""

    @abstractmethod
    def on(self, event: Event, now: float) -> list[Command]:
        """Handles one event and returns the commands that follow at once. If it raises, the commands decided until then
        are in `unfinished`."""

    @abstractmethod
    def computed(self, request_id: str, now: float) -> int:
        """Output tokens that the replica has probably generated for each choice of an unstreamed request. 0: no replica
        has the request."""

    @abstractmethod
    def replicas(self) -> list[Replica]:
        """A copy of what is known of every replica, with the names that were found out; safe from any thread."""

    @abstractmethod
    def with_room(self, model: str) -> list[ReplicaId]:
        """Usable replicas that name this model and have a free slot."""

    @abstractmethod
    def any_usable(self) -> bool:
        """Whether any replica may be used."""

    @abstractmethod
    def over_limit(self, tenant: str, now: float) -> OverLimit | None:
        """The refusal of a request for a single token. None: the tenant's limits would admit it. Reserves nothing."""

    @abstractmethod
    def rates(self, tenant: str, now: float) -> RateView | None:
        """What is left of the tenant's limits. None: the tenant has no limits per minute."""
