"""Both sides of benchmarks/bodies.py's load, each a process: `streams PORT SECONDS`, and `bodies PORT SECONDS`.

`streams` reads streams through the gateway and asks /health/live beside them, on new connections. It prints the largest
and the p99 gap between two pieces of a stream, and the p99 of the probes, in seconds. `bodies` sends one body after the
other on some connections, evenly over the time, and prints how often each status was answered.
"""

import asyncio
import contextlib
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import cast

import uvloop
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

STREAMS, GAP_US = 50, 20_000
PROBE_EVERY_S = 0.02
CONNECTIONS, BODIES = 10, 100
SIZE = 1 << 20
ASK = b"MOCK:ttft=0,itl=0,n=1,size=1,"


# -- what is sent ---------------------------------------------------------------------------------


def _filled(before: bytes, unit: bytes, after: bytes) -> bytes:
    count = (SIZE - len(before) - len(after)) // len(unit)
    return before + (unit * count).removesuffix(b",") + after


def _chat(content: bytes) -> bytes:
    return _filled(b'{"model":"default","max_tokens":1,"messages":[{"role":"user","content":"' + ASK, content, b'"}]}')


def _list(unit: bytes) -> bytes:
    return _filled(b'{"model":"default","messages":[', unit, b"]}")


def _keys() -> bytes:
    return b"{%b}" % b",".join(b'"k%d":1' % number for number in range(SIZE // 13))


def _schema(depth: int) -> bytes:
    one = b'{"type":"object","properties":{"a":' * depth + b'{"type":"string"}' + b"}}" * depth
    tool = b'{"type":"function","function":{"name":"f","parameters":%b}},' % one
    return _filled(b'{"model":"default","messages":[{"role":"user","content":"a"}],"tools":[', tool, b"]}")


CHAT, TEXT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
KINDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "one text": (CHAT, lambda: _chat(b"The quick brown fox. ")),
    "code, escaped": (CHAT, lambda: _chat(b'if (a == \\"b\\") {\\n\\treturn [1, 2];\\n}\\n')),
    "not ASCII": (CHAT, lambda: _chat("Grüße, 你好. ".encode())),
    "escapes only": (CHAT, lambda: _chat(b"\\u0041")),
    "messages": (
        CHAT,
        lambda: _filled(
            b'{"model":"default","max_tokens":1,"messages":[{"role":"user","content":"' + ASK + b'"},',
            b'{"role":"user","content":"%b"},' % (b"word " * 40),
            b"]}",
        ),
    ),
    "spaces": (CHAT, lambda: _chat(b"a b ").replace(b'","', b'" , "')),
    "token ids": (TEXT, lambda: _filled(b'{"model":"default","max_tokens":1,"prompt":[', b"100257,", b"]}")),
    "texts to embed": (
        EMBEDDINGS,
        lambda: _filled(b'{"model":"nobody","input":[', b'"%b",' % (b"text " * 120), b"]}"),
    ),
    "a response": (
        RESPONSES,
        lambda: _filled(b'{"model":"default","max_output_tokens":1,"input":"' + ASK, b"word ", b'"}'),
    ),
    "[[[[": (CHAT, lambda: b"[" * SIZE),
    "[],[],": (CHAT, lambda: _list(b"[],")),
    "{},{},": (CHAT, lambda: _list(b"{},")),
    '{"a":{}},': (RESPONSES, lambda: _filled(b'{"input":[', b'{"a":{}},', b"]}")),
    '"","",': (EMBEDDINGS, lambda: _filled(b'{"input":[', b'"",', b"]}")),
    "short messages": (CHAT, lambda: _list(b'{"role":"user","content":"hi"},')),
    "digits": (TEXT, lambda: _filled(b'{"prompt":[', b"1,", b"]}")),
    "floats": (TEXT, lambda: _filled(b'{"prompt":[', b"1.5e-7,", b"]}")),
    "long numbers": (TEXT, lambda: _filled(b'{"prompt":[', b"9" * 30 + b",", b"]}")),
    "one number": (CHAT, lambda: _filled(b'{"n":', b"9", b"}")),
    "keys": (CHAT, _keys),
    "the same key": (CHAT, lambda: _filled(b"{", b'"k":1,', b"}")),
    "NaN at the end": (TEXT, lambda: _filled(b'{"prompt":[', b"1,", b",NaN]}")),
    "lone surrogates": (CHAT, lambda: _list(b'"\\ud800",')),
    "not UTF-8 at the end": (CHAT, lambda: _chat(b"a") + b"\xff"),
    "deep schemas": (CHAT, lambda: _schema(25)),
}
"""By name: where it is sent, and what it is. The first nine are valid. The mock answers a request for embeddings
with a chat, which is a failed answer (502): so that one asks for a model that no replica has, and gets its 404 once
all of it has been read and counted."""


# -- who sends it ---------------------------------------------------------------------------------


def _send(port: int, number: int, bodies: list[tuple[str, bytes]], within_s: float, counted: Counter[str]) -> None:
    """One connection's bodies. The first connection is a WebSocket."""
    began = time.monotonic()
    for turn, (path, body) in enumerate(bodies):
        time.sleep(max(0.0, began + (turn + number / CONNECTIONS) * within_s / len(bodies) - time.monotonic()))
        counted[_over_websocket(port, body) if number == 0 else _over_http(port, path, body)] += 1


def _over_http(port: int, path: str, body: bytes) -> str:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        client.request("POST", path, body, {"content-type": "application/json"})
        answer = client.getresponse()
        answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        client.close()


def _over_websocket(port: int, body: bytes) -> str:
    url = f"ws://127.0.0.1:{port}{CHAT}"
    try:
        with connect(url, compression=None, proxy=None, max_size=None) as client:
            client.send(body, text=True)
            said = json.loads(client.recv(timeout=60))
            return str(said.get("status", 200))
    except (OSError, ConnectionClosed, TimeoutError) as error:
        return type(error).__name__


def send_bodies(port: int, within_s: float) -> Counter[str]:
    made = [(path, make()) for path, make in KINDS.values()]
    turns = BODIES // CONNECTIONS
    counted: Counter[str] = Counter()
    senders = []
    for number in range(CONNECTIONS):
        mine = [made[(number * turns + turn) % len(made)] for turn in range(turns)]
        senders.append(threading.Thread(target=_send, args=(port, number, mine, within_s, counted)))
    print("ready", flush=True)
    sys.stdin.readline()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return counted


# -- who reads ------------------------------------------------------------------------------------


class Stream(asyncio.Protocol):
    """Reads one answer, and notes when pieces of it come."""

    def __init__(self, ask: bytes, gaps: list[float]) -> None:
        self._ask = ask
        self._gaps = gaps
        self._last: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._ask)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now


