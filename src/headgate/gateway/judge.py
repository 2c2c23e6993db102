"""Refuses requests on their headers alone, where any body would be refused.

So a client without a key cannot make the gateway keep a body, and one that sends `Expect: 100-continue` need not send
the body. Requests that arrive in one piece skip this check: their handlers make the same checks.
"""

from collections.abc import Callable
from typing import Final, Protocol

from headgate.gateway.gateway import Gateway
from headgate.gateway.websocket import PATHS
from headgate.model.errors import ServeError
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.origin import Door


class Expecting(Protocol):
    """A router, as it is used here."""

    def __call__(self, exchange: Exchange) -> None: ...
    def expects(self, exchange: Exchange) -> bool:
        """Whether a handler takes the request, as far as its headers tell; otherwise it has been answered."""


UPLOADS: Final = "/v1/files"
"""Whose bodies are written to the disk as they come."""


class HeaderJudge:
    """A handler that answers only the requests that it refuses."""

    def __init__(
        self,
        door: Door,
        router: Expecting,
        gateway: Gateway,
        check_admin: Callable[[dict[str, str]], None],
        begin_upload: Handler | None = None,
    ) -> None:
        """`check_admin`: raises Unauthorized for headers without an admin key, where one is needed. `begin_upload`:
        gives a file that is uploaded its sink, or refuses it; None: nothing is uploaded."""
        self._door = door
        self._router = router
        self._gateway = gateway
        self._check_admin = check_admin
        self._begin_upload = begin_upload

    def __call__(self, exchange: Exchange) -> None:
        if not (self._door.lets_in(exchange) and self._router.expects(exchange)):
            return
        path = exchange.path
        if exchange.method == "GET" and path in PATHS:
            self._router(exchange)  # a WebSocket request has no body: its handler refuses one that does
        elif path.startswith("/admin/"):
            self._check_admin(exchange.headers)
        elif path.startswith("/v1/"):
            try:
                self._gateway.acceptor.known(exchange.headers)
            except ServeError as error:
                self._gateway.turn_away(exchange, error)
                return
            if path == UPLOADS and exchange.method == "POST" and self._begin_upload is not None:
                self._begin_upload(exchange)
