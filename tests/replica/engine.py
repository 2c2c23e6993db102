"""A replica on a real socket that does exactly what the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headgate.model.clock import monotonic
from headgate.model.errors import ReplicaFailed
from headgate.replica.http import Call, Connections, PoolLimits, request_head
from tests.wire.serving import until

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: bytes) -> bytes:
    return chunk(b"data: %b\n\n" % data)


def token(text: str) -> bytes:
    return event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text.encode())


def whole(body: bytes, status: int = 200, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"content-type: application/json", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Talk:
    """One connection, from the replica's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next one."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        return head, await self.reader.readexactly(length)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def left(self) -> None:
        """The other side is gone."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Engine:
    def __init__(self) -> None:
        self._talks: asyncio.Queue[Talk] = asyncio.Queue()
        self._all: list[Talk] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for talk in self._all:
            talk.reset()

    async def talk(self) -> Talk:
        """The next connection."""
        return await self._talks.get()

    async def asked(self) -> Talk:
        """The next connection, with its first request read."""
        talk = await self.talk()
        await talk.request()
        return talk

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        talk = Talk(reader, writer)
        self._all.append(talk)
        self._talks.put_nowait(talk)


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    it = Engine()
    await it.listen()
    try:
        yield it
    finally:
        it.close()


class Heard:
    """A Listener that remembers."""

    def __init__(self) -> None:
        self.head: tuple[int, dict[str, str], bool] | None = None
        self.events: list[bytes] = []
        self.reads: list[int] = []
        """How many events came at once."""
        self.body: bytes | None = None
        self.failed: tuple[ReplicaFailed, bool] | None = None
        self.late = 0
        self.done = False
        self.over = asyncio.Event()
        self.news = asyncio.Event()

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        assert self.head is None
        self.head = (status, headers, is_stream)
        self.news.set()

    def on_events(self, events: list[bytes]) -> None:
        assert self.head is not None
        assert not self.over.is_set()
        assert events
        self.events += events
        self.reads.append(len(events))
        self.news.set()

    def on_body(self, body: bytes) -> None:
        assert self.body is None
        self.body = body

    def on_done(self) -> None:
        assert not self.over.is_set()
        self.done = True
        self.over.set()

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        assert not self.over.is_set()
        self.failed = (error, sent)
        self.over.set()

    def on_late(self) -> None:
        assert not self.over.is_set()
        self.late += 1

    def on_broken(self, flaw: Exception) -> None:
        raise flaw


HEAD = request_head("/v1/x", "test")


@contextlib.asynccontextmanager
async def reaching(limits: PoolLimits | None = None) -> AsyncIterator[tuple[Engine, Connections]]:
    async with engine() as replica:
        connections = Connections(replica.url, clock=monotonic, limits=limits)
        try:
            yield replica, connections
        finally:
            connections.close()
            await until(lambda: not connections.count)


def ask(connections: Connections, body: bytes = b"{}") -> tuple[Call, Heard]:
    heard = Heard()
    return connections.send(HEAD, body, heard), heard


async def answered(connections: Connections, talk: Talk | None, replica: Engine, answer: bytes) -> tuple[Heard, Talk]:
    """One call from send to its end, on this connection or the next."""
    _, heard = ask(connections)
    if talk is None:
        talk = await replica.talk()
    await talk.request()
    talk.send(answer)
    await heard.over.wait()
    return heard, talk
