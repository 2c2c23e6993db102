"""How is a model server reached, and what happens when it is not, or not quite?"""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.model.clock import monotonic
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.replica.http import Call, Pool, PoolLimits, request_head
from headgate.wire.server import HttpServer
from tests.replica.engine import END, STREAM, Engine, Heard, Talk, chunk, engine, event, token, whole
from tests.wire.serving import echo, live, until
from tests.wire.test_lifecycle import LOCALHOST_KEY_AND_CERT

HEAD = request_head("/v1/x", "test")


@contextlib.asynccontextmanager
async def reaching(limits: PoolLimits | None = None) -> AsyncIterator[tuple[Engine, Pool]]:
    async with engine() as replica:
        pool = Pool(replica.url, clock=monotonic, limits=limits)
        try:
            yield replica, pool
        finally:
            pool.close()
            await until(lambda: not pool.connections)


def ask(pool: Pool, body: bytes = b"{}") -> tuple[Call, Heard]:
    heard = Heard()
    return pool.send(HEAD, body, heard), heard


async def answered(pool: Pool, talk: Talk | None, replica: Engine, answer: bytes) -> tuple[Heard, Talk]:
    """One call from send to its end, on this connection or the next."""
    _, heard = ask(pool)
    if talk is None:
        talk = await replica.talk()
    await talk.request()
    talk.send(answer)
    await heard.over.wait()
    return heard, talk


# -- what goes well ------------------------------------------------------------------------------------------


@live
async def test_a_whole_answer() -> None:
    async with reaching() as (replica, pool):
        call, heard = ask(pool, b'{"a":1}')
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


@live
async def test_a_stream_in_any_pieces() -> None:
    async with reaching() as (replica, pool):
        _, heard = ask(pool)
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
        assert pool.idle == 1


@live
async def test_events_of_one_packet_are_told_at_once() -> None:
    async with reaching() as (replica, pool):
        heard, _ = await answered(pool, None, replica, STREAM + event(b"1") + event(b"2") + END)
        assert heard.reads == [2]


@live
async def test_an_idle_connection_is_used_again_and_at_once() -> None:
    async with reaching() as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        assert pool.idle == 1
        call, heard = ask(pool)
        assert call.sent_at is not None  # before anything is awaited
        await talk.request()
        talk.send(STREAM + event(b"x") + END)
        await heard.over.wait()
        await answered(pool, talk, replica, whole(b"3"))
        assert replica.connections == 1


@live
async def test_both_sides_send_without_delay() -> None:
    async with reaching() as (replica, pool):
        call, _ = ask(pool)
        await replica.asked()
        assert call.connection is not None
        peer = call.connection.transport.get_extra_info("socket")
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@live
async def test_a_100_is_not_the_answer() -> None:
    async with reaching() as (replica, pool):
        early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        heard, _ = await answered(pool, None, replica, early + whole(b"yes"))
        assert heard.body == b"yes"
        assert heard.head is not None
        assert "link" not in heard.head[1]
        assert pool.idle == 1


@pytest.mark.parametrize("stream", [True, False])
@live
async def test_an_answer_may_end_with_its_connection(stream: bool) -> None:
    async with reaching() as (replica, pool):
        kind = b"text/event-stream" if stream else b"application/json"
        _, heard = ask(pool)
        talk = await replica.asked()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\ndata: 1\n\n" % kind)
        talk.close()
        await heard.over.wait()
        assert heard.done
        assert (heard.events, heard.body) == (([b"1"], None) if stream else ([], b"data: 1\n\n"))


@live
async def test_an_error_is_a_body_even_if_it_says_that_it_is_a_stream() -> None:
    async with reaching() as (replica, pool):
        heard, _ = await answered(pool, None, replica, STREAM.replace(b"200", b"500") + event(b"x") + END)
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
    async with reaching() as (replica, pool):
        heard, talk = await answered(pool, None, replica, answer)
        assert heard.done
        assert heard.body == b"1"
        assert pool.idle == 0
        await talk.left()


