"""When a connection ends, and how a server does."""

import asyncio
import errno
import gc
import ssl
from pathlib import Path
from typing import cast

import msgspec
import pytest

from headgate.model.clock import monotonic
from headgate.wire.limits import WireLimits
from headgate.wire.protocol import ServerProtocol
from headgate.wire.reader import RequestReader
from headgate.wire.server import HttpServer
from tests.wire.hammer import Tally, hammer
from tests.wire.serving import GET, Client, Held, echo, live, post, serving, until

# Made for these tests with `openssl req -x509`; trusted by nobody.
LOCALHOST_KEY_AND_CERT = """
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg9eiMKdVSkCLfWi9q
pmxde7kJ0fF1F83gQnHTEQSwn0+hRANCAAT+RP4hBrDo4lmTrzh+rQg9k3PrDOfx
1kmHOIkGAu6251BmaF8qTINpgH8sGLh1AWm8VIa9Sg/ZOQ0omGcc3GBe
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUQc96X5VCGXPzNLViXNE7s3KSNlowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTA0MDUxOVoYDzIxMjYxMDIy
MDQwNTE5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAT+RP4hBrDo4lmTrzh+rQg9k3PrDOfx1kmHOIkGAu6251BmaF8qTINp
gH8sGLh1AWm8VIa9Sg/ZOQ0omGcc3GBeo2kwZzAdBgNVHQ4EFgQUY0rfJqsZLuOY
nf/0xCPvNlOqYDkwHwYDVR0jBBgwFoAUY0rfJqsZLuOYnf/0xCPvNlOqYDkwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIhAIdqocm3jD2V6SqibFXL8dDPP8ApmCHaDr308FCkgnhsAiB3GpQmKN3R
k56uDiSLLJCwat0P8jLDwUIZ9WK1qSYseg==
-----END CERTIFICATE-----
"""


@pytest.mark.parametrize(
    ("part", "what"), [(b"GET / HTTP/1.1\r\nho", "headers"), (post(b"abc")[:-1], "body")], ids=["headers", "body"]
)
@live
async def test_a_request_that_stalls_is_answered_408(part: bytes, what: str) -> None:
    async with serving(echo, WireLimits(header_timeout_s=0.03, body_timeout_s=0.03, linger_s=0.03)) as served:
        client = await served.connect()
        answer = await client.ask(part)
        assert answer.status == 408
        assert what in msgspec.json.decode(answer.body)["error"]["message"]
        assert await client.rest() == b""


@live
async def test_a_trickle_does_not_extend_the_header_deadline() -> None:
    async with serving(echo, WireLimits(header_timeout_s=0.05)) as served:
        client = await served.connect()
        client.send(b"GET / HTTP/1.1\r\nx: ")
        answer = asyncio.ensure_future(client.answer())
        while not answer.done():
            client.send(b"y")
            await asyncio.sleep(0.005)
        assert (await answer).status == 408


@pytest.mark.parametrize("before", [b"", GET], ids=["fresh", "after an answer"])
@live
async def test_an_idle_connection_is_closed_in_silence(before: bytes) -> None:
    async with serving(echo, WireLimits(idle_timeout_s=0.03)) as served:
        client = await served.connect()
        if before:
            await client.ask(before)
        assert await client.rest() == b""


@live
async def test_an_exchange_may_take_longer_than_any_timeout() -> None:
    held = Held()
    timeouts = WireLimits(header_timeout_s=0.01, body_timeout_s=0.01, idle_timeout_s=0.02)
    async with serving(held, timeouts) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        await asyncio.sleep(0.05)
        exchange.respond(200, b"late")
        assert (await client.answer()).body == b"late"
        assert await client.rest() == b""  # and then the idle timeout holds again


@live
async def test_a_closing_connection_whose_client_reads_nothing_is_aborted() -> None:
    async with serving(lambda x: x.respond(200, b"x" * 9_000_000), WireLimits(flush_timeout_s=0.03)) as served:
        client = await served.connect()
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await until(lambda: served.server.connections)
        await until(lambda: not served.server.connections)


@live
async def test_one_client_too_many_is_told_so() -> None:
    held = Held()
    async with serving(held, WireLimits(max_connections=1, linger_s=0.03)) as served:
        first = await served.connect()
        first.send(GET)
        exchange = await held.arrived.get()
        second = await served.connect()
        answer = await second.ask(GET)
        assert answer.status == 503
        assert await second.rest() == b""
        exchange.respond(200, b"")
        assert (await first.answer()).status == 200


@live
async def test_a_port_in_use_is_an_oserror() -> None:
    async with serving(echo) as served:
        other = HttpServer(echo, clock=monotonic)
        with pytest.raises(OSError, match="address already in use") as raised:
            await other.listen("127.0.0.1", served.port)
        assert raised.value.errno == errno.EADDRINUSE


@live
async def test_draining_closes_the_idle_lets_the_running_finish_and_accepts_nobody() -> None:
    held = Held()
    async with serving(held) as served:
        idle, running, streaming = [await served.connect() for _ in range(3)]
        idle.send(GET)
        (await held.arrived.get()).respond(200, b"")
        await idle.answer()
        running.send(GET)
        first = await held.arrived.get()
        streaming.send(GET)
        second = await held.arrived.get()
        second.stream()
        second.event(b"before")
        draining = asyncio.ensure_future(served.server.drain(grace_s=60))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        first.respond(200, b"finished")
        answer = await running.answer()
        assert (answer.body, answer.headers["connection"]) == (b"finished", "close")
        second.end(b"[DONE]")
        assert (await streaming.answer()).body == b"data: before\n\ndata: [DONE]\n\n"
        assert await streaming.rest() == b""
        await draining
        assert held.gone.empty()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "a connection for each"])
