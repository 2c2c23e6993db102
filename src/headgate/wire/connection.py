"""Handles what all connections of clients have, whatever they speak: delayed writes, one timer, received bytes.

Writes are delayed until the loop has handled all that has come in. Each write wakes its reader, on another core, which
costs more than all the rest that is done for a small message. Written one after the other, the first write wakes the
readers and the rest find them awake; and two events for the same client become one write. With only one write to do,
nothing is waited for.
"""

import asyncio
from math import inf
from typing import Protocol

from headgate.wire.exchange import BodySink
from headgate.wire.places import Inbox


class Corked(Protocol):
    """An object with data to write."""

    def flush(self) -> None:
        """Writes the data. Raises nothing."""


class Outbox:
    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """None: there is no loop, and everything is written at once."""
        self._loop = loop
        self._waiting: list[Corked] = []

    def add(self, corked: Corked) -> None:
        if self._loop is None:
            corked.flush()
            return
        self._waiting.append(corked)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for corked in waiting:
            corked.flush()


class ClientConnection(asyncio.Protocol):
    """A connection of a client: it writes by way of the outbox, and has one deadline at a time."""

    __slots__ = (
        "_deadline",
        "_diverted",
        "_high_water",
        "_inbox",
        "_loop",
        "_noted",
        "_outbox",
        "_reading",
        "_said",
        "_said_bytes",
        "_since",
        "_timer",
        "_timer_at",
        "transport",
        "writable",
    )
    transport: asyncio.Transport
    _loop: asyncio.AbstractEventLoop
    _outbox: Outbox
    _inbox: Inbox
    _high_water: int
    """Bytes above which nothing is held back."""

    def __init__(self) -> None:
        self.writable = True
        self._said: list[bytes] = []
        """Data to write when the loop has handled all that has come in."""
        self._said_bytes = 0
        self._reading = True
        self._diverted = 0
        """Bytes of a body that had gone to its sink when its deadline was last set."""
        self._noted = False
        """Whether the server's inbox counts bytes of it."""
        self._deadline = inf
        self._since = 0.0
        """When the deadline was set, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def _begin(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, outbox: Outbox, inbox: Inbox
    ) -> None:
        self.transport = transport
        self._loop = loop
        self._outbox = outbox
        self._inbox = inbox

    def send(self, data: bytes) -> None:
        self._said.append(data)
        self._said_bytes += len(data)
        if self._said_bytes > self._high_water:
            self.flush()  # too large to hold back: only the transport knows whether the client keeps up
        elif len(self._said) == 1:
            self._outbox.add(self)

    def flush(self) -> None:
        said = self._said
        if said:
            self._said = []
            self._said_bytes = 0
            if not self.transport.is_closing():
                self.transport.write(said[0] if len(said) == 1 else b"".join(said))

    def pause_writing(self) -> None:
        self.writable = False

    def shed(self) -> None:
        """Called by the inbox: bytes that are not handled yet take memory that other clients need."""
        raise NotImplementedError

    def _note(self, size: int) -> None:
        """Tells the inbox how many bytes were received and are not handled yet."""
        if size or self._noted:
            self._noted = size > 0
            self._inbox.note(self, size)

    # -- what is read ------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    def _keep_pace(self, sink: BodySink, received: int, pace_bytes: int, timeout_s: float) -> None:
        """Reads a body into its sink for as long as the client sends at a pace, and the sink has room."""
        if received - self._diverted >= pace_bytes:
            self._diverted = received
            self._expire_in(timeout_s)
        if sink.full:
            sink.on_room = self._read_on
            self._pause()

    # -- one timer ---------------------------------------------------------------------------------

    def _expire_in(self, seconds: float) -> None:
        """Sets the deadline. A later deadline is only noted; the timer looks again when it goes off. So a busy
        connection touches the loop's timers once in an idle timeout, not twice a request."""
        self._since = self._loop.time()
        self._deadline = self._since + seconds
        if self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = inf

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = inf
        if self._deadline <= self._loop.time():
            self._expired()
        elif self._deadline < inf:
            self._set_timer()

    def _expired(self) -> None:
        """The deadline has passed."""
        raise NotImplementedError
