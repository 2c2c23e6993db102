"""One client of ttft_seen.py: sends streamed chats, and says when each began and when its first token was there.

    python ttft_client.py KIND URL REQUESTS AT_ONCE

It runs in its client's own environment, so it imports nothing of Headgate's. Prints a JSON list of [id, began, first],
on the machine's monotonic clock, which all processes share.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

BODY: dict[str, Any] = {
    "model": "double",
    "messages": [{"role": "user", "content": "ttft=15 itl=5 n=4"}],
    "stream": True,
    "max_tokens": 8,
}
Ask = Callable[[str], Awaitable[float]]


async def raw(url: str, fresh: bool) -> Ask:
    """Sockets, and a search for the first token's bytes: nothing in Python is quicker."""
    where = urlsplit(url)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    body = json.dumps(BODY).encode()

    async def ask(name: str) -> float:
        pair = idle.pop() if idle else await asyncio.open_connection(where.hostname, where.port)
        reader, writer = pair
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        head += f"x-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        heard, first = b"", 0.0
        while not heard.endswith(b"\r\n0\r\n\r\n"):
            heard += await reader.read(65536)
            if not first and b'"content":"w' in heard:
                first = time.monotonic()
        if fresh:
            writer.close()
        else:
            idle.append(pair)
        return first

    return ask


async def openai_python(url: str) -> Ask:
    import openai  # type: ignore[import-not-found,unused-ignore]

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def ask(name: str) -> float:
        first = 0.0
        stream = await client.chat.completions.create(**BODY, extra_headers={"x-request-id": name})
        async for chunk in stream:
            if not first and chunk.choices and chunk.choices[0].delta.content:
                first = time.monotonic()
        return first

    return ask


async def aiohttp_client(url: str) -> Ask:
    """As `vllm bench serve` does it: aiohttp, and each event decoded."""
    import aiohttp  # type: ignore[import-not-found,unused-ignore]

    session = aiohttp.ClientSession()

    async def ask(name: str) -> float:
        first = 0.0
        async with session.post(f"{url}/v1/chat/completions", json=BODY, headers={"x-request-id": name}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {") and not first:
                    chunk = json.loads(line[6:])
                    if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                        first = time.monotonic()
        return first

    return ask


async def httpx_client(url: str) -> Ask:
    """As GuideLLM does it, by httpx or its successor."""
    import httpx2  # type: ignore[import-not-found,unused-ignore]

    client = httpx2.AsyncClient(timeout=60)

    async def ask(name: str) -> float:
        first = 0.0
        where, headers = f"{url}/v1/chat/completions", {"x-request-id": name}
        async with client.stream("POST", where, json=BODY, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and not first:
                    chunk = json.loads(line[6:])
                    if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                        first = time.monotonic()
        return first

    return ask


async def main(kind: str, url: str, requests: int, at_once: int) -> None:
    made = {
        "raw": lambda: raw(url, False),
        "raw-fresh": lambda: raw(url, True),
        "openai": lambda: openai_python(url),
        "aiohttp": lambda: aiohttp_client(url),
        "httpx": lambda: httpx_client(url),
    }
    ask = await made[kind]()
    told: list[tuple[str, float, float]] = []
    left = iter(range(-at_once, requests))

    async def one_after_the_other() -> None:
        for number in left:
            name, began = f"{kind}-{time.monotonic_ns()}", time.monotonic()
            first = await ask(name)
            if number >= 0:  # the first of each opens the connections
                told.append((name, began, first))

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