@pytest.mark.parametrize("over", ["tcp", "unix", "tls"])
@live
async def test_nobody_is_cut_or_reset_by_draining(over: str, kept: bool, tmp_path: Path) -> None:
    pem, path = tmp_path / "pem", tmp_path / "s"
    pem.write_text(LOCALHOST_KEY_AND_CERT)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem)
    trusting = ssl.create_default_context(cafile=str(pem))
    server = HttpServer(echo, clock=monotonic)
    port = 0
    if over == "unix":
        await server.listen_unix(path)
    else:
        port = await server.listen("127.0.0.1", 0, tls=tls if over == "tls" else None)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if over == "unix":
            return await asyncio.open_unix_connection(path)
        return await asyncio.open_connection("localhost", port, ssl=trusting if over == "tls" else None)

    tally = Tally()
    request = post(b"abc") if kept else post(b"abc", b"connection: close")
    clients = [asyncio.ensure_future(hammer(connect, request, tally, 0.002, number)) for number in range(12)]
    await asyncio.sleep(0.2)
    server.say_close()
    await asyncio.sleep(0.1)
    draining = asyncio.ensure_future(server.drain(grace_s=3))
    await asyncio.gather(*clients, draining)
    assert tally.cut == []
    assert tally.refused == 12
    assert set(tally.answers) == {200}
    assert tally.closes >= 12


@live
async def test_an_idle_connection_stays_until_its_next_answer_has_said_close() -> None:
    async with serving(echo) as served:
        client, other = await served.connect(), await served.connect()
        assert "connection" not in (await client.ask(GET)).headers
        served.server.say_close()
        await asyncio.sleep(0.05)
        assert (await client.ask(GET)).headers["connection"] == "close"
        assert await client.rest() == b""
        assert (await (await served.connect()).ask(GET)).headers["connection"] == "close"
        assert served.server.connections > 0
        await served.server.leave(grace_s=2)
        assert await other.rest() == b""
        assert served.server.connections == 0


@live
async def test_of_requests_that_are_in_hand_only_the_last_answer_says_close_and_there_is_an_end_to_it() -> None:
    held = Held()
    async with serving(held, WireLimits(pipelined=4)) as served:
        client = await served.connect()
        client.send(GET * 3)
        first = await held.arrived.get()
        served.server.say_close()
        first.respond(200, b"")
        (await held.arrived.get()).respond(200, b"")
        (await held.arrived.get()).respond(200, b"")
        assert ["connection" in (await client.answer()).headers for _ in range(3)] == [False, False, True]
        endless = await served.connect()
        said = 0
        while True:
            endless.send(GET * 2)
            (await held.arrived.get()).respond(200, b"")
            said += 1
            if "connection" in (await endless.answer()).headers:
                break
        assert said <= 4


@live
async def test_draining_lets_a_half_sent_request_be_finished() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        request = post(b"abc")
        client.send(request[:-1])
        await until(lambda: any(c._timed == "body" for c in served.speaking_http))
        draining = asyncio.ensure_future(served.server.drain(grace_s=60))
        await asyncio.sleep(0)
        answer = await client.ask(request[-1:])
        assert (answer.body, answer.headers["connection"]) == (b"abc", "close")
        await draining


@live
async def test_what_remains_after_the_grace_is_aborted_and_reported_gone() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        await served.server.drain(grace_s=0.02)
        assert held.gone.get_nowait() is exchange
        assert served.server.connections == 0


@live
async def test_a_closed_listener_still_serves_its_connections() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        await client.ask(GET)
        served.server.close_listener()
        assert (await client.ask(GET)).status == 200
        with pytest.raises(ConnectionRefusedError):
            await served.connect()


@live
async def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "headgate.sock"
    server = HttpServer(echo, clock=monotonic)
    await server.listen_unix(path)
    with pytest.raises(OSError, match="in use"):
        await HttpServer(echo, clock=monotonic).listen_unix(path)
    client = Client(*await asyncio.open_unix_connection(path))
    assert (await client.ask(post(b"abc"))).body == b"abc"
    client.leave()
    await server.drain(0)
    assert not path.exists()


@live
async def test_tls_is_spoken_when_a_context_is_given(tmp_path: Path) -> None:
    pem = tmp_path / "localhost.pem"
    pem.write_text(LOCALHOST_KEY_AND_CERT.strip())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = HttpServer(echo, clock=monotonic, limits=WireLimits(body_bytes=10, linger_s=0.03))
    port = await server.listen("127.0.0.1", 0, tls=context)
    trusting = ssl.create_default_context(cafile=str(pem))
    trusting.check_hostname = False
    client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=trusting))
    assert (await client.ask(post(b"abc"))).body == b"abc"
    assert (await client.ask(post(b"x" * 100))).status == 413
    assert await client.rest() == b""
    client.leave()
    await server.drain(0)


@pytest.mark.usefixtures("without_collector")
@live
async def test_a_closed_connection_is_freed_without_the_garbage_collector() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        await client.ask(GET)
        client.send(GET[:9])
        client.leave()
        await until(lambda: not served.server.connections)
        await asyncio.sleep(0)
        left = [o for o in gc.get_objects() if isinstance(o, ServerProtocol | RequestReader)]
    assert left == []
