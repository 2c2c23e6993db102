"""How a model server is reached, and when a connection is used again."""

import asyncio
import gc
import socket
import ssl
from pathlib import Path

import pytest

from headgate.model.clock import monotonic
from headgate.model.errors import ReplicaFailed, ReplicaStalled, ReplicaUnreached
from headgate.replica.connection import Call, Connection
from headgate.replica.http import Connections, PoolLimits, request_head
from headgate.replica.sse import EventSplitter
from headgate.wire.server import HttpServer
from tests.replica.engine import (
    END,
    STREAM,
    answered,
    ask,
    chunk,
    event,
    reaching,
    whole,
)
from tests.wire.serving import echo, live, until
from tests.wire.test_lifecycle import LOCALHOST_KEY_AND_CERT

# -- what goes well ------------------------------------------------------------------------------------------


@live
async def test_a_whole_answer() -> None:
    async with reaching() as (replica, connections):
        call, heard = ask(connections, b'{"a":1}')
        talk = await replica.talk()
        head, body = await talk.request()
        assert head == (
            b"POST /v1/x HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n"
        )
        assert body == b'{"a":1}'
        talk.send(whole(b'{"b":2}', 200, b"X-Two: 1", b"x-two: 2"))
        await heard.over.wait()
        assert heard.done
        assert heard.body == b'{"b":2}'
        assert heard.head is not None
        assert heard.head[0] == 200
        assert heard.head[1]["x-two"] == "1, 2"
        assert not heard.head[2]
        assert call.sent_at is not None
        assert call.first_byte_at is not None
        assert call.sent_at <= call.first_byte_at
        assert call.received == len(whole(b'{"b":2}', 200, b"X-Two: 1", b"x-two: 2"))


@live
async def test_a_stream_in_any_pieces() -> None:
    async with reaching() as (replica, connections):
        _, heard = ask(connections)
        talk = await replica.asked()
        talk.send(STREAM)
        await heard.news.wait()  # the head is told before the first event is there
        assert heard.head is not None
        assert heard.head[2]
        wire = (
            event(b"1") + event(b"2") + chunk(b"data: 3\n\ndata: 4\n\n") + chunk(b"data: ") + chunk(b"5\r\n\r\n") + END
        )
        for byte in wire[:20]:
            talk.send(bytes([byte]))
            await asyncio.sleep(0)
        talk.send(wire[20:])
        await heard.over.wait()
        assert heard.events == [b"1", b"2", b"3", b"4", b"5"]
        assert heard.done
        assert heard.body is None
        assert connections.idle == 1


@live
async def test_events_of_one_packet_are_told_at_once() -> None:
    async with reaching() as (replica, connections):
        heard, _ = await answered(connections, None, replica, STREAM + event(b"1") + event(b"2") + END)
        assert heard.reads == [2]


@live
async def test_an_idle_connection_is_used_again_and_at_once() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        assert connections.idle == 1
        call, heard = ask(connections)
        assert call.sent_at is not None  # before anything is awaited
        await talk.request()
        talk.send(STREAM + event(b"x") + END)
        await heard.over.wait()
        await answered(connections, talk, replica, whole(b"3"))
        assert replica.connections == 1


@live
async def test_both_sides_send_without_delay() -> None:
    async with reaching() as (replica, connections):
        call, _ = ask(connections)
        await replica.asked()
        assert isinstance(call.connection, Connection)
        peer = call.connection.transport.get_extra_info("socket")
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@live
async def test_a_100_is_not_the_answer() -> None:
    async with reaching() as (replica, connections):
        early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        heard, _ = await answered(connections, None, replica, early + whole(b"yes"))
        assert heard.body == b"yes"
        assert heard.head is not None
        assert "link" not in heard.head[1]
        assert connections.idle == 1


