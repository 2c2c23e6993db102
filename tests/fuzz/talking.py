"""One connection: what was said, what came back, and whether that is an answer."""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

WITHIN_S = 30.0
"""For everything that one connection says. The stage's own times add up to half of it."""
MOST_BYTES = 64 << 20


class Unanswered(Exception):
    """Neither an answer nor a closed connection."""


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: bytes
    body: bytes
    whole: bool


async def talked(
    port: int, pieces: Iterable[bytes], leaves: bool = False, says_all: bool = False, pause_s: float = 0.0
) -> bytes:
    """All that came back until the other side closed. `leaves`: the client does not listen to the end. `says_all`:
    the other side is told that no more will come, which it may take for a client that left."""
    try:
        return await asyncio.wait_for(_talked(port, pieces, leaves, says_all, pause_s), WITHIN_S)
    except TimeoutError:
        raise Unanswered(f"neither answered nor closed within {WITHIN_S:.0f} s") from None


async def _talked(port: int, pieces: Iterable[bytes], leaves: bool, says_all: bool, pause_s: float) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = bytearray()

    async def listen() -> None:
        with contextlib.suppress(OSError):
            while len(heard) < MOST_BYTES and (some := await reader.read(65_536)):
                heard.extend(some)

    listening = asyncio.ensure_future(listen())
    try:
        with contextlib.suppress(OSError):
            for piece in pieces:
                if writer.transport.is_closing():
                    break
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if leaves:
                return bytes(heard)
            if says_all and not writer.transport.is_closing():
                writer.write_eof()
        await listening
    finally:
        listening.cancel()
        writer.transport.abort()
    return bytes(heard)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        "connection: close",
        *headers,
    )
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body


def answers_in(heard: bytes) -> list[Answered]:
    """Raises ValueError where it is no HTTP."""
    found: list[Answered] = []
    while heard:
        head, end, rest = heard.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*(?:\r\n|\Z)", head)
        if not status or not end:
            raise ValueError(f"no head of an answer: {heard[:200]!r}")
        code = int(status[1])
        if code == 101:
            return [*found, Answered(code, head, rest, whole=True)]
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if code < 200 or code in (204, 304):
            body, heard, whole = b"", rest, True
        elif re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
            body, heard, whole = _dechunked(rest)
        else:
            size = int(length[1]) if length else len(rest)
            body, heard, whole = rest[:size], rest[size:], len(rest) >= size
        found.append(Answered(code, head, body, whole))
    return found


def heads_in(heard: bytes) -> list[Answered]:
    """Answers whose requests can't be told apart: which of them were for HEAD, and have no body, is not known."""
    if heard and not heard.startswith(b"HTTP/1."):
        raise ValueError(f"no head of an answer: {heard[:200]!r}")
    return [Answered(int(status), b"", b"", whole=False) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", heard)]


def _dechunked(data: bytes) -> tuple[bytes, bytes, bool]:
    parts: list[bytes] = []
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end:
            return b"".join(parts), b"", False
        if not (size := int(line, 16)):
            return b"".join(parts), data.removeprefix(b"\r\n"), True
        parts.append(data[:size])
        data = data[size + 2 :]


def judged(answered: Answered) -> str:
    """What is wrong with an answer; empty: nothing."""
    if answered.status == 500:
        return f"500: {answered.body[:300]!r}"
    if answered.status == 101 or not answered.body:
        return ""
    if b"text/event-stream" in answered.headers:
        events = [part for part in re.split(rb"\r?\n\r?\n", answered.body) if part]
        if answered.whole and not (
            b"[DONE]" in events[-1] or b'"error"' in events[-1] or b"event: response." in events[-1]
        ):
            return f"a stream that ends as if it were whole, without its end: {answered.body[-300:]!r}"
        return ""
    if answered.status >= 400 and answered.whole:
        try:
            message = json.loads(answered.body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return f"{answered.status} without an error that a client can read: {answered.body[:300]!r}"
        if not isinstance(message, str) or not message:
            return f"{answered.status} without words: {answered.body[:300]!r}"
    return ""
