"""One protocol for everything that replicas can be started on: processes, Ray, Kubernetes, a fixed list.

A fleet starts and stops replicas and says which there are. It does not judge them: whether one is ready is found by
probing it, whether it is needed is the Scaler's to say, and who gets requests is the dispatcher's.

    await fleet.open()                 connect; from here on whoever watches is told
    fleet.watch(callback)              told of all there are, then of every change; on the event loop's thread
    started = await fleet.start(spec)  one more; returns once it has a place, long before it is ready
    await fleet.stop(id, grace_s)      one less; the caller has drained it
    await fleet.close()                stop what this object started, and watch no more
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headgate.model.replica import Replica, ReplicaId


class FleetError(Exception):
    """It can't be done; the message says what is wrong and what to do, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to start one more of."""

    pool: str = "default"
    """Replicas that stand in for each other; part of their ids."""
    flags: tuple[str, ...] = ()
    """The rest of the command line of `headgate engine`, where the fleet starts engines itself."""
    kind: str | None = "headgate"
    model: str | None = None
    """As in Replica."""
    slots: int | None = None
    lanes: frozenset[str] = frozenset()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    id: ReplicaId
    url: str


@dataclass(frozen=True, slots=True)
class Appeared:
    """It has an address, and may be asked whether it is ready. Also of one that comes back under its old id, and, the
    same once more, of one whose address has changed."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class Vanished:
    """It has ended. Told once for every Appeared, also where it was stopped on purpose."""

    id: ReplicaId
    why: str
    comes_back: bool = False
    """The fleet itself starts it again, under the same id; otherwise that is for whoever watches to ask for."""


Change = Appeared | Vanished
Callback = Callable[[Change], None]


class Launcher(Protocol):
    async def open(self) -> None:
        """Raises FleetError if there is nothing to start replicas on."""

    async def start(self, spec: Spec) -> Started:
        """Raises FleetError, with what to do, if one more can't be had. Whoever watches is told too."""

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        """Returns once it has ended: politely asked for `grace_s`, then not. One that is not here is no error."""

    def list(self) -> tuple[Replica, ...]:
        """Those there are, started here or found."""

    def watch(self, callback: Callback) -> None:
        """One callback; it is told of those there are at once."""

    async def close(self) -> None:
        """No orphan is left of what was started here. What was only found goes on."""
