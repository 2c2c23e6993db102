"""Reads requests from bytes.

Sans I/O: bytes in, complete exchanges (`ready`) or the reason to stop (`refusal`, `exhausted`) out. httptools is
llhttp, which is strict about syntax; what it lets pass is refused here: headers without end, a missing or doubled Host,
chunks on HTTP/1.0, encodings besides chunked. It can't be stopped within a read, so a read may make several exchanges
ready.
"""

import re
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from headgate.wire.exchange import Exchange, ExchangeConnection
from headgate.wire.limits import WireLimits

IDLE: Final = "idle"
HEADERS: Final = "headers"
BODY: Final = "body"

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Ids:
    """Makes ids for requests that come without one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix + "-"
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return self._prefix + str(self._count)


class Refusal(NamedTuple):
    status: int
    message: str


class _StopParsing(Exception):
    """Raised in a callback, the only way to make llhttp stop."""


class RequestReader:
    __deletable__ = ("_parser", "exchange")
    __slots__ = (
        "_connection",
        "_header_bytes",
        "_header_count",
        "_joined",
        "_limits",
        "_most",
        "_new_id",
        "_parser",
        "_piece",
        "_read_at",
        "_unaccounted",
        "_upgrade_framing",
        "_url",
        "exchange",
        "exhausted",
        "phase",
        "ready",
        "received",
        "refusal",
        "wants_continue",
    )

    exchange: Exchange
    """The request being read, from its first byte to its last: kept any longer, an idle connection would keep its
    body."""

    def __init__(self, connection: ExchangeConnection, limits: WireLimits, new_id: Callable[[], str]) -> None:
        self._connection = connection
        self._limits = limits
        self._new_id = new_id
        self._most = limits.body_bytes
        """Maximum bytes of the body."""
        self._parser = HttpRequestParser(self)
        self._read_at = 0.0
        self._unaccounted = 0
        self._upgrade_framing: bytes | None = None
        self._piece = b""
        self._joined: bytearray | None = None
        """The pieces of a body that came in more than one; None: it has not. Separate objects would take twenty times a
        tiny chunk's size."""
        self.received = 0
        """Bytes of its body so far."""
        self.phase: str = IDLE
        self.ready: deque[Exchange] = deque()
        self.refusal: Refusal | None = None
        """To be answered after all that is ready; nothing more is read. None: no refusal."""
        self.exhausted = False
        """Nothing more is read on this connection."""
        self.wants_continue = False
        """The client waits for a 100 before it sends the body."""

    def feed(self, data: bytes, read_at: float) -> None:
        self._read_at = read_at
        # Bytes since the last header block or piece of body: whatever they are (a header, a trailer or a chunk
        # extension without end), llhttp keeps accepting them, in quadratic time if they are a value.
        self._unaccounted += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._pass_over_upgrade(data[upgrade.args[0] :], read_at)
        except HttpParserError as error:
            if not self.exhausted and self.refusal is None:
                self.refusal = self._malformed(error)
        else:
            if self._unaccounted > self._limits.header_bytes and not self.exhausted:
                self.refusal = Refusal(431, f"headers exceed {self._limits.header_bytes} bytes")

    @property
    def path(self) -> str:
        """That the request under way asks for, as far as it has come."""
        return self.exchange.path or _split(self._url)[0]

    def divert(self) -> None:
        """Gives what has arrived of the body to the exchange's sink, which gets the rest as it comes."""
        sink = self.exchange.sink
        assert sink is not None
        arrived = self._piece if self._joined is None else bytes(self._joined)
        self._piece = b""
        self._joined = None
        if arrived:
            sink.take(arrived)

    def let_go(self) -> None:
        """Drops what has arrived of a body, since nothing more is read."""
        self._piece = b""
        self._joined = None
        sinks = [exchange.sink for exchange in self.ready]
        if self.phase is BODY:
            sinks.append(self.exchange.sink)
            self.exchange.sink = None
        for sink in sinks:
            if sink is not None:
                sink.drop()

    def close(self) -> None:
        """Called when the connection is gone. The parser refers to this object: only the garbage collector could free
        the two."""
        self.let_go()
        self.ready.clear()
        del self._parser

    # -- called by the parser ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if len(self.ready) >= self._limits.pipelined:
            self.exhausted = True
            raise _StopParsing
        self.phase = HEADERS
        self.exchange = Exchange(self._connection, self._read_at)
        self._url = b""
        self._header_bytes = self._header_count = 0
        self._piece = b""
        self._joined = None
        self.received = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value) + 4
        if self._header_count > self._limits.header_count:
            self._refuse(431, f"more than {self._limits.header_count} headers")
        if self._header_bytes > self._limits.header_bytes:
            self._refuse(431, f"headers exceed {self._limits.header_bytes} bytes")
        if self.phase is BODY:
            return  # a trailer: it must not change a request whose headers have been judged
        headers = self.exchange.headers
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key in headers:
            if key == "host":
                self._refuse(400, "more than one Host header")
            text = f"{headers[key]}, {text}"
        headers[key] = text

    def on_headers_complete(self) -> None:
        self.phase = BODY
        self._unaccounted = 0
        parser = self._parser
        exchange = self.exchange
        headers = exchange.headers
        exchange.method = parser.get_method().decode()
        exchange.keep_alive = parser.should_keep_alive() and exchange.method != "CONNECT"
        if not exchange.keep_alive or "connection" in headers or "host" not in headers:  # else it is surely HTTP/1.1
            exchange.http10 = self._judge_version(parser.get_http_version(), headers)
        exchange.path, exchange.query = _split(self._url)
        given = headers.get("x-request-id")
        exchange.request_id = given if given is not None and SANE_ID.fullmatch(given) else self._new_id()
        encoding = headers.get("transfer-encoding")
        if encoding is not None and encoding.lower() != "chunked":
            self._refuse(400, "a transfer-encoding other than chunked")
        length = int(headers.get("content-length", "0"))
        self._most = self._limits.body_bytes
        if exchange.method == "POST" and exchange.path in self._limits.uploads:
            self._most = self._limits.uploads[exchange.path]
        if length > self._most:
            self._refuse(413, f"body exceeds {self._most} bytes")
        if encoding is None and length == 0:
            return
        coding = headers.get("content-encoding", "")
        if coding and coding.lower() != "identity":
            self._refuse(415, f"content-encoding {coding[:64]} is not taken: send the body as it is (identity)")
        self.wants_continue = not exchange.http10 and headers.get("expect", "").lower() == "100-continue"
        if parser.should_upgrade():
            self._upgrade_framing = (
                b"content-length: %d" % length if encoding is None else b"transfer-encoding: chunked"
            )

    def on_body(self, data: bytes) -> None:
        self._unaccounted = 0
        received = self.received + len(data)
        if received > self._most:
            self._refuse(413, f"body exceeds {self._most} bytes")
        sink = self.exchange.sink
        if sink is not None:
            sink.take(data)
        elif self._joined is not None:
            self._joined += data
        elif self.received == 0:
            self._piece = data
        else:
            self._joined = bytearray(self._piece)
            self._joined += data
        self.received = received

    def on_message_complete(self) -> None:
        if self._upgrade_framing is not None:
            return  # not yet: see _pass_over_upgrade
        exchange = self.exchange
        exchange.body = self._piece if self._joined is None else bytes(self._joined)
        self._piece = b""
        self._joined = None
        del self.exchange
        self.ready.append(exchange)
        self.phase = IDLE
        self._unaccounted = 0
        self.wants_continue = False
        if not exchange.keep_alive:
            self.exhausted = True

    # --------------------------------------------------------------------------------------------------

    def _judge_version(self, version: str, headers: dict[str, str]) -> bool:
        """Whether the version is HTTP/1.0. Refuses any other but HTTP/1.1."""
        if version == "1.1":
            if "host" not in headers:
                self._refuse(400, "no Host header")
            return False
        if version != "1.0":
            self._refuse(400, f"HTTP/{version} is not spoken here")
        if "transfer-encoding" in headers:
            self._refuse(400, "transfer-encoding on HTTP/1.0")
        return True

    def _malformed(self, error: HttpParserError) -> Refusal:
        if self._parser.get_method() == b"PRI":  # only HTTP/2 begins like that
            return Refusal(505, "HTTP/2 is not spoken here: use HTTP/1.1")
        return Refusal(400, f"malformed HTTP: {error}")

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = Refusal(status, message)
        raise _StopParsing

    def _pass_over_upgrade(self, rest: bytes, read_at: float) -> None:
        """Answers a request for an upgrade as usual: we upgrade nothing, which is allowed. But llhttp has stopped after
        the headers, and would take the request's own body for the next request: a second parser reads the body (Java's
        HttpClient offers h2c with every first POST)."""
        if self._upgrade_framing is not None:
            head = b"POST / HTTP/1.1\r\n%b\r\n\r\n" % self._upgrade_framing
            self._upgrade_framing = None
            self.exchange.keep_alive = False
            body_only = SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
            self._parser = HttpRequestParser(body_only)
            self._parser.feed_data(head)
        if rest and not self.exhausted:
            self._unaccounted = 0
            self.feed(rest, read_at)


def _split(url: bytes) -> tuple[str, str]:
    """Path and query of a request target in any of its forms."""
    target = url.decode("latin-1")
    if not target.startswith("/") or "#" in target:
        try:
            parts: Any = parse_url(url)  # its stub denies that parts may be None, which mypyc would believe
        except HttpParserError:  # `*`, or CONNECT's host:port
            return target, ""
        return (parts.path or b"/").decode("latin-1"), (parts.query or b"").decode("latin-1")
    path, _, query = target.partition("?")
    return path, query
