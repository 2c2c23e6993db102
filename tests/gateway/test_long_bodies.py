"""Long bodies: what they hold while they wait, and who is held up by them."""

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from headgate.config.gateway import Tenant
from headgate.gateway.intake.aside import AsideQueue
from headgate.gateway.websocket import Conversation, Sockets
from headgate.model.clock import monotonic
from headgate.wire.limits import WireLimits
from tests import ledger
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen
from tests.gateway.versions import Scene, awaited, scene
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(90)
MB = 1_000_000
PATH = "/v1/chat/completions"


def key(name: str, **more: Any) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(name.encode()).hexdigest()], **more}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@contextlib.contextmanager
def sent(url: str, body: dict[str, Any], path: str = PATH, name: str = "none", times: int = 1) -> Iterator[list[Any]]:
    """Requests whose answers are not read yet."""
    where = urlsplit(url)
    text = json.dumps(body, ensure_ascii=False).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {name}\r\ncontent-length: {len(text)}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((where.hostname, where.port))) for _ in range(times)]
        for client in clients:
            client.sendall(head.encode() + text)
        yield clients


def held(url: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(ask(f"{url}/admin/ledger")[1])
    return found


def refused(url: str, body: dict[str, Any], name: str = "none") -> tuple[int, str, str | None]:
    request = urllib.request.Request(
        url + PATH, json.dumps(body).encode(), {"content-type": "application/json", **bearer(name)}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as error:
        return error.code, error.read().decode(), error.headers["retry-after"]


def rss_mb(url: str) -> float:
    status = Path(f"/proc/{ledger.running[url].pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


LIMITS = {"limits": {"body_bytes": MB, "held_bytes": MB}}


def test_past_held_bytes_a_long_body_is_refused_and_a_short_one_is_not(tmp_path: Path) -> None:
    long = chat("n=500 itl=20 " + "x" * 600_000, stream=True)
    with double() as (_, engine), gateway(tmp_path, LIMITS, engine) as url:
        with sent(url, long):
            eventually(lambda: held(url)["running"] == 1)
            assert held(url)["held_bytes"] > 600_000
            status, text, after = refused(url, long)
            assert (status, after) == (503, "5")
            assert "limits.held_bytes is 1000000" in text
            assert json.loads(text)["error"]["code"] == "too_many_bodies"
            assert ask(url + PATH, chat("n=1"))[0] == 200
        ledger.check(url)
        assert ask(url + PATH, chat("n=1" + "x" * 600_000))[0] == 200


def test_what_is_refused_for_another_reason_holds_nothing(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, LIMITS, engine) as url:
        for _ in range(3):
            assert ask(url + PATH, b"[" + b" " * 600_000)[0] == 400
        ledger.check(url)


@pytest.mark.parametrize(("path", "field"), [(PATH, "messages"), ("/v1/responses", "input")])
def test_a_long_body_that_waits_is_not_kept_parsed(tmp_path: Path, path: str, field: str) -> None:
    """Text beyond the basic plane takes four bytes a character once it is parsed."""
    text = "ttft=30000 \N{GRINNING FACE}" + "x" * 4 * MB
    body = {"model": "default", field: [{"role": "user", "content": text}], "service_tier": "flex"}
    if path != PATH:
        body["instructions"] = body["user"] = "\N{GRINNING FACE}" + "y" * MB
    with double() as (_, engine), gateway(tmp_path, {}, engine, slots=1) as url:
        assert ask(url + PATH, chat("n=1" + text[30:]))[0] == 200
        before = rss_mb(url)
        with sent(url, body, path, times=16):
            eventually(lambda: held(url)["waiting"] == 15, 30)
            grown = rss_mb(url) - before
        size_mb = len(json.dumps(body, ensure_ascii=False).encode()) / MB
        assert grown < 16 * size_mb * 3 + 60, (
            "what is freed does not all go back to the system; it was 6 times the size"
        )


def test_a_tenant_leaves_room_for_others(tmp_path: Path) -> None:
    config = {"limits": {"body_bytes": MB, "held_bytes": MB}, "tenants": {"bad": key("bad"), "good": key("good")}}
    long = chat("n=500 itl=20 " + "x" * 300_000, stream=True)
    with double() as (_, engine), gateway(tmp_path, config, engine) as url, sent(url, long, name="bad"):
        eventually(lambda: held(url)["running"] == 1)
        with sent(url, long, name="bad"):
            eventually(lambda: held(url)["running"] == 2)
            status, text, _ = refused(url, long, "bad")
            assert (status, "tenant 'bad' holds" in text) == (503, True)
            assert ask(url + PATH, chat("n=1" + "x" * 300_000), bearer("good"))[0] == 200


def test_a_stream_of_a_long_body_goes_on_elsewhere_when_it_breaks_off(tmp_path: Path) -> None:
    """What it asked is read again from what was written of it."""
    long = {"model": "default", "prompt": "n=40 itl=50 " + "x" * 300_000, "stream": True}
    with double() as (first, one), double() as (second, two), gateway(tmp_path, {}, one, two) as url:
        with sent(url, long, "/v1/completions") as (client,):
            said = client.recv(65536)
            (first if seen(one)["running"] else second).kill()
            while b"[DONE]" not in said and (more := client.recv(65536)):
                said += more
        assert b"[DONE]" in said


def test_one_tenants_long_bodies_do_not_hold_up_anothers(tmp_path: Path) -> None:
    config = {"tenants": {"bad": key("bad", requests_per_min=1), "good": key("good"), "busy": key("busy")}}
    costly = {**chat("n=1"), "zz": ["y" * 10] * 440_000}
    with double() as (_, engine), gateway(tmp_path, config, engine, slots=32) as url:
        for name in ("bad", "busy"):
            with sent(url, costly, name=name, times=12) as clients:
                began = time.monotonic()
                assert ask(url + PATH, chat("n=1 " + "x" * 70_000), bearer("good"))[0] == 200
                took_s = time.monotonic() - began
                for client in clients:
                    client.recv(12)
                assert took_s < 0.6 * (time.monotonic() - began) + 0.3


def test_a_tenant_over_its_limit_is_refused_before_its_long_body_is_read(tmp_path: Path) -> None:
    config = {"tenants": {"bad": key("bad", requests_per_min=1), "poor": key("poor", tokens_per_min=10)}}
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        for name in ("bad", "poor"):
            assert ask(url + PATH, chat("n=9"), bearer(name))[0] == 200
            ledger.check(url)
            status, text = ask(url + PATH, b"no JSON" * 20_000, bearer(name))
            assert (status, json.loads(text)["error"]["code"]) == (429, "rate_limit_exceeded")


# -- whose turn it is ---------------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def order(queue: AsideQueue) -> list[tuple[str, int]]:
    found = []
    while (one := queue.pop()) is not None:
        found.append((one.tenant, one.size))
    return found


def test_tenants_take_turns_by_bytes_and_the_shorter_goes_first() -> None:
    queue = AsideQueue()
    for tenant, size in (("a", 5 * MB), ("a", 4 * MB), ("b", MB), ("b", 2 * MB), ("b", MB), ("c", 70_000)):
        queue.push(tenant, size, nothing, nothing, 0.0)
    assert order(queue) == [
        ("a", 4 * MB), ("b", MB), ("c", 70_000), ("b", MB), ("b", 2 * MB), ("a", 5 * MB)
    ]  # fmt: skip
    assert len(queue) == 0


def test_a_tenant_that_comes_one_by_one_does_not_go_before_all_others() -> None:
    queue = AsideQueue()
    queue.push("a", MB, nothing, nothing, 0.0)
    queue.push("b", MB, nothing, nothing, 0.0)
    queue.push("b", MB, nothing, nothing, 0.0)
    seen = []
    for _ in range(3):
        one = queue.pop()
        assert one is not None
        seen.append(one.tenant)
        if one.tenant == "a":
            queue.push("a", MB, nothing, nothing, 0.0)
    assert seen.count("b") >= 1


def test_a_longer_body_waits_for_shorter_ones_for_a_while_only() -> None:
    queue = AsideQueue()
    queue.push("a", 2 * MB, nothing, nothing, 0.0)
    queue.push("a", MB, nothing, nothing, 0.5)
    queue.push("a", MB + 1, nothing, nothing, 1.5)
    assert order(queue) == [("a", MB), ("a", 2 * MB), ("a", MB + 1)]


def test_past_the_bound_the_tenant_with_most_is_refused_its_last() -> None:
    queue = AsideQueue(3)
    for size in (3, 1, 2):
        assert queue.push("a", size, nothing, nothing, 0.0) is None
    dropped = queue.push("b", 9, nothing, nothing, 0.0)
    assert dropped is not None
    assert (dropped.tenant, dropped.size) == ("a", 3)
    dropped = queue.push("c", 9, nothing, nothing, 0.0)
    assert dropped is not None
    assert (dropped.tenant, dropped.size, len(queue)) == ("a", 2, 3)
    bound = AsideQueue(0)
    assert bound.push("", 1, nothing, None, 0.0) is None
    dropped = bound.push("a", 1, nothing, nothing, 0.0)
    assert dropped is not None
    assert (dropped.tenant, order(bound)) == ("a", [("", 1)])


# -- over a WebSocket -----------------------------------------------------------------------------------------------


@awaited
async def test_a_long_message_is_counted_as_held_and_waits_in_its_tenants_turn_from_the_moment_it_is_there() -> None:
    """It waited in a turn that all WebSockets shared, and its bytes were not counted until it was opened."""
    names = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    tenants = tuple(Tenant(name=name, key_sha256=(digest,)) for name, digest in names.items())
    async with scene(tenants=tenants, anonymous=Tenant(name="anonymous", allowed=False)) as it:
        sockets = Sockets(it.gateway)
        blocked = threading.Event()
        it.gateway.long.aside(partial(wait_for, blocked))
        long = json.dumps({**chat("n=1", model="chat"), "zz": "x" * 100_000}).encode()
        recorders = []
        try:
            for name in names:
                recorder = TalkedTo(it, sockets, {"authorization": f"Bearer {name}"})
                recorder.talk.on_message(long)
                recorders.append(recorder)
            assert it.gateway.held.total == 2 * len(long)
            assert set(it.gateway.long._thread._queue._waiting) == set(names)
        finally:
            blocked.set()
        await until(lambda: all(recorder.said for recorder in recorders))
        await until(lambda: it.gateway.held.total == 0)
        assert all(b"[DONE]" in b"".join(recorder.said) for recorder in recorders)
        for recorder in recorders:
            recorder.talk.on_lost()


def wait_for(event: threading.Event) -> None:
    event.wait(20)


class TalkedTo:
    """A socket that keeps what is said."""

    def __init__(self, it: Scene, sockets: Sockets, headers: dict[str, str]) -> None:
        self.said: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        self.limits = WireLimits()
        self.clock = monotonic
        self.writable = self.is_open = True
        self.draining = False
        self.transport: Any = None
        self.ids = 0
        self.access = None
        self.talk = Conversation(sockets, it.gateway, "/v1/chat/completions", headers)
        self.talk.on_open(self, self)  # type: ignore[arg-type]

    def new_id(self) -> str:
        self.ids += 1
        return f"{id(self)}-{self.ids}"

    def send(self, data: bytes) -> None:
        self.said.append(data)

    def answered(self, keep_alive: bool) -> None:
        self.talk.on_answered(keep_alive)


def test_a_spent_tenant_is_refused_before_its_long_message_is_opened(tmp_path: Path) -> None:
    config = {"tenants": {"bad": key("bad", requests_per_min=1)}}
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        assert ask(url + PATH, chat("n=9"), bearer("bad"))[0] == 200
        with connect(url.replace("http", "ws", 1) + PATH, proxy=None, additional_headers=bearer("bad")) as client:
            client.send("no JSON" * 20_000)
            assert json.loads(client.recv(timeout=20))["status"] == 429
