"""Represents one request and its answer.

A handler is called with an Exchange once the request is complete, and answers it then or later: with `respond`, or with
`stream`, any number of `event`s and `end`; with `fail` at any time. Calls after the answer is complete, or after the
client has gone, have no effect.

    nothing sent ── respond / fail ──────────────────────→ done
         │ event: head and event in one write
         ▼
      started ──── end / fail (an error event, no [DONE]) → done
                 the client leaves, in any state           → done, on_gone called
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol, cast

from headgate.model.errors import ServeError
from headgate.model.outcome import Outcome
from headgate.wire.errors import MESSAGES, STATUS, Headers, as_message_error, error_body, error_headers
from headgate.wire.places import Occupant

log = logging.getLogger(__name__)

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STATUS_LINES[499] = b"HTTP/1.1 499 Client Closed Request\r\n"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""Neither caches nor nginx may hold tokens back."""


class Transport(Protocol):
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str, /) -> Any: ...
    def abort(self) -> None: ...


class ExchangeConnection(Protocol):
    """What an exchange needs from the connection that it came on."""

    writable: bool

    @property
    def transport(self) -> Transport: ...

    @property
    def draining(self) -> bool: ...

    def send(self, data: bytes) -> None:
        """Writes the data as soon as the loop has handled all that has come in."""

    def answered(self, keep_alive: bool) -> None:
        """The exchange has written its last byte."""


class Successor(Occupant, Protocol):
    """An asyncio protocol that takes a connection over, and speaks another protocol on it."""

    def take_over(self, server: Any, transport: asyncio.Transport, writable: bool) -> None:
        """`server`: the ServerState."""


class Switchable(Protocol):
    """A connection that speaks HTTP."""

    def switch(self, head: bytes, successor: Successor, last: bool) -> bool:
        """See Exchange.switch."""


class Voice(Protocol):
    """Translates an answer into another form than a completion's; its input is OpenAI's chat, or whatever is
    relayed."""

    def event(self, data: bytes) -> bytes:
        """The SSE events for `data`, each ended by an empty line; empty: they come later. [DONE] comes last."""

    def body(self, body: bytes) -> bytes:
        """Translates a whole answer."""


class Renames(Protocol):
    """Replaces the model's name in an answer by the name that the client requested."""

    def told(self, data: bytes) -> bytes:
        """The event or whole answer with that name."""


class BodySink(Protocol):
    """Takes a body piece by piece, so that it need not fit into memory."""

    on_room: Callable[[], None] | None
    """Called when `full` becomes false; None: the connection does not wait for it."""

    @property
    def full(self) -> bool:
        """Whether the client has to wait until earlier pieces are put away."""

    def take(self, piece: bytes) -> None:
        """Takes the next piece. Raises nothing: what goes wrong is told by the handler, at the end."""

    def drop(self) -> None:
        """The body will not be complete: whatever there is of it is thrown away."""


