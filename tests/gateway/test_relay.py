"""The way of an answer from a replica to a client."""

import asyncio
import gc
from typing import Any

import pytest

from headgate.gateway.answer.relay import Relay
from headgate.model.errors import NotReady, ServeError
from headgate.model.outcome import Outcome
from tests.gateway.scene import DONE, USAGE, content, payloads, scene
from tests.replica.engine import END, STREAM, chunk, event, token, whole
from tests.wire.serving import live, until

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
        assert on.gate.connections.idle == 1


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
        assert it.first_at is not None
        assert it.last_at is not None
        assert it.sent_at <= it.first_at <= it.last_at - 0.03
        assert it.gaps[0][0] >= 0.03
        assert it.stalled_s == 0


@live
async def test_one_gap_in_a_hundred_is_remembered_however_long_the_stream() -> None:
    """Three of a thousand would say nothing about the 99th percentile."""
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a"))
        await until(lambda: on.gate.firsts)
        relay = on.gate.relays[0]
        for number in range(1000):
            relay.events += 1
            relay._note_gap(0.001 + number % 40 / 1e4, relay._clock())
        talk.send(token("b") + DONE + END)
        await client.answer()
        it = await on.gate.ended.get()
        longest = [took_s for took_s, _ in it.gaps]
        assert 10 <= len(longest) <= 64
        assert longest == sorted(longest, reverse=True)
        assert longest[9] == pytest.approx(0.0049)


@live
async def test_an_engine_can_not_inject_events() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(
            STREAM
            + chunk(b'data: {\ndata: "event":"x",\ndata:\ndata: "data":1}\n\nevent: evil\nid: 3\n: c\n\n')
            + DONE
            + END
        )
        answer = await client.answer()
        assert answer.body == b'data: {\ndata: "event":"x",\ndata: \ndata: "data":1}\n\ndata: [DONE]\n\n'
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
        assert on.gate.connections.idle == 1


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


# -- the end ----------------------------------------------------------------------------------------------------


@live
async def test_a_relay_is_over_only_once() -> None:
    async with scene() as on:
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + DONE + END)
        await client.answer()
        await on.gate.ended.get()
        with pytest.raises(RuntimeError, match="OVER can't END"):
            on.gate.relays[0].fail(NotReady("again"))


@pytest.mark.usefixtures("without_collector")
@live
async def test_a_finished_relay_needs_no_garbage_collector() -> None:
    async with scene() as on:
        for answer in (STREAM + token("a") + DONE + END, STREAM + token("a") + END):
            client, talk = await on.asking()
            talk.send(answer)
            await client.answer()
            await on.gate.ended.get()
            talk.close()
            await until(lambda: on.gate.connections.count == 0)
        assert all(relay.over for relay in on.gate.relays)
        on.gate.relays.clear()
        on.gate.exchanges.clear()
        for _ in range(20):  # what the loop was about to call may hold the last of them for a moment
            left = [it for it in gc.get_objects() if isinstance(it, Relay)]
            if not left:
                break
            del left
            await asyncio.sleep(0.01)
        else:
            pytest.fail("only the garbage collector could free it")


@live
async def test_a_stream_that_succeeds_makes_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    new = ServeError.__init__

    def noted(self: ServeError, *arguments: Any, **named: Any) -> None:
        made.append(type(self).__name__)
        new(self, *arguments, **named)

    monkeypatch.setattr(ServeError, "__init__", noted)
    async with scene() as it:
        client, talk = await it.asking()
        talk.send(STREAM + token("One") + DONE + END)
        assert payloads(await client.answer())[-1] == b"[DONE]"
        assert (await it.gate.ended.get()).outcome is Outcome.COMPLETED
    assert made == []


@live
async def test_of_an_answer_in_one_piece_the_engine_says_when_its_first_token_came() -> None:
    timings = b'"usage":{"prompt_tokens":7,"completion_tokens":5},"timings":{"prompt_ms":5,"predicted_ms":10}'
    for told in (True, False):
        async with scene() as on:
            on.gate.stream = False
            client, talk = await on.asking()
            await asyncio.sleep(0.02)
            talk.send(whole(b'{"choices":[{}]' + (b"," + timings if told else b"") + b"}"))
            assert (await client.answer()).status == 200
            summary = await on.gate.ended.get()
            assert (summary.first_at is not None) is told
            assert summary.sent_at is not None
            assert summary.last_at is not None
            assert not told or summary.sent_at < (summary.first_at or 0.0) < summary.last_at
