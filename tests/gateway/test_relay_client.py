"""What becomes of a generation whose client leaves, or does not read."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from headgate.gateway.answer.backlog import Backlog
from headgate.model.clock import monotonic
from headgate.model.outcome import Outcome
from headgate.replica.call import Call
from headgate.wire.exchange import Exchange
from tests.gateway.scene import ASK, DONE, LIMITS, Scene, payloads, scene
from tests.gateway.test_output import Connection
from tests.replica.engine import END, STREAM, Talk, token, whole
from tests.wire.serving import Client, live, until

# -- a client that leaves ------------------------------------------------------------------------------------


async def prefill(client: Client, talk: Talk) -> None:
    pass


async def prefill_with_head(client: Client, talk: Talk) -> None:
    talk.send(STREAM)


async def decode(client: Client, talk: Talk) -> None:
    talk.send(STREAM + token("a"))
    await client.head()


async def half_a_body(client: Client, talk: Talk) -> None:
    talk.send(whole(b"12345")[:-1])


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    ("stream", "phase"),
    [(True, prefill), (True, prefill_with_head), (True, decode), (False, prefill), (False, half_a_body)],
)
@live
async def test_a_client_that_leaves_is_gone_at_the_replica_within_100_ms(
    stream: bool, phase: Callable[[Client, Talk], Awaitable[None]], how: str
) -> None:
    async with scene() as on:
        on.gate.stream = stream
        client, talk = await on.asking()
        await phase(client, talk)
        left_at = monotonic()
        if how == "close":
            client.leave()
        else:
            client.writer.transport.abort()
        await talk.left()
        assert monotonic() - left_at < 0.1
        summary = await on.gate.ended.get()
        assert summary.outcome is Outcome.CANCELLED
        assert summary.status == (200 if phase is decode else 499)


# -- a client that does not read -----------------------------------------------------------------------------


async def deaf(on: Scene) -> tuple[socket.socket, Talk]:
    """A client with a small receive buffer that reads only what the test reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", on.served.port))
    await loop.sock_sendall(client, ASK)
    return client, await on.replica.asked()


async def pour(talk: Talk, text: str = "x" * 100, count: int = 1_000_000) -> int:
    """Tokens until the relay does not take any more, or goes; how many."""
    talk.send(STREAM)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < count and not talk.reader.at_eof():
            talk.send(token(text))
            sent += 1
            await talk.writer.drain()
    return sent


async def read_all(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts = []
    with contextlib.closing(client):
        while part := await loop.sock_recv(client, 65536):
            parts.append(part)
            if part.endswith(b"\r\n0\r\n\r\n"):
                break
    return b"".join(parts)


@live
async def test_a_client_that_does_not_read_is_cancelled_and_told_so() -> None:
    async with scene(grace_s=0.2) as on:
        client, talk = await deaf(on)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, on.gate.exchanges[0].unsent)
                await asyncio.sleep(0.001)

        watching = asyncio.ensure_future(watch())
        pouring = asyncio.ensure_future(pour(talk))
        summary = await on.gate.ended.get()
        await talk.left()
        watching.cancel()
        await pouring
        assert summary.outcome is Outcome.SLOW_CLIENT
        assert summary.stalled_s >= 0.2
        # 32 events, what one read can hold (256 kB) and its frames; no matter how much the replica has to say.
        assert 0 < most < 300_000
        text = await read_all(client)
        assert text.endswith(b'"code":"slow_client"}}\n\n\r\n0\r\n\r\n')
        assert b"[DONE]" not in text


@live
async def test_a_few_small_events_unsent_are_enough() -> None:
    async with scene(grace_s=0.05, events=4) as on:
        client, talk = await deaf(on)
        with contextlib.closing(client):
            talk.send(STREAM)
            while not on.gate.exchanges[0].done:
                talk.send(token("x" * 400))  # one at a time: the transport's own mark of 32 KiB is never reached
                await asyncio.sleep(0)
            summary = await on.gate.ended.get()
            assert summary.outcome is Outcome.SLOW_CLIENT
            assert on.gate.exchanges[0].unsent < 32 * 1024


