"""A fleet, a gateway and a clock that do as they are told, for the controller between them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.fleet.controller import Nap
from headgate.fleet.port import Appeared, Callback, Change, FleetError, Spec, Started
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.member import Demand, Work


def replica(name: str) -> Replica:
    return Replica(id=name, url=f"unix:/nowhere/{name}.sock", kind="headgate", slots=4)


@dataclass
class FakeFleet:
    started: int = 0
    stopped: list[tuple[ReplicaId, float]] = field(default_factory=list)
    refuse: str = ""
    """Why no further one can be had."""
    callback: Callback | None = None
    closed: bool = False

    async def open(self) -> None:
        pass

    async def start(self, spec: Spec) -> Started:
        if self.refuse:
            raise FleetError(self.refuse)
        self.started += 1
        made = replica(f"{spec.pool}-{self.started}")
        self.tell(Appeared(made))
        return Started(made.id, made.url)

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        self.stopped.append((replica_id, grace_s))

    def list(self) -> tuple[Replica, ...]:
        return ()

    def watch(self, callback: Callback) -> None:
        self.callback = callback

    async def close(self) -> None:
        self.closed = True

    def tell(self, change: Change) -> None:
        assert self.callback is not None
        self.callback(change)


@dataclass
class FakeHands:
    """A gateway: who is known to it, and who gets requests."""

    joined: dict[ReplicaId, Callable[[], None]] = field(default_factory=dict)
    routed: dict[ReplicaId, bool] = field(default_factory=dict)
    ramped: list[ReplicaId] = field(default_factory=list)
    works: dict[ReplicaId, Work] = field(default_factory=dict)
    wanted: Demand = field(default_factory=Demand)
    answering: bool = True
    phases: dict[str, float] = field(default_factory=dict)
    rested: list[str] = field(default_factory=list)
    """Who was told to sleep or to wake."""
    nap: Nap | Exception = field(default_factory=lambda: Nap("asleep", ""))
    cannot_wake: str = ""

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        assert replica.id not in self.joined
        self.joined[replica.id] = ready
        self.routed[replica.id] = False

    def leave(self, replica_id: ReplicaId) -> None:
        del self.joined[replica_id], self.routed[replica_id]

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        self.routed[replica_id] = on
        if ramp:
            self.ramped.append(replica_id)

    def waiting(self) -> int:
        return self.wanted.waiting

    def strained(self) -> bool:
        return self.wanted.waiting > 0

    def demand(self, now: float) -> Demand:
        return self.wanted

    def work(self, replica_id: ReplicaId, now: float) -> Work:
        return self.works.get(replica_id, Work(slots=4))

    async def sleep(self, replica_id: ReplicaId, wake_s: float) -> Nap:
        self.rested.append(f"sleep {replica_id}")
        if isinstance(self.nap, Exception):
            raise self.nap
        return self.nap

    async def wake(self, replica_id: ReplicaId, wake_s: float, limit_s: float) -> str:
        self.rested.append(f"wake {replica_id}")
        if isinstance(self.nap, Exception):
            raise self.nap
        return self.cannot_wake

    async def answers(self, replica_id: ReplicaId) -> bool:
        return self.answering

    async def cold_start(self, replica_id: ReplicaId) -> dict[str, float]:
        return self.phases


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
