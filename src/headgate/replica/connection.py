"""Implements one connection to a replica: writes requests and parses their answers.

A connection carries one call at a time. What the parser finds in a read is collected, and delivered when the parser has
returned: the listener may then do as it likes, even cancel, and its mistakes are not taken for malformed HTTP.
"""

import asyncio
import socket
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed
from headgate.replica.call import Call, Listener, PoolLimits, give_up
from headgate.replica.sse import EventSplitter
from headgate.wire.connection import Outbox

__all__ = ["Call", "Connection", "Listener", "PoolLimits"]

_READ: Final = {
    written: name.lower()
    for name in ("Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Date", "Server", "X-Request-Id")
    for written in (name.encode(), name.lower().encode())
}
"""Header names as they usually arrive → as they are kept."""
MOST_HEADERS: Final = 512
"""Maximum header lines before an answer's body."""
INTERIM_LINES: Final = 16
"""Header lines that an interim answer (1xx) counts as."""
_JOINED: Final = 16 * 1024
"""Largest body, in bytes, that is copied behind its head: one buffer is written faster than three, up to a point."""


class Home(Protocol):
    """The `Connections` that a connection belongs to, as the connection uses it."""

    url: str
    clock: Clock
    limits: PoolLimits
    outbox: Outbox
    secrets: tuple[bytes, ...]
    denials: int

    def opened(self, connection: "Connection") -> None: ...
    def lost(self, connection: "Connection") -> None: ...

    def keep(self, connection: "Connection") -> bool:
        """Whether it is kept for the next call."""

    def try_again(self, call: Call) -> bool:
        """Whether the call is sent once more, on a fresh connection."""


