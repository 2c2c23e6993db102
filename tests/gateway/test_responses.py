"""/v1/responses and /v1/embeddings: at engines that have them, as chats at those that do not, and refused by name."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from headgate.gateway.answer.response_bridge import Translated
from headgate.gateway.answer.response_reader import MOST_HELD, ResponseReader
from headgate.gateway.answer.response_voice import Native
from headgate.gateway.intake.responses import Untold, as_chat, read
from headgate.model.errors import InvalidRequest
from headgate.model.outcome import Outcome
from headgate.policy.answers.runaway import Detector
from headgate.replica.openai import read_usage
from tests.engine.process import ask, headgate
from tests.gateway.llama_server import llama_server
from tests.gateway.scene import scene
from tests.gateway.test_gateway import ROOT, double, eventually, gateway
from tests.replica.engine import END, STREAM, chunk
from tests.wire.serving import live

pytestmark = pytest.mark.timeout(60)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OUTPUT = {"type": "function_call_output", "call_id": "c"}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


# -- what is understood --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": ["x", {"type": "item_reference", "id": "x"}]}, "input[1]"),
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": 5}, "input"),
        ([], None),
    ],
)
def test_what_needs_a_memory_or_makes_no_sense_is_refused_by_name(body: object, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert refused.value.param == param


def test_nothing_is_stored_whatever_was_not_said() -> None:
    assert read({"input": "x", "store": None, "instructions": None}) == {"input": "x", "store": False}


def test_a_text_request_becomes_the_chat_that_asks_the_same() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    chat = as_chat(
        read(
            {
                "model": "m",
                "instructions": "Be brief.",
                "input": [
                    "First.",
                    {"role": "assistant", "content": [{"type": "output_text", "text": "One."}], "type": "message"},
                    {"role": "developer", "content": "More."},
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]},
                ],
                "max_output_tokens": 9,
                "stream": True,
                "temperature": 0,
                "metadata": {"a": "b"},
                "tools": [],
                "tool_choice": "auto",
                "truncation": "disabled",
                "reasoning": {"effort": None},
                "text": {"format": schema},
            }
        )
    )
    assert chat == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "One."},
            {"role": "system", "content": "More."},
            {"role": "user", "content": "ab"},
        ],
        "max_tokens": 9,
        "stream": True,
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
    }


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": ["x"]}, "tools"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": "low"}, "text"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}]},
            "input[0].output[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_what_a_chat_cant_say_is_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(Untold) as untold:
        as_chat(read({"model": "m", "input": "x", **more}))
    assert untold.value.args[0] == field


def test_functions_calls_and_results_become_those_of_a_chat() -> None:
    call = {
        "type": "function_call",
        "call_id": "c1",
        "name": "f",
        "arguments": "{}",
        "id": "fc_1",
        "status": "completed",
    }
    given = {
        "input": [
            {"role": "user", "content": "x"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            call,
            {**call, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "now"}]},
            {**call, "call_id": "c3"},
            {"type": "function_call_output", "call_id": "c3", "output": "three"},
        ],
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "text"}},
    }
    function = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert as_chat(read(given)) == {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "I look.", "tool_calls": [function, {**function, "id": "c2"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**function, "id": "c3"}],
                "reasoning_content": "now",
                "reasoning": "now",
            },
            {"role": "tool", "tool_call_id": "c3", "content": "three"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
    }


def test_pictures_become_those_of_a_chat() -> None:
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "http://x", "detail": "low"}]
    assert as_chat(read({"input": [{"role": "user", "content": parts}]}))["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}},
    ]


@pytest.mark.parametrize("item", [{"type": "function_call", "name": 5}, {"type": "function_call_output"}])
def test_a_call_that_is_none_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"input\[0\]"):
        as_chat(read({"input": [item]}))


@pytest.mark.parametrize("item", [{"role": "robot", "content": "x"}, {"role": "user", "content": 5}, {"content": "x"}])
def test_a_message_that_is_none_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"input\[0\]"):
        as_chat(read({"input": [item]}))


# -- what is told --------------------------------------------------------------------------------------------


def told(voice: Native | Translated, *data: dict[str, Any] | bytes) -> list[Any]:
    """What it makes of these, read as the official client reads it."""
    text = b"".join(voice.event(one if isinstance(one, bytes) else json.dumps(one).encode()) for one in data)
    events = []
    for block in text.decode().split("\n\n")[:-1]:
        name, data_line = block.split("\n")
        event = EVENT.validate_python(json.loads(data_line.removeprefix("data: ")))
        assert name == f"event: {event.type}"
        events.append(event)
    return events


def chunk_of(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {"id": "c", "model": "m", "created": 5, "choices": [choice]}


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def test_a_chat_is_told_as_a_response_event_by_event() -> None:
    voice = Translated({"input": "x", "metadata": {"a": "b"}}, "r")
    events = told(
        voice,
        chunk_of({"role": "assistant", "content": ""}),
        chunk_of({"content": "Hel"}),
        chunk_of({"content": "lo\n"}),
        chunk_of({}, "stop"),
        {"choices": [], "usage": USAGE},
        b"[DONE]",
    )
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    whole = events[-1].response
    assert (whole.output_text, whole.status, whole.id, whole.created_at) == ("Hello\n", "completed", "resp_r", 5)
    assert (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens) == (7, 2, 9)
    assert whole.usage.input_tokens_details.cached_tokens == 4
    assert whole.metadata == {"a": "b"}


def called(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return chunk_of(
        {"tool_calls": [{"index": index, "function": function} | ({} if name is None else {"id": f"c{index}"})]}
    )


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    events = told(
        Translated({"input": "x", "tools": [FUNCTION]}, "r"),
        chunk_of({"reasoning_content": "Let "}),
        chunk_of({"reasoning": "me", "content": None}),
        chunk_of({"content": "Now."}),
        called(0, "", "f"),
        called(0, '{"a":'),
        called(1, '{"b":2}', "f"),
        called(0, "1}"),
        chunk_of({"content": "\n"}),
        chunk_of({}, "tool_calls"),
        {"choices": [], "usage": USAGE},
        b"[DONE]",
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress"),
        *(
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
        ),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    whole = events[-1].response
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text == "Let me"
    assert [(item.call_id, item.name, item.arguments) for item in whole.output[2:]] == [
        ("c0", "f", '{"a":1}'),
        ("c1", "f", '{"b":2}'),
    ]
    assert len({item.id for item in whole.output}) == 4
    assert whole.tools[0].name == "f"


def test_nonsense_among_calls_breaks_nothing() -> None:
    voice = Translated({"input": "x"}, "r")
    for calls in (5, [5], [{"function": 5}], [{"index": "x", "function": {"name": 5, "arguments": 5}}]):
        voice.event(json.dumps(chunk_of({"tool_calls": calls})).encode())
    assert told(voice, chunk_of({"content": "a"}), b"[DONE]")[-1].type == "response.completed"


def test_calls_in_one_piece() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
    body = {"choices": [{"message": said, "finish_reason": "tool_calls"}]}
    response = json.loads(Translated({"input": "x"}, "r").body(json.dumps(body).encode()))
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    assert (response["status"], response["output"][1]["arguments"]) == ("completed", "{}")


def test_a_chat_in_one_piece_is_told_as_a_response_in_one_piece() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"}
    body = {"id": "c", "model": "m", "created": 5, "choices": [choice], "usage": USAGE}
    response = json.loads(Translated({"input": "x"}, "r").body(json.dumps(body).encode()))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "Hi"
    assert response["usage"]["input_tokens"] == 7
    assert response["store"] is False


@pytest.mark.parametrize(
    "data", [b"not json", b"[1]", b'{"choices":[1]}', b'{"choices":5}', b'"x"', b"[" * 9000, b'{"choices":"\\ud83d"}']
)
def test_what_is_no_chat_breaks_nothing(data: bytes) -> None:
    voice = Translated({"input": "x"}, "r")
    assert voice.event(data) == b""
    assert voice.body(data) == data
    assert isinstance(Native().event(data), bytes)
    assert told(voice, chunk_of({"content": "a"}), b"[DONE]")[-1].response.output_text == "a"


def test_an_end_for_no_reason_that_is_a_word_is_an_ordinary_end() -> None:
    voice = Translated({"input": "x"}, "r")
    chunk = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":["stop"]}]}'
    assert told(voice, chunk, b"[DONE]")[-1].type == "response.completed"


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_message_says_whether_it_is_complete(finish: str, status: str) -> None:
    chunk = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"%b"}]}' % finish.encode()
    *_, done, last = told(Translated({"input": "x"}, "r"), chunk, b"[DONE]")
    assert (done.type, done.item.status) == ("response.output_item.done", status)
    assert last.type == f"response.{status}"


def test_an_error_after_the_beginning_is_one_to_every_client() -> None:
    for voice in (Translated({"input": "x"}, "r"), Native()):
        (error,) = told(voice, {"error": {"message": "it broke", "type": "server_error", "code": "replica_failed"}})
        assert (error.type, error.message, error.code) == ("error", "it broke", "replica_failed")
        assert error.error["message"] == "it broke"  # what openai-python looks for


def test_an_engines_own_events_get_their_names_back_and_no_done() -> None:
    voice = Native()
    data = b'{"delta":"a","item_id":"i","output_index":0,"content_index":0,"type":"response.output_text.delta"}'
    assert voice.event(data) == b"event: response.output_text.delta\ndata: " + data + b"\n\n"
    assert voice.event(b"[DONE]") == b""
    lines = b'{"type":"x",\n"a":1}', b'\n{"type":"x"}'
    assert [voice.event(data) for data in lines] == [
        b'event: x\ndata: {"type":"x",\ndata: "a":1}\n\n',
        b'event: x\ndata: \ndata: {"type":"x"}\n\n',
    ]
    assert voice.event(b"not json\nat all") == b"event: message\ndata: not json\ndata: at all\n\n"


def test_a_response_that_the_gateway_ends_says_so_with_what_there_was() -> None:
    voice = Native()
    began = {"id": "resp_own", "object": "response", "created_at": 7, "model": "m", "output": [], "tools": []}
    more = {"parallel_tool_calls": True, "tool_choice": "auto"}
    delta = {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0}
    events = told(
        voice,
        {"type": "response.created", "sequence_number": 0, "response": {**began, **more}},
        {**delta, "delta": "Hel", "logprobs": [], "sequence_number": 1},
        {**delta, "delta": "lo", "logprobs": [], "sequence_number": 2},
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"length","headgate_stop":"time"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2},"headgate_usage":"estimated"}',
        b"[DONE]",
    )
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.id == "resp_own"
    assert last.response.output_text == "Hello"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.headgate_stop == "time"


def test_usage_is_read_from_a_response_too() -> None:
    usage = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    for body in ({"usage": usage}, {"type": "response.completed", "response": {"usage": usage}}):
        found, alone = read_usage(json.dumps(body).encode())
        assert found is not None
        assert (found.prompt, found.output, found.cached, alone) == (7, 2, 4, False)


# -- from an engine that has it --------------------------------------------------------------------------------


def said(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}).encode()
    return chunk(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))


@live
async def test_nothing_counts_as_a_first_token_before_one_comes_so_another_replica_can_be_asked() -> None:
    async with scene() as it:
        it.gate.read_by = lambda relay: ResponseReader(relay, None)
        client, talk = await it.asking()
        talk.send(STREAM + said("response.created", response={}) + said("response.in_progress", response={}))
        talk.send(said("response.failed", response={"error": {"code": "server_error", "message": "out of memory"}}))
        error, refused = await it.gate.failed.get()
        assert (error.message, refused) == ("the replica answered 500: out of memory", False)
        assert it.gate.firsts == 0
        assert (await client.answer()).status == 502


@live
async def test_an_end_is_an_end_and_what_follows_it_is_nobodys() -> None:
    async with scene() as it:
        it.gate.read_by = lambda relay: ResponseReader(relay, None)
        client, talk = await it.asking()
        usage = {"input_tokens": 7, "output_tokens": 2}
        talk.send(STREAM + said("response.created", response={}) + said("response.output_text.delta", delta="a"))
        talk.send(said("response.completed", response={"usage": usage}) + said("response.whatever") + END)
        answer = await client.answer()
        assert answer.body.count(b"data: ") == 4  # three events and [DONE], which the exchange's voice would leave out
        summary = await it.gate.ended.get()
        assert (summary.outcome, summary.usage, summary.events) == (Outcome.COMPLETED, (7, 2), 3)


@live
async def test_a_stream_that_is_done_before_its_response_is_complete_has_failed() -> None:
    async with scene() as it:
        it.gate.read_by = lambda relay: ResponseReader(relay, None)
        client, talk = await it.asking()
        talk.send(STREAM + said("response.created", response={}) + said("response.output_text.delta", delta="a"))
        talk.send(chunk(b"data: [DONE]\n\n") + END)
        answer = await client.answer()
        assert b"[DONE]" not in answer.body
        assert b"ended before its response was complete" in answer.body
        assert (await it.gate.ended.get()).outcome is Outcome.REPLICA_FAILED


@live
async def test_what_only_repeats_itself_is_ended() -> None:
    async with scene() as it:
        it.gate.read_by = lambda relay: ResponseReader(relay, Detector("safe"))
        client, talk = await it.asking()
        talk.send(STREAM)
        for _ in range(400):
            talk.send(said("response.output_text.delta", delta="again and again, "))
        await client.answer()
        summary = await it.gate.ended.get()
        assert (summary.stop, summary.outcome) == ("repetition", Outcome.COMPLETED)


@live
async def test_an_engine_that_announces_without_end_has_not_begun() -> None:
    async with scene() as it:
        it.gate.read_by = lambda relay: ResponseReader(relay, None)
        _, talk = await it.asking()
        talk.send(STREAM + b"".join(said("response.in_progress", response={}) for _ in range(3 * MOST_HELD)))
        await asyncio.sleep(0.05)
        assert (it.gate.relays[0].first_at, it.gate.firsts) == (None, 0)
        assert not it.gate.exchanges[0].started
        talk.reset()
        assert not (await it.gate.failed.get())[1]


# -- through the whole gateway ----------------------------------------------------------------------------------


@contextmanager
def responder(*how: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.gateway.responder", "0", *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    lanes = {"fast": {"generation_s": 1.0}, "slow": {"max_tokens": 100, "generation_s": 1.0}}
    with responder() as engine, gateway(tmp_path_factory.mktemp("native"), {"lanes": lanes}, engine) as url:
        yield engine, url


def asked(engine: str) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = json.loads(ask(f"{engine}/asked")[1])
    return bodies


def records(url: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(f"{url}/admin/records")[1].splitlines()]


def test_an_engine_that_has_responses_gets_them_as_they_came(native: tuple[str, str]) -> None:
    engine, url = native
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = client.responses.create(model="m", input="n=2", tools=[{"type": "web_search"}], max_output_tokens=5000)
        assert (whole.id, whole.output_text) == ("resp_own", "w0 w1 ")
        events = list(client.responses.create(model="m", input="n=2", stream=True, store=True))
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "w0 w1 "
    first, second = asked(engine)[-2:]
    assert first["path"] == second["path"] == "/v1/responses"
    assert (first["store"], first["max_output_tokens"], second["store"]) == (False, 100, True)
    assert first["tools"] == [{"type": "web_search"}]
    assert not {"stream_options", "max_tokens"} & second.keys()
    for record in records(url)[-2:]:
        assert (record["prompt_tokens"], record["output_tokens"], record["cached_tokens"]) == (11, 2, 4)
        assert (record.get("operation", "chat"), record["outcome"]) == ("chat", "completed")


def test_a_response_in_named_events_ends_with_its_last_one(native: tuple[str, str]) -> None:
    status, body = ask(f"{native[1]}/v1/responses", {"model": "m", "input": "n=1", "stream": True})
    assert status == 200
    assert b"[DONE]" not in body
    assert all(block.startswith(b"event: response.") for block in body.split(b"\n\n")[:-1])


def test_a_response_that_breaks_off_is_an_error_to_the_client(native: tuple[str, str]) -> None:
    with OpenAI(base_url=f"{native[1]}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(model="m", input="break n=9", stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


def test_a_response_that_takes_too_long_is_ended_with_what_there_is(native: tuple[str, str]) -> None:
    with OpenAI(base_url=f"{native[1]}/v1", api_key="none") as client:
        events = list(client.responses.create(model="m", input="hold n=2", stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "w0 w1 "
    eventually(lambda: records(native[1])[-1]["outcome"] == "time_cap")


def test_a_replica_that_fails_before_the_first_token_is_replaced(tmp_path: Path) -> None:
    with responder("fails") as first, responder() as second, gateway(tmp_path, {}, first, second) as url:
        # With only the first of them there, it would be asked again.
        eventually(lambda: [one["state"] for one in json.loads(ask(f"{url}/admin/state")[1])["replicas"]] == ["up"] * 2)
        for number in range(20):
            status, body = ask(f"{url}/v1/responses", {"model": "m", "input": f"n=2 {number}", "stream": True})
            assert status == 200
            assert body.count(b"event: response.created") == body.count(b"event: response.completed") == 1
        failed = [record for record in records(url) if record.get("failed")]
        assert failed
        assert len(asked(first)) == len(failed)
        assert all(record["attempts"] == 2 for record in failed)


def test_embeddings_are_routed_counted_and_recorded(native: tuple[str, str]) -> None:
    with OpenAI(base_url=f"{native[1]}/v1", api_key="none") as client:
        found = client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
    assert [one.embedding for one in found.data] == [[0.5, -0.25]] * 2
    record = records(native[1])[-1]
    assert (record["operation"], record["prompt_tokens"], record.get("output_tokens", 0)) == ("embeddings", 6, 0)


def test_a_replica_without_them_is_passed_over_for_those_that_have_them(tmp_path: Path) -> None:
    with responder() as able, double() as (_, unable):
        replicas = [{"url": able, "slots": 8, "kind": "vllm"}, {"url": unable, "slots": 8, "kind": "tgi"}]
        with gateway(tmp_path, {"replicas": [{**one, "model": "m"} for one in replicas]}) as url:
            for number in range(12):
                assert ask(f"{url}/v1/embeddings", {"model": "m", "input": f"text {number}"})[0] == 200
                tools = {"tools": [{"type": "web_search"}]}
                assert ask(f"{url}/v1/responses", {"model": "m", "input": f"n={number}", **tools})[0] == 200
            assert len(asked(able)) == 24
            assert all(record["attempts"] == 1 for record in records(url))


def test_embeddings_of_a_model_whose_replicas_have_none_are_refused_at_once(tmp_path: Path) -> None:
    """Also where the models' names were found out and not configured, and another model's replica has embeddings."""
    with responder() as able, double() as (_, unable):
        replicas = [{"url": able, "slots": 8, "kind": "vllm"}, {"url": unable, "slots": 8, "kind": "tgi"}]
        with gateway(tmp_path, {"replicas": replicas}) as url:
            eventually(lambda: {"m", "double"} <= {one["id"] for one in json.loads(ask(f"{url}/v1/models")[1])["data"]})
            began = time.monotonic()
            status, body = ask(f"{url}/v1/embeddings", {"model": "double", "input": "text"})
            assert (status, json.loads(body)["error"]["code"]) == (404, "not_offered")
            assert time.monotonic() - began < 1.0
            assert ask(f"{url}/v1/embeddings", {"model": "m", "input": "text"})[0] == 200


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """In front of a server that has chats, and one that is known to have nothing else."""
    with double() as (_, engine), double(model="tgi") as (_, other):
        known = {"url": other, "slots": 8, "kind": "tgi", "model": "tgi"}
        config = {"replicas": [{"url": engine, "slots": 8, "model": "double"}, known]}
        with gateway(tmp_path_factory.mktemp("chats"), config) as url:
            yield url


def test_any_server_that_has_chats_answers_responses(chats: str) -> None:
    with OpenAI(base_url=f"{chats}/v1", api_key="none") as client:
        whole = client.responses.create(model="double", input="n=3")
        assert (whole.output_text, whole.status) == ("w w w ", "completed")
        assert whole.usage is not None
        assert whole.usage.output_tokens == 3
        with client.responses.stream(model="double", input="n=3") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert "".join(deltas) == final.output_text == "w w w "
        assert final.usage is not None
        assert final.usage.output_tokens == 3


def test_a_long_response_is_understood_aside(chats: str) -> None:
    status, body = ask(f"{chats}/v1/responses", {"model": "double", "input": "n=2 " + "long " * 20_000})
    assert status == 200
    assert json.loads(body)["output"][0]["content"][0]["text"] == "w w "


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("/v1/embeddings", {"input": "x"}, 404, "model", "not_offered"),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools", None),
        ("/v1/responses", {"input": "x", "store": True}, 400, "store", None),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, 400, "previous_response_id", None),
    ],
)
def test_what_no_replica_has_is_refused_with_what_to_do(
    chats: str, path: str, body: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    got, answer = ask(chats + path, {"model": "tgi", **body})
    error = json.loads(answer)["error"]
    assert (got, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    if param != "previous_response_id":
        assert "they are TGI" in error["message"]
        assert "vLLM" in error["message"]


# -- real engines ----------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_official_client_gets_responses_of_the_bundled_model(model_path: Path) -> None:
    serve = ("serve", "--port", "0", "--model", str(model_path), "--slots", "2")
    with headgate(*serve) as (_, url), OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        ask_for: dict[str, Any] = {"model": "default", "input": "Say hello.", "temperature": 0}
        whole = client.responses.create(**ask_for, max_output_tokens=4)
        assert whole.output_text
        *_, last = client.responses.create(**ask_for, max_output_tokens=4, stream=True)
        assert last.response.output_text == whole.output_text
        assert last.response.usage.output_tokens == whole.usage.output_tokens == 4
        assert last.type == "response.incomplete"
        with pytest.raises(openai.NotFoundError, match="Headgate's engine"):
            client.embeddings.create(model="default", input="x")


@pytest.mark.model
def test_the_real_llama_cpp_server_answers_responses_itself(tmp_path: Path, model_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with (
        llama_server(model_path) as engine,
        gateway(tmp_path, {}, engine, slots=2) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):
        more: Any = {"model": "default", "input": "Say hello.", "temperature": 0, "max_output_tokens": 8}
        whole = client.responses.create(**more)
        assert whole.output_text
        events = list(client.responses.create(**more, stream=True))
        assert events[0].type == "response.created"
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert said == whole.output_text
        record = records(url)[-1]
        assert (record["output_tokens"], record["outcome"]) == (8, "completed")
