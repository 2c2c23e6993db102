"""How much an answer may say, from the header to the record; and how one is ended that the replica would go on with."""

import asyncio
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.output import TASKS, OutputConfig, TaskConfig
from headgate.gateway.answer.bounded import Bounded, _says_end, ended_in, may_outlast, told_whole
from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.gathered import GatheredAnswer
from headgate.gateway.answer.relay import Relay
from headgate.gateway.answer.transcript import Repeats, has_ended, speaks, text_of
from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.asks import Identities
from headgate.model.clock import monotonic
from headgate.model.errors import InvalidRequest
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.policy.answers.output import Output
from headgate.policy.answers.runaway import Detector
from headgate.policy.compose import classifier
from headgate.policy.dispatch.intake import RequestIntake
from headgate.replica.openai import has_finish
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from tests.engine.process import ask
from tests.gateway.scene import DONE, USAGE, content, payloads, scene
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen
from tests.ordinary.words import sentence
from tests.replica.engine import END, STREAM, event, token, whole
from tests.wire.serving import live

# -- what is understood --------------------------------------------------------------------------------------


class Connection:
    transport: Any = None
    writable = True
    draining = False

    def send(self, data: bytes) -> None: ...
    def answered(self, keep_alive: bool) -> None: ...


def accepted(
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
    tenant: Tenant | None = None,
    config: OutputConfig | None = None,
    path: str = "/v1/chat/completions",
) -> Accepted:
    exchange = Exchange(Connection(), 0.0)
    exchange.path, exchange.headers, exchange.request_id = path, headers or {}, "r"
    given = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {}
    exchange.body = json.dumps({**given, **body}).encode()
    identities = Identities((), tenant or Tenant(name="anonymous"))
    intake = RequestIntake(dict(LANES), classifier(GatewayConfig()), Output(config or OutputConfig()))
    acceptor = Acceptor(intake, identities, WireLimits())
    return acceptor.accept(exchange)


def test_the_cap_is_what_goes_on_and_what_is_counted_with() -> None:
    found = accepted({}, {"x-headgate-task": "extract"})
    assert found.body["max_tokens"] == 96
    assert found.request.max_output == 96
    assert found.allowance is not None
    assert found.allowance.why == "96; task=extract"
    assert found.encoded == b""


def test_a_plain_chat_is_a_chat_and_plain_text_is_not() -> None:
    for path, body in (("/v1/chat/completions", {}), ("/v1/responses", {"model": "m", "input": "Hello"})):
        found = accepted(body, path=path)
        assert found.allowance is not None
        assert (found.allowance.task, found.allowance.runaway, found.body["max_tokens"]) == ("chat", "safe", 384)
    text = accepted({"model": "m", "prompt": "Hello"}, path="/v1/completions")
    assert text.allowance is not None
    assert (text.allowance.task, text.allowance.runaway, text.body["max_tokens"]) == ("other", "off", 256)


def test_stops_of_a_task_are_not_for_several_answers() -> None:
    config = OutputConfig(tasks={**TASKS, "chat": TaskConfig(stop=("###",))})
    assert accepted({}, config=config).body["stop"] == ["###"]
    assert "stop" not in accepted({"n": 2}, config=config).body
    assert "stop" not in accepted({"tools": [{"type": "function", "function": {"name": "f"}}]}, config=config).body


def test_a_value_that_is_kept_leaves_the_body_as_it_came() -> None:
    found = accepted({"max_tokens": 40})
    assert (found.body["max_tokens"], found.request.max_output) == (40, 40)
    assert found.allowance is not None
    assert found.allowance.why == ""


def test_a_models_name_may_name_the_task() -> None:
    found = accepted({"model": "classify"})
    assert (found.body["model"], found.request.model, found.body["max_tokens"]) == ("default", "default", 96)


def test_a_key_may_name_the_task_and_be_free_of_caps() -> None:
    assert accepted({}, tenant=Tenant(name="t", task="code")).body["max_tokens"] == 768
    free = accepted({"max_tokens": 9000}, {"x-headgate-task": "chat"}, Tenant(name="t", caps=False))
    assert free.body["max_tokens"] == 9000


