"""Represents a TLS connection until its handshake is done: it takes a place, and has the time of a request's headers.

A protocol learns of its TLS connection only after the handshake, so connections that never complete it would not be
counted anywhere. This is uvloop's own TLS layer, and tells the server when the socket is accepted and when it is lost.
"""

import asyncio
import ssl

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]  # its stub leaves it out

from headgate.wire.places import AFTER_IDLE
from headgate.wire.protocol import PARTING_S, ServerProtocol
from headgate.wire.state import ServerState


class TlsOpening(SSLProtocol):  # type: ignore[misc]
    transport: asyncio.Transport

    def __init__(self, server: ServerState, context: ssl.SSLContext) -> None:
        limits = server.limits
        super().__init__(
            server.loop,
            ServerProtocol(server, self),
            context,
            None,
            server_side=True,
            ssl_handshake_timeout=limits.header_timeout_s,
            ssl_shutdown_timeout=limits.flush_timeout_s,
        )
        self._server = server
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._since = self._server.loop.time()
        self._server.seat(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.forget(self)

    # -- an Occupant, until the handshake is done ----------------------------------------------------

    @property
    def busy(self) -> bool:
        return False

    @property
    def spare_since(self) -> float:
        return self._since + AFTER_IDLE

    def make_way(self) -> None:
        self.transport.abort()

    def drain(self) -> None:
        """Aborts in PARTING_S seconds if the handshake is not done by then: the client may still send a request."""
        self._server.loop.call_later(PARTING_S, self._give_up)

    def _give_up(self) -> None:
        if self in self._server.connections:
            self.transport.abort()
