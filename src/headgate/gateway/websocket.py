"""Serves completions over a WebSocket: the same requests, answered by the same gateway, one message per event.

A message is a body as it would be POSTed to the same path, and may carry an `event_id`. Requests on one connection are
answered one at a time, in order, as on an HTTP connection. `{"type": "cancel"}` ends the request that is being
answered, as a disconnect would.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from websockets.frames import CloseCode

from headgate.gateway.gateway import Gateway
from headgate.model.errors import EngineFailed, Gone, InvalidRequest, NotReady, ServeError
from headgate.wire.body import json
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.handshake import accept_head, refusal
from headgate.wire.limits import WireLimits
from headgate.wire.message import MessageExchange
from headgate.wire.origin import key_offered
from headgate.wire.reader import SANE_ID
from headgate.wire.router import Routes
from headgate.wire.state import ServerState
from headgate.wire.websocket import WebSocket

log = logging.getLogger(__name__)

PATHS: Final = ("/v1/chat/completions", "/v1/completions")
SUBPROTOCOL: Final = "chat-completions"
OF_THE_CONNECTION: Final = ("connection", "upgrade", "x-request-id")
LONGEST_CANCEL: Final = 1024
LONGEST_EVENT_ID: Final = 512
_encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct):
    """Fields of a message that are not part of the request body."""

    type: Any = msgspec.UNSET
    event_id: Any = msgspec.UNSET


_read_envelope = msgspec.json.Decoder(Envelope).decode


class Opened(NamedTuple):
    body: bytes
    event_id: str | None
    error: InvalidRequest | None


def open_message(data: bytes, limits: WireLimits) -> Opened:
    """The request body without the envelope's fields. A message that is not JSON is returned as it is: the gateway
    refuses it."""
    try:
        envelope = _read_envelope(data)
    except (msgspec.DecodeError, RecursionError):
        return Opened(data, None, None)
    event_id = envelope.event_id
    if envelope.type is not msgspec.UNSET:
        known = event_id if isinstance(event_id, str) else None
        wrong = 'a message is a body, as for HTTP, or {"type": "cancel"}'
        return Opened(data, known, InvalidRequest(wrong, param="type"))
    if event_id is msgspec.UNSET:
        return Opened(data, None, None)
    if not isinstance(event_id, str) or len(event_id) > LONGEST_EVENT_ID:
        wrong = f"event_id must be a string of at most {LONGEST_EVENT_ID} characters"
        return Opened(data, None, InvalidRequest(wrong, param="event_id"))
    try:
        body = json.parse(data, limits)
    except InvalidRequest as error:
        return Opened(data, event_id, error)
    assert isinstance(body, dict)
    del body["event_id"]
    return Opened(_encode(body), event_id, None)


def _event_id(data: bytes) -> str | None:
    """The event_id of a message that is cancelled before it is opened; None: it has no valid one."""
    try:
        event_id = _read_envelope(data).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) and len(event_id) <= LONGEST_EVENT_ID else None


def _is_cancel(data: bytes) -> bool:
    if len(data) > LONGEST_CANCEL or data.find(b'"cancel"') < 0:
        return False
    try:
        envelope = _read_envelope(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(envelope.type == "cancel")


class Sockets:
    """Admits clients to WebSockets and keeps the open ones."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._leaving = False
        self.open_now: dict[WebSocket, Conversation] = {}
        """Open WebSockets; bounded by the limit on connections."""

    def routes(self) -> Routes:
        return {("GET", path): self.open for path in PATHS}

    def open(self, exchange: Exchange) -> None:
        """The handler that opens a WebSocket."""
        refused = refusal(exchange)
        if refused is not None:
            exchange.respond(refused.status, refusal_body(refused.status, refused.message), headers=refused.headers)
            return
        if self._leaving:
            raise NotReady("draining")
        try:
            headers, subprotocol = self._admit(exchange.headers)
        except ServeError as error:
            self._gateway.turn_away(exchange, error)
            return
        socket = WebSocket(Conversation(self, self._gateway, exchange.path, headers))
        if not exchange.switch(accept_head(exchange, subprotocol), socket):
            early = "something was sent before the WebSocket was open"
            exchange.respond(400, refusal_body(400, early))

    def show_out(self, may_stay: Callable[[str, dict[str, str]], bool]) -> None:
        """Closes the WebSockets of pages that may no longer use this path, even in the middle of an answer."""
        for socket, conversation in tuple(self.open_now.items()):
            if not may_stay(conversation.path, conversation.headers):
                origin = conversation.headers.get("origin", "")
                socket.close(CloseCode.POLICY_VIOLATION, f"the page {origin[:64]} may not use this any more")

    def drain(self) -> None:
        """Closes each WebSocket as soon as it has the answer that it waits for, and opens no more."""
        self._leaving = True
        for socket in tuple(self.open_now):
            socket.drain()

    def _admit(self, given: dict[str, str]) -> tuple[dict[str, str], str | None]:
        """The headers for all requests of this WebSocket, and the subprotocol (None: none was offered). Raises
        InvalidRequest or Unauthorized."""
        headers = {
            name: value
            for name, value in given.items()
            if name not in OF_THE_CONNECTION and not name.startswith("sec-websocket-")
        }
        offered = [name.strip() for name in given.get("sec-websocket-protocol", "").split(",") if name.strip()]
        key = key_offered(given.get("sec-websocket-protocol", ""))
        if key and "authorization" not in headers and "x-api-key" not in headers:
            headers["authorization"] = f"Bearer {key}"
        self._gateway.acceptor.known(headers)
        if offered and SUBPROTOCOL not in offered:
            raise InvalidRequest(f"of subprotocols only {SUBPROTOCOL!r} is spoken: offer it as well")
        return headers, SUBPROTOCOL if offered else None


