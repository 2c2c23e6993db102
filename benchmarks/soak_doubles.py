"""Engines that misbehave, for the soak: each is one process, and answers as OpenAI's API does when it is in the mood.

    python benchmarks/soak_doubles.py PORT --manner full|rude|embeds

full    for 8 s of every 20 it refuses all: 429 with Retry-After, 503 with it, 503 without
rude    of its answers a quarter is wrong: 500, no answer, broken off, silent, garbage, not HTTP, cut short
embeds  embeddings of a model of its own

Probes are always answered well: what is wrong with such an engine shows only in its answers.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvloop

HOST = "127.0.0.1"
CYCLE_S = 20.0
REFUSALS = ((12.0, 15.0, 429, b"retry-after: 1\r\n"), (15.0, 17.0, 503, b"retry-after: 1\r\n"), (17.0, 20.0, 503, b""))
"""Within each cycle of 20 s: from, until, status, header."""
SILENT_S = 4.0
TOKEN_S = 0.002
REASONS = {200: b"OK", 429: b"Too Many Requests", 500: b"Internal Server Error", 503: b"Service Unavailable"}


def head(status: int, content_type: bytes, length: int | None, more: bytes = b"") -> bytes:
    size = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    return b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\n%s\r\n%s\r\n" % (status, REASONS[status], content_type, size, more)


def whole(status: int, body: object, more: bytes = b"") -> bytes:
    data = json.dumps(body).encode()
    return head(status, b"application/json", len(data), more) + data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(body: object) -> bytes:
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


class Connection(asyncio.Protocol):
    """One of the gateway's. Requests are answered one at a time."""

    def __init__(self, double: "Double") -> None:
        self._double = double
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._path = b""
        self.answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self.transport.write(self._double.told(self._path.decode()))
            return
        asked = json.loads(bytes(self._body))
        self.answering = asyncio.get_running_loop().create_task(self._double.answer(self, self._path.decode(), asked))

    def connection_lost(self, error: Exception | None) -> None:
        if self.answering is not None:
            self.answering.cancel()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class Double:
    def __init__(self, manner: str, seed: int) -> None:
        self._manner = manner
        self._rng = random.Random(seed)
        self._began = time.monotonic()
        self.refused = 0
        self.wronged = 0

    def told(self, path: str) -> bytes:
        if path == "/v1/models":
            model = "embed" if self._manner == "embeds" else "mock"
            return whole(200, {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "double"}]})
        if path == "/counts":
            return whole(200, {"refused": self.refused, "wronged": self.wronged})
        return whole(200, {"status": "ok"})

    async def answer(self, to: Connection, path: str, asked: dict[str, Any]) -> None:
        if self._manner == "full" and (refusal := self._refusal()):
            self.refused += 1
            to.write(refusal)
        elif path.endswith("/embeddings"):
            await asyncio.sleep(TOKEN_S)
            vector = [round(self._rng.random(), 3) for _ in range(32)]
            data = [{"object": "embedding", "index": 0, "embedding": vector}]
            to.write(whole(200, {"object": "list", "data": data, "usage": {"prompt_tokens": 8, "total_tokens": 8}}))
        elif self._manner == "rude" and asked.get("max_tokens") != 1 and self._rng.random() < 0.25:
            # A probe or a warm-up asks for one token: what never comes into use could not do any harm.
            self.wronged += 1
            wrong = self._rng.choice(WRONGS)
            await wrong(self, to, asked)
        else:
            await self.well(to, path, asked, 1 + self._rng.randrange(12))

    def _refusal(self) -> bytes | None:
        at = (time.monotonic() - self._began) % CYCLE_S
        for since, until, status, more in REFUSALS:
            if since <= at < until:
                return whole(status, {"error": {"message": "full", "type": "overloaded", "code": status}}, more)
        return None

    # -- answers ---------------------------------------------------------------------------------------------------

    async def well(self, to: Connection, path: str, asked: dict[str, Any], tokens: int) -> None:
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        chat = "chat" in path
        if not asked.get("stream"):
            await asyncio.sleep(tokens * TOKEN_S)
            said = (
                {"message": {"role": "assistant", "content": "well " * tokens}} if chat else {"text": "well " * tokens}
            )
            choice = {"index": 0, "finish_reason": "stop", **said}
            to.write(whole(200, {"object": "chat.completion", "choices": [choice], "usage": usage}))
            return
        await self._begin(to, chat, tokens)
        last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
        to.write(event({"choices": [{"index": 0, "finish_reason": "stop", **last}]}))
        if (asked.get("stream_options") or {}).get("include_usage"):
            to.write(event({"choices": [], "usage": usage}))
        to.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def _begin(self, to: Connection, chat: bool, tokens: int) -> None:
        to.write(head(200, b"text/event-stream", None))
        for _ in range(tokens):
            said: dict[str, object] = {"delta": {"content": "well "}} if chat else {"text": "well "}
            to.write(event({"choices": [{"index": 0, "finish_reason": None, **said}]}))
            await asyncio.sleep(TOKEN_S)

    # -- what can be wrong with one --------------------------------------------------------------------------------

    async def fails(self, to: Connection, asked: dict[str, Any]) -> None:
        to.write(whole(500, {"error": {"message": "out of memory", "type": "server_error"}}))

    async def leaves(self, to: Connection, asked: dict[str, Any]) -> None:
        to.transport.close()

    async def breaks_off(self, to: Connection, asked: dict[str, Any]) -> None:
        if asked.get("stream"):
            await self._begin(to, "messages" in asked, 3)
        to.transport.abort()

    async def falls_silent(self, to: Connection, asked: dict[str, Any]) -> None:
        if asked.get("stream"):
            await self._begin(to, "messages" in asked, 2)
        await asyncio.sleep(SILENT_S)
        to.transport.close()

    async def says_garbage(self, to: Connection, asked: dict[str, Any]) -> None:
        if not asked.get("stream"):
            to.write(head(200, b"application/json", 9) + b"{not json")
            return
        await self._begin(to, "messages" in asked, 2)
        to.write(chunk(b"data: {not json\n\n") + chunk(b": a comment\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def errs_in_the_stream(self, to: Connection, asked: dict[str, Any]) -> None:
        if not asked.get("stream"):
            return await self.fails(to, asked)
        await self._begin(to, "messages" in asked, 2)
        to.write(event({"error": {"message": "the engine died", "type": "server_error", "code": 500}}) + b"0\r\n\r\n")

    async def speaks_something_else(self, to: Connection, asked: dict[str, Any]) -> None:
        to.write(b"220 mail.example ESMTP\r\n")
        to.transport.close()

    async def cuts_short(self, to: Connection, asked: dict[str, Any]) -> None:
        to.write(head(200, b"application/json", 1000) + b'{"object": "chat.compl')
        to.transport.close()


Wrong = Callable[[Double, Connection, dict[str, Any]], Any]
WRONGS: tuple[Wrong, ...] = (
    Double.fails,
    Double.leaves,
    Double.breaks_off,
    Double.falls_silent,
    Double.says_garbage,
    Double.errs_in_the_stream,
    Double.speaks_something_else,
    Double.cuts_short,
)


async def serve(port: int, manner: str, seed: int) -> None:
    double = Double(manner, seed)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(double), HOST, port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--manner", choices=("full", "rude", "embeds"), required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.manner, args.seed))


if __name__ == "__main__":
    main()
