"""Represents a request that the gateway makes itself, and its answer: an Exchange without a client.

Everything that happens to a client's request happens to it. Its answer comes in one piece, to a callback.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from headgate.model.errors import ServeError
from headgate.wire.errors import STATUS, Headers, error_body
from headgate.wire.exchange import Exchange, Transport


class _Nowhere:
    """The connection of an exchange that came on none."""

    def __init__(self) -> None:
        self.writable = True
        self.draining = False

    @property
    def transport(self) -> Transport:
        return self

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, /) -> Any:
        return None

    def abort(self) -> None:
        """There is no client to drop."""

    def send(self, data: bytes) -> None:
        """There is no client to tell."""

    def answered(self, keep_alive: bool) -> None:
        """No request follows."""


Answered = Callable[[int, bytes, "ServeError | None"], None]
"""Gets the status and body of an answer, and the error; None: the answer is a replica's, good or bad."""


class CapturedExchange(Exchange):
    __slots__ = ("_answered", "loop")

    def __init__(self, path: str, request_id: str, body: bytes, received_at: float, answered: Answered) -> None:
        """`answered` is called once, from the loop, unless the request is taken back with `lost`."""
        super().__init__(_Nowhere(), received_at)
        self.method = "POST"
        self.path = path
        self.request_id = request_id
        self.body = body
        self._answered = answered
        self.loop = asyncio.get_running_loop()

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: Headers = ()) -> None:
        if self.done:
            return
        if status == 200:
            if self.renames is not None:
                body = self.renames.told(body)
            if self.voice is not None:
                body = self.voice.body(body)
        self._tell(status, body, None)

    def fail(self, error: ServeError) -> None:
        if not self.done:
            self._tell(STATUS[error.outcome], error_body(error), error)

    def _tell(self, status: int, body: bytes, error: ServeError | None) -> None:
        self.status = status
        self.started = True
        self._settle()
        # Later: the gateway is in the middle of ending this request, and another may be sent for it at once.
        self.loop.call_soon(self._answered, status, body, error)