class Exchange:
    """One request and its answer. The reader writes the request's fields until it is complete; from then on they are
    fixed."""

    __slots__ = (
        "_added",
        "_connection",
        "_head",
        "_plain",
        "_transport",
        "body",
        "done",
        "headers",
        "http10",
        "keep_alive",
        "late_headers",
        "method",
        "on_gone",
        "on_settled",
        "on_writable",
        "path",
        "query",
        "received_at",
        "renames",
        "request_id",
        "sink",
        "started",
        "status",
        "voice",
    )

    def __init__(self, connection: ExchangeConnection, received_at: float) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._head: bytes | None = None
        self._added = b""
        """Header lines for any answer to this request."""
        self._plain = False
        """Whether events are written as chunks, as nearly always."""
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: dict[str, str] = {}
        """Names in lower case; the values of a repeated header joined with commas."""
        self.body = b""
        self.received_at = received_at
        """When the request's first byte was read, on the server's clock."""
        self.request_id = ""
        self.http10 = False
        self.keep_alive = False
        self.started = False
        """Whether a byte of the answer has been written: from then on its status is settled."""
        self.done = False
        self.on_gone: Callable[[], None] | None = None
        """Called once if the client leaves before the answer is complete. Set it before the handler returns."""
        self.on_writable: Callable[[], None] | None = None
        """Called when `writable` becomes true again."""
        self.late_headers: Callable[[], Headers] | None = None
        """Returns headers that are made when the answer begins; None: there are none."""
        self.on_settled: Callable[[Exchange], None] | None = None
        """Called once when the answer is complete or the client has gone; None: there is no access log."""
        self.status = 0
        """The status that the answer began with; 499: the client left before; 0: there is none yet."""
        self.voice: Voice | None = None
        """Translates the answer into the requested form; None: none is needed."""
        self.sink: BodySink | None = None
        """Takes the body in place of `body`, which stays empty: set by the judge, for a path in WireLimits.uploads.
        Once the request is complete, its handler owns the sink. None: `body` has all of it."""
        self.renames: Renames | None = None
        """Set where the model has another name behind this server than the client's."""

    @property
    def writable(self) -> bool:
        """False when the client reads more slowly than we write. Writing on is allowed, and costs memory."""
        return self._connection.writable

    @property
    def client(self) -> str:
        """The address of the client's end of the connection; empty: it has none, as on a Unix socket."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size()

    def say_with_answer(self, headers: Headers) -> None:
        """Sets the headers to add to the answer, whichever it will be; replaces those set before."""
        self._added = b"".join([_header(name, value) for name, value in headers])

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        if self.done:
            return
        if self.started:
            raise RuntimeError("respond() after the first event")
        if status == 200:
            if self.renames is not None:
                body = self.renames.told(body)
            if self.voice is not None:
                body = self.voice.body(body)
        elif status >= 400 and self.path.startswith(MESSAGES):
            body = as_message_error(body, status, self.request_id)
        framing = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode("latin-1"), len(body))
        head = self._make_head(status, framing, headers)
        self._finish(head if self.method == "HEAD" else head + body)

    def begin(self, size: int, content_type: str, headers: Headers = ()) -> None:
        """Begins an answer of `size` bytes that comes in pieces: see `piece`."""
        if self.done:
            return
        framing = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode("latin-1"), size)
        head = self._make_head(200, framing, headers)
        self.started = True
        if self.method == "HEAD":
            self._finish(head)
        else:
            self._connection.send(head)

    def piece(self, data: bytes, *, last: bool) -> None:
        """Sends the next piece of an answer that has begun. Write on only while `writable`."""
        if not self.done:
            if last:
                self._finish(data)
            else:
                self._connection.send(data)

    def stream(self, headers: Headers = ()) -> None:
        """Announces an event stream. Nothing is sent before the first event, so that a failure until then still gets a
        status of its own."""
        if self.done:
            return
        framing = b"content-type: text/event-stream\r\n"
        if self.http10:
            self.keep_alive = False  # no chunks there: the end of the connection ends the stream
        else:
            framing += b"transfer-encoding: chunked\r\n"
        self._plain = not self.http10 and self.method != "HEAD"
        self._head = self._make_head(200, framing, _STREAM_HEADERS + headers)

    def event(self, data: bytes) -> None:
        """Sends one SSE event, in one write."""
        self.events((data,))

    def events(self, batch: Sequence[bytes]) -> None:
        """Sends several SSE events in one write: a relay reads many at a time when it is busy, and a write costs as
        much as all the rest that is done for an event."""
        if self.done:
            return
        payload = self._frame(batch[0]) if len(batch) == 1 else b"".join([self._frame(data) for data in batch])
        if not self.started:
            payload = self._take_head() + payload
        self._connection.send(payload)

    def end(self, final: bytes | None = None) -> None:
        """Ends the stream regularly, with a last event if given, in one write."""
        if self.done:
            return
        payload = self._frame(final) if final is not None else b""
        if not self.started:
            payload = self._take_head() + payload
        self._finish(payload + self._last_chunk())

    def fail(self, error: ServeError) -> None:
        """Answers with a status while nothing is sent; afterwards with an error event and no [DONE], so that no client
        takes the part it has for the whole. The connection stays open, as the head has said: a client that sends its
        next request at once would lose it otherwise. The connection of a client that reads too slowly is closed."""
        if self.done:
            return
        if self.started:
            if error.outcome is Outcome.SLOW_CLIENT:
                self.keep_alive = False
            self._finish(self._frame(error_body(error)) + self._last_chunk())
        else:
            self.respond(STATUS[error.outcome], error_body(error), headers=error_headers(error))

    def abort(self) -> None:
        """Drops the client without another byte; `on_gone` follows."""
        if not self.done:  # afterwards the connection may belong to another exchange
            self._transport.abort()

    def switch(self, head: bytes, successor: Successor, *, last: bool = False) -> bool:
        """Answers with `head`, and leaves the connection to `successor`. Returns whether that was possible: not if the
        client has already sent more, which was read as HTTP. `last`: also if the client has said that this request is
        its last. Only while the handler is being called."""
        last = last and not self.keep_alive
        if self.done or self.started or not cast(Switchable, self._connection).switch(head, successor, last):
            return False
        self.started = True
        self.status = 101
        self._settle()
        return True

    def lost(self) -> None:
        """Called by the connection: the client has gone before the answer was complete."""
        gone = self.on_gone
        self.status = self.status if self.started else 499
        self._settle()
        if gone is not None:
            try:
                gone()
            except Exception:
                log.exception("request %s: on_gone failed", self.request_id)

    def _finish(self, payload: bytes) -> None:
        self.started = True
        self._settle()
        if payload:
            self._connection.send(payload)
        self._connection.answered(self.keep_alive)

    def _settle(self) -> None:
        self.done = True
        # Callbacks usually refer to the exchange: drop them, or only the garbage collector could free it.
        self.on_gone = self.on_writable = None
        if self.on_settled is not None:
            self.on_settled(self)

    def _frame(self, data: bytes) -> bytes:
        if self.renames is not None:
            data = self.renames.told(data)
        if self.voice is not None:
            return self._chunk(self.voice.event(data))
        # Numbers, since `in` with bytes first raises and catches a TypeError; `find` takes longer than `in` as well.
        if 10 in data or 13 in data:  # a line end: else the rest could pose as a field or event
            data = _LINE_END.sub(b"\ndata: ", data)
        if self._plain:
            return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)
        return self._chunk(b"data: %b\n\n" % data)

    def _chunk(self, text: bytes) -> bytes:
        if self.method == "HEAD" or not text:
            return b""
        return text if self.http10 else b"%x\r\n%b\r\n" % (len(text), text)

    def _last_chunk(self) -> bytes:
        return b"" if self.http10 or self.method == "HEAD" else b"0\r\n\r\n"

    def _take_head(self) -> bytes:
        if self._head is None:
            raise RuntimeError("event() or end() before stream()")
        self.started = True
        return self._head

    def _make_head(self, status: int, framing: bytes, headers: Headers) -> bytes:
        if self._connection.draining:
            self.keep_alive = False
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self.http10:
            framing += b"connection: keep-alive\r\n"
        self.status = status
        if self.late_headers is not None:
            headers += self.late_headers()
        if self.path.startswith(MESSAGES):
            headers += (("request-id", self.request_id),)  # where Anthropic's clients look for it
        extra = b"".join([_header(name, value) for name, value in headers])
        return b"%b%bx-request-id: %b\r\n%b%b\r\n" % (
            _STATUS_LINES[status],
            framing,
            self.request_id.encode(),
            extra,
            self._added,
        )


Handler = Callable[[Exchange], None]


def _header(name: str, value: str) -> bytes:
    line = f"{name}: {value}".encode("latin-1", "replace")
    if b"\n" in line or b"\r" in line:
        raise ValueError(f"line break in the value of header {name}")
    return line + b"\r\n"
