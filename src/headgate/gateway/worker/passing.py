"""Passes a client's request on to the brain, byte for byte, and the answer back: all paths but completions.

The page, figures, health, the admin API and lists of models are the brain's, which answers each request of these with
`connection: close`: a client that asks for a completion afterwards comes to a worker again.
"""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final

from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.state import ServerState

log = logging.getLogger(__name__)

MOST_AHEAD_BYTES: Final = 256 * 1024
"""Bytes that a client may send while the brain is being reached; then it is not read."""
LIVE: Final = "/admin/live"
"""The path whose answer does not end by itself."""
NO_BRAIN: Final = "the process that answers this is being started again; try again"
HOP: Final = ("connection", "keep-alive", "expect", "transfer-encoding", "content-length", "proxy-connection", "te")
"""Headers that are of the client's connection or framing, which is not the one to the brain."""


class PassingOn:
    """A handler that gives every request to the brain."""

    def __init__(self, path: Path) -> None:
        """`path`: where the brain answers HTTP."""
        self._path = path
        self.open_now = 0
        """Requests that are passed on and not answered yet."""

    def closed(self) -> None:
        self.open_now -= 1

    def __call__(self, exchange: Exchange) -> None:
        pipe = Pipe(self._path, request_bytes(exchange), exchange.path == LIVE, self.closed)
        settled, exchange.on_settled = exchange.on_settled, None  # the brain logs the access, whose status it knows
        if not exchange.switch(b"", pipe, last=True):
            exchange.on_settled = settled
            message = "send one request at a time on a connection that asks for more than completions"
            exchange.respond(400, refusal_body(400, message))
        else:
            self.open_now += 1


def request_bytes(exchange: Exchange) -> bytes:
    """The request as the client sent it, but for its framing."""
    target = f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path
    version = "1.0" if exchange.http10 else "1.1"
    lines = [f"{exchange.method} {target} HTTP/{version}"]
    lines += [f"{name}: {value}" for name, value in exchange.headers.items() if name not in HOP]
    if exchange.body or exchange.method == "POST":
        lines.append(f"content-length: {len(exchange.body)}")
    lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + exchange.body


class Pipe(asyncio.Protocol):
    """A client's connection, joined to one of the brain's. An Occupant of the worker's server."""

    transport: asyncio.Transport

    def __init__(self, path: Path, request: bytes, endless: bool, closed: Callable[[], None]) -> None:
        """`endless`: the answer does not end by itself. `closed`: hears when the client is gone."""
        self._closed = closed
        self._path = path
        self._request = request
        self._endless = endless
        self._server: ServerState | None = None
        self._brain: asyncio.Transport | None = None
        """None: not reached yet, or left already."""
        self._task: asyncio.Task[Any] | None = None
        self._answered = False
        """Whether the client got any of the answer."""
        self._over = False

    def take_over(self, server: Any, transport: asyncio.Transport, writable: bool) -> None:
        self._server = server
        self.transport = transport
        transport.pause_reading()
        self._task = server.loop.create_task(self._reach(server.loop))

    async def _reach(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            transport, _ = await loop.create_unix_connection(lambda: BrainSide(self), str(self._path))
        except OSError:
            self._refuse()
            return
        if self._over:
            transport.abort()
            return
        self._brain = transport
        transport.write(self._request)
        self._request = b""
        self.transport.resume_reading()

    def _refuse(self) -> None:
        body = refusal_body(503, NO_BRAIN, "not_ready")
        if not self._over and not self._answered:
            head = (
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self.transport.close()

    # -- the client's side -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._brain is not None:
            self._brain.write(data)
            if self._brain.get_write_buffer_size() > MOST_AHEAD_BYTES:
                self.transport.abort()  # the brain reads nothing after a request that it has

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._brain is not None:
            self._brain.pause_reading()

    def resume_writing(self) -> None:
        if self._brain is not None:
            self._brain.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._brain is not None:
            self._brain.abort()
            self._brain = None
        if self._server is not None:
            self._server.forget(self)
        self._closed()

    # -- the brain's side ------------------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        self._answered = True
        if not self._over:
            self.transport.write(data)

    def hung_up(self) -> None:
        """The brain has closed: its answer is complete, or it is gone."""
        self._brain = None
        if self._answered:
            self._close()
        else:
            self._refuse()

    # -- an Occupant -----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return True

    @property
    def spare_since(self) -> float:
        return inf

    def make_way(self) -> None:
        self.transport.abort()

    def drain(self) -> None:
        """Leaves when the answer is complete; at once, if it has no end."""
        if self._endless:
            self._close()


class BrainSide(asyncio.Protocol):
    """The connection to the brain, of one Pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def data_received(self, data: bytes) -> None:
        self._pipe.heard(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe.hung_up()
