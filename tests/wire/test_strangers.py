"""What an unknown client can take: memory, places, time."""

import asyncio
import math
import os
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from websockets.frames import CloseCode, Opcode

from headgate.model.clock import monotonic
from headgate.model.errors import Unauthorized
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from headgate.wire.server import HttpServer
from headgate.wire.state import ServerState
from tests.wire.serving import GET, Client, Held, echo, live, post, serving, until
from tests.wire.test_lifecycle import LOCALHOST_KEY_AND_CERT
from tests.wire.test_websocket import HANDSHAKE, close_code, masked, parrots, shaken

MB = 1024 * 1024
CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
NOBODY = b"POST /v1 HTTP/1.1\r\nhost: a\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def said(body: bytes) -> str:
    message: str = msgspec.json.decode(body)["error"]["message"]
    return message


def refuse_everybody(exchange: Exchange) -> None:
    raise Unauthorized("an API key is needed")


# -- bodies -------------------------------------------------------------------------------------------------


@live
async def test_a_body_in_tiny_chunks_takes_about_its_own_size() -> None:
    """Before they were joined as they came, 79 MB in 2-byte chunks took 2 210 MB."""
    piece = b"2\r\nab\r\n" * 16384
    async with serving(echo) as served:
        client = await served.connect()
        client.send(CHUNKED)
        before = resident()
        for _ in range(128):
            client.send(piece)
            await client.writer.drain()
        await until(lambda: served.server.receiving == 4 * MB)
        assert resident() - before < 24 * MB


@live
async def test_unfinished_bodies_have_one_bound_together_and_the_oldest_goes_first() -> None:
    """100 bodies of 8 MB that never ended took 813 MB before, now 285 MB with the default of 256 MiB."""
    limits = WireLimits(body_bytes=4 * MB, bodies_bytes=16 * MB, linger_s=0.05)
    part = post(b"x" * 2 * MB)[:-1]
    async with serving(echo, limits) as served:
        before = resident()
        clients = []
        for _ in range(64):
            client = await served.connect()
            clients.append(client)
            client.send(part)
            await client.writer.drain()
        # The newest is not held up by those before it.
        assert (await clients[-1].ask(b"x")).status == 200
        answer = await clients[0].answer()
        assert answer.status == 503
        assert "bodies_bytes" in said(answer.body)
        assert answer.headers["retry-after"] == "1"
        assert await clients[0].rest() == b""
        assert served.server.receiving <= 16 * MB
        # What the client has not sent yet is in this process too.
        unsent = sum(c.writer.transport.get_write_buffer_size() for c in clients)
        assert resident() - before - unsent < 64 * MB
    assert served.server.receiving == 0


@live
async def test_what_is_held_behind_a_request_counts_as_well() -> None:
    held = Held()
    async with serving(held, WireLimits(bodies_bytes=100_000, body_bytes=100_000)) as served:
        first, second = await served.connect(), await served.connect()
        for client in (first, second):
            client.send(GET)
            await held.arrived.get()
            client.send(b"x" * 60_000)
            await client.writer.drain()
        await until(lambda: served.server.receiving == 60_000)
    assert served.server.receiving == 0


@live
async def test_messages_that_are_not_complete_count_as_well() -> None:
    async with parrots(bodies_bytes=100_000, body_bytes=90_000) as (handler, served):
        first, second, third = [await shaken(served) for _ in range(3)]
        first.send(masked(Opcode.TEXT, b"x" * 60_000)[:-1])  # of one frame
        await until(lambda: served.server.receiving >= 59_000)
        second.send(masked(Opcode.TEXT, b"x" * 30_000, fin=False))  # of several
        await until(lambda: served.server.receiving >= 89_000)
        third.send(masked(Opcode.TEXT, b"x" * 30_000)[:-1])
        assert await close_code(first) == CloseCode.TRY_AGAIN_LATER
        await until(lambda: 59_000 <= served.server.receiving < 61_000)
        second.send(masked(Opcode.CONT, b"y"))
        await until(lambda: any(talk.heard for talk in handler.talks))
        await until(lambda: served.server.receiving < 40_000)
    assert served.server.receiving == 0


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 1000\r\n\r\n",
        b"content-length: 1000\r\nexpect: 100-continue\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n",
        b"content-length: 1000\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["length", "expect", "chunked", "upgrade"],
)
@live
async def test_who_asks_is_judged_before_the_body_is_read(rest: bytes) -> None:
    async with serving(echo, WireLimits(linger_s=0.05), judge=refuse_everybody) as served:
        client = await served.connect()
        answer = await client.ask(NOBODY + rest)
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert await client.rest() == b""


@live
async def test_one_that_was_refused_before_its_body_is_let_go_soon_and_its_body_is_for_nobody() -> None:
    held = Held()
    async with serving(held, WireLimits(linger_s=0.05, body_timeout_s=20), judge=refuse_everybody) as served:
        client = await served.connect()
        assert (await client.ask(NOBODY + b"content-length: 3\r\n\r\n")).status == 401
        client.send(b"a")
        await until(lambda: not served.server._state.connections)
        assert held.arrived.empty()


