"""The soak's clients: those who behave, those who leave, those who do not read, and those who send nonsense.

Requests arrive at random, at a mean rate, and in bursts; each is sent on a kept connection or on a new one, by one
of several tenants. Every one is entered into the book twice: when it is sent, and when it has ended.
"""

import asyncio
import contextlib
import json
import random
import time
from typing import Any, cast

import httptools
from benchmarks.soak_asks import CHAT, CRAWL, LEAVE, MIX, READ, Ask, chat
from benchmarks.soak_book import CUT, DONE, FAILED, ID, LEFT, SLOW, Book, End
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

HOST = "127.0.0.1"
ANSWER_WITHIN_S = 45.0
"""Longer than anything in the gateway may take: past this it has forgotten the request."""
MOST_OPEN = 1500
"""Requests under way; no more are sent meanwhile, so that a gateway which answers no request does not fill this
machine."""
KEPT_S = 30.0
"""A connection unused for longer is given up: the gateway gives it up at 75 s."""
MOST_IDLE = 100
BURST, BURST_EVERY_S = 300, 17.0
SOCKETS, SOCKET_PAUSE_S = 6, 0.3
TAIL = 8192
"""Bytes of an answer that are kept: its end."""
ENDS = (b"[DONE]", b"response.completed", b"response.incomplete")


