"""Runs replicas as processes on this machine, each on its own Unix socket: the fleet that needs nothing installed.

A process that ends unasked is started again under the same id, after a pause that doubles; a process that has ended
five times in a row without having run for ten seconds is given up. No process outlives the gateway, however the gateway
ends: see replica/local.py.
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


Spawn = Callable[[Sequence[str], Path], Awaitable[Process]]
"""Starts an engine with these flags on this socket."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A replica that is kept running."""

    replica: Replica
    flags: tuple[str, ...]
    socket: Path
    process: Process | None = None
    stopping: bool = False
    short: int = 0
    """Times in a row that its process ended within SHORT_S."""
    task: asyncio.Task[None] = field(init=False)


class ProcessFleet:
    """Implements `Launcher`. `folder` holds the sockets, and belongs to this object alone."""

    def __init__(self, folder: Path, clock: Clock, *, spawn: Spawn = local.spawn, most: int = 1024) -> None:
        self._folder = folder
        self._spawn = spawn
        self._clock = clock
        self._most = most
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
        if len(self._kept) >= self._most:
            raise FleetError(f"{self._most} processes run already: lower fleet.scale.max")
        number = next(self._numbers)
        replica_id, socket = f"{spec.pool}-{number}", self._folder / f"{number}.sock"
        replica = spec.replica(replica_id, f"unix:{socket}")
        kept = _Kept(replica, spec.flags, socket)
        process = await self._spawn_it(kept)
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

    async def _spawn_it(self, kept: _Kept) -> Process:
        try:
            kept.process = process = await self._spawn(kept.flags, kept.socket)
        except OSError as error:
            hint = "lower fleet.scale.max, or raise this machine's limits"
            raise FleetError(f"no further process can be started: {error.strerror or error}; {hint}") from error
        return process

    async def _keep(self, kept: _Kept, process: Process) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = self._clock()
            why = _how_it_ended(await process.wait())
            kept.process = None
            if kept.stopping:
                self._tell(Vanished(kept.replica.id, "stopped"))
                return
            if self._clock() - began >= SHORT_S:
                kept.short, pause_s = 0, FIRST_PAUSE_S
            else:
                kept.short += 1
            if kept.short >= GIVE_UP_AFTER:
                self._give_up(kept, f"{why}, {kept.short} times in a row: given up; what it said itself is above")
                return
            self._tell(Vanished(kept.replica.id, f"{why}; started again in {pause_s:g} s", comes_back=True))
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)
            try:
                process = await self._spawn_it(kept)
            except FleetError as error:
                self._give_up(kept, str(error))
                return
            self._tell(Appeared(kept.replica))

    def _give_up(self, kept: _Kept, why: str) -> None:
        self._kept.pop(kept.replica.id, None)
        self._tell(Vanished(kept.replica.id, why))

    def _tell(self, change: Change) -> None:
        if self._callback is not None:
            self._callback(change)


def _how_it_ended(code: int) -> str:
    return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
