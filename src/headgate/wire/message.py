"""Represents a request and its answer as WebSocket messages.

To a handler it is an Exchange like any other: the data of an SSE event is a message here, and an answer in one piece is
one message. The last message of every answer is `[DONE]` or an error, never both. The connection outlives a failed
answer, because messages are told apart without the end of the connection.
"""

from typing import Any, Final

import msgspec

from headgate.model.errors import ServeError
from headgate.model.outcome import Outcome
from headgate.wire.errors import STATUS, Headers, error_body, error_headers
from headgate.wire.exchange import Exchange, ExchangeConnection

DONE: Final = b"[DONE]"
_encode = msgspec.json.Encoder().encode


def text_frame(data: bytes) -> bytes:
    """`data` as a message in one frame."""
    if not data.isascii():  # a text message must be UTF-8, whatever the replica sent
        data = data.decode("utf-8", "replace").encode()
    size = len(data)
    if size < 126:
        return b"\x81%c%b" % (size, data)
    if size < 65536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), data)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), data)


class MessageExchange(Exchange):
    __slots__ = ("event_id",)

    def __init__(self, connection: ExchangeConnection, received_at: float) -> None:
        super().__init__(connection, received_at)
        self.method = "POST"
        self.keep_alive = True
        self.event_id: str | None = None
        """The client's id for its message; errors repeat it. None: it gave none."""

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        if self.done:
            return
        if self.started:
            raise RuntimeError("respond() after the first event")
        self.status = status
        if status < 400:
            body = body if self.renames is None else self.renames.told(body)
            self._finish(text_frame(body) + text_frame(DONE))
        else:
            self._finish(text_frame(self._error(status, body, headers)))

    def stream(self, headers: Headers = ()) -> None:
        if not self.done:
            self._head, self.status = b"", 200

    def fail(self, error: ServeError) -> None:
        if self.done:
            return
        if error.outcome is Outcome.SLOW_CLIENT:
            self.keep_alive = False  # the client would not read the next answer either
        self.status = self.status if self.started else STATUS[error.outcome]
        self._finish(text_frame(self._error(STATUS[error.outcome], error_body(error), error_headers(error))))

    def cancelled(self, error: ServeError) -> bytes:
        """Ends the answer for a client that wants no more of it: `on_gone` is called, as if the client had left.
        Returns the message that ends the answer."""
        self.lost()
        return text_frame(self._error(STATUS[error.outcome], error_body(error), ()))

    def _frame(self, data: bytes) -> bytes:
        return text_frame(data if self.renames is None else self.renames.told(data))

    def _last_chunk(self) -> bytes:
        return b""

    def _error(self, status: int, body: bytes, headers: Headers) -> bytes:
        """What HTTP says in status, headers and body, as one message."""
        said: dict[str, Any] = {"type": "error", "status": status, "request_id": self.request_id}
        if self.event_id is not None:
            said["event_id"] = self.event_id
        if headers:
            said["headers"] = dict(headers)
        said["error"] = msgspec.json.decode(body)["error"]
        return _encode(said)
