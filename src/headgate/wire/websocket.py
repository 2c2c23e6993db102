"""Handles a connection that has become a WebSocket (RFC 6455): its messages, its pings, and its end.

The rules of frames are those of websockets' own sans-I/O protocol: masks, control frames, fragments, close codes 1002
and 1009. What it lets pass is refused here: text that is not UTF-8, binary messages, floods of tiny frames, messages
without end. Outgoing messages are framed in message.py.
"""

import asyncio
import logging
import math
from typing import Final, Protocol

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SERVER, State
from websockets.protocol import Protocol as Frames

from headgate.wire.connection import ClientConnection
from headgate.wire.places import AFTER_IDLE
from headgate.wire.protocol import PARTING_S
from headgate.wire.state import ServerState

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.WARNING)  # it would log the end of every connection

_SLICE: Final = 4096
_FRAMES_A_READ: Final = 4096
"""Maximum frames in one read. No client needs more: each costs us as much as its bytes would in a long one."""
_FRAMES_A_TURN: Final = 16
"""Frames after which other connections have their turn: a frame takes 20 µs, and a read may bring a thousand."""


class Talk(Protocol):
    """The handler of a WebSocket's messages."""

    busy: bool
    """Whether a message is being answered."""
    waiting_bytes: int
    """Bytes of messages that wait for their turn."""

    def on_open(self, socket: "WebSocket", server: ServerState) -> None: ...

    def on_message(self, data: bytes) -> None:
        """`data` is valid UTF-8."""

    def on_answered(self, keep_alive: bool) -> None:
        """An exchange on this socket has written its last byte."""

    def on_writable(self) -> None: ...

    def on_lost(self) -> None:
        """The client has left, or can't be reached any more. Called once."""