@pytest.mark.parametrize("stream", [True, False])
@live
async def test_an_answer_may_end_with_its_connection(stream: bool) -> None:
    async with reaching() as (replica, connections):
        kind = b"text/event-stream" if stream else b"application/json"
        _, heard = ask(connections)
        talk = await replica.asked()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\ndata: 1\n\n" % kind)
        talk.close()
        await heard.over.wait()
        assert heard.done
        assert (heard.events, heard.body) == (([b"1"], None) if stream else ([], b"data: 1\n\n"))


@live
async def test_an_error_is_a_body_even_if_it_says_that_it_is_a_stream() -> None:
    async with reaching() as (replica, connections):
        heard, _ = await answered(connections, None, replica, STREAM.replace(b"200", b"500") + event(b"x") + END)
        assert heard.head is not None
        assert (heard.head[0], heard.head[2], heard.body) == (500, False, b"data: x\n\n")


# -- reuse, and when not -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"1", 200, b"connection: close"),
        whole(b"1").replace(b"HTTP/1.1", b"HTTP/1.0"),
        whole(b"1") + whole(b"2"),
        whole(b"1") + b"garbage",
    ],
    ids=["close", "http/1.0", "two answers", "garbage behind it"],
)
@live
async def test_a_connection_that_can_not_be_trusted_is_not_used_again(answer: bytes) -> None:
    async with reaching() as (replica, connections):
        heard, talk = await answered(connections, None, replica, answer)
        assert heard.done
        assert heard.body == b"1"
        assert connections.idle == 0
        await talk.left()


@live
async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        talk.send(whole(b"injected"))
        await talk.left()
        heard, _ = await answered(connections, None, replica, whole(b"2"))
        assert heard.body == b"2"


@live
async def test_an_answer_before_the_request_is_written_ends_the_connection() -> None:
    async with reaching() as (replica, connections):
        _, heard = ask(connections, b"x" * 20_000_000)
        talk = await replica.talk()
        talk.send(whole(b"too much", 413))
        await heard.over.wait()
        assert heard.body == b"too much"
        assert connections.idle == 0


@live
async def test_no_more_connections_are_kept_than_allowed_and_none_for_longer() -> None:
    async with reaching(PoolLimits(max_idle=2, idle_timeout_s=0.03, look_every_s=0.01)) as (replica, connections):
        asked = [ask(connections)[1] for _ in range(4)]
        for _ in asked:
            (await replica.asked()).send(whole(b"1"))
        for heard in asked:
            await heard.over.wait()
        assert connections.idle == 2
        await until(lambda: connections.count == 0)
        assert connections.idle == 0


# -- stale connections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@live
async def test_a_request_written_to_a_closing_connection_is_sent_again(how: str) -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        getattr(talk, how)()
        call, heard = ask(connections)  # before the loop can have seen that it is closed
        assert call.sent_at is not None
        fresh = await replica.asked()
        fresh.send(whole(b"2"))
        await heard.over.wait()
        assert heard.body == b"2"
        assert replica.connections == 2


@live
async def test_it_is_sent_again_only_once() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        talk.close()
        _, heard = ask(connections)
        (await replica.asked()).close()
        await heard.over.wait()
        assert heard.failed is not None
        assert heard.failed[1]
        assert replica.connections == 2


@live
async def test_a_fresh_connection_that_is_lost_is_a_failure() -> None:
    async with reaching() as (replica, connections):
        _, heard = ask(connections)
        (await replica.asked()).close()
        await heard.over.wait()
        assert heard.failed is not None
        assert heard.failed[0].message == "the replica closed the connection before its answer was complete"
        assert replica.connections == 1


@live
async def test_nor_if_it_has_failed_elsewhere_before() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        talk.close()
        call, heard = ask(connections)
        call.once = True
        await heard.over.wait()
        assert heard.failed is not None
        assert call.sends == 1
        assert replica.connections == 1


@live
async def test_one_that_was_written_and_then_finds_nobody_was_sent_all_the_same() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        call, heard = ask(connections)
        await talk.request()
        replica.close()  # it dies of it
        await heard.over.wait()
        assert heard.failed is not None
        error, sent = heard.failed
        assert "could not be reached" in error.message
        assert sent
        assert not isinstance(error, ReplicaUnreached)
        assert call.sends == 1


