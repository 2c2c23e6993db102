"""One client's connection: who is answered next, when is it too late, when does it end?

Requests are answered one at a time, in order. While one is being answered, what else arrives is held
unparsed, but the socket is still read: that is how the client's leaving is noticed at once.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import FIONREAD
from typing import Final, cast

from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, ServeError
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler, Successor
from headgate.wire.limits import Limits
from headgate.wire.outbox import Outbox
from headgate.wire.reader import HEADERS, IDLE, RequestReader

log = logging.getLogger(__name__)

ANSWERING: Final = "answering"
CLOSING: Final = "closing"
PARTING_S: Final = 0.5
"""How long a connection is still read after our last byte, while the server drains: what its client had sent before it
saw the end must not be met with a reset, which could overtake the answer before."""
STALLED: Final = "stalled"
"""Answers wait to be read: until they are, nothing more is read of the client either, or they would pile up."""
_REFUSED_AT_ONCE: Final = 256
"""Clients beyond max_connections that are told so at the same time; any more are just dropped."""


@dataclass(slots=True, kw_only=True)
class ServerState:
    """What the connections of a server share. Only the server writes `draining` and `leaving`."""

    handler: Handler
    clock: Clock
    limits: Limits
    new_id: Callable[[], str]
    loop: asyncio.AbstractEventLoop
    connections: set["ServerProtocol | Successor"] = field(default_factory=set)
    draining: bool = False
    """Every answer is the last of its connection, and says so."""
    leaving: bool = False
    """Nobody is accepted any more: a connection on which nothing is asked is closed."""
    outbox: Outbox = field(default_factory=Outbox)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last connection of a server that is leaving is gone."""

    def forget(self, connection: "ServerProtocol | Successor") -> None:
        self.connections.discard(connection)
        if self.leaving and not self.connections:
            self.empty.set()