class Answers(asyncio.Protocol):
    """One connection to the gateway: one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[bool] = self._loop.create_future()
        self.first: asyncio.Future[None] = self._loop.create_future()
        self.open = True
        self.status = 0
        self.failed = False
        self.used_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> None:
        self.ended, self.first = self._loop.create_future(), self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.tail, self.failed = 0, b"", False
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.open = False
            self._end(False)
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self.first.done():
            self.first.set_result(None)
        if b'"error"' in body or b"response.failed" in body:
            self.failed = True
        self.tail = (self.tail + body)[-TAIL:]

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.open = self.open and bool(self._parser.should_keep_alive())
            self._end(True)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._end(False)

    def _end(self, whole: bool) -> None:
        if not self.first.done():
            self.first.set_result(None)
        if not self.ended.done():
            self.ended.set_result(whole)

    def said(self, whole: bool, stream: bool) -> End:
        if not whole or not self.status:
            return End(CUT, self.status)
        if self.status >= 300:
            return End(FAILED, self.status)
        if not stream:
            return End(DONE, self.status)
        if any(end in self.tail for end in ENDS):
            return End(DONE, self.status)
        return End(FAILED if self.failed else CUT, self.status)


class Clients:
    def __init__(self, port: int, keys: dict[str, str], rate: float, book: Book, seed: int = 15) -> None:
        """`keys` by tenant; `rate` in requests a second."""
        self._port = port
        self._keys = keys
        self._rate = rate
        self.book = book
        self._rng = random.Random(seed)
        self._idle: list[Answers] = []
        self._open: set[asyncio.Task[None]] = set()
        self.held_back = 0
        """Arrivals that were not sent, as too many were under way."""
        self.slowest_s = 0.0
        self.broken: BaseException | None = None
        """What went wrong in a client itself: then nothing is proved."""
        self._makers = [maker for maker, _ in MIX]
        self._weights = [weight for _, weight in MIX]

    @property
    def under_way(self) -> int:
        return len(self._open)

    async def run(self, until: float) -> None:
        """Returns when the last request has ended, and every connection is closed."""
        sockets = [asyncio.create_task(self._talk(until)) for _ in range(SOCKETS)]
        due = time.monotonic()
        burst_at = due + BURST_EVERY_S
        while (now := time.monotonic()) < until:
            while due <= now:
                self._launch()
                due += self._rng.expovariate(self._rate)
            if now >= burst_at:
                burst_at = now + BURST_EVERY_S
                for _ in range(BURST):
                    self._launch()
            await asyncio.sleep(min(0.005, max(0.0, due - now)))
        await asyncio.gather(*sockets)
        while self._open:
            await asyncio.wait(self._open)
        for kept in self._idle:
            kept.transport.close()
        self._idle.clear()

    def _launch(self) -> None:
        if len(self._open) >= MOST_OPEN:
            self.held_back += 1
            return
        maker = self._rng.choices(self._makers, self._weights)[0]
        task = asyncio.get_running_loop().create_task(self._one(maker(self._rng)))
        self._open.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.broken = self.broken or error

    # -- one request -----------------------------------------------------------------------------------------------

    async def _one(self, ask: Ask) -> None:
        began = time.monotonic()
        try:
            connection = await self._connection(ask)
        except OSError:
            self.book.end(self.book.begin(ask.kind, counted=False), ask.kind, End(CUT, 0), frozenset())
            return
        number = self.book.begin(ask.kind, ask.counted)
        connection.send(self._bytes(ask, number))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                end = await self._finish(ask, connection)
        except TimeoutError:
            end = End(CUT, connection.status)
            connection.transport.abort()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.book.end(number, ask.kind, end, ask.expected)
        if connection.open and not ask.alone and not connection.transport.is_closing():
            connection.used_at = time.monotonic()
            self._idle.append(connection)
            if len(self._idle) > MOST_IDLE:
                self._idle.pop(0).transport.close()
        else:
            connection.transport.close()

    async def _finish(self, ask: Ask, connection: Answers) -> End:
        if ask.manner == LEAVE:
            # At once, while it waits, or in the middle of its answer.
            await asyncio.wait([connection.ended], timeout=self._rng.choice((0.0, 0.002, 0.02, 0.2)))
            if not connection.ended.done():
                connection.open = False
                connection.transport.abort()
                return End(LEFT, connection.status)
        elif ask.manner == CRAWL:
            await connection.first
            connection.transport.pause_reading()
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))
            connection.transport.resume_reading()
            end = connection.said(await connection.ended, ask.stream)
            return End(SLOW, end.status) if end.how in (CUT, FAILED) and end.status in (0, 200) else end
        return connection.said(await connection.ended, ask.stream)

    async def _connection(self, ask: Ask) -> Answers:
        while self._idle and not ask.alone and self._rng.random() < 0.85:
            kept = self._idle.pop()
            if kept.open and time.monotonic() - kept.used_at < KEPT_S:
                return kept
            kept.transport.close()
        _, made = await asyncio.get_running_loop().create_connection(Answers, HOST, self._port)
        return made

    def _bytes(self, ask: Ask, number: int) -> bytes:
        key = self._rng.choice(list(self._keys.values())) if ask.key is None else ask.key
        length = f"content-length: {len(ask.body)}\r\n" if "content-length" not in ask.head else ""
        lines = f"{ask.method} {ask.path} HTTP/1.1\r\nhost: {HOST}\r\nx-request-id: {ID}{number}\r\n{ask.head}{length}"
        return f"{lines}authorization: Bearer {key}\r\n\r\n".encode() + ask.body

    # -- WebSockets ------------------------------------------------------------------------------------------------

    async def _talk(self, until: float) -> None:
        """Requests one after the other, and a new WebSocket whenever this one is over."""
        while time.monotonic() < until:
            key = self._rng.choice(list(self._keys.values()))
            headers = {"authorization": f"Bearer {key}"}
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                url = f"ws://{HOST}:{self._port}{CHAT}"
                async with connect(url, additional_headers=headers, ping_interval=None, close_timeout=2) as socket:
                    while time.monotonic() < until:
                        await asyncio.sleep(self._rng.expovariate(1 / SOCKET_PAUSE_S))
                        if not await self._say(socket):
                            break
            await asyncio.sleep(0.2)

    async def _say(self, socket: Any) -> bool:
        """Whether it is still open afterwards."""
        manner = self._rng.choices((READ, LEAVE, "cancel", "nonsense"), (80, 5, 10, 5))[0]
        kind, number = f"WebSocket, {manner}", self.book.begin(f"WebSocket, {manner}")
        body = chat(self._rng, stream=self._rng.random() < 0.8, gap_us=2000) | {"event_id": f"{ID}{number}"}
        if manner == "nonsense":
            body["messages"] = 5
        end = End(CUT, 0)
        try:
            await socket.send(json.dumps(body))
            if manner == LEAVE:
                socket.transport.abort()
                end = End(LEFT, 0)
                return False
            if manner == "cancel":
                await asyncio.sleep(self._rng.random() * 0.02)
                await socket.send('{"type": "cancel"}')
            async with asyncio.timeout(ANSWER_WITHIN_S):
                end = await self._heard(socket)
        except (OSError, WebSocketException, TimeoutError):
            return False
        finally:
            self.book.end(number, kind, end, frozenset({400}) if manner == "nonsense" else frozenset())
        return True

    async def _heard(self, socket: Any) -> End:
        while True:
            message = await socket.recv()
            if message == "[DONE]":
                return End(DONE, 200)
            if message.startswith('{"type":"error"'):
                said = json.loads(message)
                return End(LEFT if said["status"] == 499 else FAILED, said["status"])
