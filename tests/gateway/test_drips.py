"""An engine that sends a little now and then can't hold a request for longer than its time limits."""

import asyncio
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import msgspec
import pytest

from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.relay import Relay
from headgate.model.clock import monotonic
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.model.outcome import Outcome
from tests.gateway.scene import DONE, USAGE, Scene, error_in, payloads, scene
from tests.replica.engine import END, STREAM, Talk, event, token
from tests.wire.serving import live, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n"
ERROR = HEAD.replace(b"200 OK", b"500 X")
COMMENT = b"8\r\n: ping\n\n\r\n"
ROLE = event(b'{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}')
TIMES = {"first_token_s": 0.3, "stall_s": 0.15, "answer_s": 1.0, "body_s": 0.3}
LATEST_S = 3.0
"""No limit of these tests is near it; what hangs is seen to hang after it."""


async def drip(talk: Talk, begins: bytes, piece: bytes) -> None:
    """One piece per 0.04 s, for longer than any test waits."""
    for one in chain([begins], repeat(piece, 200)):
        talk.send(one)
        await asyncio.sleep(0.04)


async def dripped(on: Scene, begins: bytes, piece: bytes) -> tuple[Any, float]:
    """The answer to a client whose replica drips, and after how long it came."""
    client, talk = await on.asking()
    asked_at = monotonic()
    dripping = asyncio.create_task(drip(talk, begins, piece))
    try:
        async with asyncio.timeout(LATEST_S):
            answer = await client.answer()
        return answer, monotonic() - asked_at
    finally:
        dripping.cancel()


def gathering(limit_s: float | None) -> Callable[[Relay], Gather]:
    return lambda relay: Gather(relay, limit_s, None, 7, monotonic)


DRIPS = {
    "empty events": (STREAM, event(b"")),
    "usage": (STREAM, USAGE),
    "whose turn it is": (STREAM, ROLE),
    "comments": (STREAM, COMMENT),
    "head": (b"HTTP/1.1 200 OK\r\nx-a: ", b"z"),
    "error's body": (ERROR, b" "),
}


@pytest.mark.parametrize("wants_usage", [False, True])
@pytest.mark.parametrize("kind", DRIPS)
@live
async def test_what_says_nothing_does_not_put_off_the_first_tokens_limit(kind: str, wants_usage: bool) -> None:
    async with scene(**TIMES) as on:
        on.gate.wants_usage = wants_usage
        answer, took_s = await dripped(on, *DRIPS[kind])
        assert answer.status == 504
        assert took_s < 1.0
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)


@pytest.mark.parametrize("piece", [event(b""), USAGE, COMMENT], ids=["empty events", "usage", "comments"])
@live
async def test_what_says_nothing_does_not_put_off_the_end_of_a_silent_stream(piece: bytes) -> None:
    async with scene(**TIMES) as on:
        on.gate.wants_usage = True
        answer, took_s = await dripped(on, STREAM + token("a"), piece)
        assert error_in(payloads(answer)[-1])["code"] == "replica_stalled"
        assert 0.1 < took_s < 1.0
        assert (await on.gate.ended.get()).outcome is Outcome.REPLICA_STALLED


@pytest.mark.parametrize(
    ("begins", "piece"),
    [(HEAD, b" "), (ERROR, b" "), (b"HTTP/1.1 200 OK\r\nx-a: ", b"z"), (b"H", b"")],
    ids=["body", "error's body", "head", "first byte only"],
)
@live
async def test_an_answer_in_one_piece_has_to_be_complete_in_time(begins: bytes, piece: bytes) -> None:
    async with scene(**{**TIMES, "answer_s": 600.0}) as on:
        on.gate.stream = False
        answer, took_s = await dripped(on, begins, piece)
        assert answer.status == 504
        assert 0.1 < took_s < 1.0
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)


@live
async def test_an_answer_in_one_piece_has_its_lanes_time_for_its_body_but_never_more_than_any_answer() -> None:
    async with scene(**{**TIMES, "answer_s": 0.8}) as on:
        on.gate.stream = False
        on.gate.generation_s = 30.0
        answer, took_s = await dripped(on, HEAD, b" ")
        assert answer.status == 504
        assert 0.7 < took_s < 1.4
        await on.gate.failed.get()


@pytest.mark.parametrize("limit_s", [None, 0.4])
@pytest.mark.parametrize("kind", ["usage", "whose turn it is", "comments", "an event's bytes"])
@live
async def test_a_gathered_stream_has_to_begin_in_time(kind: str, limit_s: float | None) -> None:
    async with scene(**{**TIMES, "answer_s": 600.0}) as on:
        on.gate.stream = False
        on.gate.read_by = gathering(limit_s)
        begins, piece = DRIPS.get(kind, (STREAM + b"7\r\ndata: {\r\n", b"1\r\n \r\n"))
        answer, took_s = await dripped(on, begins, piece)
        assert answer.status == 504
        assert took_s < 1.0
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)


