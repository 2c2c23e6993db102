"""Handles one client's connection: the order of answers, its timeouts, and its end.

Requests are answered one at a time, in order. While one is being answered, further input is held unparsed, but the
socket is still read: so the client's leaving is noticed at once.
"""

import asyncio
import logging
import math
from typing import Final, cast

from headgate.model.errors import EngineFailed, ServeError
from headgate.wire.connection import ClientConnection
from headgate.wire.exchange import Exchange, Successor
from headgate.wire.places import AFTER_IDLE, Occupant
from headgate.wire.reader import BODY, HEADERS, IDLE, RequestReader
from headgate.wire.state import ServerState, has_unread

log = logging.getLogger(__name__)

ANSWERING: Final = "answering"
CLOSING: Final = "closing"
PARTING_S: Final = 0.5
"""Seconds for which a connection is still read after our last byte, while the server drains: what its client had sent
before it saw the end must not be met with a reset, which could overtake the answer before."""
STALLED: Final = "stalled"
"""Answers wait to be read: until they are, nothing more is read from the client either, or they would pile up."""


class ServerProtocol(ClientConnection):
    __deletable__ = ("_reader",)
    __slots__ = (
        "_answers",
        "_current",
        "_eof",
        "_extra",
        "_held",
        "_held_at",
        "_later",
        "_opening",
        "_pumping",
        "_reader",
        "_server",
        "_timed",
        "_unread",
    )

    def __init__(self, server: ServerState, opening: Occupant | None = None) -> None:
        """`opening`: the connection until its TLS handshake was done; None: there was none."""
        super().__init__()
        self._server = server
        self._opening = opening
        self._extra = False
        """It has no place: it is answered 503, unless it asks for a health check."""
        self._current: Exchange | None = None
        self._answers = 0
        """Requests handed over since the server began to drain."""
        self._held = bytearray()
        self._held_at = 0.0
        self._pumping = False
        self._later = False
        """The next request in hand has its turn when the loop has looked at other connections."""
        self._eof = False
        """The client sends no more, and still gets its answers."""
        self._timed: str = ANSWERING
        """What the deadline is for: the reader's phase, ANSWERING (none), STALLED, or CLOSING."""
        self._unread = False
        """Whether the client may still be sending input that will be ignored."""

    @property
    def draining(self) -> bool:
        """Whether the current answer is the last one here. Requests in hand are answered first, as many as could be
        pipelined at once."""
        if not self._server.draining:
            return False
        reader = self._reader
        more = bool(reader.ready) or (bool(self._held) and not reader.exhausted)
        return not more or self._answers >= self._server.limits.pipelined

    @property
    def busy(self) -> bool:
        return self._current is not None or self._later

    @property
    def spare_since(self) -> float:
        if self._extra or self._timed is ANSWERING:
            return math.inf
        return self._since if self._timed is IDLE else self._since + AFTER_IDLE

    # -- called by the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        limits = server.limits
        self._begin(cast(asyncio.Transport, transport), server.loop, server.outbox, server.inbox)
        self._high_water = limits.write_high_water
        self.transport.set_write_buffer_limits(high=self._high_water)
        self._reader = RequestReader(self, limits, server.new_id)
        opening, self._opening = self._opening, None
        self._extra = not (server.seat(self) if opening is None else server.succeed(opening, self))
        self._await_input()

    def data_received(self, data: bytes) -> None:
        if self._timed is CLOSING:
            return
        if self._current is not None or self._later:
            self._hold(self._current, data)
            return
        self._reader.feed(data, self._server.clock())
        self._pump()

    def eof_received(self) -> bool:
        """Returns whether the connection stays open."""
        # Clients that shut down only their sending side and still wait are rare; clients that closed while we compute
        # an answer are not, and close() would first wait for them to read what is unsent.
        if self._current is not None:
            self.transport.abort()
        elif self._later and self.transport.can_write_eof():
            self._eof = True
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._timed = CLOSING
        self._stop_timer()
        self._held.clear()
        self._note(0)
        self._reader.close()
        del self._reader  # it refers to this object: only the garbage collector could free the two
        self._server.forget(self)
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.lost()

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

    def answered(self, keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self._close()
        elif not self._pumping:
            self._pump()  # also while draining: its client has not been told, so it may send one more request

    def switch(self, head: bytes, successor: Successor, last: bool) -> bool:
        reader, server = self._reader, self._server
        more = reader.ready or self._held or (reader.exhausted and not last)
        if more or reader.refusal is not None or reader.phase is not IDLE:
            return False
        self._current = None
        self._timed = CLOSING
        self._stop_timer()
        self._said.append(head)
        self.flush()
        self._read_on()
        self._reader.close()
        del self._reader
        server.succeed(self, successor)
        self.transport.set_protocol(cast(asyncio.Protocol, successor))
        successor.take_over(server, self.transport, self.writable)
        return True

    def drain(self) -> None:
        """Leaves as soon as no request is under way, nor on its way as far as can be known."""
        if self._timed is not IDLE:
            return
        # Since when no request has come; on a new connection the first one is about to come.
        quiet_s = self._loop.time() - self._since
        if has_unread(self.transport):
            quiet_s = 0.0
        if quiet_s < PARTING_S:
            self._expire_in(PARTING_S - quiet_s)
        else:
            self._close()

    def make_way(self) -> None:
        """Leaves for a newcomer, which has the place at once."""
        if self._timed is HEADERS or self._timed is BODY:
            self._refuse(503, self._server.full())
            self.transport.close()
            self._loop.call_later(PARTING_S, self.transport.abort)
        else:
            self.transport.abort()

    def shed(self) -> None:
        """Called by the inbox: the bytes of an incomplete request take memory that other clients need."""
        if self._current is not None or self._later:
            self._overrun(self._current)
        else:
            most = f"limits.bodies_bytes is {self._server.limits.bodies_bytes}"
            self._refuse(503, f"bodies that arrive slowly take too much memory ({most}): try again", "too_many_bodies")

    # -- one request after the other ---------------------------------------------------------------

    def _pump(self) -> None:
        """Hands over all requests that have been read, as far as each is answered at once; then waits for more. Between
        two requests the loop looks at other connections: each request may take milliseconds."""
        reader = self._reader
        self._pumping = True
        while self._current is None and self._timed is not CLOSING:
            if not self.writable:
                self._stall()
                break
            if reader.ready:
                self._hand_over(reader.ready.popleft())
                if self.busy:
                    if self._eof:
                        self.transport.abort()
                elif (reader.ready or self._held) and self._timed is not CLOSING:
                    self._later = True
                    self._loop.call_soon(self._go_on)
                    break
            elif reader.refusal is not None:
                self._refuse(*reader.refusal)
            elif reader.exhausted:
                self._unread = True
                self._close()
            elif self._held:
                data = bytes(self._held)
                self._held.clear()
                reader.feed(data, self._held_at)
            elif self._eof:
                self._close()
            else:
                self._await_input()
                break
        self._pumping = False

    def _go_on(self) -> None:
        self._later = False
        if self._timed is not CLOSING:
            self._pump()

    def _stall(self) -> None:
        if self._timed is not STALLED:
            self._timed = STALLED
            self._expire_in(self._server.limits.flush_timeout_s)
        self._pause()

    def _hand_over(self, exchange: Exchange) -> None:
        self._current = exchange
        exchange.on_settled = self._server.access
        self._answers += self._server.draining
        self._timed = ANSWERING
        self._deadline = math.inf
        if self._noted:
            self._note(len(self._held))
        if self._extra and not self._may_stay(exchange):
            return
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

    def _hold(self, exchange: Exchange | None, data: bytes) -> None:
        if self._reader.exhausted or self._reader.refusal is not None:
            return
        if not self._held:
            self._held_at = self._server.clock()
        self._held += data
        if len(self._held) > self._server.limits.held_bytes:
            self._overrun(exchange)
        else:
            self._note(len(self._held))

    def _overrun(self, exchange: Exchange | None) -> None:
        """Drops what has come behind the current request, if there is one, because it is too much: none of it will be
        answered."""
        self._held.clear()
        self._note(0)
        self._unread = True
        self._reader.exhausted = True
        if exchange is not None and not self._reader.ready and not exchange.started:
            exchange.keep_alive = False

    def _await_input(self) -> None:
        reader = self._reader
        self._read_on()
        phase = reader.phase
        if phase is not self._timed:
            if phase is BODY and not self._may_send(reader.exchange):
                return
            self._timed = phase
            limits = self._server.limits
            if phase is IDLE:
                quiet_s = limits.linger_s if self._extra else limits.idle_timeout_s
                self._expire_in(PARTING_S if self._server.leaving else quiet_s)
            else:
                self._expire_in(limits.header_timeout_s if phase is HEADERS else limits.body_timeout_s)
        if reader.wants_continue:
            reader.wants_continue = False
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        sink = reader.exchange.sink if phase is BODY else None
        if sink is not None:
            limits = self._server.limits
            self._keep_pace(sink, reader.received, limits.upload_pace_bytes, limits.body_timeout_s)
        elif phase is BODY or self._noted:
            self._note(reader.received if phase is BODY else 0)

    def _may_send(self, exchange: Exchange) -> bool:
        """Whether its body is read: a request that is refused whatever its body says is refused before that."""
        if self._extra and not self._may_stay(exchange):
            return False
        keep_alive = exchange.keep_alive
        exchange.keep_alive = False
        exchange.on_settled = self._server.access
        self._unread = True
        try:
            self._server.judge(exchange)
        except Exception as error:
            self._fail(exchange, error)
        if exchange.done:
            return False
        exchange.keep_alive = keep_alive
        self._unread = False
        self._diverted = 0
        if exchange.sink is not None:
            self._reader.divert()
        return True

    def _may_stay(self, exchange: Exchange) -> bool:
        """Whether a connection without a place is answered all the same, once."""
        exchange.keep_alive = False
        if exchange.path in self._server.always:
            return True
        self._unread = True
        self._server.refuse(exchange, 503, self._server.full())
        return False

    # -- the end -----------------------------------------------------------------------------------

    def _refuse(self, status: int, message: str, code: str | None = None) -> None:
        """Answers input that is not a request."""
        self._unread = True
        exchange = Exchange(self, self._server.clock())
        exchange.request_id = self._server.new_id()
        reader = self._reader
        if reader.phase is not IDLE:  # the headers that have come say which page may read this answer
            exchange.path, exchange.headers = reader.path, reader.exchange.headers
        self._server.refuse(exchange, status, message, code)

    def _close(self) -> None:
        self._timed = CLOSING
        self.flush()
        self._held.clear()
        self._reader.let_go()
        self._note(0)
        limits = self._server.limits
        if self._unread or (self._server.draining and self.transport.can_write_eof()):
            # Closing with input unread sends a reset, which can overtake the answer: signal that we are done, and let
            # the client finish sending.
            self._read_on()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._expire_in(limits.linger_s if self._unread else self._parting_s())
            return
        self.transport.close()
        if self.transport.get_write_buffer_size() > 0:
            self._expire_in(limits.flush_timeout_s)

    def _parting_s(self) -> float:
        """Seconds to wait at the end: longer while the client has not read an answer, which is still written."""
        unsent = self.transport.get_write_buffer_size() > 0
        return self._server.limits.flush_timeout_s if unsent else PARTING_S

    def _expired(self) -> None:
        if self._timed is IDLE:
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
