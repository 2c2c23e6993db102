"""Listens for HTTP/1.1 connections, and ends them in order."""

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.model.clock import Clock
from headgate.wire.connection import Outbox
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.limits import WireLimits
from headgate.wire.opening import TlsOpening
from headgate.wire.places import Inbox
from headgate.wire.protocol import PARTING_S, ServerProtocol
from headgate.wire.reader import Ids
from headgate.wire.state import ServerState

__all__ = ["Exchange", "Handler", "HttpServer", "ServerProtocol", "WireLimits"]

_BACKLOG = 4096
"""A burst must wait in the kernel, not have its SYNs dropped: a retried SYN is a second late."""
_QUEUES = 4 if sys.platform == "linux" else 1
"""Listening sockets per port. Linux bounds a backlog to net.core.somaxconn, by default 4 096; several sockets of one
port have a backlog each, and share the connections. Elsewhere only one of them would get all connections."""


_LOOK_S = 0.01
_LOOKS = 50
"""Seconds between looks for connections that wait to be accepted, and the number of looks."""
_SO_ATTACH_FILTER = 26
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF))
"""A socket filter, in the kernel's classic BPF: load the TCP flags; if it is a SYN, drop it; else take it."""


class HttpServer:
    """Calls `handler` with each complete request. Built and used within one running loop."""

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Clock,
        limits: WireLimits | None = None,
        judge: Handler | None = None,
        greet: Handler | None = None,
        refused: Callable[[int, str], None] | None = None,
        access: Callable[[Exchange], None] | None = None,
        always: frozenset[str] = frozenset(),
    ) -> None:
        """`judge`, `greet`, `refused`, `access`, `always`: see ServerState; None: every body is read."""
        # Unique enough across processes, and free of a random draw per request.
        prefix = os.urandom(5).hex()
        limits = limits or WireLimits()
        self._state = ServerState(
            handler=handler,
            clock=clock,
            limits=limits,
            new_id=Ids(prefix).next,
            loop=asyncio.get_running_loop(),
            access=access,
            always=always,
            inbox=Inbox(limits.bodies_bytes),
            outbox=Outbox(asyncio.get_running_loop()),
        )
        if judge is not None:
            self._state.judge = judge
        if greet is not None:
            self._state.greet = greet
        if refused is not None:
            self._state.refused = refused
        self._listeners: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._tls = False

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def receiving(self) -> int:
        """Bytes that have arrived and are not handed over yet."""
        return self._state.inbox.total

    @property
    def answering(self) -> int:
        """Connections on which a request is being answered."""
        return sum(connection.busy for connection in self._state.connections)

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Returns the port listened on, for callers that ask for port 0. Raises OSError where that is not possible."""
        self._tls = self._tls or tls is not None
        # The first socket does not share its port while it is bound: a port that is taken is an error, as usual.
        first = await self._listener(host, port, tls, reuse_port=False)
        for listener in first.sockets if _QUEUES > 1 else ():
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound_to, bound_port = listener.getsockname()[:2]
            for _ in range(_QUEUES - 1):
                await self._listener(bound_to, bound_port, tls, reuse_port=True)
        for server in self._listeners:
            await server.start_serving()
        return int(first.sockets[0].getsockname()[1])

    async def listen_shared(
        self, places: Sequence[tuple[str, int]], queues: int, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listens at these addresses and ports together with other processes of this user, which share the
        connections. `queues`: listening sockets for each."""
        self._tls = self._tls or tls is not None
        for host, port in places:
            for _ in range(queues):
                await self._listener(host, port, tls, reuse_port=True)
        for server in self._listeners:
            await server.start_serving()

    async def listen_unix(self, path: Path, *, mode: int = 0o600, tls: ssl.SSLContext | None = None) -> None:
        """Listens on a Unix socket. A socket file that no process serves any more is replaced; one that is served, or
        another kind of file, is an OSError. `mode`: the file's permissions, which say who may connect."""
        self._tls = self._tls or tls is not None
        listener = _bound_to(path, mode)
        try:
            server = await self._state.loop.create_unix_server(self._protocol(tls), sock=listener, backlog=_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._listeners.append(server)
        self._paths.append(path)

    def close_listener(self) -> None:
        for server in self._listeners:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._listeners.clear()
        self._paths.clear()

    def say_close(self) -> None:
        """Makes every answer from now on the last of its connection, and lets it say so. New connections are still
        accepted, and idle ones stay: a client that uses one gets its answer, and with it the news."""
        self._state.draining = True

    async def leave(self, grace_s: float) -> None:
        """Accepts no new connection, closes idle ones, and lets every request on the others be answered, for at most
        `grace_s` seconds. Drops no client."""
        state = self._state
        state.draining = True
        if grace_s > 0 and self._listeners:
            await self._accept_the_last()
        self.close_listener()
        state.leaving = True
        for connection in tuple(state.connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._until_empty()

    async def drain(self, grace_s: float) -> None:
        """The same, and then drops the rest. Afterwards no connection is left, and every `on_gone` that was due has
        been called."""
        await self.leave(grace_s)
        state = self._state
        while state.connections:
            for connection in tuple(state.connections):
                connection.transport.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING_S):
                    await self._until_empty()

    async def _until_empty(self) -> None:
        state = self._state
        while state.connections:
            state.empty.clear()
            await state.empty.wait()

    async def _accept_the_last(self) -> None:
        """Accepts the connections that the kernel has made already: when the listener closes, it would reset them. No
        more are made meanwhile."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        listening = [listener for server in self._listeners for listener in server.sockets]
        for listener in listening:
            _make_no_more(listener)
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            if not any(map(_unaccepted, listening)):
                break
        if self._tls:  # time for handshakes that are under way
            await asyncio.sleep(PARTING_S)

    async def _listener(self, host: str, port: int, tls: ssl.SSLContext | None, *, reuse_port: bool) -> asyncio.Server:
        server = await self._state.loop.create_server(
            self._protocol(tls), host, port, backlog=_BACKLOG, start_serving=False, reuse_port=reuse_port
        )
        self._listeners.append(server)
        for listener in server.sockets:
            # Accepted sockets inherit both, at no cost per connection.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._state.limits.notsent_lowat)
        return server

    def _protocol(self, tls: ssl.SSLContext | None) -> Callable[[], asyncio.Protocol]:
        state = self._state
        if tls is None:
            return lambda: ServerProtocol(state)
        return lambda: TlsOpening(state, tls)


def _make_no_more(listener: socket.socket) -> None:
    """Stops the kernel from making further connections; a client tries again a second later, and is then refused."""
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return
    code = b"".join(struct.pack("HBBI", *line) for line in _NO_SYN)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(_NO_SYN), ctypes.addressof(kept))
    with contextlib.suppress(OSError):  # where that is forbidden, a few connections may be reset
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _unaccepted(listener: socket.socket) -> int:
    """Connections that are made and not accepted yet; 0 where that can't be known."""
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return 0
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    except OSError:
        return 0
    return int(struct.unpack_from("I", info, 24)[0])  # tcpi_unacked: for a listener, its backlog


def _bound_to(path: Path, mode: int) -> socket.socket:
    if _is_served(path) or (path.exists() and not path.is_socket()):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(mode)  # no client can connect before it listens
    except BaseException:
        listener.close()
        raise
    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