class Conversation:
    """One client's WebSocket. A Talk."""

    def __init__(self, sockets: Sockets, gateway: Gateway, path: str, headers: dict[str, str]) -> None:
        self._sockets = sockets
        self._gateway = gateway
        self.path: Final = path
        self.headers: Final = headers
        self._current: MessageExchange | None = None
        self._held: deque[bytes] = deque()
        self.waiting_bytes = 0
        self._pumping = False
        self._unopened = False
        """The current message is still being opened in the parsing thread."""
        self._later = False
        """The next message begins after the event loop has served other connections."""
        self.busy = False

    # -- told by the socket ------------------------------------------------------------------------

    def on_open(self, socket: WebSocket, server: ServerState) -> None:
        self._socket = socket
        self._server = server
        self._sockets.open_now[socket] = self

    def on_message(self, data: bytes) -> None:
        current = self._current
        if _is_cancel(data):
            if current is not None:
                self._cancel(current)
            elif self._later and self._held:
                self._cancel_next()
            return
        limits = self._server.limits
        self.waiting_bytes += len(data)
        if len(self._held) >= limits.pipelined or (self._held and self.waiting_bytes > limits.body_bytes):
            self._socket.fail(1008, "too many messages wait for their turn")
            return
        self._held.append(data)
        self._pump()

    def on_answered(self, keep_alive: bool) -> None:
        self._settle()
        if not keep_alive:
            self._socket.close(1008, "what was sent was not read")
        elif self._socket.draining:
            self._socket.drain()
        else:
            self._pump()

    def on_writable(self) -> None:
        current = self._current
        if current is None:
            self._pump()
        elif current.on_writable is not None:
            try:
                current.on_writable()
            except Exception as error:
                _fail(current, error)

    def on_lost(self) -> None:
        self._sockets.open_now.pop(self._socket, None)
        self._held.clear()
        self.waiting_bytes = 0
        current = self._current
        self._settle()
        if current is not None:
            current.lost()

    # -- one request after the other ---------------------------------------------------------------

    def _pump(self) -> None:
        """Begins the next request if the client has read the last answer, so that unread bytes stay bounded."""
        if self._pumping or self._later:
            return
        self._pumping = True
        if self._held and self._current is None and self._socket.writable and self._socket.is_open:
            self._begin(self._take())
            if not self.busy:  # answered at once, which may have taken milliseconds: others first
                self._later = self.busy = True
                self._server.loop.call_soon(self._go_on)
        self._pumping = False

    def _go_on(self) -> None:
        self._later = self.busy = False
        if self._socket.draining:
            self._socket.drain()
        else:
            self._pump()

    def _take(self) -> MessageExchange:
        """The exchange of the next message, which becomes the current one."""
        data = self._held.popleft()
        self.waiting_bytes -= len(data)
        server = self._server
        exchange = MessageExchange(self._socket, server.clock())
        exchange.path = self.path
        exchange.headers = self.headers
        exchange.body = data
        exchange.request_id = server.new_id()
        exchange.on_settled = server.access
        self._current = exchange
        self.busy = True
        return exchange

    def _begin(self, exchange: MessageExchange) -> None:
        try:
            if len(exchange.body) > LONG_BYTES:
                self._unopened = True
                self._gateway.long.take(exchange, lambda: self._open(exchange))
                return
            try:
                self._open(exchange)
            except InvalidRequest as error:
                self._gateway.turn_away(exchange, error)
            else:
                self._gateway.complete(exchange)
        except Exception as error:
            _fail(exchange, error)

    def _open(self, exchange: MessageExchange) -> None:
        """Extracts body and event_id; in the parsing thread, if the message is long. Raises InvalidRequest."""
        opened = open_message(exchange.body, self._server.limits)
        if exchange.done:
            return  # it was cancelled meanwhile, and named
        if exchange is self._current:
            self._unopened = False
        exchange.body = opened.body
        _name(exchange, opened.event_id)
        if opened.error is not None:
            raise opened.error

    def _cancel(self, current: MessageExchange) -> None:
        if self._unopened:
            _name(current, _event_id(current.body))
        self._settle()
        self._socket.send(current.cancelled(_cancelled()))
        self.on_answered(True)

    def _cancel_next(self) -> None:
        """Cancels the next message before its request has begun."""
        exchange = self._take()
        _name(exchange, _event_id(exchange.body))
        self._gateway.turn_away(exchange, _cancelled())

    def _settle(self) -> None:
        self._current = None
        self._unopened = False
        self.busy = self._later


def _cancelled() -> Gone:
    error = Gone("cancelled by the client")
    error.code = error.outcome.value
    return error


def _name(exchange: MessageExchange, event_id: str | None) -> None:
    exchange.event_id = event_id
    if event_id is not None and SANE_ID.fullmatch(event_id):
        exchange.request_id = event_id


def _fail(exchange: Exchange, error: Exception) -> None:
    if isinstance(error, ServeError):
        exchange.fail(error)
    else:
        log.error("request %s: it could not be handled", exchange.request_id, exc_info=error)
        exchange.fail(EngineFailed("internal error"))
