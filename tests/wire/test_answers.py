"""How a client gets its answer, and who hears of one that leaves."""

import asyncio
import logging
import socket

import msgspec
import pytest

from headgate.model.errors import InvalidRequest
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.limits import WireLimits
from tests.wire.serving import GET, Client, Held, live, serving, until


@pytest.mark.parametrize(
    ("request_line", "header", "kept"),
    [
        ("GET / HTTP/1.1", "x: y", True),
        ("GET / HTTP/1.1", "connection: close", False),
        ("GET / HTTP/1.0", "x: y", False),
        ("GET / HTTP/1.0", "connection: keep-alive", True),
    ],
)
@live
async def test_connections_are_kept_as_the_client_asks(request_line: str, header: str, kept: bool) -> None:
    async with serving(lambda exchange: exchange.respond(200, b"x")) as served:
        client = await served.connect()
        request = f"{request_line}\r\nhost: a\r\n{header}\r\n\r\n".encode()
        answer = await client.ask(request)
        if kept:
            assert answer.headers.get("connection") != "close"
            assert (await client.ask(request)).body == b"x"
        else:
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""


@live
async def test_a_stream_reaches_a_client_event_by_event_and_the_connection_is_reused() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        for _ in range(2):
            client.send(GET)
            exchange = await held.arrived.get()
            exchange.stream()
            exchange.event(b"one")
            assert (await client.head())[0] == 200
            assert await client.chunk() == b"data: one\n\n"
            exchange.end(b"[DONE]")
            assert await client.chunk() == b"data: [DONE]\n\n"
            assert await client.chunk() == b""


def promise(exchange: Exchange) -> None:
    exchange.stream()


def begin(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(b"x")


@pytest.mark.parametrize("prepare", [lambda _: None, promise, begin], ids=["waiting", "promised", "streaming"])
@pytest.mark.parametrize("reset", [False, True])
@live
async def test_a_client_that_leaves_is_noticed_at_once_in_every_phase(prepare: Handler, reset: bool) -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        prepare(exchange)
        if reset:
            client.writer.transport.abort()
        client.leave()
        assert await held.gone.get() is exchange
        assert exchange.done
        exchange.respond(200, b"nobody hears")
        exchange.event(b"nobody hears")
        assert held.gone.empty()


@live
async def test_a_client_that_leaves_with_a_request_pipelined_is_noticed_too() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET + GET)
        exchange = await held.arrived.get()
        client.send(GET)
        client.leave()
        assert await held.gone.get() is exchange
        assert held.arrived.empty()


@live
async def test_a_client_that_leaves_after_its_answer_is_nobodys_concern() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        (await held.arrived.get()).respond(200, b"x")
        await client.answer()
        client.leave()
        await until(lambda: not served.server.connections)
        assert held.gone.empty()


@live
async def test_an_exchange_that_is_done_can_not_abort_the_next_one() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        first = await held.arrived.get()
        first.respond(200, b"")
        await client.answer()
        client.send(GET)
        second = await held.arrived.get()
        first.abort()
        second.respond(200, b"here")
        assert (await client.answer()).body == b"here"


@live
async def test_an_aborted_client_is_told_nothing_and_reported_gone() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET)
        exchange = await held.arrived.get()
        exchange.abort()
        assert await held.gone.get() is exchange
        assert await client.rest() == b""


@live
async def test_a_slow_reader_is_noticed_early_and_loses_nothing() -> None:
    event, total = b"x" * 1000, 500
    paused: list[int] = []

    def flood(exchange: Exchange) -> None:
        exchange.stream()
        sent = 0

        def go_on() -> None:
            nonlocal sent
            while sent < total and exchange.writable:
                exchange.event(event)
                sent += 1
            if sent == total:
                exchange.end(b"[DONE]")
            else:
                assert exchange.unsent > 0
                paused.append(sent)

        exchange.on_writable = go_on
        go_on()

    async with serving(flood, WireLimits(write_high_water=8192, notsent_lowat=8192)) as served:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", served.port))
        client = Client(*await asyncio.open_connection(sock=raw, limit=1024))
        served.opened.append(client)
        client.send(GET)
        await until(lambda: paused)
        assert paused[0] < 100
        answer = await client.answer()
        assert answer.body.count(event) == total


@live
async def test_accepted_sockets_have_no_delay_and_a_small_kernel_buffer() -> None:
    held = Held()
    async with serving(held) as served:
        (await served.connect()).send(GET)
        await held.arrived.get()
        (connection,) = served.server._state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == WireLimits().notsent_lowat


@live
async def test_a_broken_handler_is_logged_once_and_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    def broken(exchange: Exchange) -> None:
        raise ZeroDivisionError

    async with serving(broken) as served:
        client = await served.connect()
        for _ in range(2):
            caplog.clear()
            answer = await client.ask(GET)
            assert answer.status == 500
            assert msgspec.json.decode(answer.body)["error"]["code"] == "engine_failed"
            (record,) = caplog.records
            assert record.levelno == logging.ERROR
            assert record.exc_info is not None
            assert answer.headers["x-request-id"] in record.getMessage()


@live
async def test_a_handler_that_breaks_in_mid_stream_ends_it_with_an_error_event_and_the_connection_goes_on() -> None:
    def broken(exchange: Exchange) -> None:
        begin(exchange)
        raise ZeroDivisionError

    async with serving(broken) as served:
        client = await served.connect()
        for _ in range(2):
            answer = await client.ask(GET)
            assert b"engine_failed" in answer.body
            assert "connection" not in answer.headers


@live
async def test_a_serve_error_from_a_handler_is_its_answer_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(exchange: Exchange) -> None:
        raise InvalidRequest("no", param="model")

    async with serving(refuse) as served:
        answer = await (await served.connect()).ask(GET)
        assert answer.status == 400
        assert msgspec.json.decode(answer.body)["error"]["param"] == "model"
        assert not caplog.records


@live
async def test_a_broken_on_gone_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    arrived = asyncio.Event()

    def handler(exchange: Exchange) -> None:
        exchange.on_gone = lambda: [][0]
        arrived.set()

    async with serving(handler) as served:
        client = await served.connect()
        client.send(GET)
        await arrived.wait()
        client.leave()
        await until(lambda: not served.server.connections)
        assert [record.exc_info is not None for record in caplog.records] == [True]


@live
async def test_a_client_that_only_asks_and_never_reads_is_not_read_either() -> None:
    page, answered = b"x" * 65536, 0

    def respond(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        exchange.respond(200, page, "text/plain")

    loop = asyncio.get_running_loop()
    async with serving(respond, WireLimits(flush_timeout_s=0.3)) as served:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, ("127.0.0.1", served.port))

            async def ask_on() -> None:
                while True:
                    await loop.sock_sendall(deaf, GET)
                    await asyncio.sleep(0)

            with pytest.raises(ConnectionError):  # dropped, in the end
                await ask_on()
        await until(lambda: not served.speaking_http)
    assert 0 < answered < 100