@live
async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    async with reaching() as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        talk.send(whole(b"injected"))
        await talk.left()
        heard, _ = await answered(pool, None, replica, whole(b"2"))
        assert heard.body == b"2"


@live
async def test_an_answer_before_the_request_is_written_ends_the_connection() -> None:
    async with reaching() as (replica, pool):
        _, heard = ask(pool, b"x" * 20_000_000)
        talk = await replica.talk()
        talk.send(whole(b"too much", 413))
        await heard.over.wait()
        assert heard.body == b"too much"
        assert pool.idle == 0


@live
async def test_no_more_connections_are_kept_than_allowed_and_none_for_longer() -> None:
    async with reaching(PoolLimits(max_idle=2, idle_timeout_s=0.03, look_every_s=0.01)) as (replica, pool):
        asked = [ask(pool)[1] for _ in range(4)]
        for _ in asked:
            (await replica.asked()).send(whole(b"1"))
        for heard in asked:
            await heard.over.wait()
        assert pool.idle == 2
        await until(lambda: pool.connections == 0)
        assert pool.idle == 0


# -- stale connections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@live
async def test_a_request_written_to_a_closing_connection_is_sent_again(how: str) -> None:
    async with reaching() as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        getattr(talk, how)()
        call, heard = ask(pool)  # before the loop can have seen that it is closed
        assert call.sent_at is not None
        fresh = await replica.asked()
        fresh.send(whole(b"2"))
        await heard.over.wait()
        assert heard.body == b"2"
        assert replica.connections == 2


@live
async def test_it_is_sent_again_only_once() -> None:
    async with reaching() as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        talk.close()
        _, heard = ask(pool)
        (await replica.asked()).close()
        await heard.over.wait()
        assert heard.failed is not None
        assert heard.failed[1]
        assert replica.connections == 2


@live
async def test_a_fresh_connection_that_is_lost_is_a_failure() -> None:
    async with reaching() as (replica, pool):
        _, heard = ask(pool)
        (await replica.asked()).close()
        await heard.over.wait()
        assert heard.failed is not None
        assert replica.connections == 1


@live
async def test_a_byte_of_an_answer_and_it_is_not_sent_again() -> None:
    async with reaching() as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        call, heard = ask(pool)
        await talk.request()
        talk.send(b"HTTP")
        await until(lambda: call.first_byte_at is not None)
        talk.close()
        await heard.over.wait()
        assert heard.failed is not None
        assert replica.connections == 1


@live
async def test_a_replica_that_dies_later_has_seen_the_request() -> None:
    async with reaching(PoolLimits(stale_s=0.0)) as (replica, pool):
        _, talk = await answered(pool, None, replica, whole(b"1"))
        _, heard = ask(pool)
        await talk.request()
        talk.reset()
        await heard.over.wait()
        assert heard.failed is not None
        assert replica.connections == 1


# -- what goes wrong -----------------------------------------------------------------------------------------


@live
async def test_nobody_there() -> None:
    async with reaching() as (replica, pool):
        replica.close()
        _, heard = ask(pool)
        await heard.over.wait()
        assert heard.failed is not None
        error, sent = heard.failed
        assert "could not be reached" in error.message
        assert not sent