@live
async def test_a_judged_body_is_refused_after_the_answers_before_it() -> None:
    held = Held()
    async with serving(held, WireLimits(linger_s=0.05), judge=refuse_everybody) as served:
        client = await served.connect()
        client.send(GET + NOBODY + b"content-length: 1000\r\n\r\nabc")
        exchange = await held.arrived.get()
        await asyncio.sleep(0.02)
        exchange.respond(200, b"first")
        assert (await client.answer()).body == b"first"
        assert (await client.answer()).status == 401
        assert held.arrived.empty()


@live
async def test_a_judge_sees_the_request_and_lets_it_pass_once() -> None:
    seen: list[tuple[str, str, str, bytes]] = []

    def judge(exchange: Exchange) -> None:
        seen.append((exchange.method, exchange.path, exchange.request_id, exchange.body))

    async with serving(echo, judge=judge) as served:
        client = await served.connect()
        client.send(b"POST /a?b HTTP/1.1\r\nhost: a\r\nx-request-id: me\r\ncontent-length: 3\r\n\r\n")
        for byte in (b"a", b"b", b"c"):
            await asyncio.sleep(0.01)
            client.send(byte)
        assert (await client.answer()).body == b"abc"
        assert (await client.ask(post(b"whole"))).body == b"whole"
        assert seen == [("POST", "/a", "me", b"")]


# -- places -------------------------------------------------------------------------------------------------


@live
async def test_the_oldest_idle_connection_makes_way() -> None:
    async with serving(echo, WireLimits(max_connections=3)) as served:
        clients: list[Client] = []
        for _ in range(3):
            clients.append(await served.connect())
            await until(lambda: served.server.connections == len(clients))
            await asyncio.sleep(0.003)  # the loop's clock counts milliseconds
        assert (await clients[0].ask(GET)).status == 200  # so the second is now the oldest
        newcomer = await served.connect()
        assert (await newcomer.ask(GET)).status == 200
        assert await clients[1].rest() == b""
        assert (await clients[0].ask(GET)).status == 200
        assert (await clients[2].ask(GET)).status == 200
        assert served.server.connections == 3


@pytest.mark.parametrize("part", [b"GET / HT", post(b"abc")[:-1]], ids=["headers", "body"])
@live
async def test_a_request_that_is_not_complete_makes_way_where_nothing_is_idle(part: bytes) -> None:
    async with serving(echo, WireLimits(max_connections=2)) as served:
        clients: list[Client] = []
        for _ in range(2):
            clients.append(await served.connect())
            clients[-1].send(part)
            await until(lambda: sum(c._timed != "idle" for c in served.speaking_http) == len(clients))
            await asyncio.sleep(0.003)
        assert (await (await served.connect()).ask(GET)).status == 200
        answer = await clients[0].answer()
        assert answer.status == 503
        assert "limits.connections" in said(answer.body)
        assert await clients[0].rest() == b""


@live
async def test_an_idle_websocket_makes_way_after_idle_connections() -> None:
    async with parrots(max_connections=3) as (handler, served):
        socket, busy, idle = await shaken(served), await shaken(served), await served.connect()
        busy.send(masked(Opcode.TEXT, b"wait"))
        await until(lambda: any(talk.busy for talk in handler.talks))
        await until(lambda: served.server.connections == 3)
        assert (await (await served.connect()).ask(GET.replace(b"host", b"upgrade: no\r\nhost"))).status == 426
        assert await idle.rest() == b""
        held = await served.connect()
        held.send(HANDSHAKE)
        await held.head()
        await until(lambda: served.server.connections == 3)
        fresh = await served.connect()
        fresh.send(HANDSHAKE)
        await fresh.head()
        assert await close_code(socket) == CloseCode.TRY_AGAIN_LATER
        assert any(talk.busy for talk in handler.talks)


@live
async def test_where_every_place_is_busy_only_health_checks_are_answered() -> None:
    held = Held()

    def handler(exchange: Exchange) -> None:
        if exchange.path == "/health":
            exchange.respond(200, b"fine")
        else:
            held(exchange)

    limits = WireLimits(max_connections=2, linger_s=0.1)
    async with serving(handler, limits, always=frozenset({"/health"})) as served:
        busy = [await served.connect() for _ in range(2)]
        for client in busy:
            client.send(GET)
            await held.arrived.get()
        silent = [await served.connect() for _ in range(400)]
        for _ in range(3):
            check = await served.connect()
            answer = await check.ask(HEALTH)
            assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"fine", "close")
        for request in (GET, post(b"x" * 100), post(b"x" * 100)[:-9]):
            other = await served.connect()
            answer = await other.ask(request)
            assert answer.status == 503
            assert "limits.connections is 2" in said(answer.body)
        await until(lambda: served.server.connections <= 2 + 256)
        for client in silent:
            assert await client.rest() == b""
        await until(lambda: served.server.connections == 2)
        busy[0].leave()
        await held.gone.get()
        await until(lambda: served.server.connections == 1)
        assert held.arrived.empty()
        last = await served.connect()
        last.send(GET)
        (await held.arrived.get()).respond(200, b"")
        assert (await last.answer()).status == 200


