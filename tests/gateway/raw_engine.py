"""An engine that answers with whatever bytes the test gives it, on a thread of its own.

A prompt that says `say=NAME` is answered with the bytes of that name; everything else as an engine would. An answer
that is a list of bytes is written for as long as the gateway reads: its last piece again and again.
"""

import asyncio
import contextlib
import re
import ssl
import threading
from collections.abc import Iterator

MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'
GOOD = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"text":"w","message":{"role":"assistant",'
    b'"content":"w"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = (
    b'{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"w "},"text":"w ",'
    b'"finish_reason":null}]}'
)
LAST = TOKEN.replace(b'"finish_reason":null', b'"finish_reason":"stop"')
END = b"0\r\n\r\n"
Answer = bytes | list[bytes]


def whole(body: bytes, status: bytes = b"200 OK", *headers: bytes, kind: bytes = b"application/json") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def events(*payloads: bytes, end: bytes = END) -> bytes:
    return STREAM + b"".join(chunk(b"data: %b\n\n" % data) for data in payloads) + end


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


GOOD_STREAM = events(TOKEN, LAST, b"[DONE]")


class RawEngine:
    def __init__(self, answers: dict[str, Answer], pages: dict[str, Answer]) -> None:
        self.answers = answers
        self.pages = pages
        """Answers to GETs, by path; others are as an engine's."""
        self.url = ""
        self.heads: list[bytes] = []
        """Heads of all requests so far."""
        self.port = 0
        self.key = b""
        """Without it everything below /v1 is answered 401, as vLLM does."""
        self.tls: ssl.SSLContext | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                answer = self._answer(head, body)
                pieces = answer if isinstance(answer, list) else [answer]
                for piece in pieces:
                    writer.write(piece)
                for _ in range(100_000 if isinstance(answer, list) else 0):
                    writer.write(pieces[-1])
                    await writer.drain()
                await writer.drain()
                if b"connection: close" in pieces[0] or isinstance(answer, list):
                    break
        writer.close()

    def _answer(self, head: bytes, body: bytes) -> Answer:
        method, path = head.split(b" ")[:2]
        if self.key and path.startswith(b"/v1") and b"\r\nauthorization: Bearer %b\r\n" % self.key not in head:
            return whole(b'{"error":"Unauthorized"}', b"401 Unauthorized")
        if method == b"GET":
            default = {"/health": whole(b"{}"), "/v1/models": whole(MODELS)}
            where = path.decode()
            return self.pages.get(where) or default.get(where) or whole(b"{}", b"404 Not Found")
        told = re.search(rb"say=([\w-]+)", body)
        if told is not None and told[1].decode() in self.answers:
            return self.answers[told[1].decode()]
        return GOOD_STREAM if b'"stream":true' in body else whole(GOOD)

    def run(self, started: threading.Event, stop: threading.Event) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
            self.port = server.sockets[0].getsockname()[1]
            self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"
            started.set()
            await asyncio.to_thread(stop.wait)
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run(main())


@contextlib.contextmanager
def raw_engine(
    answers: dict[str, Answer],
    pages: dict[str, Answer] | None = None,
    *,
    key: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> Iterator[RawEngine]:
    engine = RawEngine(answers, pages or {})
    engine.key, engine.tls = key, tls
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=engine.run, args=(started, stop), daemon=True)
    thread.start()
    assert started.wait(5)
    try:
        yield engine
    finally:
        stop.set()
        thread.join(5)