class WebSocket(ClientConnection):
    """The connection of MessageExchanges. Made before the connection exists; `take_over` gives it one."""

    __slots__ = (
        "_asked_at",
        "_begun_at",
        "_flushing",
        "_frames",
        "_frames_read",
        "_heard_at",
        "_leaving",
        "_lost",
        "_message",
        "_open_message",
        "_pinged_at",
        "_server",
        "_talk",
        "_unread",
    )
    _server: ServerState
    _frames: Frames

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk
        self._message = bytearray()
        self._open_message = False
        """Whether `_message` holds fragments of a message that is not complete."""
        self._begun_at = math.inf
        """When the first byte of an incomplete message was read, on the loop's clock; inf: there is none."""
        self._heard_at = 0.0
        self._asked_at = 0.0
        """When the last message came, on the loop's clock; before the first, when the WebSocket was opened."""
        self._pinged_at = math.inf
        self._unread = b""
        """Bytes read from the socket and not handled yet: reading waits for them."""
        self._frames_read = 0
        """Frames since the last read from the socket."""
        self._leaving = False
        self._lost = False
        self._flushing = False

    def take_over(self, server: ServerState, transport: asyncio.Transport, writable: bool) -> None:
        """Called by the HTTP connection: from here on this object owns the transport."""
        self._server = server
        self._begin(transport, server.loop, server.outbox, server.inbox)
        self._high_water = server.limits.write_high_water
        self.writable = writable
        self._frames = Frames(SERVER, max_size=server.limits.body_bytes, logger=_quiet)
        self._heard_at = self._asked_at = server.loop.time()
        self._expire_in(server.limits.ping_every_s)
        self._talk.on_open(self, server)

    @property
    def draining(self) -> bool:
        return self._leaving or self._server.draining

    @property
    def busy(self) -> bool:
        return self._talk.busy

    @property
    def spare_since(self) -> float:
        return math.inf if self._talk.busy else self._asked_at + AFTER_IDLE

    @property
    def is_open(self) -> bool:
        return self._frames.state is State.OPEN

    # -- called by the loop ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._frames_read = 0
        if self._unread:  # it was on its way when reading was paused
            self._unread += data
        else:
            self._read(data)

    def _read_on(self) -> None:
        data, self._unread = self._unread, b""
        if data and not self._lost and not self._frames.eof_sent:
            self._read(data)
        if not self._unread and not self.transport.is_closing():
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        frames, server = self._frames, self._server
        now = self._heard_at = server.loop.time()
        self._pinged_at = math.inf
        seen = messages = 0
        for start in range(0, len(data), _SLICE):
            if seen >= _FRAMES_A_TURN:
                self._unread = data[start:]
                self.transport.pause_reading()
                server.loop.call_soon(self._read_on)
                break
            frames.receive_data(data[start : start + _SLICE])
            heard = frames.events_received()
            self._write_control()
            for frame in heard:
                if isinstance(frame, Frame) and self._take(frame):
                    messages += 1
                if messages > server.limits.pipelined + 1:
                    self.fail(CloseCode.POLICY_VIOLATION, "too many messages at once")
            seen += len(heard)
            self._frames_read += len(heard)
            if self._frames_read > _FRAMES_A_READ:
                self.fail(CloseCode.POLICY_VIOLATION, "too many small frames")
            if frames.eof_sent:
                self._let_go()
                return  # what else it sends is ignored
        unfinished = len(self._message) + len(frames.reader.buffer) + len(self._unread)
        if not self._open_message and not unfinished:
            self._begun_at = math.inf
        elif self._begun_at == math.inf:
            self._begun_at = now
        if messages:
            self._asked_at = now
        self._note(unfinished + self._talk.waiting_bytes)

    def eof_received(self) -> None:
        if self._talk.busy:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._let_go()
        self._frames.reader.discard()  # the rest is small, and left to the garbage collector
        self._said.clear()
        self._unread = b""
        self._server.forget(self)
        self._lose()

    def resume_writing(self) -> None:
        self.writable = True
        self._talk.on_writable()

    # -- called by exchanges, their talk and the server --------------------------------------------

    def send(self, data: bytes) -> None:
        """`data`: frames."""
        if self._frames.state is State.OPEN:
            super().send(data)

    def answered(self, keep_alive: bool) -> None:
        self._talk.on_answered(keep_alive)
        if self._noted:
            self._note(len(self._message) + len(self._frames.reader.buffer) + self._talk.waiting_bytes)

    def drain(self) -> None:
        """Leaves as soon as nothing is being answered."""
        self._leaving = True
        if not self._talk.busy and not self._open_message:
            self.close(CloseCode.GOING_AWAY, "the server is shutting down")

    def make_way(self) -> None:
        self.close(CloseCode.TRY_AGAIN_LATER, "too many connections")
        self.flush()
        self.transport.close()
        self._server.loop.call_later(PARTING_S, self.transport.abort)

    def shed(self) -> None:
        """Called by the inbox: messages that wait, or are not complete, take memory that other clients need."""
        self._let_go()
        self.fail(CloseCode.TRY_AGAIN_LATER, "messages that arrive slowly, or wait, take too much memory")

    def close(self, code: int, reason: str) -> None:
        """Closes regularly: the client may answer."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason)
            self._write_control()

    def fail(self, code: int, reason: str) -> None:
        """Closes at once: further input is not read."""
        if not self._frames.eof_sent:
            self._frames.fail(code, reason)
            self._write_control()

    # -- frames ------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> bool:
        """Returns whether the frame completed a message."""
        if frame.opcode is Opcode.BINARY:
            self.fail(CloseCode.UNSUPPORTED_DATA, "messages are text")
        if frame.opcode not in (Opcode.TEXT, Opcode.CONT) or self._frames.state is not State.OPEN:
            return False
        if not frame.fin:
            self._open_message = True
            self._message += frame.data
            return False
        data = bytes(frame.data)
        if self._open_message:
            data = bytes(self._message) + data
            self._message = bytearray()
            self._open_message = False
        self._begun_at = math.inf
        try:
            data.decode()
        except UnicodeDecodeError as error:
            self.fail(CloseCode.INVALID_DATA, f"{error.reason} at byte {error.start}")
            return False
        try:
            self._talk.on_message(data)
        except Exception:
            log.exception("a message could not be handled")
            self.fail(CloseCode.INTERNAL_ERROR, "internal error")
        return True

    def _write_control(self) -> None:
        """Writes what the rules of frames ask for (pongs, pings, close), and follows the state they lead to."""
        frames = self._frames
        writes = frames.data_to_send()
        # A client that reads nothing gets no pongs: it could make us keep any number of them.
        if writes and (self.writable or frames.state is not State.OPEN):
            for data in writes:
                if data:
                    super().send(data)
        if frames.state is State.OPEN or self._flushing:
            return
        if not frames.eof_sent:  # we have announced that we leave: a client that is there answers
            self._expire_in(self._server.limits.linger_s)
            return
        self._flushing = True
        self.flush()
        self._lose()
        if frames.close_rcvd is not None:
            self.transport.close()
            self._expire_in(self._server.limits.flush_timeout_s)
        else:
            # Closing with input unread sends a reset, which can overtake our data: let the client finish sending.
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._expire_in(self._server.limits.linger_s)

    def _let_go(self) -> None:
        self._message = bytearray()
        self._open_message = False
        self._note(0)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._talk.on_lost()

    def _expired(self) -> None:
        limits, now = self._server.limits, self._server.loop.time()
        unread = self.transport.get_write_buffer_size() > 0
        if self._frames.state is not State.OPEN:
            self.transport.abort()
        elif now - self._begun_at >= limits.body_timeout_s:
            self.fail(CloseCode.POLICY_VIOLATION, "a message was begun and did not arrive in time")
        elif now - self._pinged_at >= limits.pong_timeout_s and not (unread and self._talk.busy):
            self.transport.abort()  # while it is sent an answer, the relay judges whether it reads
        else:
            quiet_s = now - self._heard_at
            if self._pinged_at == math.inf and quiet_s >= limits.ping_every_s:
                self._pinged_at = now
                self._frames.send_ping(b"")
                self._write_control()
            ping_s = limits.ping_every_s - (quiet_s if self._pinged_at == math.inf else 0.0)
            pong_s = self._pinged_at + limits.pong_timeout_s - now
            if pong_s <= 0:
                pong_s = limits.pong_timeout_s
            self._expire_in(max(0.0, min(ping_s, pong_s, self._begun_at + limits.body_timeout_s - now)))
