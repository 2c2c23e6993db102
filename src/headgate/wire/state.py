"""Holds what the connections of a server share: limits, places, memory, and whether the server is leaving."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import FIONREAD

from headgate.model.clock import Clock
from headgate.wire.connection import Outbox
from headgate.wire.errors import Headers, refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.limits import WireLimits
from headgate.wire.places import Inbox, Occupant, Places

_TOLD: dict[int, Headers] = {415: (("accept-encoding", "identity"),), 503: (("retry-after", "1"),)}
"""Headers that tell the client what to do, by status."""


def _not_counted(status: int, path: str) -> None:
    """Does nothing: the default of `refused`."""


def _let_pass(exchange: object) -> None:
    """Does nothing: the default judge and greeting."""


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Shared by all connections. Only the server writes `draining` and `leaving`."""

    handler: Handler
    clock: Clock
    limits: WireLimits
    new_id: Callable[[], str]
    loop: asyncio.AbstractEventLoop
    judge: Handler = _let_pass
    """Sees a request whose headers are complete and whose body is not. What it answers (or raises) is the answer; the
    body is then not read."""
    greet: Handler = _let_pass
    """Sees a request whose headers are complete and which is refused before its handler. It answers nothing, and only
    adds headers to the answer, for the browser."""
    refused: Callable[[int, str], None] = _not_counted
    """Hears the status of each refusal that no handler sees, and the path, empty where that is not known."""
    access: Callable[[Exchange], None] | None = None
    """Hears of each request that is answered, or whose client has left; None: there is no access log."""
    always: frozenset[str] = frozenset()
    """Paths that are answered even where every place is taken: health checks."""
    connections: set[Occupant] = field(default_factory=set)
    extras: dict[Occupant, None] = field(default_factory=dict)
    """The connections among them that have no place, oldest first."""
    places: Places = field(default_factory=Places)
    inbox: Inbox = field(default_factory=lambda: Inbox(WireLimits().bodies_bytes))
    draining: bool = False
    """Every answer is the last of its connection, and says so."""
    leaving: bool = False
    """No connection is accepted any more, and a connection without a request is closed."""
    outbox: Outbox = field(default_factory=Outbox)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last connection of a server that is leaving is gone."""

    def seat(self, newcomer: Occupant) -> bool:
        """Adds a connection; returns whether it got a place. Otherwise it is an extra connection, to be told so."""
        placed = len(self.connections) - len(self.extras) < self.limits.max_connections
        if not placed:
            left = self.places.vacate(self.connections, self.loop.time())
            placed = left is not None
            if left is None and self.extras and len(self.extras) >= self.limits.extra_connections:
                left = next(iter(self.extras))
                left.make_way()
            if left is not None:
                self.forget(left)
        self.connections.add(newcomer)
        if not placed:
            self.extras[newcomer] = None
        return placed

    def succeed(self, predecessor: Occupant, successor: Occupant) -> bool:
        """Replaces the object that speaks on a connection. Returns whether the connection has a place."""
        self.connections.discard(predecessor)
        self.connections.add(successor)
        if predecessor not in self.extras:
            return True
        del self.extras[predecessor]
        self.extras[successor] = None
        return False

    def forget(self, connection: Occupant) -> None:
        self.connections.discard(connection)
        self.extras.pop(connection, None)
        if self.leaving and not self.connections:
            self.empty.set()

    def refuse(self, exchange: Exchange, status: int, message: str, code: str | None = None) -> None:
        """Answers what no handler sees."""
        exchange.on_settled = self.access
        self.greet(exchange)
        self.refused(status, exchange.path)
        exchange.respond(status, refusal_body(status, message, code), headers=_TOLD.get(status, ()))

    def full(self) -> str:
        """The message for a connection without a place."""
        return f"too many connections (limits.connections is {self.limits.max_connections}): try again"


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether the socket has input that the loop has not read yet."""
    waiting = bytearray(4)
    try:
        ioctl(transport.get_extra_info("socket").fileno(), FIONREAD, waiting)
    except (OSError, ValueError, AttributeError):
        return False
    return any(waiting)
