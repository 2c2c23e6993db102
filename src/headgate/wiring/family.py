"""Runs a gateway as several processes: a brain, its workers, and this parent, which starts again whichever dies.

    parent ─┬─ brain: all of a gateway but its clients; one Unix socket for workers, one for what they pass on
            ├─ worker 1: accepts on the port, reads, relays
            └─ worker N: the same

The parent forks and waits; it has no event loop and no threads, so that it can fork at any time. A child sees by the
end of a pipe that the parent is gone, and stops. The brain writes to another pipe when everything is up: until then
what ends it is told once, and ends the gateway.
"""

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.config.listen import ListenConfig
from headgate.model.clock import Clock
from headgate.model.errors import StartupError

BRAIN: Final = 0
"""Number of the brain among the processes; workers are 1 to N."""
SIGNALS: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
RESTED_S: Final = 1.0
"""A process that lived for less is started again only when this has passed since its start."""
GRACE_S: Final = 10.0
"""Seconds beyond listen.drain_s after which processes that have not stopped are killed."""
LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the processes of one gateway meet."""

    folder: Path
    """Only this user can enter it."""
    where: str
    """The gateway's address, for people."""
    places: tuple[tuple[str, int], ...]
    """The addresses and port that every worker listens on."""
    workers: int

    @property
    def brain(self) -> Path:
        """The socket where workers tell and are told."""
        return self.folder / "brain.sock"

    def clear(self) -> None:
        """Removes what a brain before has left."""
        for socket_file in (self.brain, self.http):
            socket_file.unlink(missing_ok=True)

    @property
    def http(self) -> Path:
        """The socket where the brain answers what workers pass on."""
        return self.folder / "http.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which process this is, after a fork."""

    number: int
    """BRAIN, or that of a worker."""
    parent_gone: int
    """A pipe that ends with the parent."""
    ready: int
    """A pipe into which the brain writes when all is up."""
    first: bool
    """Whether no process had this number before."""


@contextmanager
def meeting(listen: ListenConfig, workers: int) -> Iterator[Site]:
    """Reserves the port, and makes the folder. The parent removes it; its children, which leave here too, do not."""
    if sys.platform != "linux":
        raise StartupError("--workers: only Linux shares a port's connections between processes; leave it out here")
    owner = os.getpid()
    reserved = _reserve(listen)
    folder = Path(tempfile.mkdtemp(prefix="headgate-"))
    places = tuple((str(one.getsockname()[0]), int(one.getsockname()[1])) for one in reserved)
    host = f"[{listen.host.replace('%', '%25')}]" if ":" in listen.host else listen.host
    scheme = "http" if listen.tls is None else "https"
    try:
        yield Site(folder=folder, where=f"{scheme}://{host}:{places[0][1]}", places=places, workers=workers)
    finally:
        for one in reserved:
            one.close()
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _reserve(listen: ListenConfig) -> list[socket.socket]:
    """Sockets bound to the port, that do not listen: no other program gets it while a worker is started again."""
    reserved: list[socket.socket] = []
    port = listen.port
    try:
        found = socket.getaddrinfo(listen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            reserved.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # While it is bound it does not share the port: one that is taken is an error, as usual.
            one.bind((address[0], port, *address[2:]))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = one.getsockname()[1]
    except OSError as error:
        for one in reserved:
            one.close()
        said = error.strerror or str(error)
        option = "--host" if isinstance(error, socket.gaierror) else "--port"
        raise StartupError(f"can't listen on {listen.host}:{port}: {said}; choose another with {option}") from error
    return reserved


class ProcessTree:
    """The parent's view of its processes."""

    def __init__(self, workers: int, drain_s: float, clock: Clock) -> None:
        self._numbers = range(workers + 1)
        self._patience_s = drain_s + GRACE_S
        self._clock = clock
        self._alive: dict[int, int] = {}
        """Number by process id."""
        self._due: dict[int, float] = {}
        """By number: when to start it again."""
        self._began: dict[int, float] = {}
        self._gone_read, self._gone_write = os.pipe()
        self._ready_read, self._ready_write = os.pipe()
        self._up = False
        """Whether all was up once."""
        self._status = 0
        self._kill_at: float | None = None
        """When those that have not stopped are killed. None: the gateway is not stopping."""

    def run(self) -> Place | None:
        """Keeps the processes running until a signal says to stop. In each child it returns that child's Place; in the
        parent None, at the end. Raises SystemExit with the status of a brain that could not start."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number in self._numbers:
            if (place := self._start(number, first=True)) is not None:
                return place
        while self._alive or self._due:
            told = signal.sigtimedwait(SIGNALS, LOOK_EVERY_S)
            if told is not None and told.si_signo in (signal.SIGTERM, signal.SIGINT):
                self._stop(signal.SIGTERM)
            elif told is not None and told.si_signo == signal.SIGHUP:
                self._tell(BRAIN, signal.SIGHUP)
            self._reap()
            if self._kill_at is not None:
                self._due.clear()
                if self._clock() > self._kill_at:
                    self._stop(signal.SIGKILL)
            for number in [number for number, at in self._due.items() if at <= self._clock()]:
                del self._due[number]
                if (place := self._start(number, first=False)) is not None:
                    return place
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._status:
            raise SystemExit(self._status)
        return None

    def _start(self, number: int, *, first: bool) -> Place | None:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            self._alive[child] = number
            self._began[number] = self._clock()
            return None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent says when to stop
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(self._gone_write)
        return Place(number=number, parent_gone=self._gone_read, ready=self._ready_write, first=first)

    def _reap(self) -> None:
        while self._alive:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            number = self._alive.pop(child, None)
            if number is None or self._kill_at is not None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if code > 0 and not self._was_up():
                self._status = code  # it has said why
                self._stop(signal.SIGKILL)
            else:
                now = self._clock()
                self._due[number] = max(now, self._began[number] + RESTED_S)

    def _was_up(self) -> bool:
        self._up = self._up or bool(select.select([self._ready_read], [], [], 0)[0])
        return self._up

    def _stop(self, how: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = self._clock() + self._patience_s
        for child in self._alive:
            _signal(child, how)

    def _tell(self, number: int, what: signal.Signals) -> None:
        for child, known in self._alive.items():
            if known == number:
                _signal(child, what)


def _signal(child: int, what: signal.Signals) -> None:
    try:
        os.kill(child, what)
    except ProcessLookupError:
        return  # it has ended, and is not reaped yet