class ServerProtocol(asyncio.Protocol):
    __deletable__ = ("_reader",)
    __slots__ = (
        "_answers",
        "_current",
        "_deadline",
        "_held",
        "_held_at",
        "_pumping",
        "_reader",
        "_reading",
        "_said",
        "_said_bytes",
        "_server",
        "_timed",
        "_timer",
        "_timer_at",
        "_unread",
        "transport",
        "writable",
    )
    transport: asyncio.Transport

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._current: Exchange | None = None
        self._answers = 0
        """Since the server began to drain."""
        self._said: list[bytes] = []
        """To be written when the loop has looked at all that has come in."""
        self._said_bytes = 0
        self._held = bytearray()
        self._held_at = 0.0
        self._pumping = False
        self._reading = True
        self._timed: str = ANSWERING
        """What the deadline is for: the reader's phase, ANSWERING (none), STALLED, or CLOSING."""
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._unread = False
        """Whether the client may still be sending something that nobody will look at."""
        self.writable = True

    @property
    def draining(self) -> bool:
        """Whether the answer that is given now is the last one here. Requests that are in hand already are answered
        first, as many as could be pipelined at once."""
        if not self._server.draining:
            return False
        reader = self._reader
        more = bool(reader.ready) or (bool(self._held) and not reader.exhausted)
        return not more or self._answers >= self._server.limits.pipelined

    @property
    def busy(self) -> bool:
        return self._current is not None

    # -- called by the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        limits = server.limits
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=limits.write_high_water)
        self._reader = RequestReader(self, limits, server.new_id)
        server.connections.add(self)
        excess = len(server.connections) - limits.max_connections
        if excess > _REFUSED_AT_ONCE:
            self.transport.abort()
        elif excess > 0:
            self._refuse(503, "too many connections")
        else:
            self._await_input()

    def data_received(self, data: bytes) -> None:
        if self._timed is CLOSING:
            return
        if self._current is not None:
            self._hold(data)
            return
        self._reader.feed(data, self._server.clock())
        self._pump()

    def eof_received(self) -> None:
        # Clients that shut down only their sending side and still wait are rare; those that closed while
        # we compute an answer are not, and close() would first wait for them to read what is unsent.
        if self._current is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timed = CLOSING
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
        self._reader.close()
        del self._reader  # it refers to us: only the garbage collector could free the two
        self._server.forget(self)
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.lost()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        exchange = self._current
        if self._timed is STALLED:
            self._timed = ANSWERING
            self._pump()
            return
        if exchange is not None and exchange.on_writable is not None:
            try:
                exchange.on_writable()
            except Exception as error:
                self._fail(exchange, error)

    # -- called by the server and the exchange -----------------------------------------------------

    def send(self, data: bytes) -> None:
        self._said.append(data)
        self._said_bytes += len(data)
        if self._said_bytes > self._server.limits.write_high_water:
            self.flush()  # so much is not held back: only the transport knows whether the client keeps up
        elif len(self._said) == 1:
            self._server.outbox.add(self)

    def flush(self) -> None:
        said = self._said
        if said:
            self._said = []
            self._said_bytes = 0
            if not self.transport.is_closing():
                self.transport.write(said[0] if len(said) == 1 else b"".join(said))

    def answered(self, keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self._close()
        elif not self._pumping:
            self._pump()  # also while draining: its client has not been told, so it may ask once more

    def switch(self, head: bytes, successor: Successor) -> bool:
        reader, server = self._reader, self._server
        if reader.ready or reader.exhausted or reader.refusal is not None or reader.phase is not IDLE or self._held:
            return False
        self._current = None
        self._timed = CLOSING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._said.append(head)
        self.flush()
        self._read_on()
        self._reader.close()
        del self._reader
        server.connections.discard(self)
        server.connections.add(successor)
        self.transport.set_protocol(cast(asyncio.Protocol, successor))
        successor.take_over(server, self.transport, self.writable)
        return True

    def drain(self) -> None:
        """Leave as soon as no request is under way, nor on its way as far as can be known."""
        if self._timed is not IDLE:
            return
        # Since when nothing is asked, by its deadline; one on which nothing was asked yet is about to be.
        quiet_s = self._server.limits.idle_timeout_s - (self._deadline - self._server.loop.time())
        if self._has_unread():
            quiet_s = 0.0
        if quiet_s < PARTING_S:
            self._expire_in(PARTING_S - quiet_s)
        else:
            self._close()

    def _has_unread(self) -> bool:
        """Whether something has come that the loop has not looked at yet."""
        waiting = bytearray(4)
        try:
            ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, waiting)
        except (OSError, ValueError, AttributeError):
            return False
        return any(waiting)

    # -- one request after the other ---------------------------------------------------------------

    def _pump(self) -> None:
        """Hand over all that has been read, as far as it is answered at once; then wait for more."""
        reader = self._reader
        self._pumping = True
        while self._current is None and self._timed is not CLOSING:
            if not self.writable:
                self._stall()
                break
            if reader.ready:
                self._hand_over(reader.ready.popleft())
            elif reader.refusal is not None:
                self._refuse(*reader.refusal)
            elif reader.exhausted:
                self._unread = True
                self._close()
            elif self._held:
                data = bytes(self._held)
                self._held.clear()
                reader.feed(data, self._held_at)
            else:
                self._await_input()
                break
        self._pumping = False

    def _stall(self) -> None:
        if self._timed is not STALLED:
            self._timed = STALLED
            self._expire_in(self._server.limits.flush_timeout_s)
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _hand_over(self, exchange: Exchange) -> None:
        self._current = exchange
        self._answers += self._server.draining
        self._timed = ANSWERING
        self._deadline = math.inf
        try:
            self._server.handler(exchange)
        except Exception as error:
            self._fail(exchange, error)

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, ServeError):
            exchange.fail(error)
        else:
            log.error("request %s: the handler failed", exchange.request_id, exc_info=error)
            exchange.fail(EngineFailed("internal error"))

    def _hold(self, data: bytes) -> None:
        if self._reader.exhausted or self._reader.refusal is not None:
            return
        if not self._held:
            self._held_at = self._server.clock()
        self._held += data
        if len(self._held) > self._server.limits.held_bytes and self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _await_input(self) -> None:
        reader = self._reader
        self._read_on()
        if reader.wants_continue:
            reader.wants_continue = False
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if reader.phase is not self._timed:
            self._timed = reader.phase
            limits = self._server.limits
            if reader.phase is IDLE:
                self._expire_in(PARTING_S if self._server.leaving else limits.idle_timeout_s)
            else:
                self._expire_in(limits.header_timeout_s if reader.phase is HEADERS else limits.body_timeout_s)

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    # -- the end -----------------------------------------------------------------------------------

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is not a request."""
        self._unread = True
        exchange = Exchange(self, self._server.clock())
        exchange.request_id = self._server.new_id()
        exchange.respond(status, refusal_body(status, message))

    def _close(self) -> None:
        self._timed = CLOSING
        self.flush()
        self._held.clear()
        limits = self._server.limits
        if self._unread or (self._server.draining and self.transport.can_write_eof()):
            # Closing with input unread sends a reset, which can overtake the answer: say that we are
            # done, and let the client finish talking.
            self._read_on()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._expire_in(limits.linger_s if self._unread else self._parting_s())
            return
        self.transport.close()
        if self.transport.get_write_buffer_size() > 0:
            self._expire_in(limits.flush_timeout_s)

    def _parting_s(self) -> float:
        """An answer that the client has not read yet is still written."""
        unsent = self.transport.get_write_buffer_size() > 0
        return self._server.limits.flush_timeout_s if unsent else PARTING_S

    # -- one timer ---------------------------------------------------------------------------------

    def _expire_in(self, seconds: float) -> None:
        """Setting a later deadline only notes it; the timer looks again when it goes off. A busy
        connection so touches the loop's timers once in an idle timeout, not twice a request."""
        loop = self._server.loop
        self._deadline = loop.time() + seconds
        if self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_at = self._deadline
        self._timer = self._server.loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        if self._deadline > self._server.loop.time():
            if self._deadline < math.inf:
                self._set_timer()
        elif self._timed is IDLE:
            self._close()
        elif self._timed is CLOSING or self._timed is STALLED:
            self._hang_up()
        else:
            self._refuse(408, f"the request's {self._timed} did not arrive in time")

    def _hang_up(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            self.transport.close()