@live
async def test_a_byte_of_an_answer_and_it_is_not_sent_again() -> None:
    async with reaching() as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        call, heard = ask(connections)
        await talk.request()
        talk.send(b"HTTP")
        await until(lambda: call.first_byte_at is not None)
        talk.close()
        await heard.over.wait()
        assert heard.failed is not None
        assert replica.connections == 1


@live
async def test_a_replica_that_dies_later_has_seen_the_request() -> None:
    async with reaching(PoolLimits(stale_s=0.0)) as (replica, connections):
        _, talk = await answered(connections, None, replica, whole(b"1"))
        _, heard = ask(connections)
        await talk.request()
        talk.reset()
        await heard.over.wait()
        assert heard.failed is not None
        assert replica.connections == 1


# -- other ways to get there ---------------------------------------------------------------------------------


@live
async def test_a_small_get() -> None:
    async with reaching() as (replica, connections):
        asked = asyncio.ensure_future(connections.get("/health", 1.0))
        talk = await replica.talk()
        head, body = await talk.request()
        assert head.startswith(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1:")
        assert body == b""
        talk.send(whole(b"ok", 503))
        assert await asked == (503, b"ok")


@live
async def test_a_get_that_fails_and_one_that_stalls() -> None:
    async with reaching() as (replica, connections):
        stalled = asyncio.ensure_future(connections.get("/health", 0.03))
        talk = await replica.asked()
        with pytest.raises(ReplicaStalled, match="did not answer within"):
            await stalled
        await talk.left()
        replica.close()
        with pytest.raises(ReplicaFailed, match="could not be reached"):
            await connections.get("/health", 1.0)


@live
async def test_a_unix_socket(tmp_path: Path) -> None:
    server = HttpServer(echo, clock=monotonic)
    await server.listen_unix(tmp_path / "s")
    connections = Connections(f"unix:{tmp_path / 's'}", clock=monotonic)
    _, heard = ask(connections, b"hello")
    await heard.over.wait()
    assert heard.body == b"hello"
    connections.close()
    await server.drain(1)


@live
async def test_tls(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text(LOCALHOST_KEY_AND_CERT)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pem)
    server = HttpServer(echo, clock=monotonic)
    port = await server.listen("127.0.0.1", 0, tls=served)
    trusting = Connections(
        f"https://localhost:{port}", clock=monotonic, tls=ssl.create_default_context(cafile=str(pem))
    )
    _, heard = ask(trusting, b"hello")
    await heard.over.wait()
    assert heard.body == b"hello"
    wary = Connections(f"https://localhost:{port}", clock=monotonic)
    _, refused = ask(wary)
    await refused.over.wait()
    assert refused.failed is not None
    assert not refused.failed[1]
    trusting.close()
    wary.close()
    await until(lambda: not trusting.count)
    await server.drain(1)


@pytest.mark.parametrize(
    "url", ["", "unix:", "ftp://a", "http://", "http://a/v1", "http://u:p@a", "a:80", "http://a?b"]
)
@live
async def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Connections(url, clock=monotonic)


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://a:81", "a:81"), ("https://a/", "a"), ("http://[::1]:8", "[::1]:8"), ("unix:/x", "localhost")],
)
@live
async def test_what_is_said_as_host(url: str, host: str) -> None:
    assert Connections(url, clock=monotonic).host == host


def test_a_line_break_in_a_request_head_is_an_error() -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("/", "a", (("x", "y\r\nz: 1"),))


@pytest.mark.usefixtures("without_collector")
@live
async def test_calls_and_connections_need_no_garbage_collector() -> None:
    async with reaching() as (replica, connections):
        await answered(connections, None, replica, STREAM + event(b"1") + END)
    await asyncio.sleep(0)
    assert not [it for it in gc.get_objects() if isinstance(it, (Call, Connection, EventSplitter))]
