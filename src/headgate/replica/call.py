"""Defines one request to one replica, and the listener that gets its answer.

A listener that raises is told so, and its call is ended: what an engine sends may fail the request that it answers, and
nothing beyond it.
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Protocol

from headgate.model.errors import ReplicaFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    max_idle: int = 64
    """Connections kept for the next request; further ones are closed when their answer is complete."""
    idle_timeout_s: float = 4.0
    """Seconds after which an unused connection is closed. Less than the 5 s after which uvicorn, and so vLLM, closes
    its end: a request written to a connection that is being closed has to be sent again."""
    connect_timeout_s: float = 2.0
    """Timeout in seconds from the first SYN to a connection, TLS included."""
    stale_s: float = 1.0
    """A reused connection that is lost within this many seconds after a request was written, without a byte of an
    answer, was closed by a replica that has not read the request: the request is sent once more, on a fresh connection.
    Lost later, the replica died."""
    header_bytes: int = 64 * 1024
    """Maximum size of status line and headers of an answer; also bounds trailers and chunk extensions. Checked after
    each read."""
    body_bytes: int = 32 * 1024 * 1024
    """Maximum size of a body that is not a stream; a larger one is a failure of the replica."""
    event_bytes: int = 1024 * 1024
    """Maximum size of one event of a stream; a larger one is a failure of the replica."""
    look_every_s: float = 0.25
    """Seconds between checks for calls that are late and connections that are idle too long: one timer for all, none
    per call."""


class Listener(Protocol):
    """Gets the answer of a call, in this order; after on_done, on_failed or `Call.cancel` there are no more calls.

    on_head ─┬─ a stream: on_events, any number ─┬→ on_done
             └─ else: on_body, once ─────────────┘
    at any time, also before on_head ─────────────→ on_failed
    once the call's `late_at` has come, and until it is set again: on_late
    """

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        """`is_stream`: a 2xx of text/event-stream. Header names are in lower case."""

    def on_events(self, events: list[bytes]) -> None:
        """The payloads of the events that one read completed, at least one."""

    def on_body(self, body: bytes) -> None:
        """The whole body of an answer that is not a stream."""

    def on_done(self) -> None:
        """The answer is a complete HTTP message. Whether a stream's content is complete is for the listener to
        judge."""

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        """The replica was not reached, closed early, or sent malformed HTTP. `sent`: the request was written to a live
        connection."""

    def on_late(self) -> None:
        """`late_at` has come, up to `look_every_s` ago."""

    def on_broken(self, flaw: Exception) -> None:
        """One of the other methods raised `flaw`, in any state. The call is over and no further method is called:
        release everything that is held for it."""


class Carrier(Protocol):
    """The connection that carries a call."""

    def drop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Call:
    """One request to one replica. Only its connection and `Connections` write it, except for `late_at`."""

    __slots__ = (
        "body",
        "connecting",
        "connection",
        "first_byte_at",
        "head",
        "late_at",
        "listener",
        "most_bytes",
        "once",
        "received",
        "retried",
        "sends",
        "sent_at",
    )

    def __init__(self, head: bytes, body: bytes, listener: Listener) -> None:
        self.head = head
        self.body = body
        self.listener: Listener | None = listener
        """None: the call is over."""
        self.connection: Carrier | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.retried = False
        self.once = False
        """The request has failed elsewhere and may be what breaks connections, so it is not sent again on a fresh
        one."""
        self.sends = 0
        """Number of times the request was written: twice, if the first connection was just being closed."""
        self.sent_at: float | None = None
        """When the request was last written, on the clock of `Connections`; None: not yet."""
        self.first_byte_at: float | None = None
        self.received = 0
        """Bytes of its answer, head included."""
        self.most_bytes = 0
        """Maximum size of a body that is not a stream; 0: the limit of `Connections`."""
        self.late_at = math.inf
        """When to call `on_late`, on the clock of `Connections`; the listener sets it."""

    def cancel(self) -> None:
        """Closes the connection, which is how engines notice, and calls the listener no more."""
        connection, connecting = self.connection, self.connecting
        self.end()
        if connecting is not None:
            connecting.cancel()
        if connection is not None:
            connection.drop()

    def pause(self) -> None:
        """Stops reading from the replica. What has been read is still delivered."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.resume()

    # -- called by Connections and the connection ----------------------------------------------------

    def end(self) -> Listener | None:
        """Ends the call. Returns the listener to tell; None: the call was over before."""
        listener, self.listener = self.listener, None
        self.connection = self.connecting = None
        return listener

    def fail(self, error: ReplicaFailed) -> None:
        listener = self.end()
        if listener is not None:
            try:
                listener.on_failed(error, self.sent_at is not None)
            except Exception as flaw:
                give_up(listener, flaw)


def give_up(listener: Listener, flaw: Exception) -> None:
    """Tells a listener that it has raised. Only its own call fails: neither its connection, nor any other call."""
    try:
        listener.on_broken(flaw)
    except Exception:
        log.exception("a listener could not be given up after %r", flaw)