@live
async def test_a_relay_that_is_abandoned_looks_at_its_slow_client_no_more() -> None:
    async with scene(grace_s=5, events=4) as on:
        client, talk = await deaf(on)
        with contextlib.closing(client):
            talk.send(STREAM)
            relay = on.gate.relays[0]
            while (backlog := relay._backlog) is None or not backlog.pausing:
                talk.send(token("x" * 400))
                await asyncio.sleep(0)
            relay.abandon()
            await talk.left()
            assert (backlog.behind_since, backlog._look) == (None, None)
            on.gate.exchanges[0].abort()


@live
async def test_a_client_that_catches_up_in_time_loses_nothing() -> None:
    async with scene(grace_s=5) as on:
        client, talk = await deaf(on)
        pouring = asyncio.ensure_future(pour(talk, count=20_000))
        await until(lambda: on.behind)
        reading = asyncio.ensure_future(read_all(client))
        assert await pouring == 20_000
        talk.send(DONE + END)
        text = await reading
        assert text.count(b'"content":"xxx') == 20_000
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        summary = await on.gate.ended.get()
        assert (summary.outcome, summary.events) == (Outcome.COMPLETED, 20_000)
        assert summary.stalled_s > 0


@live
async def test_a_spooled_client_gets_it_all_later_and_the_replica_is_free_at_once() -> None:
    async with scene(grace_s=0.05, spool_bytes=4 * 1024 * 1024) as on:
        on.gate.slow_client = "spool"
        client, talk = await deaf(on)
        await pour(talk, count=10_000)
        talk.send(DONE + END)
        summary = await on.gate.ended.get()
        assert summary.outcome is Outcome.COMPLETED
        assert on.gate.exchanges[0].unsent > 500_000
        text = await read_all(client)
        assert text.count(b'"content":"xxx') == 10_000
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@live
async def test_spooling_has_an_end() -> None:
    async with scene(grace_s=5, spool_bytes=500_000) as on:
        on.gate.slow_client = "spool"
        client, talk = await deaf(on)
        with contextlib.closing(client):
            await pour(talk)
            assert (await on.gate.ended.get()).outcome is Outcome.SLOW_CLIENT
            assert on.gate.exchanges[0].unsent < 1_000_000
            await talk.left()


@live
async def test_a_slow_client_that_leaves_is_gone_at_the_replica_too() -> None:
    async with scene(grace_s=5) as on:
        client, talk = await deaf(on)
        pouring = asyncio.ensure_future(pour(talk))
        await until(lambda: on.behind)
        client.close()
        await talk.left()
        await pouring
        summary = await on.gate.ended.get()
        assert summary.outcome is Outcome.CANCELLED
        assert summary.stalled_s > 0


@live
async def test_a_slow_client_does_not_stop_another() -> None:
    async with scene(grace_s=5) as on:
        slow, pourer = await deaf(on)
        pouring = asyncio.ensure_future(pour(pourer))
        await until(lambda: on.behind)
        client, talk = await on.asking()
        talk.send(STREAM + token("a") * 1000 + DONE + END)
        assert len(payloads(await client.answer())) == 1001
        assert (await on.gate.ended.get()).outcome is Outcome.COMPLETED
        slow.close()
        assert (await on.gate.ended.get()).outcome is Outcome.CANCELLED
        await pouring


@live
async def test_a_burst_in_one_read_does_not_make_a_client_slow() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("x" * 50) * 1500 + DONE + END)
        assert len(payloads(await client.answer())) == 1501
        assert (await on.gate.ended.get()).outcome is Outcome.COMPLETED


class Buffer:
    """A transport's."""

    unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent


@live
async def test_events_that_were_sent_meanwhile_do_not_make_a_client_slow() -> None:
    """A few are unsent now and then; it is never behind by as many as are allowed."""
    connection, nobody = Connection(), cast(Any, None)
    buffer = connection.transport = Buffer()
    limits = replace(LIMITS, events=10)
    backlog = Backlog(Exchange(connection, 0.0), Call(b"", b"", nobody), limits, monotonic, nobody, nobody)
    for _ in range(5):
        buffer.unsent = 100
        backlog.judge(6, monotonic())
        assert not backlog.pausing
        buffer.unsent = 0
        backlog.judge(6, monotonic())
    buffer.unsent = 100
    backlog.judge(6, monotonic())
    backlog.judge(6, monotonic())
    assert backlog.pausing
    backlog.close()
