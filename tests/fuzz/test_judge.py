"""The fuzzer sees what is wrong, and makes the same case twice."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from tests.fuzz import talking
from tests.fuzz.answers import answer, probe
from tests.fuzz.bodies import ask
from tests.fuzz.frames import frames
from tests.fuzz.odd import Literal, dumped
from tests.fuzz.raw import talk
from tests.fuzz.stage import WRONG
from tests.fuzz.talking import Answered, Unanswered, answers_in, heads_in, judged, talked


@contextlib.asynccontextmanager
async def saying(said: bytes, closes: bool = True) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(said)
        if closes:
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "make", [ask, talk, frames, lambda rng: answer(rng, "/v1/x", True), lambda rng: probe(rng, "/metrics")]
)
def test_a_case_is_the_same_each_time(make: object) -> None:
    assert callable(make)
    for index in range(50):
        assert make(random.Random(f"1/{index}")) == make(random.Random(f"1/{index}"))


def test_what_json_cannot_say_is_written_as_it_is() -> None:
    assert dumped({"a": [Literal("NaN"), Literal("1e99999")]}) == b'{"a": [NaN, 1e99999]}'


@pytest.mark.parametrize(
    "answered",
    [
        Answered(500, b"", b'{"error":{"message":"x"}}', whole=True),
        Answered(400, b"", b"<html>", whole=True),
        Answered(400, b"", b'{"error":{"message":""}}', whole=True),
        Answered(200, b"content-type: text/event-stream", b'data: {"choices":[]}\n\n', whole=True),
    ],
)
def test_a_wrong_answer_is_seen(answered: Answered) -> None:
    assert judged(answered)


@pytest.mark.parametrize(
    "answered",
    [
        Answered(400, b"", b'{"error":{"message":"x"}}', whole=True),
        Answered(200, b"content-type: text/event-stream", b'data: {"choices":[]}\n\ndata: [DONE]\n\n', whole=True),
        Answered(200, b"content-type: text/event-stream", b'data: {"choices":[]}\n\n', whole=False),
        Answered(200, b"", b"{}", whole=True),
    ],
)
def test_a_right_answer_is_not(answered: Answered) -> None:
    assert not judged(answered)


def test_answers_are_told_apart() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    sized = b"HTTP/1.1 404 No\r\ncontent-length: 3\r\n\r\nabc"
    first, second, third = answers_in(chunked + sized + chunked[:-5])
    assert (first.body, first.whole, second.status, second.body, third.whole) == (b"ab", True, 404, b"abc", False)
    assert [one.status for one in heads_in(sized[:-3] + chunked)] == [404, 200]
    with pytest.raises(ValueError, match="no head"):
        answers_in(b"garbage")


def test_one_who_is_not_answered_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking, "WITHIN_S", 0.1)

    async def hangs() -> None:
        async with saying(b"", closes=False) as port:
            await talked(port, [b"x"])

    async def answers() -> bytes:
        async with saying(b"HTTP/1.1 200 OK\r\n\r\n") as port:
            return await talked(port, [b"x"])

    with pytest.raises(Unanswered):
        asyncio.run(hangs())
    assert asyncio.run(answers()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "line", ["Traceback (most recent call last):", "Task exception was never retrieved", "GGML_ASSERT(x)"]
)
def test_what_nobody_caught_is_seen_in_what_is_printed(line: str) -> None:
    assert WRONG.search(f"ok\n{line}\n")
