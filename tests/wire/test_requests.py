"""What is a request, and what is refused before any handler sees it."""

import asyncio
import itertools

import msgspec
import pytest

from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from headgate.wire.protocol import ServerProtocol
from headgate.wire.state import ServerState
from tests.wire.serving import GET, Held, Recorder, echo, live, post, serving, until

SMALL = WireLimits(header_bytes=1000, header_count=10, body_bytes=1000, linger_s=0.2)


@live
async def test_a_request_arrives_with_all_its_parts() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(b"PUT /a/b?c=d&e HTTP/1.1\r\nHost: x\r\nX-Two: 1\r\nx-two: 2\r\ncontent-length: 3\r\n\r\nabc")
        got = await held.arrived.get()
        assert (got.method, got.path, got.query, got.body) == ("PUT", "/a/b", "c=d&e", b"abc")
        assert got.headers == {"host": "x", "x-two": "1, 2", "content-length": "3"}


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://other:80/v1/models?x=1", "/v1/models", "x=1"),
        ("http://other", "/", ""),
        ("/a?b#c", "/a", "b"),
        ("*", "*", ""),
        ("/a%20b", "/a%20b", ""),
    ],
)
@live
async def test_every_form_of_target_gives_a_path(target: str, path: str, query: str) -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(f"OPTIONS {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        got = await held.arrived.get()
        assert (got.path, got.query) == (path, query)


@live
async def test_a_chunked_body_is_joined_and_its_trailers_are_dropped() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nauthorization: admin\r\n\r\n"
        )
        got = await held.arrived.get()
        assert got.body == b"abcde"
        assert "authorization" not in got.headers


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\n", 400),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\nexpect: 100-continue\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfff\r\n" + b"x" * 1001, 413),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 1000, 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 1000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 10 + b"\r\n", 431),
        (b"GET /" + b"y" * 1000, 431),
        (b"\r\n" * 501, 431),
    ],
)
@live
async def test_what_is_no_request_is_refused_and_the_connection_closed(request_bytes: bytes, status: int) -> None:
    held = Held()
    async with serving(held, SMALL) as served:
        client = await served.connect()
        answer = await client.ask(request_bytes)
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-request-id"]
        error = msgspec.json.decode(answer.body)["error"]
        assert error["type"] == "invalid_request_error"
        assert await client.rest() == b""
        assert held.arrived.empty()


@pytest.mark.parametrize("part", [b"x" * 400, b"x: y\r\n" * 5], ids=["one value", "many"])
@live
async def test_trailers_without_end_are_refused(part: bytes) -> None:
    async with serving(echo, SMALL) as served:
        client = await served.connect()
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nt: ")
        await until(lambda: any(c._timed == "body" for c in served.speaking_http))
        for _ in range(4):
            client.send(part)
        assert (await client.answer()).status == 431


@live
async def test_a_client_still_sending_its_refused_body_can_read_the_answer() -> None:
    async with serving(echo, SMALL) as served:
        client = await served.connect()
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n")
        for _ in range(20):
            client.send(b"x" * 100_000)
            await client.writer.drain()
        assert (await client.answer()).status == 413


@live
async def test_headers_that_begin_in_a_read_full_of_body_are_not_taken_for_endless() -> None:
    async with serving(echo, WireLimits(header_bytes=500)) as served:
        client = await served.connect()
        first, second = post(b"x" * 5000), post(b"second")
        client.send(first[:100])
        client.send(first[100:] + second[:20])
        assert (await client.answer()).status == 200
        assert (await client.ask(second[20:])).body == b"second"


@live
async def test_expect_100_continue_is_answered_before_the_body_is_sent() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        request = post(b"body", b"expect: 100-continue")
        client.send(request[:-4])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(b"body")).body == b"body"


@live
async def test_a_100_continue_waits_for_the_answer_before_it() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET + post(b"body", b"expect: 100-continue")[:-4])
        (await held.arrived.get()).respond(200, b"first")
        assert (await client.answer()).body == b"first"
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@live
async def test_an_offered_upgrade_is_ignored_and_its_body_read(chunked: bool) -> None:
    async with serving(echo) as served:
        client = await served.connect()
        framing = b"transfer-encoding: chunked" if chunked else b"content-length: 4"
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n" + framing + b"\r\n\r\n")
        assert (await client.ask(b"4\r\nGET \r\n0\r\n\r\n" if chunked else b"GET ")).body == b"GET "


@live
async def test_an_offered_upgrade_without_a_body_keeps_the_connection() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        upgrade = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        assert (await client.ask(upgrade + post(b"next"))).status == 200
        assert (await client.answer()).body == b"next"


@live
async def test_connect_is_answered_and_what_follows_is_not_parsed() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        answer = await client.ask(b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n" + GET)
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


@live
async def test_pipelined_requests_are_handed_over_one_by_one() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        bodies = [b"1", b"2", b"3" * 500_000, b"4"]
        client.send(post(bodies[0]) + post(bodies[1]))
        first = await held.arrived.get()
        client.send(post(bodies[2]) + post(bodies[3]))
        (connection,) = served.speaking_http
        await until(lambda: len(connection._held) > 500_000)
        assert connection.transport.is_reading()
        assert served.server.receiving == len(connection._held)
        first.respond(200, first.body)
        for body in bodies[1:]:
            exchange = await held.arrived.get()
            assert held.arrived.empty()
            exchange.respond(200, body)
        assert [(await client.answer()).body for _ in bodies] == bodies
        assert served.server.receiving == 0


@live
async def test_more_pipelined_requests_than_allowed_are_left_unanswered() -> None:
    async with serving(echo, WireLimits(pipelined=3, linger_s=0.1)) as served:
        client = await served.connect()
        client.send(GET * 10)
        assert (await client.rest()).count(b"HTTP/1.1 200") == 3


@live
async def test_garbage_behind_a_request_is_refused_after_its_answer() -> None:
    held = Held()
    async with serving(held) as served:
        client = await served.connect()
        client.send(GET + b"garbage\r\n\r\n")
        exchange = await held.arrived.get()
        assert not exchange.done
        exchange.respond(200, b"fine")
        assert (await client.answer()).body == b"fine"
        assert (await client.answer()).status == 400


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-DEF_1.2", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("ä", False), ("", False)],
)
@live
async def test_a_sane_request_id_is_kept_and_any_other_replaced(sent: str, kept: bool) -> None:
    async with serving(echo) as served:
        client = await served.connect()
        answer = await client.ask(f"GET / HTTP/1.1\r\nhost: a\r\nx-request-id: {sent}\r\n\r\n".encode())
        assert (answer.headers["x-request-id"] == sent) is kept
        assert (await client.ask(GET)).headers["x-request-id"] != answer.headers["x-request-id"]


def test_a_request_is_stamped_when_its_first_byte_is_read() -> None:
    stamps: list[float] = []
    clock = itertools.count(100.0)
    loop = asyncio.new_event_loop()

    def handler(exchange: Exchange) -> None:
        stamps.append(exchange.received_at)
        exchange.respond(200, b"")

    state = ServerState(handler=handler, clock=lambda: next(clock), limits=WireLimits(), new_id=str, loop=loop)
    connection = ServerProtocol(state)
    connection.connection_made(Recorder())
    for part in (GET[:1], GET[1:9], GET[9:], GET + GET):
        connection.data_received(part)
    loop.run_until_complete(asyncio.sleep(0))  # the third has its turn
    connection.connection_lost(None)
    loop.close()
    assert stamps == [100.0, 103.0, 103.0]


@live
async def test_requests_that_are_answered_at_once_let_others_go_first_in_between() -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []

    def handler(exchange: Exchange) -> None:
        order.append(exchange.body.decode())
        loop.call_soon(order.append, "other")
        exchange.respond(200, exchange.body)

    async with serving(handler) as served:
        client = await served.connect()
        client.send(post(b"1") + post(b"2") + post(b"3"))
        assert [(await client.answer()).body for _ in range(3)] == [b"1", b"2", b"3"]
    assert order[:5] == ["1", "other", "2", "other", "3"]


@live
async def test_what_comes_while_pipelined_requests_take_turns_is_answered_after_them() -> None:
    async with serving(echo, WireLimits(held_bytes=100_000)) as served:
        client = await served.connect()
        bodies = [b"%d" % number for number in range(40)]
        for body in bodies:
            client.send(post(body))
            await asyncio.sleep(0)
        assert [(await client.answer()).body for _ in bodies] == bodies


def taking_turns() -> tuple[ServerProtocol, Recorder]:
    """A connection with three requests, the first of which is answered."""
    loop = asyncio.get_running_loop()
    ids = itertools.count()
    state = ServerState(
        handler=echo, clock=loop.time, limits=WireLimits(held_bytes=1000), new_id=lambda: f"r{next(ids)}", loop=loop
    )
    protocol, transport = ServerProtocol(state), Recorder()
    protocol.connection_made(transport)
    protocol.data_received(post(b"1") + post(b"2") + post(b"3"))
    assert b"".join(transport.written).count(b"HTTP/1.1 200") == 1
    assert protocol.busy
    return protocol, transport


@live
async def test_a_client_that_sends_no_more_is_still_answered_what_it_asked() -> None:
    async with serving(echo) as served:
        client = await served.connect()
        client.send(post(b"1") + post(b"2") + post(b"3"))
        client.writer.write_eof()
        assert (await client.rest()).count(b"HTTP/1.1 200") == 3


@live
async def test_a_connection_that_is_lost_between_two_answers_gives_no_more() -> None:
    protocol, transport = taking_turns()
    protocol.connection_lost(None)
    await asyncio.sleep(0.01)
    assert b"".join(transport.written).count(b"HTTP/1.1 200") == 1


@live
async def test_too_much_behind_pipelined_requests_is_thrown_away_and_they_are_answered() -> None:
    for shed in (False, True):
        protocol, transport = taking_turns()
        if shed:
            protocol.data_received(post(b"4"))
            protocol.shed()
        else:
            protocol.data_received(post(b"4" * 2000))
        await asyncio.sleep(0.01)
        assert b"".join(transport.written).count(b"HTTP/1.1") == 3
        protocol.connection_lost(None)
