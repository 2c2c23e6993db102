"""A request and its answer as WebSocket messages.

To whoever answers it, it is an Exchange like any other: what would be the data of an SSE event is a message here, and
an answer in one piece is one message. The last message of every answer is `[DONE]` or an error, never both. The
connection outlives a failed answer, because messages need no end of the connection to be told apart.
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
    if not data.isascii():  # a text message has to be UTF-8, whatever the replica said
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
        """What the client calls its message; errors say it again."""

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        if self.done:
            return
        if self.started:
            raise RuntimeError("respond() after the first event")
        if status < 400:
            body = body if self.renames is None else self.renames.told(body)
            self._finish(text_frame(body) + text_frame(DONE))
        else:
            self._finish(text_frame(self._error(status, body, headers)))

    def stream(self, headers: Headers = ()) -> None:
        if not self.done:
            self._head = b""

    def fail(self, error: ServeError) -> None:
        if self.done:
            return
        if error.outcome is Outcome.SLOW_CLIENT:
            self.keep_alive = False  # it would not read the next answer either
        self._finish(text_frame(self._error(STATUS[error.outcome], error_body(error), error_headers(error))))

    def cancelled(self, error: ServeError) -> bytes:
        """The client wants no more of it: `on_gone` is called, as if it had left. The message that ends the answer."""
        self.lost()
        return text_frame(self._error(STATUS[error.outcome], error_body(error), ()))

    def _frame(self, data: bytes) -> bytes:
        return text_frame(data if self.renames is None else self.renames.told(data))

    def _last_chunk(self) -> bytes:
        return b""

    def _error(self, status: int, body: bytes, headers: Headers) -> bytes:
        """What HTTP says in status, headers and body."""
        said: dict[str, Any] = {"type": "error", "status": status, "request_id": self.request_id}
        if self.event_id is not None:
            said["event_id"] = self.event_id
        if headers:
            said["headers"] = dict(headers)
        said["error"] = msgspec.json.decode(body)["error"]
        return _encode(said)