def test_a_tenants_ceiling_counts_as_it_did() -> None:
    assert accepted({}, tenant=Tenant(name="t", max_tokens=50)).body["max_tokens"] == 50
    assert accepted({"max_completion_tokens": 80}, tenant=Tenant(name="t", max_tokens=50)).body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 50,
    }


def test_stops_of_the_task_join_the_clients() -> None:
    config = OutputConfig(tasks={**TASKS, "chat": TaskConfig(stop=("###",))})
    assert accepted({"stop": "x"}, {"x-headgate-task": "chat"}, config=config).body["stop"] == ["x", "###"]


def test_an_unknown_task_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"poetry.*chat, extract"):
        accepted({}, {"x-headgate-task": "poetry"})


def test_embeddings_say_nothing_so_nothing_is_capped() -> None:
    found = accepted({"model": "m", "input": "x"}, {"x-headgate-task": "chat"}, path="/v1/embeddings")
    assert found.allowance is None
    assert "max_tokens" not in found.body


def test_an_answer_that_keeps_its_lanes_promise_and_ends_in_time_is_asked_for_as_it_is() -> None:
    fast = LANES["fast"]
    assert fast.generation_s is not None
    most = int(fast.generation_s / fast.gap_target_s)
    assert (may_outlast(most, fast), may_outlast(most + 1, fast), may_outlast(None, fast)) == (False, True, True)


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        ({"best_of": 3}, True),
        ({"num_beams": 2}, True),
        ({"use_beam_search": True}, True),
        ({"best_of": 1, "use_beam_search": False}, False),
        ({"best_of": None, "echo": True, "n": 2}, False),
    ],
)
def test_the_best_of_several_is_not_asked_for_as_a_stream(asked: dict[str, Any], whole: bool) -> None:
    """Engines refuse that with a 400, although the client did not ask to stream."""
    assert told_whole(asked) is whole


# -- what an event says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", range(8))
def test_a_loop_is_heard_in_time_though_the_event_before_it_was_a_comma(words: int) -> None:
    """How many events are collected goes by how long they are on the whole."""
    said = re.findall(r" \w+", " they danced and sang in the hall of the old house until morning")
    start = [*said, ".", *said, ".", *said[:words], ","]
    unit = [" and", " they", " danced", ",", " and", " they", " sang", ","]
    repeats, heard = Repeats(Detector()), 0
    for piece in [*start, *unit * 20]:
        heard += len(piece)
        if repeats.hear([token(piece)]):
            break
    assert heard - len("".join(start)) <= 4 * len("".join(unit))


@pytest.mark.parametrize("content", ["5", "true", "[1, 2]", '{"a": "b"}', "1.5"])
def test_an_event_whose_text_is_none_adds_nothing(content: str) -> None:
    for field in ('"delta": {"content": %s}', '"text": %s'):
        assert text_of(b'{"id": "x", "choices": [{%b}]}' % (field % content).encode()) == b""


@pytest.mark.parametrize(
    ("text", "dumps"),
    [
        ("plain", json.dumps),
        ('a "quoted" word', json.dumps),
        ("back\\slash\\", json.dumps),
        ('\\"', json.dumps),
        ("line\nend", json.dumps),
        ("", json.dumps),
        ("über", lambda value: json.dumps(value, ensure_ascii=False)),
    ],
)
def test_the_text_of_an_event_is_found_whoever_wrote_it(text: str, dumps: Any) -> None:
    for choice in ({"delta": {"content": text}}, {"text": text}, {"delta": {"reasoning_content": text}}):
        event_ = {"id": "x", "choices": [{"index": 0, **choice, "finish_reason": None}]}
        compact = dumps(event_).replace('": ', '":').replace(", ", ",") if " " not in text else None
        for data in (dumps(event_), compact):
            if data is not None:
                assert json.loads(b'"' + text_of(data.encode()) + b'"') == text


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "", "content": "x"},
        {"content": "", "reasoning_content": "x"},
        {"reasoning": "x"},
        {"content": "", "reasoning": "x"},
        {"reasoning": "", "reasoning_content": "", "content": "x"},
        {"reasoning_content": "", "content": "", "text": "x"},
        {"content": None, "reasoning": "x"},
    ],
)
@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_a_text_is_found_behind_fields_that_are_empty(delta: dict[str, Any], separators: Any) -> None:
    """Runaway detection saw no word of a model whose engine writes an empty `reasoning_content` before each."""
    said = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    assert text_of(json.dumps(said, separators=separators).encode()) == b"x"


