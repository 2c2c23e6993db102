"""What a client gets from a replica that fails, refuses, breaks off or falls silent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate.model.clock import monotonic
from headgate.model.errors import NotReady, ReplicaFailed, ReplicaStalled
from headgate.model.outcome import Outcome
from tests.gateway.scene import ASK, DONE, content, error_in, payloads, scene
from tests.replica.engine import END, STREAM, Talk, event, token, whole
from tests.wire.serving import live, until

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
        if on.gate.connections.count == 1 and on.replica.connections == 1:  # it was kept for the second attempt
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
        assert on.gate.connections.idle == 1


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
    async with scene(first_token_s=0.05, answer_s=0.05, stall_s=0.02) as on:
        on.gate.stream = stream
        client, talk = await on.asking()
        sent_at = monotonic()
        assert (await client.answer()).status == 504
        assert monotonic() - sent_at >= 0.04
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)
        await talk.left()


@live
async def test_a_replica_that_stops_in_the_middle_of_a_whole_answer_has_stalled() -> None:
    async with scene(answer_s=600, stall_s=0.05) as on:
        on.gate.stream = False
        client, talk = await on.asking()
        asked_at = monotonic()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n")
        for piece in (b"{", b'"id":', b'"x",', b'"a":1'):
            await asyncio.sleep(0.03)  # all of it takes longer than the limit, no gap does
            talk.send(piece)
        sent_at = monotonic()
        assert (await client.answer()).status == 504
        assert monotonic() - sent_at >= 0.03
        assert monotonic() - asked_at < 5
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