@live
async def test_a_connection_that_is_not_made_in_time() -> None:
    with socket.socket() as full, socket.socket() as filler:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filler.connect(full.getsockname())  # a backlog of one: further SYNs are dropped
        pool = Pool(
            f"http://127.0.0.1:{full.getsockname()[1]}", clock=monotonic, limits=PoolLimits(connect_timeout_s=0.05)
        )
        asked = [ask(pool)[1] for _ in range(3)]
        await asked[-1].over.wait()
        assert asked[-1].failed is not None
        assert "no connection within 0.05 s" in asked[-1].failed[0].message
        pool.close()
        await until(lambda: not pool.connections)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"nonsense\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", "malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000, "without end"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"y" * 300_000, "without end"),
        (whole(b"", 200, b"content-encoding: gzip"), "encoding"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
        (STREAM + chunk(b"data: " + b"x" * 2000), "more than 1000 bytes"),
    ],
    ids=["nonsense", "cl and te", "chunk", "upgrade", "header", "extension", "gzip", "body", "event"],
)
@live
async def test_an_answer_that_is_none(answer: bytes, why: str) -> None:
    async with reaching(PoolLimits(body_bytes=1000, event_bytes=1000)) as (replica, pool):
        heard, talk = await answered(pool, None, replica, answer)
        assert heard.failed is not None
        error, sent = heard.failed
        assert why in error.message
        assert sent
        assert not heard.done
        await talk.left()
        assert pool.idle == 0


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nconte",
        whole(b"12345")[:-1],
        STREAM + token("a"),
        STREAM + token("a") + token("b")[:-8],
    ],
    ids=["head", "body", "between events", "within an event"],
)
@pytest.mark.parametrize("how", ["close", "reset"])
@live
async def test_an_answer_that_is_cut_off(part: bytes, how: str) -> None:
    async with reaching() as (replica, pool):
        call, heard = ask(pool)
        talk = await replica.asked()
        talk.send(part)
        await until(lambda: call.first_byte_at is not None)
        getattr(talk, how)()
        await heard.over.wait()
        assert heard.failed is not None
        assert "before its answer was complete" in heard.failed[0].message


@live
async def test_what_came_before_the_flaw_is_told() -> None:
    async with reaching() as (replica, pool):
        heard, _ = await answered(pool, None, replica, STREAM + event(b"1") + b"zz\r\n")
        assert heard.events == [b"1"]
        assert heard.failed is not None


# -- cancel, pause, close ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [b"", STREAM, STREAM + token("a")], ids=["before", "head", "events"])
@live
async def test_cancel_closes_the_connection_and_is_silent(part: bytes) -> None:
    async with reaching() as (replica, pool):
        call, heard = ask(pool)
        talk = await replica.asked()
        if part:
            talk.send(part)
            await heard.news.wait()
        call.cancel()
        call.cancel()
        call.pause()
        call.resume()
        await talk.left()
        await until(lambda: not pool.connections)
        assert not heard.over.is_set()


@live
async def test_cancel_while_connecting() -> None:
    async with reaching() as (replica, pool):
        call, heard = ask(pool)
        call.cancel()
        late, unheard = ask(pool)
        talk = await replica.talk()
        await until(lambda: late.connection is not None)
        late.cancel()
        await talk.left()
        await until(lambda: not pool.connections)
        assert not heard.over.is_set()
        assert not unheard.over.is_set()


@live
async def test_cancel_within_a_callback_stops_the_rest_of_the_read() -> None:
    class Hasty(Heard):
        def on_events(self, events: list[bytes]) -> None:
            super().on_events(events)
            call.cancel()

    async with reaching() as (replica, pool):
        heard = Hasty()
        call = pool.send(HEAD, b"", heard)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1") + END)
        await talk.left()
        assert heard.events == [b"1"]
        assert not heard.over.is_set()


@live
async def test_a_paused_call_is_not_read_and_goes_on_when_resumed() -> None:
    async with reaching() as (replica, pool):
        call, heard = ask(pool)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1"))
        await until(lambda: heard.events)
        call.pause()
        big = event(b"x" * 100_000)
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                while sent < 1000:
                    talk.send(big)
                    sent += 1
                    await talk.writer.drain()
        assert sent < 1000
        assert heard.events == [b"1"]
        call.resume()
        talk.send(END)
        await heard.over.wait()
        assert len(heard.events) == sent + 1
        assert pool.idle == 1


@live
async def test_a_connection_paused_in_its_last_read_is_read_again_by_the_next_call() -> None:
    class Pausing(Heard):
        def on_events(self, events: list[bytes]) -> None:
            super().on_events(events)
            call.pause()

    async with reaching() as (replica, pool):
        heard = Pausing()
        call = pool.send(HEAD, b"", heard)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1") + END)
        await heard.over.wait()
        again, _ = await answered(pool, talk, replica, whole(b"2"))
        assert again.body == b"2"