@pytest.mark.parametrize("written", ['""', "null", ' ""', " null"])
def test_a_finish_reason_that_is_empty_is_none(written: str) -> None:
    said = b'{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":%b}]}' % written.encode()
    end = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    for look in (speaks, has_finish, has_ended, _says_end, ended_in):
        assert not look(said)
        assert look(end)


@pytest.mark.parametrize(
    "data", [b"", b"[DONE]", b'{"choices":[]}', b'{"choices": "x"}', b'{"a": "b"', b'{"content":"x']
)
def test_what_says_nothing_says_nothing(data: bytes) -> None:
    assert text_of(data) in (b"", b"x")


# -- streams that are ended ------------------------------------------------------------------------------------


def looping(times: int) -> tuple[bytes, int]:
    """A sentence, again and again, a token at a time; and how many tokens it has."""
    words = sentence(random.Random(1)).split(" ")
    return b"".join(token(" " + word) for word in words) * times, len(words)


@live
async def test_a_stream_that_repeats_itself_is_ended_for_the_replica_and_for_the_client() -> None:
    async with scene() as on:
        on.gate.wants_usage = True
        on.gate.read_by = lambda relay: Bounded(relay, Detector())
        client, talk = await on.asking()
        tokens, period = looping(40)
        talk.send(STREAM + tokens)
        *said, end, usage, done = payloads(await client.answer())
        await talk.left()
        summary = await on.gate.ended.get()
        assert len(said) < 5 * period
        assert json.loads(end)["choices"][0]["finish_reason"] == "stop"
        assert json.loads(end)["choices"][0]["headgate_stop"] == "repetition"
        assert json.loads(usage)["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": len(said),
            "total_tokens": 7 + len(said),
        }
        assert done == b"[DONE]"
        assert (summary.outcome, summary.stop, summary.status) == (Outcome.COMPLETED, "repetition", 200)
        assert on.gate.firsts == 1


@live
async def test_where_the_replica_ends_it_in_the_same_moment_its_own_end_is_passed_on() -> None:
    async with scene() as on:
        on.gate.read_by = lambda relay: Bounded(relay, Detector())
        client, talk = await on.asking()
        tokens, period = looping(20)
        talk.send(
            STREAM + tokens + event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}') + DONE + END
        )
        *said, end, done = payloads(await client.answer())
        summary = await on.gate.ended.get()
        assert len(said) == 20 * period
        assert json.loads(end)["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
        assert done == b"[DONE]"
        assert (summary.outcome, summary.stop) == (Outcome.COMPLETED, "")


@live
async def test_a_stream_that_is_watched_and_goes_well_is_passed_on_untouched() -> None:
    async with scene() as on:
        on.gate.read_by = lambda relay: Bounded(relay, Detector())
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + token("b") + USAGE + DONE + END)
        assert [content(data) for data in payloads(await client.answer())[:-1]] == ["a", "b"]
        assert (await on.gate.ended.get()).usage == (7, 2)
        assert on.gate.connections.idle == 1


@live
async def test_a_watched_replica_that_refuses_is_refused_like_any_other() -> None:
    async with scene() as on:
        on.gate.read_by = lambda relay: Bounded(relay, Detector())
        client, talk = await on.asking()
        talk.send(whole(b'{"error":{"message":"busy"}}', 503))
        assert (await client.answer()).status == 502
        assert (await on.gate.failed.get())[1]


