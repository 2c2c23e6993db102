"""Runs replicas as processes on this machine, each on its own Unix socket: the fleet that needs nothing installed.

A process that ends unasked is started again under the same id, after a pause that doubles; a process that has ended
five times in a row without having answered and run for ten seconds is given up. No process outlives the gateway,
however that ends: see replica/local.py and, for programs that start processes of their own, keeper.py.
"""

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from headgate.fleet.port import Appeared, Callback, Change, FleetError, Spec, Started, Vanished
from headgate.model.clock import Clock
from headgate.model.replica import Replica, ReplicaId
from headgate.replica import local

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
SHORT_S = 10.0
GIVE_UP_AFTER = 5
CLOSE_GRACE_S = 12.0


Spawn = Callable[[Sequence[str], Path, int], Awaitable[Process]]
"""Starts an engine with these flags on this socket, in this seat: the lowest number that no other one has."""


async def spawn_engine(flags: Sequence[str], socket: Path, seat: int) -> Process:
    return await local.spawn(flags, socket)


def _silent(socket: Path) -> str:
    return ""


@dataclass(slots=True, eq=False)
class _Kept:
    """A replica that is kept running."""

    replica: Replica
    flags: tuple[str, ...]
    socket: Path
    seat: int
    process: Process | None = None
    stopping: bool = False
    answered: bool = False
    """Whether its process has listened on the socket."""
    short: int = 0
    """Times in a row that its process ended within SHORT_S, or before it answered."""
    task: asyncio.Task[None] = field(init=False)


class ProcessFleet:
    """Implements `Launcher`. `folder` holds the sockets, and belongs to this object alone."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        spawn: Spawn = spawn_engine,
        most: int = 1024,
        first_tries: int = GIVE_UP_AFTER,
        last_words: Callable[[Path], str] = _silent,
    ) -> None:
        """`first_tries`: starts in a row that may fail while no replica has ever answered; few where a start takes
        long. `last_words`: why the process on this socket ended, in its own words."""
        self._folder = folder
        self._spawn = spawn
        self._clock = clock
        self._most = most
        self._first_tries = first_tries
        self._last_words = last_words
        self._any_answered = False
        self._starting: set[int] = set()
        """Seats of processes that are being started."""
        self._kept: dict[ReplicaId, _Kept] = {}
        self._numbers = count(1)
        self._callback: Callback | None = None

    async def open(self) -> None:
        pass

    def watch(self, callback: Callback) -> None:
        self._callback = callback
        for kept in self._kept.values():
            if kept.process is not None:
                callback(Appeared(kept.replica))

    def list(self) -> tuple[Replica, ...]:
        return tuple(kept.replica for kept in self._kept.values())

    def pid(self, replica_id: ReplicaId) -> int | None:
        """None: it does not run right now."""
        kept = self._kept.get(replica_id)
        return kept.process.pid if kept is not None and kept.process is not None else None

    async def start(self, spec: Spec) -> Started:
        if len(self._kept) + len(self._starting) >= self._most:
            raise FleetError(f"{self._most} processes run already: lower fleet.scale.max")
        number = next(self._numbers)
        replica_id = f"{spec.pool}-{number}"
        socket = self._folder / f"{replica_id}.sock"
        replica = spec.replica(replica_id, f"unix:{socket}")
        seat = self._free_seat()
        kept = _Kept(replica, spec.flags, socket, seat)
        self._starting.add(seat)
        try:
            process = await self._spawn_it(kept)
        finally:
            self._starting.discard(seat)
        self._kept[replica_id] = kept
        self._tell(Appeared(replica))
        kept.task = asyncio.get_running_loop().create_task(self._keep(kept, process))
        return Started(replica_id, replica.url)

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        kept = self._kept.get(replica_id)
        if kept is None:
            return
        kept.stopping = True
        if kept.process is None:
            kept.task.cancel()  # between two starts
        else:
            await local.end(kept.process, grace_s)
        with contextlib.suppress(asyncio.CancelledError):
            await kept.task
        self._kept.pop(replica_id, None)

    async def close(self) -> None:
        await asyncio.gather(*(self.stop(replica_id, CLOSE_GRACE_S) for replica_id in tuple(self._kept)))

    # ------------------------------------------------------------------------------------------------------------

    def _free_seat(self) -> int:
        taken = {kept.seat for kept in self._kept.values()} | self._starting
        return next(number for number in count() if number not in taken)

    async def _spawn_it(self, kept: _Kept) -> Process:
        try:
            kept.process = process = await self._spawn(kept.flags, kept.socket, kept.seat)
        except OSError as error:
            hint = "lower fleet.scale.max, or raise this machine's limits"
            raise FleetError(f"no further process can be started: {error.strerror or error}; {hint}") from error
        return process

    async def _keep(self, kept: _Kept, process: Process) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = self._clock()
            code = await self._end_of(kept, process)
            kept.process = None
            if kept.stopping:
                self._tell(Vanished(kept.replica.id, "stopped"))
                return
            if kept.answered and self._clock() - began >= SHORT_S:
                kept.short, pause_s = 0, FIRST_PAUSE_S
            else:
                kept.short += 1
            why, said = _how_it_ended(code), self._last_words(kept.socket)
            own_words = f": {said}" if said else ""
            if kept.short >= (GIVE_UP_AFTER if self._any_answered else self._first_tries):
                often = f", {kept.short} times in a row" if kept.short > 1 else ""
                end = f"{own_words}; given up" if said else ": given up; what it said itself is above"
                self._give_up(kept, f"{why}{often}{end}")
                return
            why += own_words
            self._tell(Vanished(kept.replica.id, f"{why}; started again in {pause_s:g} s", comes_back=True))
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)
            try:
                process = await self._spawn_it(kept)
            except FleetError as error:
                self._give_up(kept, str(error))
                return
            self._tell(Appeared(kept.replica))

    async def _end_of(self, kept: _Kept, process: Process) -> int:
        """Returns the exit code once the process has ended, and all that it started with it."""
        kept.answered = False
        knocking = asyncio.get_running_loop().create_task(self._knock(kept))
        code = await process.wait()
        knocking.cancel()
        local.end_group(process.pid)
        return code

    async def _knock(self, kept: _Kept) -> None:
        await local.until_it_listens(kept.socket)
        kept.answered = self._any_answered = True

    def _give_up(self, kept: _Kept, why: str) -> None:
        self._kept.pop(kept.replica.id, None)
        self._tell(Vanished(kept.replica.id, why))

    def _tell(self, change: Change) -> None:
        if self._callback is not None:
            self._callback(change)


def _how_it_ended(code: int) -> str:
    return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
