"""Who may connect, and how does it end? The listening side of HTTP/1.1."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import sys
from pathlib import Path

from headgate.model.clock import Clock
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.limits import Limits
from headgate.wire.outbox import Outbox
from headgate.wire.protocol import ServerProtocol, ServerState
from headgate.wire.reader import Ids

__all__ = ["Exchange", "Handler", "HttpServer", "Limits", "ServerProtocol"]

_BACKLOG = 4096
"""A burst must wait in the kernel, not have its SYNs dropped: a retried SYN is a second late."""
_QUEUES = 4 if sys.platform == "linux" else 1
"""Linux bounds a backlog to net.core.somaxconn, by default 4 096; several sockets of one port have one each, and share
what comes. Elsewhere only one of them would get it all."""


class HttpServer:
    """Calls `handler` with each complete request. Built and used within one running loop."""

    def __init__(self, handler: Handler, *, clock: Clock, limits: Limits | None = None) -> None:
        # Unique enough across processes, and free of a random draw per request.
        prefix = os.urandom(5).hex()
        self._state = ServerState(
            handler=handler,
            clock=clock,
            limits=limits or Limits(),
            new_id=Ids(prefix).next,
            loop=asyncio.get_running_loop(),
            outbox=Outbox(asyncio.get_running_loop()),
        )
        self._listeners: list[asyncio.Server] = []
        self._paths: list[Path] = []

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def answering(self) -> int:
        """Connections on which a request is being answered."""
        return sum(connection.busy for connection in self._state.connections)

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """The port listened on, for those who ask for port 0. Raises OSError where that is not possible."""
        # The first socket does not share its port while it is bound: a port that is taken is an error, as ever.
        first = await self._listener(host, port, tls, reuse_port=False)
        for listener in first.sockets if _QUEUES > 1 else ():
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound_to, bound_port = listener.getsockname()[:2]
            for _ in range(_QUEUES - 1):
                await self._listener(bound_to, bound_port, tls, reuse_port=True)
        for server in self._listeners:
            await server.start_serving()
        return int(first.sockets[0].getsockname()[1])

    async def listen_unix(self, path: Path, *, tls: ssl.SSLContext | None = None) -> None:
        """A socket file that nobody serves any more is replaced; one that is served is an OSError."""
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
        server = await self._state.loop.create_unix_server(self._new_connection, path, backlog=_BACKLOG, ssl=tls)
        self._listeners.append(server)
        self._paths.append(path)

    def close_listener(self) -> None:
        for server in self._listeners:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._listeners.clear()
        self._paths.clear()

    async def drain(self, grace_s: float) -> None:
        """Accept nobody, let running exchanges finish for `grace_s`, drop the rest. After it, no
        connection is left and every `on_gone` that was due has been called."""
        self.close_listener()
        state = self._state
        state.draining = True
        for connection in tuple(state.connections):
            connection.drain()
        if not state.connections:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await state.empty.wait()
        for connection in tuple(state.connections):
            connection.transport.abort()
        if state.connections:
            await state.empty.wait()

    async def _listener(self, host: str, port: int, tls: ssl.SSLContext | None, *, reuse_port: bool) -> asyncio.Server:
        server = await self._state.loop.create_server(
            self._new_connection, host, port, backlog=_BACKLOG, ssl=tls, start_serving=False, reuse_port=reuse_port
        )
        self._listeners.append(server)
        for listener in server.sockets:
            # Accepted sockets inherit both, at no cost per connection.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._state.limits.notsent_lowat)
        return server

    def _new_connection(self) -> ServerProtocol:
        return ServerProtocol(self._state)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