class Connection(asyncio.Protocol):
    __deletable__ = ("_parser",)
    __slots__ = (
        "_asked",
        "_body",
        "_body_bytes",
        "_call",
        "_chunks",
        "_complete",
        "_headers",
        "_home",
        "_keep_alive",
        "_lines",
        "_parser",
        "_paused",
        "_splitter",
        "_status",
        "_told_head",
        "_unaccounted",
        "_used",
        "idle_since",
        "transport",
    )
    transport: asyncio.Transport

    def __init__(self, home: Home) -> None:
        self._home = home
        self._call: Call | None = None
        self._asked = b""
        """A request to write when the loop has handled all that has come in."""
        self._used = False
        """Whether an earlier call was answered on it."""
        self._paused = False
        self.idle_since: float | None = None
        """Since when it is idle, on the clock of `Connections`; None: it is not kept there."""

    # -- called by Connections and the call ------------------------------------------------------------

    def begin(self, call: Call) -> None:
        self._call = call
        call.connection = self
        self._headers: dict[str, str] = {}
        self._status = 0
        """0 until the headers are complete."""
        self._told_head = self._complete = self._keep_alive = False
        self._splitter: EventSplitter | None = None
        """Splits a stream into events; None: the body is collected whole."""
        self._chunks: list[bytes] = []
        self._body: list[bytes] = []
        self._body_bytes = self._unaccounted = self._lines = 0
        call.sent_at = self._home.clock()
        call.sends += 1
        length = b"content-length: %d\r\n\r\n" % len(call.body)
        if len(call.body) <= _JOINED:
            self._asked = call.head + length + call.body
            self._home.outbox.add(self)
        else:
            self.transport.writelines((call.head, length, call.body))

    def flush(self) -> None:
        asked, self._asked = self._asked, b""
        if asked and not self.transport.is_closing():
            self.transport.write(asked)

    def look(self, now: float) -> None:
        """Tells the listener of a late call, and closes a connection that has been idle too long."""
        call = self._call
        if call is not None:
            if call.late_at <= now and (listener := call.listener) is not None:
                try:
                    listener.on_late()
                except Exception as flaw:
                    self._give_up(call, listener, flaw)
        elif self.idle_since is not None and now - self.idle_since >= self._home.limits.idle_timeout_s:
            self.transport.close()

    def drop(self) -> None:
        self._call = None
        self.transport.abort()

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    # -- called by the loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._home.opened(self)

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self.transport.abort()  # unasked: it would be taken for the answer to the next request
            return
        if call.first_byte_at is None:
            call.first_byte_at = self._home.clock()
        call.received += len(data)
        # Bytes since the last header block or piece of body: llhttp would accept a header without end.
        self._unaccounted += len(data)
        error: ReplicaFailed | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as flaw:
            self._keep_alive = False
            if not self._complete:
                error = ReplicaFailed(f"the replica sent malformed HTTP: {flaw!r}")
        else:
            if self._unaccounted > self._home.limits.header_bytes:
                error = ReplicaFailed("the replica sent headers without end")
        self._tell(call, error)

    def connection_lost(self, exc: Exception | None) -> None:
        home, call = self._home, self._call
        home.lost(self)
        del self._parser  # it refers to this object: only the garbage collector could free the two
        if call is None:
            return
        if exc is None and self._status and self._ends_with_connection():
            self._complete = True
            self._tell(call, None)
        elif self._used and call.first_byte_at is None and home.try_again(call):
            self._call = None
        else:
            self._call = None
            why = f": {exc}" if exc is not None and str(exc) else ""
            call.fail(ReplicaFailed(f"the replica closed the connection before its answer was complete{why}"))

    # -- called by the parser ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("a second answer to one request")  # the only way to make llhttp stop

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # a trailer
        self._lines += 1
        if self._lines > MOST_HEADERS:
            raise ValueError("more headers than any answer has")  # the only way to make llhttp stop
        key = _READ.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._unaccounted = 0
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and the like: the answer is still to come
            self._headers = {}
            self._lines += INTERIM_LINES
            if self._lines > MOST_HEADERS:
                raise ValueError("no answer after so many that are only announced")
        else:
            self._status = status
            if status == 401 or status == 403:
                self._home.denials += 1

    def on_body(self, data: bytes) -> None:
        self._unaccounted = 0
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()

    # -- told to the listener ----------------------------------------------------------------------------

    def _tell(self, call: Call, error: ReplicaFailed | None) -> None:
        """Delivers all that is new, unless the call is cancelled meanwhile."""
        listener = call.listener
        if listener is not None:
            try:
                self._tell_all(call, listener, error)
            except Exception as flaw:
                self._give_up(call, listener, flaw)

    def _give_up(self, call: Call, listener: Listener, flaw: Exception) -> None:
        """Ends a call whose listener raised. If the call was complete, the connection may carry another one by now."""
        if self._call is call:
            self.drop()
        call.end()
        give_up(listener, flaw)

    def _tell_all(self, call: Call, listener: Listener, error: ReplicaFailed | None) -> None:
        if self._status and not self._told_head:
            self._told_head = True
            error = self._judge_head() or error
            listener.on_head(self._status, self._headers, self._splitter is not None)
        chunks = self._chunks
        if chunks and self._call is call:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            if self._splitter is None:
                error = self._collect(data) or error
            else:
                try:
                    events = self._splitter.feed(data)
                except ReplicaFailed as flaw:
                    error = flaw
                else:
                    if events:
                        if self._home.secrets:
                            events = [self._hide(event) if b'"error"' in event else event for event in events]
                        listener.on_events(events)
        if self._call is not call:
            return
        if error is not None:
            self.drop()
            call.fail(error)
        elif self._complete:
            self._finish(call, listener)

    def _judge_head(self) -> ReplicaFailed | None:
        headers = self._headers
        if headers.get("content-encoding", "identity") != "identity":
            return ReplicaFailed("the replica answered in an encoding that nobody asked for")
        if self._status < 300 and headers.get("content-type", "").lower().startswith("text/event-stream"):
            self._splitter = EventSplitter(self._home.limits.event_bytes)
        return None

    def _collect(self, data: bytes) -> ReplicaFailed | None:
        self._body.append(data)
        self._body_bytes += len(data)
        call = self._call
        limit = (0 if call is None else call.most_bytes) or self._home.limits.body_bytes
        if self._body_bytes > limit:
            return ReplicaFailed(f"the replica sent a body of more than {limit} bytes")
        return None

    def _finish(self, call: Call, listener: Listener) -> None:
        if self._splitter is None:
            body = self._body
            whole = body[0] if len(body) == 1 else b"".join(body)
            listener.on_body(self._hide(whole) if self._home.secrets and self._status >= 300 else whole)
            if self._call is not call:
                return
        # Release the connection first: the listener may have the next request at hand.
        self._call = None
        call.end()
        self._release()
        listener.on_done()

    def _hide(self, said: bytes) -> bytes:
        """Removes secrets from an error: some engines quote the headers that they were sent."""
        for secret in self._home.secrets:
            said = said.replace(secret, b"***")
        return said

    def _release(self) -> None:
        self._used = True
        self.resume()
        # An answer that came before all of the request was written leaves the rest of the request in the buffer.
        free = self._keep_alive and not self.transport.is_closing() and self.transport.get_write_buffer_size() == 0
        if free and self._home.keep(self):
            self.idle_since = self._home.clock()
        else:
            self.transport.close()

    def _ends_with_connection(self) -> bool:
        encoding = self._headers.get("transfer-encoding", "").lower()
        return "content-length" not in self._headers and not encoding.endswith("chunked")
