"""A replica dies in the middle of a stream, and the client does not notice."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from headgate.gateway.answer.bounded import still_bounded
from headgate.gateway.answer.continuation import Continuation, rest_of, text_said
from headgate.gateway.answer.transcript import MOST_KEPT, has_ended
from headgate.model.clock import monotonic
from headgate.model.errors import ServeError
from headgate.policy.answers.output import Allowance
from headgate.replica.dialects import can_continue
from tests.engine.process import ask, headgate
from tests.gateway.scene import DONE, USAGE, payloads, scene
from tests.gateway.test_output import accepted
from tests.replica.engine import END, STREAM, event, token, whole
from tests.wire.serving import live, until

FIRST = b'{"id":"a","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"One"}}]}'
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def told(line: bytes | None) -> Any:
    assert line is not None
    return json.loads(line)


def test_what_the_second_says_is_told_as_the_first_would_have() -> None:
    going = Continuation(FIRST, before=3)
    second = b'{"id":"b","created":2,"choices":[{"index":0,"delta":{"role":"assistant","content":" two"}}]}'
    assert told(going.told(second)) == {
        "id": "a",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": " two"}}],
    }
    opening = b'{"id":"b","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
    assert going.told(opening) is None, "that it is the assistant's has been said"
    assert told(going.told(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'))["id"] == "a"
    assert going.told(b"[DONE]") == b"[DONE]"
    assert going.told(b'{"error":{"message":"no"}}') == b'{"error":{"message":"no"}}'


def test_what_was_said_counts_as_output_and_not_as_prompt() -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":13,"completion_tokens":5,"total_tokens":18}%b}'
    assert told(Continuation(FIRST, 3).told(usage % b""))["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
    }
    exact = told(Continuation(FIRST, 3).told(usage % b',"timings":{"continued_tokens":4}'))["usage"]
    assert (exact["prompt_tokens"], exact["completion_tokens"]) == (9, 9), "an event may be of several tokens"


@pytest.mark.parametrize(
    ("path", "body", "can"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, True),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "n": 2}, False),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, False),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}, True),
        ("/v1/completions", {"prompt": "x"}, True),
        ("/v1/completions", {"prompt": [1, 2]}, True),
        ("/v1/completions", {"prompt": ["a", "b"]}, False),
        ("/v1/embeddings", {"input": "x"}, False),
    ],
)
def test_only_what_nobody_would_notice_is_gone_on_with(path: str, body: dict[str, Any], can: bool) -> None:
    assert can_continue(path, body) is can


def test_text_is_read_back_from_how_it_was_spelled() -> None:
    assert text_said(bytearray(rb"a \"b\" \u00e9 \n")) == 'a "b" é \n'
    assert text_said(bytearray(b"a\n b\n")) == "a b", "a line break ends a piece"
    assert text_said(bytearray(b"half \\ud83d")) is None, "half a character can't be gone on with"


def test_the_rest_is_asked_for_in_the_pieces_that_were_said() -> None:
    body = {"prompt": "Count: "}
    assert rest_of("headgate", TEXT, body, bytearray(b"one\n\n, \\n\n"), 3) == {**body, "continued": ["one", ", \n"]}
    assert rest_of("vllm", TEXT, body, bytearray(b"one\n, two\n"), 2) == {"prompt": "Count: one, two"}
    assert rest_of("openai", CHAT, {"messages": []}, bytearray(b"\n"), 1) == {"messages": []}, "nothing was said yet"
    assert rest_of("headgate", TEXT, body, bytearray(b"a\n\\ud83d\n"), 2) is None
    halves = rest_of("headgate", TEXT, body, bytearray(b"a\n\\ud83d\n\\ude42\n"), 3)
    assert halves == {**body, "continued": ["a🙂"]}


@pytest.mark.parametrize("choices", [b'["x"]', b"[1,null]", b"5", b'"x"', b'{"a":1}', b'[{"delta":5}]'])
def test_choices_that_are_none_say_nothing(choices: bytes) -> None:
    assert Continuation(b"{}", 1).told(b'{"id":"x","choices":%b}' % choices) is None


def test_an_end_that_was_given_a_reason_is_known() -> None:
    assert has_ended(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    assert has_ended(b'{"choices": [{"text": "x", "finish_reason": "length"}]}')
    assert has_ended(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
    assert not has_ended(b'{"choices":[{"index":0,"delta":{"content":"finish_reason"},"finish_reason":null}]}')
    assert not any(has_ended(event) for event in (b"", b"[]", b"[DONE]", b'{"choices":[]}', b'{"choices":[1]}'))


@live
async def test_a_stream_that_breaks_off_waits_and_is_gone_on_with() -> None:
    async with scene() as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        on.gate.relays[0].transcript.keep()
        talk.send(STREAM + event(FIRST) + token(" two"))
        talk.close()
        await until(lambda: broken)
        relay = on.gate.relays[0]
        assert not relay.over
        assert relay.transcript.said == bytearray(b"One\n two\n")
        relay.go_on(on.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
        second = await on.replica.asked()
        second.send(STREAM + token(" three") + DONE + END)
        said = [json.loads(line)["choices"][0]["delta"]["content"] for line in payloads(await client.answer())[:-1]]
        assert said == ["One", " two", " three"]
        summary = await on.gate.ended.get()
        assert summary.outcome.value == "completed"
        assert summary.events == 3
        assert on.gate.firsts == 2, "the dispatcher hears of both first tokens"


def _as_many(broken: list[ServeError], number: int) -> bool:
    return len(broken) == number


@live
async def test_each_that_dies_or_stalls_is_gone_on_after() -> None:
    async with scene(stall_s=0.05) as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        relay = on.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + event(FIRST))
        for number, word in enumerate((" two", " three", " four"), 1):
            await until(partial(_as_many, broken, number))
            relay.go_on(on.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
            talk = await on.replica.asked()
            talk.send(STREAM + token(word))
        talk.send(DONE + END)
        said = [json.loads(line)["choices"][0]["delta"]["content"] for line in payloads(await client.answer())[:-1]]
        assert said == ["One", " two", " three", " four"]
        assert [error.outcome.value for error in broken] == ["replica_stalled"] * 3
        assert (await on.gate.ended.get()).events == 4


@live
async def test_whoever_goes_on_may_take_as_long_to_begin_as_anybody() -> None:
    async with scene(stall_s=0.05, first_token_s=60.0) as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        relay = on.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + event(FIRST))
        talk.close()
        await until(lambda: broken)
        relay.go_on(on.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
        talk = await on.replica.asked()
        began = monotonic()
        await until(lambda: monotonic() - began > 0.3)
        talk.send(STREAM + token(" two") + DONE + END)
        assert payloads(await client.answer())[-1] == b"[DONE]"
        assert len(broken) == 1
        assert (await on.gate.ended.get()).outcome.value == "completed"


@live
async def test_replicas_that_refuse_to_go_on_are_not_counted_as_tries_in_vain() -> None:
    async with scene() as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        relay = on.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + event(FIRST))
        talk.close()
        tries: list[int] = []
        for answer in (whole(b'{"error":{"message":"busy"}}', 503), whole(b'{"error":{"message":"bad"}}', 500), b""):
            await until(lambda: len(broken) == len(tries) + 1)
            relay.go_on(on.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", relay))
            talk = await on.replica.asked()
            talk.send(answer)
            talk.close()
            await until(lambda: len(broken) == len(tries) + 2)
            tries.append(relay.fruitless)
        assert tries == [0, 1, 2]
        relay.fail(broken[-1])
        assert b'"error"' in (await client.answer()).body
        await on.gate.ended.get()


@live
@pytest.mark.parametrize("counted", [True, False], ids=["usage was told", "it was not"])
async def test_a_stream_that_had_said_why_it_ends_is_ended_here(counted: bool) -> None:
    async with scene() as on:
        on.gate.goes_on = lambda error: pytest.fail("nothing is missing")
        on.gate.wants_usage = True
        client, talk = await on.asking()
        on.gate.relays[0].transcript.keep()
        end = event(b'{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
        talk.send(STREAM + event(FIRST) + end + (USAGE if counted else b""))
        talk.close()
        events = payloads(await client.answer())
        assert events[-1] == b"[DONE]"
        assert len(events) == 4
        assert ("headgate_usage" in json.loads(events[2])) is not counted
        summary = await on.gate.ended.get()
        assert summary.outcome.value == "completed"
        assert (summary.usage is not None) is counted  # an estimate is not for learning


@live
async def test_what_was_repeated_before_it_broke_off_counts_afterwards() -> None:
    again = " The sea is vast and blue, and nobody has ever seen the end of it."
    async with scene() as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        relay = on.gate.relays[0]
        relay.transcript.keep()
        talk.send(STREAM + event(FIRST) + 3 * token(again))
        talk.close()
        await until(lambda: broken)
        asked = accepted({})
        reader = still_bounded(asked, Allowance("chat", None, "", (), "safe"), relay)
        assert still_bounded(asked, Allowance("chat", None, "", (), "off"), relay) is relay
        relay.go_on(on.gate.connections.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"{}", reader))
        talk = await on.replica.asked()
        talk.send(STREAM + token(again))
        assert payloads(await client.answer())[-1] == b"[DONE]"
        assert (await on.gate.ended.get()).stop == "repetition"


@live
async def test_a_client_that_leaves_while_it_waits_ends_it() -> None:
    async with scene() as on:
        broken: list[ServeError] = []
        on.gate.goes_on = broken.append
        client, talk = await on.asking()
        on.gate.relays[0].transcript.keep()
        talk.send(STREAM + event(FIRST))
        talk.close()
        await until(lambda: broken)
        client.leave()
        assert (await on.gate.ended.get()).outcome.value == "cancelled"


@live
async def test_what_is_too_long_to_be_kept_ends_with_an_error() -> None:
    async with scene() as on:
        on.gate.goes_on = lambda error: pytest.fail("nobody could go on")
        client, talk = await on.asking()
        on.gate.relays[0].transcript.keep()
        talk.send(STREAM + token("x" * (MOST_KEPT + 1)))
        await until(lambda: on.gate.relays[0].transcript.said is None)
        talk.close()
        assert b'"error"' in (await client.answer()).body
        assert (await on.gate.ended.get()).outcome.value == "replica_failed"


# -- with the real model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines() -> Iterator[list[tuple[int, str]]]:
    with ExitStack() as stack:
        started = [
            stack.enter_context(headgate("engine", "--port", "0", "--threads", "1", "--slots", "2", "--context", "512"))
            for _ in range(2)
        ]
        yield [(process.pid, url) for process, url in started]


def count(client: OpenAI, on_token: Callable[[int], None]) -> tuple[str, set[str], Any]:
    """A long greedy answer: its text, the ids its chunks have, its usage."""
    parts: list[str] = []
    ids: set[str] = set()
    usage = None
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Count from one to thirty in words."}],
        max_tokens=60,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},  # whatever the model has to say, it is long
    )
    for chunk in stream:
        ids.add(chunk.id)
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            parts.append(chunk.choices[0].delta.content)
            on_token(len(parts))
    return "".join(parts), ids, usage


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_killed_engine_is_not_noticed(engines: list[tuple[int, str]], tmp_path: Path) -> None:
    config = tmp_path / "headgate.yaml"
    # What repeats itself is not ended: this model does, and a reply that is continued is read in other pieces.
    watched = {"output": {"tasks": {"chat": {"runaway": "off"}}}}
    replicas = [{"url": url} for _, url in engines]
    config.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, **watched}))
    with headgate("serve", "--config", str(config)) as (_, url), OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        expected, _, whole = count(client, lambda number: None)
        victim: list[str] = []

        def kill(number: int) -> None:
            if number == 8 and not victim:
                state = json.loads(ask(f"{url}/admin/state")[1])
                busy = next(one for one in state["replicas"] if one["requests"])
                victim.append(busy["id"])
                os.kill(next(pid for pid, where in engines if where.endswith(busy["id"])), signal.SIGKILL)

        said, ids, usage = count(client, kill)
        records = [json.loads(line) for line in ask(f"{url}/admin/records?last=300")[1].splitlines()]
    assert victim
    assert said == expected
    assert len(ids) == 1, "one stream, to the client"
    assert usage == whole
    assert records[-1]["outcome"] == "completed"
    assert records[-1]["failed"][0]["replica"] == victim[0]
    assert records[-1]["replica"] != victim[0]
