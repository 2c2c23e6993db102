"""A real server on a real socket, and a client that says exactly which bytes it sends."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple, ParamSpec

import uvloop
from hypothesis import HealthCheck, settings

from headgate.model.clock import monotonic
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.limits import WireLimits
from headgate.wire.protocol import ServerProtocol
from headgate.wire.server import HttpServer

P = ParamSpec("P")

steady = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine makes no example wrong."""

GET = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"host: test", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def live(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on uvloop, as the server does; nothing in it takes five seconds."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 5))

    return run


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if "content-length" in headers:
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, await self.rest())
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return Answer(status, headers, body)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def rest(self) -> bytes:
        """All until the server closes."""
        return await self.reader.read()

    def leave(self) -> None:
        self.writer.close()


class Served(NamedTuple):
    server: HttpServer
    port: int
    opened: list[Client]

    async def connect(self) -> Client:
        self.opened.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.opened[-1]

    @property
    def speaking_http(self) -> list[ServerProtocol]:
        return [each for each in self.server._state.connections if isinstance(each, ServerProtocol)]


@contextlib.asynccontextmanager
async def serving(
    handler: Handler,
    limits: WireLimits | None = None,
    *,
    judge: Handler | None = None,
    always: frozenset[str] = frozenset(),
) -> AsyncIterator[Served]:
    server = HttpServer(handler, clock=monotonic, limits=limits, judge=judge, always=always)
    served = Served(server, await server.listen("127.0.0.1", 0), [])
    try:
        yield served
    finally:
        for client in served.opened:
            client.leave()
        await server.drain(0)


def echo(exchange: Exchange) -> None:
    exchange.respond(200, exchange.body, "text/plain")


class Held:
    """A handler that answers nothing; the test does."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Exchange] = asyncio.Queue()
        self.gone: asyncio.Queue[Exchange] = asyncio.Queue()

    def __call__(self, exchange: Exchange) -> None:
        exchange.on_gone = lambda: self.gone.put_nowait(exchange)
        self.arrived.put_nowait(exchange)


class Recorder(asyncio.Transport):
    """A transport for feeding a protocol by hand: each entry of `written` is one write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True


async def until(fact: Callable[[], object]) -> None:
    """Wait for what has no event of its own."""
    for _ in range(5000):
        if fact():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError
