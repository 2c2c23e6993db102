"""`why` names what was really done to a request. Five causes at once, each known, over real sockets."""

import asyncio
import hashlib
import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headgate.model.clock import monotonic
from tests.engine.process import ask, headgate
from tests.ledger import ADMIN_KEYS

ROOT = Path(__file__).parent.parent.parent
SLOW_S = 0.25
"""More than this beyond what it would take alone, and a request is slow."""
NAMED = 0.95
TOLD_WHOLE = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}
"""Asked so, the gateway does not stream it from the replica either: when its first token was there is not known."""


@contextmanager
def shared_engine(cold_s: float = 0.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.observe.shared_engine", "0", str(cold_s)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def seen(engine: str) -> dict[str, int]:
    return dict(json.loads(ask(f"{engine}/seen")[1]))


async def until(true: Callable[[], bool]) -> None:
    ends = monotonic() + 10
    while not await asyncio.to_thread(true):
        assert monotonic() < ends


@dataclass(frozen=True)
class Sent:
    """One request: what was done to it, and how long it would take alone."""

    id: str
    injected: str
    alone_s: float
    took_s: float
    whole: bool
    stream: bool


class Client:
    """Sends what it is told, and remembers what was done to whom."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self.sent: list[Sent] = []
        self.asked = 0

    async def stream(
        self,
        model: str,
        injected: str,
        tenant: str = "",
        pad: int = 0,
        stall_s: float | None = None,
        **knobs: Any,
    ) -> None:
        """`model` says which replicas; `stall_s`: when the stream has begun nothing is read for so long. One in three,
        of those whose client reads, is not streamed."""
        number = f"{injected}-{len(self.sent)}-{id(knobs)}"
        self.asked += 1
        stream = stall_s is not None or injected == "slow_client" or self.asked % 3 != 0
        text = " ".join(f"{name}={value:g}" for name, value in knobs.items()) + " word" * pad
        asked = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
        body = json.dumps(asked if stream else {**asked, **TOLD_WHOLE}).encode()
        key = f"authorization: Bearer {tenant}\r\n" if tenant else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-request-id: {number}\r\n{key}"
        connection = socket.socket()
        if stall_s is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        began = monotonic()
        await loop.sock_connect(connection, self._address)
        await loop.sock_sendall(connection, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await loop.sock_recv(connection, 1024)
        if stall_s is not None:
            await asyncio.sleep(stall_s)
        while more := await loop.sock_recv(connection, 1 << 16):
            answer = answer[-256:] + more
        connection.close()
        alone_s = (knobs.get("ttft", 5.0) + knobs.get("work", 0.0) + knobs["n"] * knobs.get("itl", 0.0)) / 1e3
        ends = b"[DONE]" if stream else b'"completion_tokens":'
        self.sent.append(Sent(number, injected, alone_s, monotonic() - began, ends in answer, stream))


Injection = Callable[[Client], Coroutine[Any, Any, None]]
SHORT: dict[str, Any] = {"n": 20, "itl": 5}


async def calm(client: Client) -> None:
    """What is usual."""
    for _ in range(30):
        await asyncio.gather(*(client.stream("calm", "nothing", **SHORT) for _ in range(4)))


async def long_prefill(client: Client) -> None:
    """Streams that have begun, and others that come meanwhile, beside a prompt that takes 600 ms to prefill."""
    for _ in range(3):
        begun = [asyncio.create_task(client.stream("shared", "long_prefill", n=40, itl=5)) for _ in range(5)]
        await asyncio.sleep(0.08)
        long = asyncio.create_task(client.stream("shared", "own_work", pad=4000, work=600, n=1))
        await asyncio.sleep(0.05)
        await asyncio.gather(*begun, long, *(client.stream("shared", "long_prefill", **SHORT) for _ in range(5)))


async def stalled_client(client: Client) -> None:
    large: dict[str, Any] = {"n": 200, "itl": 1, "size": 8192}
    await asyncio.gather(
        *(client.stream("read", "slow_client", stall_s=0.8, **large) for _ in range(5)),
        *(client.stream("read", "slow_client", stall_s=3.0, **large) for _ in range(3)),  # longer than is waited for
        *(client.stream("read", "nothing", **SHORT) for _ in range(5)),
    )


async def flood(client: Client) -> None:
    quick: dict[str, Any] = {"ttft": 30, "n": 1}
    flooding = [asyncio.create_task(client.stream("flooded", "flood", tenant="acme", **quick)) for _ in range(48)]
    await asyncio.sleep(0.1)
    others = [client.stream("flooded", "flood", tenant=f"t{n % 2}", **quick) for n in range(16)]
    await asyncio.gather(*flooding, *others)


async def cold_replica(client: Client) -> None:
    await asyncio.gather(*(client.stream("cold", "cold_replica", **SHORT) for _ in range(8)))
    await asyncio.gather(*(client.stream("cold", "nothing", **SHORT) for _ in range(8)))


def killed_replica(doomed: subprocess.Popen[str], dead: str, alive: str) -> Injection:
    """It falls silent in the middle of streams, gets some more requests, and dies."""

    async def run(client: Client) -> None:
        begun = [asyncio.create_task(client.stream("killed", "killed_replica", n=50, itl=10)) for _ in range(10)]
        await until(lambda: seen(dead)["speaking"] >= 3 and seen(dead)["running"] + seen(alive)["running"] == 10)
        doomed.send_signal(signal.SIGSTOP)
        later = [asyncio.create_task(client.stream("killed", "killed_replica", **SHORT)) for _ in range(10)]
        await asyncio.sleep(0.7)
        doomed.send_signal(signal.SIGKILL)
        await asyncio.gather(*begun, *later)

    return run


def names_it(sent: Sent, main: dict[str, Any], doomed: str) -> bool:
    kind: str = main["because"]["kind"]
    who: str = main["because"]["who"]
    if sent.injected == "flood":
        return kind in ("flood", "queue") and who == "acme"  # to the one who floods it is just its own queue
    if sent.injected == "long_prefill":
        return kind == "long_prefill" and who.startswith("own_work")
    if sent.injected == "killed_replica":
        return kind == "killed_replica" and who == doomed
    return kind == sent.injected


@pytest.mark.timeout(120)
def test_why_names_the_injected_cause_of_nearly_every_slow_request(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(shared_engine(0.7 if name == "cold" else 0.0))
            for name in ("calm", "shared", "read", "flooded", "cold", "dead", "alive")
        }
        models = {"dead": "killed", "alive": "killed"}
        replicas = [
            {"id": name, "url": url, "model": models.get(name, name), "slots": 1 if name == "flooded" else 64}
            for name, (_, url) in engines.items()
        ]
        keys = {name: {"key_sha256": [hashlib.sha256(name.encode()).hexdigest()]} for name in ("acme", "t0", "t1")}
        lanes = {name: {"wait_bound_s": 30, "queue_limit": 1000} for name in ("fast", "slow")}
        config = {
            "listen": {"port": 0}, "replicas": replicas, "lanes": lanes, "tenants": keys, "admin_keys": ADMIN_KEYS,
            "anonymous": {"allowed": True}, "timeouts": {"slow_client_grace_s": 1.5},
            "output": {"tasks": {"chat": {"runaway": "off"}}},  # the doubles say one word for as long as they may
            "warm": {"before_use": False},  # or nobody would ever meet a cold replica
        }  # fmt: skip
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps(config))
        _, url = stack.enter_context(headgate("serve", "--config", str(path)))
        client = Client(url)
        injections: list[Injection] = [
            calm, long_prefill, stalled_client, flood, cold_replica,
            killed_replica(engines["dead"][0], engines["dead"][1], engines["alive"][1]),
        ]  # fmt: skip

        async def run() -> None:
            def ready() -> bool:
                up = [replica["usable"] for replica in json.loads(ask(f"{url}/admin/state")[1])["replicas"]]
                return len(up) == len(replicas) and all(up)

            await until(ready)
            warm = ("shared", "read", "flooded", "killed")
            await asyncio.gather(*(client.stream(name, "nothing", n=3) for name in warm for _ in range(8)))
            await asyncio.gather(*(injection(client) for injection in injections))

        asyncio.run(run())
        slow = [s for s in client.sent if s.took_s > s.alone_s + SLOW_S or not s.whole]
        named: list[bool] = []
        missed: list[str] = []
        for sent in slow:
            if sent.injected in ("nothing", "own_work"):
                continue  # a busy machine, and nobody's doing here
            status, body = ask(f"{url}/admin/requests/{quote(sent.id)}")
            assert status == 200
            told = json.loads(body)
            parts = told["explanation"]["parts"]
            assert sum(part["took_s"] for part in parts) == pytest.approx(told["record"]["e2e_s"], rel=0.01)
            named.append(names_it(sent, told["explanation"]["main"], "dead"))
            if not named[-1]:
                missed.append(f"{sent.injected}, {sent.stream}: {told['explanation']['headline']}")
    injected = Counter(sent.injected for sent in slow)
    assert {cause: injected[cause] >= 5 for cause in CAUSES} == dict.fromkeys(CAUSES, True), injected
    unstreamed = Counter(sent.injected for sent in slow if not sent.stream)
    assert all(unstreamed[cause] for cause in CAUSES if cause != "slow_client"), unstreamed
    print(f"{sum(named)} of {len(named)} slow requests: {dict(injected)}")
    assert sum(named) >= NAMED * len(named), "\n".join(missed)


CAUSES = ("long_prefill", "slow_client", "killed_replica", "cold_replica", "flood")
