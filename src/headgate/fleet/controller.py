"""Drives the fleet: carries out the commands of `policy/scaling/pool.ManagedPool`, which decides.

The controller reports to the pool what the fleet and the gateway say, lets it look when it is due, and keeps its notes.
Starts and stops go through the fleet, routing through the gateway.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from headgate.config.fleet import PoolConfig
from headgate.fleet import shown
from headgate.fleet.notes import Book
from headgate.fleet.port import Appeared, Change, FleetError, Launcher, Spec
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.member import Member
from headgate.policy.scaling.orders import (
    JoinReplica,
    LeaveReplica,
    PoolCommand,
    PoolNote,
    PoolReader,
    RouteReplica,
    ScalingPolicy,
    SleepReplica,
    StartReplica,
    WakeReplica,
)
from headgate.policy.scaling.pool import GLANCE_EVERY_S, STOP_GRACE_S, ManagedPool

log = logging.getLogger(__name__)

MOST_WHY = 300
"""Maximum characters kept of an exception."""


def _nobody(change: Change) -> None:
    """Ignores changes once the controller is closed."""


class Nap(NamedTuple):
    """What came of putting a replica to sleep."""

    state: str
    """asleep; awake, as it was; or unknown."""
    why: str
    """Why it is not asleep."""


class Hands(PoolReader, Protocol):
    """What the controller can see of the gateway and do to it; wiring/fleet.py implements it."""

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        """Watches the replica without sending requests; `ready` is called once the replica has been warmed up."""

    def leave(self, replica_id: ReplicaId) -> None:
        """Forgets the replica. Its requests in flight may finish."""

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        """Sets whether the replica gets requests; `ramp`: only a few at first."""

    async def sleep(self, replica_id: ReplicaId, wake_s: float) -> "Nap":
        """Puts a parked replica to sleep; returns what came of it. `wake_s`: what a wake-up is expected to take."""

    async def wake(self, replica_id: ReplicaId, wake_s: float, limit_s: float) -> str:
        """Wakes a replica. Returns why it did not wake up; empty: it is awake."""

    async def answers(self, replica_id: ReplicaId) -> bool:
        """Whether a server answers at its address yet."""

    async def cold_start(self, replica_id: ReplicaId) -> dict[str, float]:
        """Seconds of each phase of its start, as the replica reports them; empty: it does not."""


class Controller:
    def __init__(
        self,
        fleet: Launcher,
        scaler: ScalingPolicy,
        spec: Spec,
        hands: Hands,
        config: PoolConfig,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self.book = Book(wall)
        self.pool = ManagedPool(scaler, config, hands)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if no replica can be started at all: then the gateway has no reason to run."""
        self.was_ready = asyncio.Event()
        """Set once any replica has been ready, or none is meant to serve."""
        self._fleet = fleet
        self._spec = spec
        self._hands = hands
        self._config = config
        self._clock = clock
        self._wall = wall
        self._nudged = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until cancelled. Raises FleetError if there is nothing to start replicas on."""
        await self._fleet.open()
        self._fleet.watch(self.on_change)
        while True:
            now = self._clock()
            self._nudged.clear()
            if self.pool.due(now):
                self.look(now)
            try:
                async with asyncio.timeout(GLANCE_EVERY_S):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Stops every replica that this fleet started."""
        self._fleet.watch(_nobody)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.close()
        self.broken.cancel()

    def look(self, now: float) -> None:
        self.pool.look(now, self._wall())
        self._carry_out()

    # -- what people ask for -----------------------------------------------------------------------------------

    def drain(self, replica_id: ReplicaId, why: str) -> bool:
        """Returns whether there was anything to drain."""
        return self._ordered(self.pool.drain(replica_id, why, self._clock()))

    def park(self, replica_id: ReplicaId, why: str) -> bool:
        return self._ordered(self.pool.park(replica_id, why, self._clock()))

    def activate(self, replica_id: ReplicaId, why: str) -> bool:
        return self._ordered(self.pool.activate(replica_id, why, self._clock()))

    def sleep(self, replica_id: ReplicaId, why: str) -> bool:
        """Lets a parked replica sleep."""
        return self._ordered(self.pool.sleep(replica_id, why, self._clock()))

    def wake(self, replica_id: ReplicaId, why: str) -> bool:
        """Wakes a replica, which stays parked."""
        return self._ordered(self.pool.wake(replica_id, why, self._clock()))

    def to_zero(self) -> int:
        """Stops all replicas until the next request. Returns how many there are."""
        count = self.pool.to_zero("an operator asked for it", self._clock())
        self._carry_out()
        return count

    def _ordered(self, done: str) -> bool:
        self._carry_out()
        return bool(done)

    def state(self) -> dict[str, Any]:
        pool = self.pool
        found = shown.whole(pool.members.values(), pool.decision, self.book, self._hands, self._clock())
        return {
            "kind": self._config.kind,
            "held_at_zero": pool.held,
            "start_s": pool.start_s,
            "wake_s": pool.wake_s,
            **found,
        }

    def news(self) -> dict[str, Any]:
        """The part of the state that the page shows."""
        return shown.news(self.pool.decision, self.book)

    def paid_for(self) -> int:
        """Replicas that are paid for: from the request for a start until they are gone, whatever they do."""
        return self.pool.paid_for

    def owns(self, replica_id: ReplicaId) -> bool:
        """Whether the replica is one of this fleet."""
        return replica_id in self.pool.members

    def lifecycle(self, replica_id: ReplicaId) -> str | None:
        """The state's name; None: the replica is not of this fleet."""
        member = self.pool.members.get(replica_id)
        return None if member is None else member.state.name.lower()

    # -- what the fleet says -----------------------------------------------------------------------------------

    def on_change(self, change: Change) -> None:
        now = self._clock()
        if isinstance(change, Appeared):
            self.pool.appeared(change.replica, now)
        else:
            member = self.pool.members.get(change.id)
            self.pool.vanished(change.id, change.why, change.comes_back, now)
            if member is not None:
                self._may_be_broken(member, change.why)
        self._carry_out()
        self._nudged.set()

    def _may_be_broken(self, member: Member, why: str) -> None:
        # In a cluster the operator may be about to mend it, and beside other pools this one may be missed.
        here = self._config.kind == "processes" and not self._config.name
        if here and member.state is Lifecycle.FAILED and not self.pool.was_ready and not self.broken.done():
            # The next start would not get ready either.
            self.broken.set_exception(StartupError(f"no replica gets ready: {member.id}: {why}"))

    async def _wait_for_answer(self, replica_id: ReplicaId) -> None:
        members = self.pool.members
        while (member := members.get(replica_id)) is not None and member.state is Lifecycle.STARTING:
            if await self._hands.answers(replica_id):
                self.pool.answered(replica_id, self._clock())
            else:
                await asyncio.sleep(GLANCE_EVERY_S)

    def _ready(self, replica_id: ReplicaId) -> None:
        took_s = self.pool.warmed(replica_id, self._clock())
        if took_s is not None:
            self.was_ready.set()
            self._do(self._note_start(self.pool.members[replica_id], took_s))
            self._nudged.set()

    async def _note_start(self, member: Member, took_s: float) -> None:
        member.cold_start = phases = await self._hands.cold_start(member.id)
        self.book.started(member.id, took_s, phases)
        parts = ", ".join(f"{name} {part_s:.2f} s" for name, part_s in phases.items())
        self.book.note("replica", f"{member.id} is ready after {took_s:.2f} s", (parts,) if parts else (), member.id)

    # -- what the pool decides -----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        for command in self.pool.flush():
            self._carry_out_one(command)
        if self.pool.was_ready:
            self.was_ready.set()

    def _carry_out_one(self, command: PoolCommand) -> None:
        if isinstance(command, PoolNote):
            self._write_down(command)
        elif isinstance(command, RouteReplica):
            self._hands.route(command.id, command.on, command.ramp)
        elif isinstance(command, StartReplica):
            self._do(self._start())
        elif isinstance(command, JoinReplica):
            replica_id = command.replica.id
            self._hands.join(command.replica, lambda: self._ready(replica_id))
            self._do(self._wait_for_answer(replica_id))
        elif isinstance(command, SleepReplica):
            self._do(self._sleep(command))
        elif isinstance(command, WakeReplica):
            self._do(self._wake(command))
        elif isinstance(command, LeaveReplica):
            self._hands.leave(command.id)
        else:
            self._do(self._stop(command.id))

    def _write_down(self, note: PoolNote) -> None:
        self.book.note(note.kind, note.text, note.reasons, note.replica)
        level = logging.WARNING if note.kind == "trouble" else logging.INFO
        because = f" ({' '.join(note.reasons)})" if note.reasons else ""
        log.log(level, "%s%s", note.text, because, extra={"kind": note.kind, "replica": note.replica})

    async def _start(self) -> None:
        problem = None
        try:
            await self._fleet.start(self._spec)
        except FleetError as error:
            problem = str(error)
        self.pool.start_answered(problem, self._clock())
        self._carry_out()

    async def _stop(self, replica_id: ReplicaId) -> None:
        problem = None
        try:
            await self._fleet.stop(replica_id, STOP_GRACE_S)
        except FleetError as error:
            problem = str(error)
        self.pool.stopped(replica_id, problem)
        self._carry_out()

    async def _sleep(self, command: SleepReplica) -> None:
        try:
            nap = await self._hands.sleep(command.id, command.wake_s)
        except Exception as flaw:  # of this replica alone, whatever it answered
            log.exception("replica %s: putting it to sleep raised", command.id)
            nap = Nap("unknown", repr(flaw)[:MOST_WHY])
        now = self._clock()
        if nap.state == "asleep":
            self.pool.slept(command.id, now)
        elif nap.state == "awake":
            self.pool.stays_awake(command.id, nap.why, now)
        else:
            self.pool.drain(command.id, f"whether it sleeps is not known: {nap.why}", now)
        self._carry_out()

    async def _wake(self, command: WakeReplica) -> None:
        try:
            problem = await self._hands.wake(command.id, command.wake_s, self._config.wake_limit_s)
        except Exception as flaw:
            log.exception("replica %s: waking it raised", command.id)
            problem = repr(flaw)[:MOST_WHY]
        self.pool.woken(command.id, problem or None, self._clock())
        self._carry_out()
        self._nudged.set()

    # ------------------------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
