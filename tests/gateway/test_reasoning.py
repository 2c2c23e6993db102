"""What a model thinks is not what it answers, and that it is the assistant's turn is no token."""

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest

from headgate.gateway.answer.relay import MOST_HELD
from headgate.gateway.answer.transcript import MOST_KEPT, content_of, speaks, thinks
from headgate.model.clock import monotonic
from headgate.model.errors import ServeError
from headgate.policy.rollout.verdict import VersionSample
from tests.engine.process import ask
from tests.gateway.scene import DONE, error_in, payloads, scene
from tests.gateway.test_hedge import Asked, Scene, on, shared  # noqa: F401
from tests.replica.engine import END, STREAM, event, token
from tests.wire.serving import live, until


def chunk(**delta: Any) -> bytes:
    return msgspec.json.encode({"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


ROLE = chunk(role="assistant", content="")
THOUGHTS = {
    "reasoning_content": [chunk(reasoning_content="Let me")],
    "reasoning": [chunk(reasoning="Let me")],
    "beside no content": [chunk(reasoning_content="Let me", content=None)],
    "beside empty content": [chunk(content="", reasoning="Let me")],
    "before content": [chunk(reasoning_content="Let me"), chunk(content="Four", reasoning_content=None)],
    "before content, otherwise": [chunk(reasoning="Let me"), chunk(content="Four")],
    "spaced out": [json.dumps(msgspec.json.decode(chunk(reasoning="Let me"))).encode()],
}


# -- thinking is not gone on with -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", list(THOUGHTS))
@live
async def test_a_stream_in_which_a_model_thought_ends_with_an_explicit_error(how: str) -> None:
    async with scene() as it:
        it.gate.goes_on = lambda error: pytest.fail("it would think again, or its thoughts would become its answer")
        client, talk = await it.asking()
        it.gate.relays[0].transcript.keep()
        talk.send(STREAM + event(ROLE) + b"".join(map(event, THOUGHTS[how])))
        talk.close()
        events = payloads(await client.answer())
        assert "thinking" in error_in(events[-1])["message"]
        assert b"[DONE]" not in events
        summary = await it.gate.ended.get()
        assert summary.outcome.value == "replica_failed"
        assert summary.events == len(THOUGHTS[how])


@live
async def test_what_was_thought_is_never_kept_as_text() -> None:
    async with scene() as it:
        client, talk = await it.asking()
        relay = it.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + event(chunk(reasoning_content="Let me")) + token("Four") + DONE + END)
        await client.answer()
        await it.gate.ended.get()
        assert b"Let me" not in bytes(relay.transcript.said or b"")


@live
async def test_an_answer_that_only_speaks_of_reasoning_is_gone_on_with() -> None:
    async with scene() as it:
        broken: list[ServeError] = []
        it.gate.goes_on = broken.append
        client, talk = await it.asking()
        relay = it.gate.relays[0]
        relay.transcript.keep()
        talk.send(
            STREAM
            + event(chunk(content='A "reasoning', reasoning_content=None))
            + event(chunk(content=' is "reasoning"'))
        )
        talk.close()
        await until(lambda: broken)
        assert bytes(relay.transcript.said or b"").replace(b"\n", b"") == rb"A \"reasoning is \"reasoning\""
        relay.go_on(it.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
        talk = await it.replica.asked()
        talk.send(STREAM + event(ROLE) + token(".") + DONE + END)
        assert payloads(await client.answer())[-1] == b"[DONE]"
        assert (await it.gate.ended.get()).outcome.value == "completed"


@live
async def test_a_second_replica_that_begins_to_think_in_the_middle_of_an_answer_is_not_listened_to() -> None:
    async with scene() as it:
        broken: list[ServeError] = []
        it.gate.goes_on = broken.append
        client, talk = await it.asking()
        relay = it.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + token("Four"))
        talk.close()
        await until(lambda: broken)
        relay.go_on(it.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
        talk = await it.replica.asked()
        talk.send(STREAM + event(chunk(reasoning="Hm.")) + token("Five") + DONE + END)
        events = payloads(await client.answer())
        assert "think" in error_in(events[-1])["message"]
        assert len(events) == 2
        assert (await it.gate.ended.get()).outcome.value == "replica_failed"


# -- a role is no token -----------------------------------------------------------------------------------------


@live
async def test_a_role_alone_is_held_until_there_is_a_token() -> None:
    async with scene() as it:
        client, talk = await it.asking()
        relay = it.gate.relays[0]
        talk.send(STREAM + event(ROLE))
        await until(lambda: relay.last_at is not None)
        assert relay.first_at is None
        assert it.gate.firsts == relay.events == 0
        assert not it.gate.exchanges[0].started
        talk.send(token("Four") + DONE + END)
        assert payloads(await client.answer())[0] == ROLE
        summary = await it.gate.ended.get()
        assert (summary.events, it.gate.firsts) == (1, 1)
        assert summary.first_at is not None


@live
async def test_a_replica_that_dies_after_a_role_can_still_be_replaced() -> None:
    async with scene() as it:
        client, talk = await it.asking()
        talk.send(STREAM + event(ROLE))
        await until(lambda: it.gate.relays[0].last_at is not None)
        talk.close()
        assert (await client.answer()).status == 502
        error, refused = await it.gate.failed.get()
        assert not refused
        assert "broke off" in error.message or "closed" in error.message


@pytest.mark.parametrize("end", ["finish", "done", "usage"])
@live
async def test_an_answer_without_a_word_has_its_role_too(end: str) -> None:
    async with scene() as it:
        it.gate.wants_usage = True
        client, talk = await it.asking()
        ends = {
            "finish": event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'),
            "usage": event(b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":0}}'),
            "done": b"",
        }
        talk.send(STREAM + event(ROLE) + ends[end] + DONE + END)
        events = payloads(await client.answer())
        assert (events[0], events[-1]) == (ROLE, b"[DONE]")
        assert (await it.gate.ended.get()).outcome.value == "completed"


EMPTY = {
    "role": ROLE,
    "empty": b'{"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}',
    "long": b'{"choices":[{"index":0,"delta":{"role":"%b"}}]}' % (b"x" * (MOST_KEPT + 1)),
}


@pytest.mark.parametrize("kind", EMPTY)
@live
async def test_no_number_of_empty_events_is_held_or_is_a_first_token(kind: str) -> None:
    """The seventeenth was taken for one: an engine that fell silent after it could not be replaced any more."""
    empty = EMPTY[kind]
    async with scene() as it:
        _, talk = await it.asking()
        talk.send(STREAM + event(ROLE) + event(empty) * (3 * MOST_HELD))
        await until(lambda: it.gate.relays[0].last_at is not None)
        for _ in range(5):
            talk.send(event(empty))
            await asyncio.sleep(0.01)
        relay = it.gate.relays[0]
        assert (relay.first_at, relay.spoke_at, relay.events, it.gate.firsts) == (None, None, 0, 0)
        assert not it.gate.exchanges[0].started
        assert len(relay._held) <= MOST_HELD
        talk.reset()
        error, refused = await it.gate.failed.get()
        assert not refused
        assert "closed the connection" in error.message


@live
async def test_what_was_held_goes_with_the_first_token_and_what_was_too_much_is_left_out() -> None:
    async with scene() as it:
        client, talk = await it.asking()
        talk.send(STREAM + event(ROLE) * (MOST_HELD + 9) + token("a") + DONE + END)
        events = payloads(await client.answer())
        assert events[0] == ROLE
        assert events.count(ROLE) <= MOST_HELD + 9
        assert (await it.gate.ended.get()).events == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (ROLE, False),
        (chunk(role="assistant"), False),
        (chunk(role="assistant", content=None, tool_calls=[]), False),
        (b'{"choices":[{"index":0,"text":"","finish_reason":null}]}', False),
        (b'{"choices":[],"prompt_filter_results":[]}', False),
        (chunk(role="assistant", content="x"), True),
        (chunk(reasoning="x"), True),
        (chunk(tool_calls=[{"index": 0}]), True),
        (b'{"choices":[{"index":0,"text":"x"}]}', True),
        (b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', True),
        (b'{"type":"response.output_text.delta","delta":""}', True),
        (b"no json", True),
        (b'{"choices":[1]}', True),
        (b'{"choices":5}', True),
    ],
)
def test_what_says_something(data: bytes, says: bool) -> None:
    assert speaks(data) is says


def test_what_is_thought_and_what_is_content() -> None:
    assert not thinks(chunk(content="x"))
    assert not thinks(chunk(content="x", reasoning_content=None))
    assert not thinks(chunk(content='"reasoning', reasoning_content=None))
    assert not thinks(b'{"x":"reasoning", "choices":"reasoning"')
    assert thinks(chunk(content=None, reasoning="x"))
    assert content_of(chunk(content='a"b', reasoning="x")) == rb"a\"b"
    assert content_of(chunk(reasoning="x")) == b""
    assert content_of(b'{"choices":"reasoning"}') == b""


def test_a_role_does_not_win_a_race(on: Scene) -> None:  # noqa: F811
    """The second replica says at once that it is the assistant's turn, and nothing else; the first is slow."""
    on.hold(1_500, 20_000)
    ask(f"{on.second}/role", b"1")
    before = on.hedges("won")
    asked = Asked(on.url, "n=3")
    began = time.monotonic()
    assert asked.text() == "a a a "
    assert time.monotonic() - began > 1.0
    assert on.record(asked.id)["record"]["hedge"]["result"] == "lost"
    assert on.hedges("won") == before
    ask(f"{on.second}/role", b"0")


@live
async def test_a_copy_is_timed_by_its_first_token() -> None:
    from headgate.gateway.shadow import ShadowCopy

    samples: list[VersionSample] = []
    copy = ShadowCopy(monotonic, True, samples.append)
    copy.on_head(200, {}, True)
    copy.on_events([ROLE])
    began = monotonic()
    await until(lambda: monotonic() - began > 0.05)
    copy.on_events([chunk(content="x")])
    copy.on_done()
    assert samples[0].ttft_s is not None
    assert samples[0].ttft_s > 0.05
    assert samples[0].output_tokens == 1