@live
async def test_a_stream_at_the_end_of_its_time_is_ended_with_what_there_is() -> None:
    async with scene() as on:
        on.gate.generation_s = 0.05
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + token("b"))
        *said, end, done = payloads(await client.answer())
        await talk.left()
        summary = await on.gate.ended.get()
        assert [content(data) for data in said] == ["a", "b"]
        assert json.loads(end)["choices"][0]["finish_reason"] == "length"
        assert json.loads(end)["choices"][0]["headgate_stop"] == "time"
        assert done == b"[DONE]"
        assert (summary.outcome, summary.status, summary.error) == (Outcome.TIME_CAP, 200, None)


@live
async def test_headers_about_the_answer_come_with_it_streamed_or_whole() -> None:
    for stream in (True, False):
        async with scene() as on:
            on.gate.stream, on.gate.headers = stream, (("x-headgate-max-tokens", "384; task=chat"),)
            client, talk = await on.asking()
            talk.send(STREAM + token("a") + DONE + END if stream else whole(b"{}"))
            assert (await client.answer()).headers["x-headgate-max-tokens"] == "384; task=chat"
            await on.gate.ended.get()


# -- answers in one piece that are gathered --------------------------------------------------------------------


def gathering(limit_s: float | None = None, detector: Detector | None = None) -> Any:
    def made(relay: Relay) -> Gather:
        return Gather(relay, limit_s, detector, 7, monotonic)

    return made


def chunks(*choices: dict[str, Any], **head: Any) -> bytes:
    about = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", **head}
    return b"".join(event(json.dumps({**about, "choices": [{"index": 0, **choice}]}).encode()) for choice in choices)


@live
async def test_a_gathered_stream_is_the_answer_in_one_piece() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(60)
        client, talk = await on.asking()
        talk.send(STREAM + chunks({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}))
        talk.send(chunks({"delta": {"content": "Hel"}}, {"delta": {"content": "lo"}, "finish_reason": "stop"}))
        talk.send(USAGE + DONE + END)
        answer = await client.answer()
        body = json.loads(answer.body)
        assert answer.headers["content-type"] == "application/json"
        assert (body["id"], body["object"], body["model"]) == ("c1", "chat.completion", "m")
        assert body["choices"] == [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        ]
        assert body["usage"]["completion_tokens"] == 2
        summary = await on.gate.ended.get()
        assert (summary.outcome, summary.usage, summary.stop) == (Outcome.COMPLETED, (7, 2), "")
        assert on.gate.connections.idle == 1


@live
async def test_what_comes_after_the_end_of_a_gathered_stream_is_not_in_the_answer() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering()
        client, talk = await on.asking()
        talk.send(STREAM + token("a") + chunks({"index": 0, "delta": {}, "finish_reason": "stop"}) + DONE)
        await asyncio.sleep(0.02)
        talk.send(token("b"))
        await asyncio.sleep(0.02)
        talk.send(END)
        answer = json.loads((await client.answer()).body)
        assert answer["choices"][0]["message"]["content"] == "a"
        await on.gate.ended.get()


@live
async def test_a_gathered_answer_at_the_end_of_its_time_is_what_there_is() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(0.05)
        client, talk = await on.asking()
        talk.send(STREAM + chunks({"delta": {"content": "Hel"}}, {"delta": {"content": "lo"}}))
        body = json.loads((await client.answer()).body)
        await talk.left()
        (choice,) = body["choices"]
        assert (choice["message"]["content"], choice["finish_reason"], choice["headgate_stop"]) == (
            "Hello",
            "length",
            "time",
        )
        assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        assert body["headgate_usage"] == "estimated"
        assert (await on.gate.ended.get()).outcome is Outcome.TIME_CAP


@live
async def test_a_gathered_answer_that_repeats_itself_is_ended() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(60, Detector())
        client, talk = await on.asking()
        talk.send(STREAM + looping(40)[0])
        (choice,) = json.loads((await client.answer()).body)["choices"]
        await talk.left()
        assert (choice["finish_reason"], choice["headgate_stop"]) == ("stop", "repetition")
        assert (await on.gate.ended.get()).stop == "repetition"