async def _probe(port: int) -> float:
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    return time.monotonic() - began


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


async def read_streams(port: int, within_s: float) -> dict[str, float]:
    tokens = int(within_s * 1e6 / GAP_US) + 1000
    content = f"MOCK:ttft=1000,itl={GAP_US},n={tokens},size=8,"
    body = json.dumps({"model": "default", "messages": [{"role": "user", "content": content}], "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    gaps: list[float] = []
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(STREAMS):
        transport, _ = await loop.create_connection(lambda: Stream(head.encode() + body, gaps), "127.0.0.1", port)
        opened.append(transport)
        await asyncio.sleep(GAP_US / 1e6 / STREAMS)  # tokens of one moment would measure each other
    await asyncio.sleep(1.0)
    gaps.clear()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    ends, probes = time.monotonic() + within_s, []
    while time.monotonic() < ends:
        probes.append(await _probe(port))
        await asyncio.sleep(PROBE_EVERY_S)
    for transport in opened:
        transport.close()
    return {
        "gap_most": max(gaps), "gap_p99": quantile(gaps, 0.99), "live_p99": quantile(probes, 0.99),
        "live_most": max(probes), "pieces": float(len(gaps)),
    }  # fmt: skip


if __name__ == "__main__":
    mode, where, lasts_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if mode == "streams":
        print(json.dumps(uvloop.run(read_streams(where, lasts_s))))
    else:
        print(json.dumps(send_bodies(where, lasts_s)))
