"""How does an answer get from a replica to a client, and what if one of them does not play along?"""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import msgspec
import pytest

from headgate.gateway.relay import Relay, RelayLimits, Summary
from headgate.model.clock import monotonic
from headgate.model.errors import NotReady, ReplicaFailed, ReplicaStalled, ServeError
from headgate.model.outcome import Outcome
from headgate.replica.http import Pool, PoolLimits, request_head
from headgate.wire.exchange import Exchange
from tests.replica.engine import END, STREAM, Engine, Talk, chunk, engine, event, token, whole
from tests.wire.serving import Answer, Client, Served, live, post, serving, until

DONE = event(b"[DONE]")
USAGE = event(
    b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
)
ASK = post(b"{}")


class Gate:
    """A gateway of one replica and no policy: the owner of every relay."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.limits = RelayLimits()
        self.slow_client: Literal["cancel", "spool"] = "cancel"
        self.stream = True
        self.wants_usage = False
        self.exchanges: list[Exchange] = []
        self.relays: list[Relay] = []
        self.firsts = 0
        self.ended: asyncio.Queue[Summary] = asyncio.Queue()
        self.failed: asyncio.Queue[tuple[ServeError, bool]] = asyncio.Queue()
        self.on_failed: Callable[[ServeError], None] = lambda error: self.exchanges[-1].fail(error)

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.attempt(exchange)

    def attempt(self, exchange: Exchange) -> None:
        relay = Relay(exchange, self, self.limits, self.slow_client, self.stream, self.wants_usage, monotonic)
        self.relays.append(relay)
        relay.start(self.pool.send(request_head("/v1/x", self.pool.host), exchange.body, relay))

    def on_first(self) -> None:
        self.firsts += 1

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        self.failed.put_nowait((error, refused))
        self.on_failed(error)

    def on_end(self, summary: Summary) -> None:
        self.ended.put_nowait(summary)


class Scene:
    def __init__(self, gate: Gate, served: Served, replica: Engine) -> None:
        self.gate = gate
        self.served = served
        self.replica = replica

    @property
    def behind(self) -> bool:
        backlog = self.gate.relays[0]._backlog
        return backlog is not None and backlog.pausing

    async def asking(self) -> tuple[Client, Talk]:
        """A client that has asked, and the replica that has got it."""
        client = await self.served.connect()
        client.send(ASK)
        return client, await self.replica.asked()


@contextlib.asynccontextmanager
async def scene(**limits: Any) -> AsyncIterator[Scene]:
    async with engine() as replica:
        gate = Gate(Pool(replica.url, clock=monotonic, limits=PoolLimits(look_every_s=0.01)))
        gate.limits = RelayLimits(**limits)
        async with serving(gate) as served:
            try:
                yield Scene(gate, served, replica)
            finally:
                gate.pool.close()
                await until(lambda: not gate.pool.connections)
        assert all(relay.over for relay in gate.relays)
        assert gate.ended.empty()  # nothing ended twice, and each test has looked
        assert gate.failed.empty()


def payloads(answer: Answer) -> list[bytes]:
    assert answer.status == 200
    assert answer.body.endswith(b"\n\n")
    return [part.removeprefix(b"data: ") for part in answer.body[:-2].split(b"\n\n")]


def content(payload: bytes) -> str:
    text: str = msgspec.json.decode(payload)["choices"][0]["delta"]["content"]
    return text


def error_in(payload: bytes) -> dict[str, Any]:
    error: dict[str, Any] = msgspec.json.decode(payload)["error"]
    return error


# -- streams that go well ------------------------------------------------------------------------------------


@live
async def test_a_stream_is_passed_on_event_by_event() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM)
        for text in ("a", "b"):
            talk.send(token(text))
            if text == "a":
                status, headers = await client.head()
            assert content((await client.chunk())[6:-2]) == text
        talk.send(DONE + END)
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        summary = await on.gate.ended.get()
        assert status == 200
        assert headers["x-accel-buffering"] == "no"
        assert summary.outcome is Outcome.COMPLETED
        assert (summary.status, summary.events, on.gate.firsts) == (200, 2, 1)
        assert on.gate.pool.idle == 1


@live
async def test_nothing_is_sent_before_the_first_event() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM)
        await until(lambda: on.gate.relays[0]._status == 200)
        assert not on.gate.exchanges[0].started
        talk.close()
        assert (await client.answer()).status == 502
        assert (await on.gate.failed.get())[0].outcome is Outcome.REPLICA_FAILED


@live
async def test_two_events_in_one_packet_and_half_ones() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        a, b, c = token("a"), token("b"), token("c")
        talk.send(STREAM + a + b + c[:9])
        await until(lambda: on.gate.relays[0].events == 2)
        talk.send(c[9:] + DONE + END)
        assert [content(data) for data in payloads(await client.answer())[:-1]] == ["a", "b", "c"]
        await on.gate.ended.get()


@live
async def test_times_are_kept() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a"))
        await until(lambda: on.gate.firsts)
        await asyncio.sleep(0.03)
        talk.send(token("b") + DONE + END)
        await client.answer()
        it = await on.gate.ended.get()
        assert it.sent_at is not None
        assert it.first_byte_at is not None
        assert it.first_at is not None
        assert it.last_at is not None
        assert it.sent_at <= it.first_byte_at <= it.first_at <= it.last_at - 0.03 <= it.ended_at - 0.03
        assert it.max_gap_s >= 0.03
        assert it.stalled_s == 0


@live
async def test_an_engine_can_not_inject_events() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(
            STREAM + chunk(b"data: a\ndata: event: x\ndata:\ndata: data: b\n\nevent: evil\nid: 3\n: c\n\n") + DONE + END
        )
        answer = await client.answer()
        assert answer.body == b"data: a\ndata: event: x\ndata: \ndata: data: b\n\ndata: [DONE]\n\n"
        await on.gate.ended.get()


@live
async def test_what_follows_done_is_not_passed_on() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + DONE + token("b"))
        assert len(payloads(await client.answer())) == 2
        talk.send(token("c") + DONE + END)
        assert (await on.gate.ended.get()).events == 1


@live
async def test_a_replica_that_does_not_end_its_message_after_done_is_let_go() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + DONE)
        assert (await client.answer()).status == 200
        await talk.left()
        assert (await on.gate.ended.get()).outcome is Outcome.COMPLETED


@live
async def test_a_replica_that_dies_after_done_has_completed() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + DONE)
        assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        talk.reset()
        assert (await on.gate.ended.get()).outcome is Outcome.COMPLETED


# -- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False])
@live
async def test_usage_is_noted_and_passed_on_only_if_asked_for(wanted: bool) -> None:
    async with scene() as on:
        on.gate.wants_usage = wanted
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + token("b") + USAGE + DONE + END)
        events = payloads(await client.answer())
        assert [b"usage" in data for data in events] == [False, False, *([True] if wanted else []), False]
        summary = await on.gate.ended.get()
        assert (summary.usage, summary.cached_tokens) == ((7, 2), 4)
        assert summary.events == len(events) - 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"content":"x"}}],"usage":null}',
        b'{"choices":[{"delta":{"content":"x"}}],"usage": null}',
        b'{"choices":[{"delta":{"content":"\\"usage\\""}}]}',
        b'{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        b'{"usage": not JSON}',
        b'{"choices":[],"usage":"strange"}',
    ],
)
@live
async def test_an_event_that_says_more_than_usage_is_passed_on_as_it_is(data: bytes) -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + event(data) + DONE + END)
        assert payloads(await client.answer()) == [data, b"[DONE]"]
        await on.gate.ended.get()


@live
async def test_a_stream_of_nothing_but_usage() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + USAGE)
        talk.send(DONE + END)
        assert payloads(await client.answer()) == [b"[DONE]"]
        assert (await on.gate.ended.get()).usage == (7, 2)
        assert on.gate.firsts == 1


# -- whole answers -------------------------------------------------------------------------------------------


@live
async def test_a_whole_answer_is_passed_on_as_it_is() -> None:
    async with scene() as on:
        on.gate.stream = False
        client, talk = await on.asking()
        body = b'{"choices":[{}], "usage":{"prompt_tokens":3,"completion_tokens":5}}'
        talk.send(whole(body))
        answer = await client.answer()
        assert (answer.status, answer.body, answer.headers["content-type"]) == (200, body, "application/json")
        summary = await on.gate.ended.get()
        assert (summary.outcome, summary.usage) == (Outcome.COMPLETED, (3, 5))
        assert on.gate.pool.idle == 1


@pytest.mark.parametrize("stream", [True, False])
@live
async def test_an_answer_of_the_wrong_form_is_a_failed_attempt(stream: bool) -> None:
    async with scene() as on:
        on.gate.stream = stream
        client, talk = await on.asking()
        talk.send(whole(b"{}") if stream else STREAM + token("a"))
        assert (await client.answer()).status == 502
        await on.gate.failed.get()
        await talk.left()


# -- before the first byte -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (whole(b'{"error":{"message":"busy"}}', 503), True),
        (whole(b"slow down", 429), True),
        (whole(b"oops", 500), False),
        (whole(b"", 302, b"location: /"), False),
        (whole(b'{"error":{"message":"key"}}', 401), False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (STREAM, False),
        (b"junk\r\n\r\n", False),
    ],
    ids=["503", "429", "500", "302", "401", "half a head", "no event", "junk"],
)
@live
async def test_a_failed_attempt_leaves_the_exchange_to_its_owner(answer: bytes, refused: bool, stream: bool) -> None:
    async with scene() as on:
        on.gate.stream = stream
        on.gate.on_failed = lambda error: on.gate.attempt(on.gate.exchanges[-1])
        client, first = await on.asking()
        first.send(answer)
        if b"content-length" not in answer:
            first.close()
        error, was_refused = await on.gate.failed.get()
        assert isinstance(error, ReplicaFailed)
        assert was_refused is refused
        if on.gate.pool.connections == 1 and on.replica.connections == 1:  # it was kept for the second attempt
            second = first
            await second.request()
        else:
            second = await on.replica.asked()
        second.send(STREAM + token("a") + DONE + END if stream else whole(b"{}"))
        assert (await client.answer()).status == 200
        assert (await on.gate.ended.get()).outcome is Outcome.COMPLETED


@live
async def test_a_replica_that_is_not_there_is_a_failed_attempt() -> None:
    async with scene() as on:
        on.replica.close()
        client = await on.served.connect()
        assert (await client.ask(ASK)).status == 502
        assert not (await on.gate.failed.get())[1]


@live
async def test_an_error_as_the_first_event_still_gets_a_status() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + event(b'{"error": {"message": "busy", "code": 503}}') + END)
        answer = await client.answer()
        assert answer.status == 502
        assert "busy" in error_in(answer.body)["message"]
        assert (await on.gate.failed.get())[1]
        client, talk = await on.asking()
        talk.send(STREAM + event(b'{"error": {"message": "no", "code": 400}}') + END)
        assert (await client.answer()).status == 400
        assert (await on.gate.ended.get()).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("status", "body", "error", "outcome"),
    [
        (
            400,
            b'{"error":{"message":"m","type":"BadRequestError","param":"n","code":400}}',
            {"message": "m", "type": "BadRequestError", "param": "n", "code": None},
            Outcome.INVALID,
        ),
        (
            404,
            b'{"object":"error","message":"m","type":"NotFoundError","param":null,"code":404}',
            {"message": "m", "type": "NotFoundError", "param": None, "code": None},
            Outcome.UNKNOWN_MODEL,
        ),
        (
            422,
            b'{"detail":[{"loc":["body"],"msg":"x"}]}',
            {
                "message": '[{"loc":["body"],"msg":"x"}]',
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            },
            Outcome.INVALID,
        ),
        (
            413,
            b"<html>\xff",
            {"message": "<html>\ufffd", "type": "invalid_request_error", "param": None, "code": None},
            Outcome.TOO_LONG,
        ),
        (
            400,
            b'{"error":{"message":"m","code":"context_length_exceeded"}}',
            {"message": "m", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"},
            Outcome.INVALID,
        ),
        (
            400,
            b"[]",
            {"message": "the replica gave no reason", "type": "invalid_request_error", "param": None, "code": None},
            Outcome.INVALID,
        ),
    ],
    ids=["vllm", "old vllm", "fastapi", "no json", "openai", "nothing"],
)
@live
async def test_the_clients_own_fault_is_passed_on_in_openais_form(
    status: int, body: bytes, error: dict[str, Any], outcome: Outcome
) -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(whole(body, status))
        answer = await client.answer()
        assert answer.status == status
        assert error_in(answer.body) == error
        summary = await on.gate.ended.get()
        assert (summary.outcome, summary.status) == (outcome, status)
        assert on.gate.pool.idle == 1


# -- after it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (Talk.close, "before its answer was complete"),
        (Talk.reset, "before its answer was complete"),
        (lambda talk: talk.send(END), "without [DONE]"),
        (lambda talk: talk.send(b"zz\r\n"), "malformed"),
        (
            lambda talk: talk.send(event(b'{"error": {"message": "out of memory", "code": 500}}') + DONE),
            "out of memory",
        ),
        (lambda talk: talk.send(event(b'{"error": "out of memory"}')), "out of memory"),
    ],
    ids=["closed", "killed", "no [DONE]", "malformed", "error event", "plain error event"],
)
@live
async def test_a_stream_that_breaks_off_ends_with_an_error_and_without_done(
    act: Callable[[Talk], None], why: str
) -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a"))
        await until(lambda: on.gate.firsts)
        act(talk)
        events = payloads(await client.answer())
        assert content(events[0]) == "a"
        assert why in error_in(events[1])["message"]
        assert error_in(events[1])["code"] == "replica_failed"
        assert len(events) == 2
        summary = await on.gate.ended.get()
        assert (summary.outcome, summary.status, summary.events) == (Outcome.REPLICA_FAILED, 200, 1)
        assert summary.error is not None


@live
async def test_a_stream_without_done_that_ends_with_its_connection_is_no_success() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n")
        talk.close()
        assert "without [DONE]" in error_in(payloads(await client.answer())[1])["message"]
        assert (await on.gate.ended.get()).outcome is Outcome.REPLICA_FAILED


@live
async def test_an_error_in_the_same_read_as_the_first_event() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + event(b'{"error":{"message":"m"}}') + token("b"))
        assert len(payloads(await client.answer())) == 2
        assert (await on.gate.ended.get()).events == 1


@live
async def test_the_owner_may_end_it() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a"))
        await until(lambda: on.gate.firsts)
        on.gate.relays[0].fail(NotReady("draining"))
        assert error_in(payloads(await client.answer())[1])["message"] == "draining"
        assert (await on.gate.ended.get()).outcome is Outcome.NOT_READY
        await talk.left()


# -- a replica that falls silent -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@live
async def test_a_replica_that_never_starts_has_stalled(stream: bool) -> None:
    async with scene(first_token_s=0.05, stall_s=0.02) as on:
        on.gate.stream = stream
        client, talk = await on.asking()
        sent_at = monotonic()
        assert (await client.answer()).status == 504
        assert monotonic() - sent_at >= 0.04
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)
        await talk.left()


@live
async def test_a_replica_that_stops_in_the_middle_has_stalled() -> None:
    async with scene(first_token_s=5, stall_s=0.05) as on:
        client, talk = await on.asking()
        talk.send(STREAM)
        for text in "abcd":
            talk.send(token(text))
            await asyncio.sleep(0.02)  # all of it takes longer than the limit, no gap does
        events = payloads(await client.answer())
        assert len(events) == 5
        assert error_in(events[-1])["code"] == "replica_stalled"
        assert (await on.gate.ended.get()).outcome is Outcome.REPLICA_STALLED
        await talk.left()


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
    async with scene(grace_s=0.05) as on:
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


# ------------------------------------------------------------------------------------------------------------


@live
async def test_a_relay_is_over_only_once() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + DONE + END)
        await client.answer()
        await on.gate.ended.get()
        with pytest.raises(RuntimeError, match="only once"):
            on.gate.relays[0].fail(NotReady("again"))


@live
async def test_a_finished_relay_needs_no_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async with scene() as on:
            for answer in (STREAM + token("a") + DONE + END, STREAM + token("a") + END):
                client, talk = await on.asking()
                talk.send(answer)
                await client.answer()
                await on.gate.ended.get()
                talk.close()
                await until(lambda: on.gate.pool.connections == 0)
            assert all(relay.over for relay in on.gate.relays)
            on.gate.relays.clear()
            on.gate.exchanges.clear()
            assert not [it for it in gc.get_objects() if isinstance(it, Relay)]
    finally:
        gc.enable()