@live
async def test_an_engine_that_does_not_stream_is_taken_as_it_is() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(60)
        client, talk = await on.asking()
        talk.send(whole(b'{"choices":[]}'))
        assert (await client.answer()).body == b'{"choices":[]}'
        await on.gate.ended.get()


@pytest.mark.parametrize(
    ("said", "status", "refused"),
    [
        (whole(b'{"error":{"message":"busy"}}', 503), 502, True),
        (STREAM + event(b'{"error":{"message":"out of memory","code":500}}') + END, 502, False),
        (STREAM + token("a") + END, 502, False),
        (STREAM + event(b'{"choices":7}'), 502, False),
        (STREAM + event(b"no json"), 502, False),
    ],
)
@live
async def test_what_breaks_while_gathered_leaves_the_exchange_as_it_was(
    said: bytes, status: int, refused: bool
) -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(60)
        client, talk = await on.asking()
        talk.send(said)
        assert (await client.answer()).status == status
        assert (await on.gate.failed.get())[1] is refused


@live
async def test_a_clients_fault_found_in_the_stream_is_told_as_such() -> None:
    async with scene() as on:
        on.gate.stream, on.gate.read_by = False, gathering(60)
        client, talk = await on.asking()
        talk.send(STREAM + event(b'{"error":{"message":"too long","code":400}}') + END)
        assert (await client.answer()).status == 400
        assert (await on.gate.ended.get()).outcome is Outcome.INVALID


def test_calls_choices_and_logprobs_grow_each_where_it_belongs() -> None:
    whole_ = GatheredAnswer()

    def add(index: int, **choice: Any) -> None:
        whole_.add(json.dumps({"object": "chat.completion.chunk", "choices": [{"index": index, **choice}]}).encode())

    def call(at: int, **function: str) -> dict[str, Any]:
        return {"delta": {"tool_calls": [{"index": at, "function": function}]}}

    add(1, delta={"content": "two"}, logprobs={"content": [{"token": "t"}]})
    add(0, **call(0, name="f", arguments=""))
    add(0, **call(0, arguments='{"a":'))
    add(0, **call(1, name="g", arguments="{}"))
    add(0, **call(0, arguments="1}"), finish_reason="tool_calls")
    add(1, delta={"content": "!"}, logprobs={"content": [{"token": "!"}]}, finish_reason="stop")
    first, second = json.loads(whole_.body("", "", 3))["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"function": {"name": "f", "arguments": '{"a":1}'}},
            {"function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert (second["message"]["content"], second["logprobs"]) == ("two!", {"content": [{"token": "t"}, {"token": "!"}]})


def test_text_completions_are_gathered_too() -> None:
    whole_ = GatheredAnswer(chat=False)
    for text in ("a", "b"):
        whole_.add(json.dumps({"object": "text_completion", "choices": [{"index": 0, "text": text}]}).encode())
    body = json.loads(whole_.body("time", "length", 1))
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "ab", "finish_reason": "length", "headgate_stop": "time"}]


# -- the gateway as its clients meet it -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("output")
    quick = {"generation_s": 0.4, "ttft_target_s": 0.2, "ttft_p50_s": 0.1, "ttft_p99_s": 0.2}
    lanes = {"fast": quick, "slow": quick}
    config = {"lanes": lanes, "record": {"path": str(folder / "records.jsonl")}}
    with gateway(folder, config, engine) as where:
        yield where