@live
async def test_a_tls_handshake_takes_a_place_and_has_a_deadline(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text(LOCALHOST_KEY_AND_CERT)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem)
    trusting = ssl.create_default_context(cafile=str(pem))
    server = HttpServer(echo, clock=monotonic, limits=WireLimits(max_connections=3, header_timeout_s=0.3))
    port = await server.listen("127.0.0.1", 0, tls=tls)
    opened: list[Client] = []

    async def connect(context: ssl.SSLContext | None = None) -> Client:
        host = "127.0.0.1" if context is None else "localhost"
        opened.append(Client(*await asyncio.open_connection(host, port, ssl=context)))
        return opened[-1]

    try:
        silent = [await connect() for _ in range(2)]
        await until(lambda: server.connections == 2)
        began = monotonic()
        for client in silent:
            assert await client.rest() == b""
        assert monotonic() - began < 1
        assert server.connections == 0
        silent = [await connect() for _ in range(3)]
        await until(lambda: server.connections == 3)
        spoken = await connect(trusting)
        assert (await spoken.ask(post(b"abc"))).body == b"abc"
        assert server.connections == 3
        for client in silent:
            client.leave()
        garbage = await connect()
        garbage.send(b"GET / HTTP/1.1\r\n\r\n")
        await garbage.rest()
        await until(lambda: server.connections == 1)
        spoken.leave()
        await until(lambda: server.connections == 0)
    finally:
        for client in opened:
            client.writer.transport.abort()
        await server.drain(0)


# -- leaving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [70_000, 8 * MB], ids=["a little", "a lot"])
@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "waiting"])
@live
async def test_what_is_sent_behind_a_request_does_not_hide_that_the_client_left(size: int, streaming: bool) -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        if streaming:
            exchange.stream()
            exchange.event(b"first")
            await client.head()
            await client.chunk()
        client.send(b"x" * size)
        await client.writer.drain()
        await asyncio.sleep(0.05)
        assert held.gone.empty()
        client.leave()
        async with asyncio.timeout(0.1):
            assert await held.gone.get() is exchange


@live
async def test_a_request_is_answered_whatever_is_sent_behind_it_and_then_the_connection_ends() -> None:
    held = Held()
    async with serving(held, WireLimits(linger_s=0.2)) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        client.send(GET * 50_000)
        await asyncio.sleep(0.1)
        exchange.respond(200, b"whole")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"whole", "close")
        assert await client.rest() == b""
        assert held.arrived.empty()


# -- what is not spoken here --------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "zstd", "deflate", "identity, gzip", "x"])
@pytest.mark.parametrize("body", [b"abc", b""], ids=["with a body", "announced"])
@live
async def test_an_encoded_body_is_refused_in_words(coding: str, body: bytes) -> None:
    async with serving(echo, WireLimits(linger_s=0.05)) as served:
        client = await served.connect()
        answer = await client.ask(
            f"POST / HTTP/1.1\r\nhost: a\r\ncontent-encoding: {coding}\r\ncontent-length: 3\r\n\r\n".encode() + body
        )
        assert answer.status == 415
        assert "content-encoding" in said(answer.body)
        assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
@live
async def test_a_body_that_says_it_is_not_encoded_is_taken(coding: str) -> None:
    async with serving(echo) as served:
        client = await served.connect()
        assert (await client.ask(post(b"abc", f"content-encoding: {coding}".encode()))).body == b"abc"


@pytest.mark.parametrize("cut", [24, 3, 16])
@live
async def test_the_preface_of_http_2_gets_an_answer_in_words(cut: int) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    async with serving(echo, WireLimits(linger_s=0.05)) as served:
        client = await served.connect()
        client.send(preface[:cut])
        await asyncio.sleep(0.02)
        client.send(preface[cut:] + b"\0\0\0\4\0\0\0\0\0")
        answer = await client.answer()
        assert answer.status == 505
        assert "HTTP/1.1" in said(answer.body)
        assert await client.rest() == b""


class Occupied:
    """A connection that is always busy."""

    transport: Any = None
    busy = True
    spare_since = math.inf
    left = False

    def drain(self) -> None: ...

    def make_way(self) -> None:
        self.left = True


def test_no_more_are_kept_without_a_place_than_are_allowed() -> None:
    loop: Any = SimpleNamespace(time=lambda: 0.0)
    limits = WireLimits(max_connections=1, extra_connections=2)
    state = ServerState(handler=echo, clock=monotonic, limits=limits, new_id=str, loop=loop)
    occupants = [Occupied() for _ in range(5)]
    assert [state.seat(one) for one in occupants] == [True, False, False, False, False]
    assert [one.left for one in occupants] == [False, True, True, False, False]
    assert list(state.extras) == occupants[3:]
    assert state.connections == {occupants[0], *occupants[3:]}
