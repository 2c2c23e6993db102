"""Replicas that are not there, do not speak HTTP, stop halfway, or are not wanted any more."""

import asyncio
import contextlib
import socket
from functools import partial

import pytest

from headgate.model.clock import monotonic
from headgate.replica.http import Connections, PoolLimits
from headgate.wire.server import HttpServer
from tests.replica.engine import (
    END,
    HEAD,
    STREAM,
    Heard,
    answered,
    ask,
    chunk,
    event,
    reaching,
    token,
    whole,
)
from tests.wire.serving import echo, live, until

# -- what goes wrong -----------------------------------------------------------------------------------------


@live
async def test_nobody_there() -> None:
    async with reaching() as (replica, connections):
        replica.close()
        _, heard = ask(connections)
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
        connections = Connections(
            f"http://127.0.0.1:{full.getsockname()[1]}", clock=monotonic, limits=PoolLimits(connect_timeout_s=0.05)
        )
        asked = [ask(connections)[1] for _ in range(3)]
        await asked[-1].over.wait()
        assert asked[-1].failed is not None
        assert "no connection within 0.05 s" in asked[-1].failed[0].message
        connections.close()
        await until(lambda: not connections.count)


def _none_busy(connections: Connections) -> bool:
    return not connections.busy


def _none_open(connections: Connections) -> bool:
    return not connections.count


@live
async def test_no_connection_that_is_made_as_its_time_runs_out_is_left_behind() -> None:
    """As when thousands come at once: the loop is so busy that connections are made and time is up together."""
    server = HttpServer(echo, clock=monotonic)
    port = await server.listen("127.0.0.1", 0)
    for late_ms in range(2, 12):
        connections = Connections(
            f"http://127.0.0.1:{port}", clock=monotonic, limits=PoolLimits(connect_timeout_s=late_ms / 1e3)
        )  # fmt: skip
        asked = [ask(connections, b"hello")[1] for _ in range(60)]
        for heard in asked:
            await heard.over.wait()
            assert heard.body == b"hello" or heard.failed is not None
        await until(partial(_none_busy, connections))
        connections.close()
        await until(partial(_none_open, connections))
    await server.drain(1)


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
    async with reaching(PoolLimits(body_bytes=1000, event_bytes=1000)) as (replica, connections):
        heard, talk = await answered(connections, None, replica, answer)
        assert heard.failed is not None
        error, sent = heard.failed
        assert why in error.message
        assert sent
        assert not heard.done
        await talk.left()
        assert connections.idle == 0


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
    async with reaching() as (replica, connections):
        call, heard = ask(connections)
        talk = await replica.asked()
        talk.send(part)
        await until(lambda: call.first_byte_at is not None)
        getattr(talk, how)()
        await heard.over.wait()
        assert heard.failed is not None
        assert "before its answer was complete" in heard.failed[0].message


@live
async def test_what_came_before_the_flaw_is_told() -> None:
    async with reaching() as (replica, connections):
        heard, _ = await answered(connections, None, replica, STREAM + event(b"1") + b"zz\r\n")
        assert heard.events == [b"1"]
        assert heard.failed is not None


# -- cancel, pause, close ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [b"", STREAM, STREAM + token("a")], ids=["before", "head", "events"])
@live
async def test_cancel_closes_the_connection_and_is_silent(part: bytes) -> None:
    async with reaching() as (replica, connections):
        call, heard = ask(connections)
        talk = await replica.asked()
        if part:
            talk.send(part)
            await heard.news.wait()
        call.cancel()
        call.cancel()
        call.pause()
        call.resume()
        await talk.left()
        await until(lambda: not connections.count)
        assert not heard.over.is_set()


@live
async def test_cancel_while_connecting() -> None:
    async with reaching() as (replica, connections):
        call, heard = ask(connections)
        call.cancel()
        late, unheard = ask(connections)
        talk = await replica.talk()
        await until(lambda: late.connection is not None)
        late.cancel()
        await talk.left()
        await until(lambda: not connections.count)
        assert not heard.over.is_set()
        assert not unheard.over.is_set()


@live
async def test_cancel_within_a_callback_stops_the_rest_of_the_read() -> None:
    class Hasty(Heard):
        def on_events(self, events: list[bytes]) -> None:
            super().on_events(events)
            call.cancel()

    async with reaching() as (replica, connections):
        heard = Hasty()
        call = connections.send(HEAD, b"", heard)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1") + END)
        await talk.left()
        assert heard.events == [b"1"]
        assert not heard.over.is_set()


@live
async def test_a_paused_call_is_not_read_and_goes_on_when_resumed() -> None:
    async with reaching() as (replica, connections):
        call, heard = ask(connections)
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
        assert connections.idle == 1


@live
async def test_a_connection_paused_in_its_last_read_is_read_again_by_the_next_call() -> None:
    class Pausing(Heard):
        def on_events(self, events: list[bytes]) -> None:
            super().on_events(events)
            call.pause()

    async with reaching() as (replica, connections):
        heard = Pausing()
        call = connections.send(HEAD, b"", heard)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1") + END)
        await heard.over.wait()
        again, _ = await answered(connections, talk, replica, whole(b"2"))
        assert again.body == b"2"


@live
async def test_closing_the_pool_fails_what_is_under_way() -> None:
    async with reaching() as (replica, connections):
        _, running = ask(connections)
        await replica.asked()
        _, connecting = ask(connections)
        await asyncio.sleep(0)
        connections.close()
        await running.over.wait()
        await connecting.over.wait()
        assert running.failed is not None
        assert connecting.failed is not None
        assert not connecting.failed[1]
        await (await replica.talk()).left()


@live
async def test_a_listener_is_told_that_it_is_late_until_it_says_when_next() -> None:
    async with reaching(PoolLimits(look_every_s=0.01)) as (replica, connections):
        call, heard = ask(connections)
        prompt, unhurried = ask(connections)
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


class Fails(Heard):
    """A listener with a flaw."""

    def __init__(self) -> None:
        super().__init__()
        self.flaws: list[Exception] = []

    def on_events(self, events: list[bytes]) -> None:
        raise ZeroDivisionError

    def on_broken(self, flaw: Exception) -> None:
        self.flaws.append(flaw)
        self.over.set()


@live
async def test_a_call_whose_listener_raises_is_over_and_tells_it_nothing_more() -> None:
    async with reaching() as (replica, connections):
        heard = Fails()
        call = connections.send(HEAD, b"{}", heard)
        talk = await replica.asked()
        talk.send(STREAM + event(b"1"))
        await heard.over.wait()
        await talk.left()
        assert [type(flaw) for flaw in heard.flaws] == [ZeroDivisionError]
        assert (call.listener, call.connection) == (None, None)
