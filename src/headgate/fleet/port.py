"""Defines one protocol for everything that runs replicas: processes, Ray, Kubernetes.

A fleet starts and stops replicas and reports which there are. It does not judge them: probes find out whether a replica
is ready, the Scaler decides whether it is needed, and the dispatcher which one gets a request.

    await fleet.open()                 connect; from here on the watcher is told
    fleet.watch(callback)              told of all replicas, then of every change; on the event loop's thread
    started = await fleet.start(spec)  one more; returns once it has a place, long before it is ready
    await fleet.stop(id, grace_s)      one less; the caller has drained it
    await fleet.close()                stop what this object started, and watch no more
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headgate.model.replica import Replica, ReplicaId


class FleetError(Exception):
    """The fleet can't do it; the message says what is wrong and what to do, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Describes the replica to start."""

    pool: str = "default"
    """Name of a group of interchangeable replicas; part of their ids."""
    flags: tuple[str, ...] = ()
    """Further options of `headgate engine`, where the fleet starts engines itself."""
    kind: str | None = "headgate"
    model: str | None = None
    """This and what follows as in Replica."""
    served_as: str | None = None
    slots: int | None = None
    token_limit: int | None = None
    lanes: frozenset[str] = frozenset()
    tags: dict[str, str] = field(default_factory=dict)
    price: float | None = None
    api_key_file: Path | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    ca: Path | None = None

    def replica(self, replica_id: ReplicaId, url: str) -> Replica:
        """The replica at this address."""
        return Replica(
            id=replica_id,
            url=url,
            model=self.model,
            served_as=self.served_as,
            kind=self.kind,
            slots=self.slots,
            token_limit=self.token_limit,
            lanes=self.lanes,
            tags=self.tags,
            price=self.price,
            api_key_file=self.api_key_file,
            headers=self.headers,
            ca=self.ca,
        )


@dataclass(frozen=True, slots=True)
class Started:
    id: ReplicaId
    url: str


@dataclass(frozen=True, slots=True)
class Appeared:
    """The replica has an address, and may be probed. Also reported for a replica that comes back under its old id, and
    once more for one whose address has changed."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class Vanished:
    """The replica has ended. Reported once for every Appeared, also where the replica was stopped on purpose."""

    id: ReplicaId
    why: str
    comes_back: bool = False
    """The fleet itself starts it again, under the same id; otherwise the watcher has to ask for that."""


Change = Appeared | Vanished
Callback = Callable[[Change], None]


class Launcher(Protocol):
    async def open(self) -> None:
        """Raises FleetError if there is nothing to start replicas on."""

    async def start(self, spec: Spec) -> Started:
        """Starts one more replica; the watcher is told too. Raises FleetError, with what to do, if that is not
        possible."""

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        """Returns once the replica has ended: it has `grace_s` seconds to stop by itself, then it is killed. An unknown
        id is no error."""

    def list(self) -> tuple[Replica, ...]:
        """All replicas, started here or found."""

    def watch(self, callback: Callback) -> None:
        """Sets the one callback; it is told of the existing replicas at once."""

    async def close(self) -> None:
        """Stops what was started here, and leaves no orphan. What was only found continues."""