@live
async def test_closing_the_pool_fails_what_is_under_way() -> None:
    async with reaching() as (replica, pool):
        _, running = ask(pool)
        await replica.asked()
        _, connecting = ask(pool)
        await asyncio.sleep(0)
        pool.close()
        await running.over.wait()
        await connecting.over.wait()
        assert running.failed is not None
        assert connecting.failed is not None
        assert not connecting.failed[1]
        await (await replica.talk()).left()


@live
async def test_a_listener_is_told_that_it_is_late_until_it_says_when_next() -> None:
    async with reaching(PoolLimits(look_every_s=0.01)) as (replica, pool):
        call, heard = ask(pool)
        prompt, unhurried = ask(pool)
        talks = [await replica.asked(), await replica.asked()]
        call.late_at = monotonic() + 0.02
        prompt.late_at = monotonic() + 60
        await until(lambda: heard.late >= 2)
        assert monotonic() >= call.late_at
        call.late_at = monotonic() + 60
        heard.late = 0
        for talk in talks:
            talk.send(whole(b""))
        await heard.over.wait()
        await unhurried.over.wait()
        assert (heard.late, unhurried.late) == (0, 0)


# -- other ways to get there ---------------------------------------------------------------------------------


@live
async def test_a_small_get() -> None:
    async with reaching() as (replica, pool):
        asked = asyncio.ensure_future(pool.get("/health", 1.0))
        talk = await replica.talk()
        head, body = await talk.request()
        assert head.startswith(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1:")
        assert body == b""
        talk.send(whole(b"ok", 503))
        assert await asked == (503, b"ok")


@live
async def test_a_get_that_fails_and_one_that_stalls() -> None:
    async with reaching() as (replica, pool):
        stalled = asyncio.ensure_future(pool.get("/health", 0.03))
        talk = await replica.asked()
        with pytest.raises(ReplicaStalled, match="did not answer within"):
            await stalled
        await talk.left()
        replica.close()
        with pytest.raises(ReplicaFailed, match="could not be reached"):
            await pool.get("/health", 1.0)


@live
async def test_a_unix_socket(tmp_path: Path) -> None:
    server = HttpServer(echo, clock=monotonic)
    await server.listen_unix(tmp_path / "s")
    pool = Pool(f"unix:{tmp_path / 's'}", clock=monotonic)
    _, heard = ask(pool, b"hello")
    await heard.over.wait()
    assert heard.body == b"hello"
    pool.close()
    await server.drain(1)


@live
async def test_tls(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.write_text(LOCALHOST_KEY_AND_CERT)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pem)
    server = HttpServer(echo, clock=monotonic)
    port = await server.listen("127.0.0.1", 0, tls=served)
    trusting = Pool(f"https://localhost:{port}", clock=monotonic, tls=ssl.create_default_context(cafile=str(pem)))
    _, heard = ask(trusting, b"hello")
    await heard.over.wait()
    assert heard.body == b"hello"
    wary = Pool(f"https://localhost:{port}", clock=monotonic)
    _, refused = ask(wary)
    await refused.over.wait()
    assert refused.failed is not None
    assert not refused.failed[1]
    trusting.close()
    wary.close()
    await until(lambda: not trusting.connections)
    await server.drain(1)


@pytest.mark.parametrize(
    "url", ["", "unix:", "ftp://a", "http://", "http://a/v1", "http://u:p@a", "a:80", "http://a?b"]
)
@live
async def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Pool(url, clock=monotonic)


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://a:81", "a:81"), ("https://a/", "a"), ("http://[::1]:8", "[::1]:8"), ("unix:/x", "localhost")],
)
@live
async def test_what_is_said_as_host(url: str, host: str) -> None:
    assert Pool(url, clock=monotonic).host == host


def test_a_line_break_in_a_request_head_is_an_error() -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("/", "a", (("x", "y\r\nz: 1"),))


@live
async def test_calls_and_connections_need_no_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async with reaching() as (replica, pool):
            await answered(pool, None, replica, STREAM + event(b"1") + END)
        await asyncio.sleep(0)
        assert not [it for it in gc.get_objects() if type(it).__name__ in ("Call", "Connection", "EventSplitter")]
    finally:
        gc.enable()
