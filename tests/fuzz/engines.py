"""Three engines in the fuzzer's own process: `good` answers well, `odd` by case, `worse` also lies about its health."""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator

from tests.fuzz.answers import Answer, answer, head, probe
from tests.fuzz.odd import dumped

HANG_S = 4.0
"""Longer than the gateway waits for a token."""
CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"w"},"text":"w","finish_reason":%b}]}\n\n'
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
EVENTS = (CHUNK % b"null", CHUNK % b'"stop"', USAGE, b"data: [DONE]\n\n")
GOOD = Answer(
    (
        head(200, b"text/event-stream", None),
        *(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS),
        b"0\r\n\r\n",
    ),
    "keep",
)


class Engine:
    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.calm = False
        """It answers well, whatever its name."""
        self.asked = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=64 << 20)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            while await self._answered(reader, writer):
                pass
        writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another request may come on this connection."""
        asked = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", asked)
        body = await reader.readexactly(int(length[1])) if length else b""
        chosen = self._choice(asked, body)
        for piece in chosen.pieces:
            writer.write(piece)
            await writer.drain()
        if chosen.then == "hang":
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_gone(reader))), HANG_S)
        elif chosen.then == "close":
            writer.close()
        return chosen.then == "keep"

    def _choice(self, asked: bytes, body: bytes) -> Answer:
        path = asked.split(b" ", 2)[1].decode()
        stream = b'"stream":true' in body
        self.asked += 1
        if self.calm:
            return self._well(path, stream)
        if self.name == "worse":
            rng = random.Random(f"{self.seed}/worse/{self.asked}")
            return probe(rng, path) if asked.startswith(b"GET") else answer(rng, path, stream)
        case = re.search(rb"case=(\d+)", body)
        if self.name == "odd" and case:
            return answer(random.Random(f"{self.seed}/engine/{int(case[1])}"), path, stream)
        return self._well(path, stream)

    def _well(self, path: str, stream: bool) -> Answer:
        if stream:
            return GOOD
        said = {
            "/v1/models": {"object": "list", "data": [{"id": self.name, "object": "model"}]},
            "/v1/embeddings": {"object": "list", "data": [{"embedding": [0.0], "index": 0}]},
        }.get(path)
        if said is None:
            choice = {
                "index": 0,
                "text": "w",
                "message": {"role": "assistant", "content": "w"},
                "finish_reason": "stop",
            }
            told = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            said = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": told}  # type: ignore[dict-item]
        body = dumped(said)
        return Answer((head(200, b"application/json", len(body)), body), "keep")


async def _gone(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass
