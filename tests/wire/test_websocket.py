"""RFC 6455 as a client meets it: a real one where it behaves, bytes by hand where it does not."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import CLIENT
from websockets.protocol import Protocol as Frames

from headgate.model.clock import monotonic
from headgate.model.errors import InvalidRequest
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.handshake import accept_head, refusal
from headgate.wire.limits import WireLimits
from headgate.wire.message import MessageExchange, text_frame
from headgate.wire.server import HttpServer
from headgate.wire.state import ServerState
from headgate.wire.websocket import WebSocket
from tests.wire.serving import Client, Recorder, Served, live, serving, steady, until
from tests.wire.test_lifecycle import LOCALHOST_KEY_AND_CERT

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: WebSocket\r\nconnection: keep-alive, Upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Parrot:
    """A Talk that says everything again; `wait` makes it think about it instead."""

    def __init__(self) -> None:
        self.busy = False
        self.waiting_bytes = 0
        self.heard: list[bytes] = []
        self.lost = 0
        self.answered: list[bool] = []

    def on_open(self, socket: WebSocket, server: ServerState) -> None:
        self.socket = socket

    def on_message(self, data: bytes) -> None:
        self.heard.append(data)
        if data == b"wait":
            self.busy = True
        elif data == b"fall over":
            raise ZeroDivisionError
        else:
            self.socket.send(text_frame(data))

    def on_answered(self, keep_alive: bool) -> None:
        self.answered.append(keep_alive)
        self.busy = False
        if self.socket.draining:
            self.socket.drain()

    def on_writable(self) -> None:
        pass

    def on_lost(self) -> None:
        self.lost += 1
        self.busy = False


class Parrots:
    """A handler."""

    def __init__(self) -> None:
        self.talks: list[Parrot] = []

    def __call__(self, exchange: Exchange) -> None:
        refused = refusal(exchange)
        if refused is not None:
            exchange.respond(refused.status, refusal_body(refused.status, refused.message), headers=refused.headers)
            return
        talk = Parrot()
        if exchange.switch(accept_head(exchange, None), WebSocket(talk)):
            self.talks.append(talk)
        else:
            exchange.respond(400, b"early")


@asynccontextmanager
async def parrots(**limits: Any) -> AsyncIterator[tuple[Parrots, Served]]:
    handler = Parrots()
    async with serving(handler, WireLimits(**limits)) as served:
        yield handler, served
    assert all(talk.lost == 1 for talk in handler.talks)


def joined(served: Served, **options: Any) -> connect:
    return connect(f"ws://127.0.0.1:{served.port}/", compression=None, **options)


async def shaken(served: Served) -> Client:
    client = await served.connect()
    client.send(HANDSHAKE)
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    return client


def masked(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def close_code(client: Client) -> int:
    """All that comes is read; the last of it has to be a close frame."""
    frames = Frames(CLIENT, max_size=None)
    frames.receive_data(await client.rest())
    assert frames.close_rcvd is not None
    return frames.close_rcvd.code


# -- a client that behaves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
@live
async def test_messages_of_any_length_come_and_go_whole(size: int) -> None:
    async with parrots() as (_, served), joined(served) as client:
        await client.send("ä" + "x" * size)
        assert await client.recv() == "ä" + "x" * size


@live
async def test_fragments_become_one_message_and_may_have_a_ping_between_them() -> None:
    async with parrots() as (handler, served):
        client = await shaken(served)
        client.send(masked(Opcode.TEXT, "ä".encode()[:1], fin=False) + masked(Opcode.PING, b"?"))
        client.send(masked(Opcode.CONT, b"", fin=False) + masked(Opcode.CONT, "ä".encode()[1:] + b"!"))
        assert await client.reader.readexactly(3) == b"\x8a\x01?"
        assert await client.reader.readexactly(5) == b"\x81\x03" + "ä!".encode()
        assert handler.talks[0].heard == ["ä!".encode()]


@live
async def test_many_small_fragments_are_read_in_turns_with_the_others() -> None:
    """A thousand of them in a read held every stream up for 20 ms, for each connection that sent such."""
    said = b"x" * 300 * 900
    pieces = [said[at : at + 300] for at in range(0, len(said), 300)]
    frames = b"".join(
        masked(Opcode.CONT if number else Opcode.TEXT, piece, fin=number == len(pieces) - 1)
        for number, piece in enumerate(pieces)
    )
    async with parrots() as (handler, served):
        client = await shaken(served)
        turns: list[int] = []
        loop = asyncio.get_running_loop()

        def turn() -> None:
            heard = len(handler.talks[0].heard)
            turns.append(heard)
            if not heard:
                loop.call_soon(turn)

        client.send(frames + masked(Opcode.TEXT, b"and more"))
        loop.call_soon(turn)
        await until(lambda: len(handler.talks[0].heard) == 2)
        assert handler.talks[0].heard == [said, b"and more"]
        assert turns.count(0) > len(pieces) / 64  # others had as many turns while it was read


@live
async def test_a_ping_is_answered_and_a_close_too() -> None:
    async with parrots() as (handler, served):
        async with joined(served) as client:
            await (await client.ping())
            await client.close(4001, "enough")
            assert (client.close_code, client.close_reason) == (4001, "enough")
        await until(lambda: handler.talks[0].lost)
        assert served.server.connections == 0


@live
async def test_text_that_a_replica_spelled_wrongly_is_sent_as_text_all_the_same() -> None:
    assert text_frame(b"\xff!") == b"\x81\x04\xef\xbf\xbd!"


@live
async def test_after_http_requests_and_beside_them_the_same_connection_becomes_a_websocket() -> None:
    async with parrots() as (_, served):
        client = await served.connect()
        assert (await client.ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")).status == 426
        client.send(HANDSHAKE)
        assert (await client.head())[0] == 101
        client.send(masked(Opcode.TEXT, b"hello"))
        assert await client.reader.readexactly(7) == b"\x81\x05hello"


@live
async def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    pem.write_text(LOCALHOST_KEY_AND_CERT.strip())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    handler = Parrots()
    server = HttpServer(handler, clock=monotonic)
    port = await server.listen("127.0.0.1", 0, tls=context)
    trusting = ssl.create_default_context(cafile=str(pem))
    trusting.check_hostname = False
    async with connect(f"wss://127.0.0.1:{port}/", ssl=trusting, compression=None) as client:
        await client.send("x" * 300_000)
        assert await client.recv() == "x" * 300_000
        await client.send(b"binary")
        assert await closed_with(client) == CloseCode.UNSUPPORTED_DATA
    await server.drain(1)
    assert handler.talks[0].lost == 1


# -- requests that are none for a websocket ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "status", "header"),
    [
        (b"upgrade: WebSocket\r\n", b"", 426, ("upgrade", "websocket")),
        (b"upgrade: WebSocket", b"upgrade: h2c", 426, ("upgrade", "websocket")),
        (b"GET /", b"HEAD /", 426, ("upgrade", "websocket")),
        (b"HTTP/1.1", b"HTTP/1.0", 426, ("upgrade", "websocket")),
        (b"version: 13", b"version: 8", 426, ("sec-websocket-version", "13")),
        (b"sec-websocket-version: 13\r\n", b"", 426, ("sec-websocket-version", "13")),
        (b"keep-alive, Upgrade", b"keep-alive", 400, None),
        (b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"", 400, None),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"d\x97hlIHNhbXBsZSBub25jZQ==", 400, None),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ=", 400, None),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"not base64!", 400, None),
        (b"host: a\r\n", b"host: a\r\ncontent-length: 2\r\n", 400, None),
    ],
)
@live
async def test_any_other_request_is_told_what_is_wrong(
    old: bytes, new: bytes, status: int, header: tuple[str, str] | None
) -> None:
    async with parrots() as (handler, served):
        client = await served.connect()
        client.send(HANDSHAKE.replace(old, new) + (b"{}" if b"content-length" in new else b""))
        got, headers = await client.head()
        assert got == status
        assert header is None or headers[header[0]] == header[1]
        assert handler.talks == []


@pytest.mark.parametrize("early", [masked(Opcode.TEXT, b"hello"), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"GE"])
@live
async def test_who_sends_more_before_the_answer_gets_no_websocket(early: bytes) -> None:
    async with parrots() as (handler, served):
        client = await served.connect()
        assert (await client.ask(HANDSHAKE + early)).body == b"early"
        assert handler.talks == []


# -- frames that break the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x02hi", CloseCode.PROTOCOL_ERROR),  # not masked
        (b"\xc1\x80\0\0\0\0", CloseCode.PROTOCOL_ERROR),  # a reserved bit
        (b"\x83\x80\0\0\0\0", CloseCode.PROTOCOL_ERROR),  # no such opcode
        (masked(Opcode.CONT, b"x"), CloseCode.PROTOCOL_ERROR),
        (masked(Opcode.TEXT, b"x", fin=False) * 2, CloseCode.PROTOCOL_ERROR),
        (b"\x09\x80\0\0\0\0", CloseCode.PROTOCOL_ERROR),  # a ping in fragments
        (b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126), CloseCode.PROTOCOL_ERROR),  # a ping of 126 bytes
        (masked(Opcode.CLOSE, struct.pack("!H", 1005)), CloseCode.PROTOCOL_ERROR),
        (masked(Opcode.CLOSE, b"\x03"), CloseCode.PROTOCOL_ERROR),
        (masked(Opcode.CLOSE, struct.pack("!H", 1000) + b"\xff"), CloseCode.INVALID_DATA),
        (masked(Opcode.TEXT, b"\xff"), CloseCode.INVALID_DATA),
        (masked(Opcode.TEXT, b"\xc3", fin=False) + masked(Opcode.CONT, b"x"), CloseCode.INVALID_DATA),
        (masked(Opcode.BINARY, b"x"), CloseCode.UNSUPPORTED_DATA),
        (b"\x81\xff" + struct.pack("!Q", 1001) + bytes(4), CloseCode.MESSAGE_TOO_BIG),  # as soon as it says so
        (masked(Opcode.TEXT, bytes(600), False) + masked(Opcode.CONT, bytes(401)), CloseCode.MESSAGE_TOO_BIG),
        (masked(Opcode.TEXT, b"x", fin=False) + masked(Opcode.CONT, b"", fin=False) * 5000, CloseCode.POLICY_VIOLATION),
        (masked(Opcode.PING, b"") * 5000, CloseCode.POLICY_VIOLATION),
        (masked(Opcode.TEXT, b"x") * 20, CloseCode.POLICY_VIOLATION),
        (masked(Opcode.TEXT, b"fall over"), CloseCode.INTERNAL_ERROR),
    ],
)
@live
async def test_a_broken_rule_ends_the_connection_and_says_which(data: bytes, code: CloseCode) -> None:
    async with parrots(body_bytes=1000) as (handler, served):
        client = await shaken(served)
        client.send(data + masked(Opcode.TEXT, b"after"))
        assert await close_code(client) == code
        assert handler.talks[0].lost == 1
        assert b"after" not in handler.talks[0].heard


@steady
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([masked(op, b"x") for op in Opcode])), max_size=8))
def test_whatever_comes_nothing_is_raised_and_nothing_follows_a_close(pieces: list[bytes]) -> None:
    class Wire(Recorder):
        def get_write_buffer_size(self) -> int:
            return 0

    loop = asyncio.new_event_loop()
    server = ServerState(handler=lambda _: None, clock=monotonic, limits=WireLimits(), new_id=str, loop=loop)
    talk, wire = Parrot(), Wire()
    socket = WebSocket(talk)
    socket.take_over(server, wire, True)
    for piece in pieces:
        if not wire.ended:
            socket.data_received(piece)
    heard = len(talk.heard)
    if not socket.is_open and not wire.ended:
        socket.data_received(masked(Opcode.TEXT, b"more"))
        assert len(talk.heard) == heard
    socket.connection_lost(None)
    assert talk.lost == 1
    client = Frames(CLIENT, max_size=None)
    client.receive_data(b"".join(wire.written))
    assert client.parser_exc is None, "we keep the rules ourselves"
    loop.close()


# -- silence -------------------------------------------------------------------------------------------------------


@live
async def test_a_quiet_client_is_pinged_and_stays_as_long_as_it_answers() -> None:
    async with parrots(ping_every_s=0.02, pong_timeout_s=0.5) as (_, served):
        client = await shaken(served)
        for _ in range(3):
            assert await client.reader.readexactly(2) == b"\x89\x00"
            client.send(masked(Opcode.PONG, b""))
        client.send(masked(Opcode.TEXT, b"here"))
        assert await client.reader.readexactly(2) in (b"\x81\x04", b"\x89\x00")


@live
async def test_a_client_that_answers_no_ping_is_dropped() -> None:
    async with parrots(ping_every_s=0.02, pong_timeout_s=0.02) as (handler, served):
        client = await shaken(served)
        assert await client.reader.readexactly(2) == b"\x89\x00"
        assert await client.rest() == b""
        assert handler.talks[0].lost == 1


@live
async def test_a_client_that_has_an_answer_still_to_read_need_not_answer_pings() -> None:
    class Full(Recorder):
        def get_write_buffer_size(self) -> int:
            return 100

        def abort(self) -> None:
            self.ended = True

    loop = asyncio.get_running_loop()
    limits = WireLimits(ping_every_s=0.01, pong_timeout_s=0.01)
    server = ServerState(handler=lambda _: None, clock=monotonic, limits=limits, new_id=str, loop=loop)
    talk, wire, looks = Parrot(), Full(), 0
    talk.busy = True
    socket = WebSocket(talk)
    socket.take_over(server, wire, True)
    await until(lambda: b"\x89\x00" in wire.written)
    for _ in range(5):
        timer = socket._timer
        await until(lambda timer=timer: socket._timer is not timer)  # type: ignore[misc]
        looks += 1
    assert not wire.ended
    talk.busy = False
    await until(lambda: wire.ended)
    socket.connection_lost(None)
    assert looks == 5


@live
async def test_a_message_that_is_never_finished_is_not_waited_for() -> None:
    async with parrots(ping_every_s=0.02, pong_timeout_s=5, body_timeout_s=0.05) as (_, served):
        for begun in (masked(Opcode.TEXT, b"x", fin=False), masked(Opcode.TEXT, b"xyz")[:-1]):
            client = await shaken(served)
            client.send(begun)
            assert await close_code(client) == CloseCode.POLICY_VIOLATION


@live
async def test_pongs_are_not_kept_for_a_client_that_does_not_read() -> None:
    async with parrots() as (handler, served):
        client = await shaken(served)
        socket = handler.talks[0].socket
        while socket.writable:
            client.send(masked(Opcode.PING, b"x" * 125) * 500)
            await asyncio.sleep(0)
        unsent = socket.transport.get_write_buffer_size()
        for _ in range(50):
            client.send(masked(Opcode.PING, b"x" * 125) * 500)
            await asyncio.sleep(0)
        assert socket.transport.get_write_buffer_size() == unsent < 256 * 1024
        client.writer.transport.abort()


# -- the end -------------------------------------------------------------------------------------------------------


async def closed_with(client: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        await client.recv()
    return client.close_code


@live
async def test_draining_says_goodbye_at_once_to_the_idle_and_after_their_answer_to_the_others() -> None:
    async with parrots() as (handler, served), joined(served) as idle, joined(served) as busy:
        await busy.send("wait")
        await until(lambda: handler.talks[1].busy)
        draining = asyncio.ensure_future(served.server.drain(5))
        assert await closed_with(idle) == CloseCode.GOING_AWAY
        answer = MessageExchange(handler.talks[1].socket, 0.0)
        answer.stream()
        answer.event(b"1")
        answer.end(b"[DONE]")
        assert [await busy.recv(), await busy.recv()] == ["1", "[DONE]"]
        assert await closed_with(busy) == CloseCode.GOING_AWAY
        await draining


@live
async def test_where_every_answer_is_to_be_the_last_it_is() -> None:
    """Without a goodbye before it: the server goes on for those that do not know yet."""
    async with parrots() as (handler, served), joined(served) as client:
        await client.send("wait")
        await until(lambda: handler.talks[0].busy)
        served.server.say_close()
        answer = MessageExchange(handler.talks[0].socket, 0.0)
        answer.stream()
        answer.end(b"[DONE]")
        assert await client.recv() == "[DONE]"
        assert await closed_with(client) == CloseCode.GOING_AWAY


@live
async def test_of_a_client_that_left_within_a_frame_nothing_is_kept() -> None:
    async with parrots() as (handler, served):
        client = await shaken(served)
        client.send(b"\x81\xfe\x03\xe8mask" + b"x" * 500)  # the half of it
        reader = handler.talks[0].socket._frames.reader
        await until(lambda: len(reader.buffer) > 400)
        client.leave()
        await until(lambda: handler.talks[0].lost == 1)
        assert not reader.buffer


@live
async def test_a_client_that_does_not_answer_our_goodbye_is_not_waited_for() -> None:
    async with parrots(linger_s=0.02) as (handler, served):
        client = await shaken(served)
        handler.talks[0].socket.drain()
        assert await client.rest() == b"\x88\x1d\x03\xe9the server is shutting down"


@pytest.mark.parametrize("how", ["close frame", "end", "reset"])
@live
async def test_leaving_in_the_middle_of_an_answer_is_noticed(how: str) -> None:
    async with parrots() as (handler, served):
        client = await shaken(served)
        client.send(masked(Opcode.TEXT, b"wait"))
        await until(lambda: handler.talks[0].busy)
        if how == "close frame":
            client.send(masked(Opcode.CLOSE, b""))
        elif how == "end":
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        await until(lambda: handler.talks[0].lost)
        await until(lambda: not served.server.connections)


# -- answers as messages -------------------------------------------------------------------------------------------


@live
async def test_an_answer_ends_with_done_or_with_an_error_and_the_connection_goes_on() -> None:
    async with parrots() as (handler, served), joined(served) as client:
        await until(lambda: handler.talks)
        socket = handler.talks[0].socket
        whole = MessageExchange(socket, 0.0)
        whole.respond(200, b'{"a":1}')
        whole.fail(InvalidRequest("too late"))
        assert [await client.recv(), await client.recv()] == ['{"a":1}', "[DONE]"]
        failed = MessageExchange(socket, 0.0)
        failed.request_id, failed.event_id = "r", "e"
        failed.stream()
        failed.events([b"1", b"2"])
        failed.fail(InvalidRequest("no", param="p"))
        failed.end(b"[DONE]")
        assert [await client.recv(), await client.recv()] == ["1", "2"]
        assert await client.recv() == (
            '{"type":"error","status":400,"request_id":"r","event_id":"e",'
            '"error":{"message":"no","type":"invalid_request_error","param":"p","code":null}}'
        )
        assert handler.talks[0].answered == [True, True]
        started = MessageExchange(socket, 0.0)
        started.stream()
        started.event(b"1")
        with pytest.raises(RuntimeError, match="after the first event"):
            started.respond(200, b"")