@pytest.mark.parametrize("piece", [USAGE, COMMENT], ids=["usage", "comments"])
@live
async def test_a_gathered_stream_that_goes_on_without_a_word_has_stalled(piece: bytes) -> None:
    async with scene(**{**TIMES, "answer_s": 600.0}) as on:
        on.gate.stream = False
        on.gate.read_by = gathering(None)
        answer, took_s = await dripped(on, STREAM + token("a"), piece)
        assert answer.status == 504
        assert took_s < 1.0
        await on.gate.failed.get()


@live
async def test_a_replica_that_is_to_stream_for_one_piece_and_says_nothing_has_stalled() -> None:
    """It was given the whole time of an answer in one piece, and no other replica was asked."""
    async with scene(first_token_s=0.3, stall_s=5) as on:
        on.gate.stream = False
        on.gate.generation_s = 60.0
        on.gate.read_by = gathering(60)
        client, _ = await on.asking()
        async with asyncio.timeout(LATEST_S):
            assert (await client.answer()).status == 504
        assert isinstance((await on.gate.failed.get())[0], ReplicaStalled)


@live
async def test_it_may_still_answer_in_one_piece_and_has_a_whole_answers_time_from_its_first_byte() -> None:
    async with scene(first_token_s=0.3, stall_s=5) as on:
        on.gate.stream = False
        on.gate.generation_s = 60.0
        on.gate.read_by = gathering(60)
        client, talk = await on.asking()
        body = b'{"choices":[]}'
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:5])
        await asyncio.sleep(0.5)
        talk.send(body[5:])
        assert (await client.answer()).body == body
        await on.gate.ended.get()


@live
async def test_a_gathered_streams_time_begins_with_its_first_token() -> None:
    async with scene(first_token_s=5, stall_s=5) as on:
        on.gate.stream = False
        on.gate.read_by = gathering(0.3)
        client, talk = await on.asking()
        talk.send(STREAM + ROLE)
        await asyncio.sleep(0.4)
        talk.send(token("a"))
        await asyncio.sleep(0.05)
        last = event(b'{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}')
        talk.send(last + DONE + END)
        answer = await client.answer()
        assert b'"content":"ab"' in answer.body
        assert (await on.gate.ended.get()).stop == ""


# -- what can't be put together ----------------------------------------------------------------------------


def chunk(**choice: Any) -> bytes:
    return event(msgspec.json.encode({"choices": [{"index": 0, "finish_reason": "stop", **choice}]}))


ODD = {
    "two kinds of index": token("a") + chunk(index="1", delta={"content": "b"}),
    "index below 0": chunk(index=-1, delta={}),
    "index past all": chunk(index=4096, delta={}),
    "a fraction": chunk(index=0.5, delta={}),
    "a truth value": chunk(index=True, delta={}),
    "delta is a list": chunk(delta=[1]),
    "delta is a text": chunk(delta="a"),
    "delta is a number": chunk(delta=7),
    "kinds of calls' index": chunk(delta={"tool_calls": [{"index": 0}, {"index": "1"}]}),
    "calls are a text": chunk(delta={"tool_calls": "ab"}),
    "a call is a number": chunk(delta={"tool_calls": [1]}),
    "a call's index past all": chunk(delta={"tool_calls": [{"index": 4096}]}),
    "choices are a text": event(b'{"choices":"ab"}'),
    "choices are an object": event(b'{"choices":{"a":1}}'),
    "delta is an empty text after one": token("a") + chunk(delta=""),
    "no object": event(b"[1]"),
}


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "is out of time"])
@pytest.mark.parametrize("kind", ODD)
@live
async def test_odd_events_of_a_gathered_stream_fail_the_attempt_and_no_more(kind: str, ends: bool) -> None:
    async with scene(first_token_s=5, stall_s=5) as on:
        on.gate.stream = False
        on.gate.read_by = gathering(0.2)
        client, talk = await on.asking()
        talk.send(STREAM + ODD[kind] + (DONE + END if ends else b""))
        async with asyncio.timeout(LATEST_S):
            answer = await client.answer()
        assert answer.status == 502
        error, refused = await on.gate.failed.get()
        assert isinstance(error, ReplicaFailed)
        assert not refused
        await until(lambda: on.gate.relays[0].over)