def headers_of(url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[Any, bytes]:
    given = {"content-type": "application/json", **(headers or {})}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), given)) as answer:
        return answer.headers, answer.read()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_says_which_cap_applied(url: str, stream: bool) -> None:
    where = f"{url}/v1/chat/completions"
    task = {"x-headgate-task": "chat"}
    assert headers_of(where, chat("n=2", stream=stream), task)[0]["x-headgate-max-tokens"] == "384; task=chat"
    assert headers_of(where, chat("n=2", stream=stream))[0]["x-headgate-max-tokens"] == "384; task=chat"
    text = {"model": "double", "prompt": "n=2", "stream": stream}
    assert headers_of(f"{url}/v1/completions", text)[0]["x-headgate-max-tokens"] == "256; task=other"
    kept = headers_of(where, chat("n=2", stream=stream, max_tokens=30))[0]
    assert kept["x-headgate-max-tokens"] is None
    assert ask(where, chat("n=2", stream=stream), {"x-headgate-task": "poetry"})[0] == 400


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stream", [True, False])
def test_a_generation_without_end_is_cut_by_time_and_its_engine_is_free(url: str, engine: str, stream: bool) -> None:
    before = len(seen(engine)["closed_at"])
    body = chat("n=100000 itl=20", stream=stream, max_tokens=4000)
    answer = ask(f"{url}/v1/chat/completions", body)[1]
    if stream:
        *_, end, done, _ = answer.split(b"\n\n")
        assert done == b"data: [DONE]"
        choice = json.loads(end.removeprefix(b"data: "))["choices"][0]
    else:
        choice = json.loads(answer)["choices"][0]
        assert choice["message"]["content"].startswith("w w ")
    assert (choice["finish_reason"], choice["headgate_stop"]) == ("length", "time")
    eventually(lambda: len(seen(engine)["closed_at"]) == before + 1)


@pytest.mark.timeout(60)
def test_a_runaway_chat_is_ended_and_its_record_says_so(url: str, engine: str, tmp_path_factory: Any) -> None:
    before = len(seen(engine)["closed_at"])
    headers = {"x-headgate-task": "chat", "x-request-id": "away-1"}
    answer = ask(f"{url}/v1/chat/completions", chat("n=100000 itl=0.1", stream=True), headers)[1]
    assert b'"headgate_stop":"repetition"' in answer
    assert answer.endswith(b"data: [DONE]\n\n")
    eventually(lambda: len(seen(engine)["closed_at"]) == before + 1)
    folder: Path = tmp_path_factory.getbasetemp()

    def record() -> dict[str, Any]:
        lines = [line for path in folder.rglob("records.jsonl") for line in path.read_text().splitlines()]
        found = [record for line in lines if (record := json.loads(line)).get("id") == "away-1"]
        return found[0] if found else {}

    eventually(lambda: bool(record()))
    assert (record()["task"], record()["cap"], record()["stop"]) == ("chat", 384, "repetition")
    assert record()["outcome"] == "completed"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("more", [{"tools": TOOLS}, {"logprobs": True}, {"top_logprobs": 2}])
def test_an_answer_in_one_piece_that_can_not_be_cut_is_ended_by_time_too(
    url: str, engine: str, more: dict[str, Any], tmp_path_factory: Any
) -> None:
    """It went on for as long as its tokens took: only `max_tokens` ended it."""
    before, asked = len(seen(engine)["closed_at"]), seen(engine)["seen"]
    body = chat("n=50 itl=400", **{"max_tokens": 4000, **more})
    began = time.monotonic()
    status, answer, headers = answered(f"{url}/v1/chat/completions", body)
    assert 0.3 < time.monotonic() - began < 5.0
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (504, "out_of_time")
    assert "stream" in error["message"]
    assert "max_tokens" in error["message"]
    assert headers["x-should-retry"] == "false"
    eventually(lambda: len(seen(engine)["closed_at"]) == before + 1)
    assert seen(engine)["seen"] == asked + 1  # no other attempt: it would take as long


@pytest.mark.timeout(60)
def test_one_that_ends_in_time_or_has_no_limit_is_left_alone(url: str, engine: str, tmp_path: Path) -> None:
    assert ask(f"{url}/v1/chat/completions", chat("n=3 itl=50", tools=TOOLS))[0] == 200
    lanes = {name: {"generation_s": None} for name in ("fast", "slow")}
    with gateway(tmp_path, {"lanes": lanes}, engine) as where:
        assert ask(f"{where}/v1/chat/completions", chat("n=10 itl=300", tools=TOOLS))[0] == 200


def answered(url: str, body: dict[str, Any]) -> tuple[int, bytes, Any]:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read(), refused.headers
