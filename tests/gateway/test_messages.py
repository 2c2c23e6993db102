"""/v1/messages: Anthropic's Messages API on engines that have chats, whatever order they say things in."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.gateway.answer.message_voice import MOST_CALLS, PING_EACH, MessageVoice
from headgate.gateway.intake.abilities import Abilities
from headgate.gateway.intake.messages import BILLING, as_chat, converse, read
from headgate.model.errors import InvalidRequest
from headgate.model.replica import Replica
from headgate.wire.errors import as_message_error
from tests import ledger
from tests.engine.process import ask
from tests.gateway.raw_engine import Answer, RawEngine, chunk, raw_engine, whole
from tests.gateway.test_accept import exchange
from tests.gateway.test_gateway import double, eventually, gateway
from tests.keys import hash_key

pytestmark = pytest.mark.timeout(60)
USER = {"role": "user", "content": "Hello"}
TOOL = {"name": "f", "description": "Use f.", "input_schema": {"type": "object"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


# -- what is understood --------------------------------------------------------------------------------------


def test_a_conversation_with_tools_becomes_the_chat_that_asks_the_same() -> None:
    chat = as_chat(
        read(
            {
                "model": "m",
                "max_tokens": 9,
                "system": [
                    {"type": "text", "text": f"{BILLING}: cc_version=1; cch=abc"},
                    {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                ],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "s"},
                            {"type": "text", "text": "I look."},
                            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "é"}},
                            {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                            {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "no such file"},
                            {"type": "text", "text": "Go on."},
                        ],
                    },
                ],
                "tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "stop_sequences": ["END"],
                "metadata": {"user_id": "u"},
                "top_k": 5,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "service_tier": "auto",
                "stream": True,
            }
        )
    )
    function = {"name": "f", "parameters": {"type": "object"}, "description": "Use f."}
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x":"é"}'}}
    assert chat == {
        "model": "m",
        "max_tokens": 9,
        "top_k": 5,
        "stream": True,
        "stop": ["END"],
        "user": "u",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a\nb"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "t1", **call},
                    {"id": "t2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "one"},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: no such file"},
            {"role": "user", "content": "Go on."},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }


def test_pictures_are_passed_on_and_those_of_a_tool_follow_in_the_users_message() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    other = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    given = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "seen"}, PICTURE]}, other]
    assert as_chat(read({"messages": [{"role": "user", "content": given}]}))["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "seen"},
        {"role": "user", "content": [url, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
    ]


def test_reasoning_of_the_turn_under_way_stays_and_that_of_earlier_turns_goes() -> None:
    def turn(thought: str) -> list[dict[str, Any]]:
        said = [{"type": "thinking", "thinking": thought}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]
        result = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
        return [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]

    messages = as_chat(read({"messages": [USER, *turn("old"), USER, *turn("new"), *turn("newer")]}))["messages"]
    assert [message.get("reasoning") for message in messages] == [None] * 4 + ["new", None, "newer", None]
    assert not any("reasoning_content" in message for message in messages[:4])


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_which_tool_is_to_be_called(choice: dict[str, Any], said: object) -> None:
    assert as_chat(read({"messages": [USER], "tools": [TOOL], "tool_choice": choice}))["tool_choice"] == said


def test_a_demanded_form_is_a_response_format() -> None:
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "high"}
    assert as_chat(read({"messages": [USER], "output_config": wanted}))["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": [5]}, "messages"),
        ([], None),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
        ({"messages": [USER], "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": [USER], "thread": {"type": "create"}}, "thread"),
        ({"messages": [USER], "something_new": 1}, "something_new"),
        ({"messages": [USER], "system": [PICTURE]}, "system[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": [PICTURE]}]}, "messages[0].content[0]"),
        (block(type="document", source={"type": "base64", "data": "x"}), "messages[0].content[0]"),
        (block(type="image", source={"type": "file", "file_id": "f"}), "messages[0].content[0]"),
        (block(type="text"), "messages[0].content[0]"),
        (block(type="tool_result"), "messages[0].content[0].tool_use_id"),
        (block(type="tool_result", tool_use_id="t", content=5), "messages[0].content[0].content"),
        (block(type=["x"]), "messages[0].content[0]"),
        ({"messages": [USER], "tools": ["x"]}, "tools[0]"),
        ({"messages": [USER], "tools": [{"name": "f"}]}, "tools[0]"),
        ({"messages": [USER], "tools": [{"type": "web_search_20260209", "name": "w"}]}, "tools[0]"),
        ({"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"messages": [USER], "output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
    ],
)
def test_what_makes_no_sense_or_a_chat_cant_say_is_refused_by_name(body: object, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        as_chat(read(body))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("headgate", {"continue_final_message": True}),
        ("vllm", {"continue_final_message": True, "add_generation_prompt": False}),
        ("llama_cpp", {}),
    ],
)
def test_an_answer_that_is_begun_for_the_model_is_continued_as_its_engine_does_it(
    kind: str, flags: dict[str, bool]
) -> None:
    body = {"model": "m", "messages": [USER, {"role": "assistant", "content": "It is"}]}
    abilities = Abilities(lambda: [Replica(id="r", url="http://r", model="m", kind=kind)])
    _, chat = converse(exchange(body), body, abilities, lambda name: (name,), 100)
    assert {name: value for name, value in chat.items() if name not in body} == flags


@pytest.mark.parametrize(("kind", "said"), [("openai", "It is"), ("tgi", "It is "), ("vllm", [])])
def test_where_it_cant_be_continued_that_is_said(kind: str, said: object) -> None:
    body = {"model": "m", "messages": [USER, {"role": "assistant", "content": said}]}
    abilities = Abilities(lambda: [Replica(id="r", url="http://r", model="m", kind=kind)])
    with pytest.raises(InvalidRequest, match="the last is the assistant's"):
        converse(exchange(body), body, abilities, lambda name: (name,), 100)


# -- what is told --------------------------------------------------------------------------------------------


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def called(at: int | None, arguments: str = "", name: str | None = None, finish: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return delta(finish, tool_calls=[{**({} if at is None else {"index": at}), "function": function}])


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}},
}


def told(*said: dict[str, Any] | bytes, thinks: bool = False) -> list[dict[str, Any]]:
    voice = MessageVoice("r", thinks)
    data = b"".join(voice.event(one if isinstance(one, bytes) else json.dumps(one).encode()) for one in said)
    events = []
    for text in data.decode().split("\n\n")[:-1]:
        name, payload = text.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def blocks(events: list[dict[str, Any]]) -> list[Any]:
    """Kind and text of each block; checks that each begins once, in order, and ends before the next begins."""
    found: list[list[str]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(found)
            found.append([event["content_block"].get("name") or event["content_block"]["type"], ""])
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(found) - 1
            found[-1][1] += next(value for name, value in event["delta"].items() if name != "type")
        elif event["type"] == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open or events[-1]["type"] == "error"
    return [tuple(one) for one in found]


def test_a_stream_of_text_has_the_events_of_the_specification_in_their_order() -> None:
    events = told(delta(role="assistant", content="It "), delta(content="is."), delta("stop"), USAGE, b"[DONE]")
    assert [event["type"] for event in events] == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    message = events[0]["message"]
    assert (message["id"], message["role"], message["model"], message["content"]) == ("msg_r", "assistant", "m", [])
    assert message["stop_reason"] is None
    assert blocks(events) == [("text", "It is.")]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 6,
        "output_tokens": 4,
    }


@pytest.mark.parametrize(
    ("finish", "more", "reason"),
    [
        ("length", {}, ("max_tokens", None)),
        ("content_filter", {}, ("refusal", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ("stop", {"stop_reason": 128009}, ("end_turn", None)),
        ("anything", {}, ("end_turn", None)),
    ],
)
def test_stop_reasons(finish: str, more: dict[str, Any], reason: tuple[str, str | None]) -> None:
    last = delta(finish)
    last["choices"][0] |= more
    ends = told(delta(content="x"), last, b"[DONE]")[-2]["delta"]
    assert (ends["stop_reason"], ends["stop_sequence"]) == reason


def test_reasoning_is_a_block_of_its_own_and_only_for_those_that_asked_to_see_it() -> None:
    said = [delta(reasoning_content="Let "), delta(reasoning="me", content=None), delta(content="Four"), delta("stop")]
    assert blocks(told(*said, b"[DONE]", thinks=True)) == [("thinking", "Let me"), ("text", "Four")]
    assert blocks(told(*said, b"[DONE]")) == [("text", "Four")]
    silent = told(*[delta(reasoning="hm")] * PING_EACH)
    assert [event["type"] for event in silent] == ["message_start", "ping", "ping"]


CALLS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "one after the other": (
        [called(0, name="f"), called(0, '{"a":'), called(0, "1}"), called(1, "{}", "g"), delta("tool_calls")],
        [("f", '{"a":1}'), ("g", "{}")],
    ),
    "interleaved": (
        [called(0, '{"a":', "f"), called(1, '{"b":', "g"), called(0, "1}"), called(1, "2}"), delta("tool_calls")],
        [("f", '{"a":1}'), ("g", '{"b":2}')],
    ),
    "names first": (
        [called(0, name="f"), called(1, name="g"), called(1, "{}"), called(0, '{"a":1}'), delta("tool_calls")],
        [("f", '{"a":1}'), ("g", "{}")],
    ),
    "a name behind its arguments": (
        [called(0, '{"a"'), called(0, ":1}", name="f"), delta("tool_calls")],
        [("f", '{"a":1}')],
    ),
    "no index": ([called(None, "{}", "f"), delta("stop")], [("f", "{}")]),
    "no arguments": ([called(0, name="f"), called(1, name="g"), delta("tool_calls")], [("f", ""), ("g", "")]),
    "all at once": ([called(0, "{}", "f", finish="tool_calls")], [("f", "{}")]),
    "text before and behind": (
        [delta(content="Now "), called(0, "{}", "f"), delta(content="\n"), delta(content="Done."), delta("stop")],
        [("text", "Now "), ("f", "{}"), ("text", "Done.")],
    ),
    "half a character in each event": (
        [called(0, '{"a":"\ud83d', "f"), called(0, '\ude00"}'), delta("tool_calls")],
        [("f", '{"a":"\N{GRINNING FACE}"}')],
    ),
    "cut off by the limit": ([called(0, '{"a":"lo', "f"), delta("length")], [("f", '{"a":"lo')]),
    "white space behind the end": (
        [called(0, "{}", "f"), called(1, "{}", "g"), called(0, " "), delta("tool_calls")],
        [("f", "{}"), ("g", "{}")],
    ),
}


@pytest.mark.parametrize("how", CALLS)
def test_calls_of_tools_come_one_after_the_other_whatever_order_the_engine_has(how: str) -> None:
    said, found = CALLS[how]
    events = told(*said, USAGE, b"[DONE]")
    assert blocks(events) == found
    assert events[-2]["delta"]["stop_reason"] == ("max_tokens" if "limit" in how else "tool_use")
    ids = [event["content_block"]["id"] for event in events if "id" in event.get("content_block", {})]
    assert len(ids) == len(set(ids))
    assert all(ids)


WRONG: dict[str, list[dict[str, Any]]] = {
    "cut in the middle": [called(0, '{"a":"lo', "f"), delta("tool_calls")],
    "no object": [called(0, "[1]", "f"), delta("tool_calls")],
    "nonsense": [called(0, "rm -rf", "f"), delta("stop")],
    "more of one that is closed": [called(0, "{}", "f"), called(1, "{}", "g"), called(0, "{}")],
    "no name": [called(0, "{}"), delta("tool_calls")],
    "half a call, then text": [called(0, '{"a"', "f"), delta(content="no"), delta("stop")],
    "calls without end": [called(at, "{}", "f") for at in range(MOST_CALLS + 1)],
    "arguments without end": [called(0, "1" * 300_000, "f") for _ in range(4)],
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cant_be_told_truthfully_ends_with_an_error_and_no_tool_is_run(how: str) -> None:
    events = told(*WRONG[how], b"[DONE]")
    assert [event["type"] for event in events].count("error") == 1
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    blocks(events)


def test_nonsense_among_the_events_is_left_out() -> None:
    nonsense: list[Any] = [b"{}", b'{"choices":5}', b'{"choices":[5]}', b'{"choices":[{"delta":[1]}]}', b"no"]
    nonsense += [delta(tool_calls=[5]), delta(content=5), delta(tool_calls=[{"function": 5}])]
    events = told(delta(content="x"), *nonsense[:5], delta(content="y"), delta("stop"), b"[DONE]")
    assert blocks(events) == [("text", "xy")]
    told(*nonsense, b"[DONE]")


@pytest.mark.parametrize("calls", [5, [5], ["x"], [{"function": 5}], {"index": 0}])
def test_text_beside_nonsense_in_the_same_event_is_told_once_and_its_block_begins(calls: object) -> None:
    events = told(delta(content="x", tool_calls=calls), delta(content="y"), delta("stop"), b"[DONE]")
    if calls == [{"function": 5}]:  # a call without a name, which is never told
        assert events[-1]["type"] == "error"
    else:
        assert blocks(events) == [("text", "xy")]


def test_an_answer_without_a_word_is_a_message_without_a_block() -> None:
    assert [event["type"] for event in told(b"[DONE]")] == ["message_start", "ping", "message_delta", "message_stop"]


def test_an_error_within_a_stream_is_an_error_event_and_the_last() -> None:
    error = {"error": {"message": "it broke", "type": "server_error", "code": "replica_failed", "param": None}}
    events = told(delta(content="x"), error, delta(content="y"), b"[DONE]")
    assert events[-1] == {
        "type": "error",
        "error": {
            "type": "api_error",
            "message": "it broke",
            "code": "replica_failed",
            "details": {"error_code": "replica_failed"},
        },
        "request_id": "r",
    }


def message(finish: str = "stop", thinks: bool = False, **said: Any) -> dict[str, Any]:
    body = {"model": "m", "choices": [{"index": 0, "message": said, "finish_reason": finish}], "usage": USAGE["usage"]}
    found: dict[str, Any] = json.loads(MessageVoice("r", thinks).body(json.dumps(body).encode()))
    return found


def test_whole_answers() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    answer = message("tool_calls", True, content="Now.", reasoning="hm", tool_calls=[call])
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Now."},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    ]
    assert (answer["type"], answer["stop_reason"], answer["usage"]["input_tokens"]) == ("message", "tool_use", 4)
    assert message(content=None)["content"] == [{"type": "text", "text": ""}]
    assert message(content=None, tool_calls=[call])["stop_reason"] == "tool_use"


@pytest.mark.parametrize("arguments", ['{"a":"lo', "[1]", "nonsense", 5])
def test_a_whole_answer_never_calls_a_tool_with_half_of_its_arguments(arguments: object) -> None:
    answer = message("length", content=None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])
    assert [one["type"] for one in answer["content"]] == ["text"]
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("body", [b"no", b"[]", b'{"choices":5}', b'{"choices":[{"message":[5]}]}'])
def test_what_is_no_answer_is_passed_on(body: bytes) -> None:
    assert MessageVoice("r", False).body(body) == body


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"), (429, "rate_limit_error"),
     (413, "request_too_large"), (502, "api_error"), (503, "overloaded_error"), (504, "timeout_error")],
)  # fmt: skip
def test_errors_have_anthropics_types(status: int, kind: str) -> None:
    told = json.loads(as_message_error(b'{"error":{"message":"m","param":"p"}}', status, "r"))
    assert told == {"type": "error", "error": {"type": kind, "message": "m", "param": "p"}, "request_id": "r"}
    for body in (b"", b"[]", b"no", b'{"error":"x"}', b'{"error":{"message":5}}'):
        assert json.loads(as_message_error(body, status, "r"))["error"]["type"] == kind


# -- through the whole gateway ----------------------------------------------------------------------------------


def streamed(*said: dict[str, Any] | bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in said]
    return head + b"".join(chunk(b"data: %b\n\n" % one) for one in data) + end


TEXT: list[dict[str, Any] | bytes] = [delta(content="It "), delta(content="is."), delta("stop"), USAGE, b"[DONE]"]
ANSWERS: dict[str, Answer] = {
    "text": streamed(*TEXT),
    "tool": streamed(*CALLS["interleaved"][0], USAGE, b"[DONE]"),
    "dies": streamed(called(0, '{"a":"lo', "f"), end=b"x\r\n"),  # no chunk: it is cut off
    "odd": streamed(*WRONG["cut in the middle"], b"[DONE]"),
    "refuses": whole(b'{"error":{"message":"the prompt is too long","type":"invalid_request_error"}}', b"400 No"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    pages: dict[str, Answer] = {"/v1/models": whole(b'{"data":[{"id":"m","owned_by":"somewhere"}]}')}
    with raw_engine(ANSWERS, pages) as it:
        yield it


@pytest.fixture(scope="module")
def url(engine: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("messages"), {}, engine.url) as where:
        yield where


def body(say: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": f"say={say}"}], **more}


def events_of(answer: bytes) -> list[dict[str, Any]]:
    return [json.loads(text.split(b"\n")[1].removeprefix(b"data: ")) for text in answer.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("name", ["text", "tool"])
def test_a_stream_through_the_gateway(url: str, name: str) -> None:
    status, answer = ask(f"{url}/v1/messages", body(name, stream=True, tools=[TOOL]))
    assert status == 200
    events = events_of(answer)
    assert blocks(events) == ([("text", "It is.")] if name == "text" else CALLS["interleaved"][1])
    record = json.loads(ask(f"{url}/admin/records")[1].splitlines()[-1])
    assert (record["prompt_tokens"], record["output_tokens"], record["cached_tokens"]) == (10, 4, 6)
    assert (record.get("operation", "chat"), record["outcome"]) == ("chat", "completed")


def test_a_whole_answer_through_the_gateway(url: str) -> None:
    status, answer = ask(f"{url}/v1/messages", body("nothing"))
    assert (status, json.loads(answer)["content"]) == (200, [{"type": "text", "text": "w"}])


def test_an_engine_that_dies_within_a_call_of_a_tool_is_an_error_event(url: str) -> None:
    events = events_of(ask(f"{url}/v1/messages", body("dies", stream=True, tools=[TOOL]))[1])
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert not any(event["type"] in ("message_delta", "message_stop") for event in events)
    ledger.check(url)


def test_a_call_that_was_cut_in_the_middle_is_an_error_event(url: str) -> None:
    events = events_of(ask(f"{url}/v1/messages", body("odd", stream=True, tools=[TOOL]))[1])
    assert events[-1]["type"] == "error"
    assert "no JSON object" in events[-1]["error"]["message"]
    ledger.check(url)


@pytest.mark.parametrize(
    ("path", "given", "status", "kind"),
    [
        ("/v1/messages", body("refuses"), 400, "invalid_request_error"),
        ("/v1/messages", body("x", max_tokens=0), 400, "invalid_request_error"),
        ("/v1/messages", {**body("x"), "model": "gpt-9"}, 404, "not_found_error"),
        ("/v1/messages", b"no json", 400, "invalid_request_error"),
        ("/v1/messages/batches", body("x"), 404, "not_found_error"),
        ("/v1/messages", None, 405, "invalid_request_error"),
        ("/v1/messages/count_tokens", body("x", tools=[5]), 400, "invalid_request_error"),
    ],
)
def test_refusals_have_anthropics_form(url: str, path: str, given: Any, status: int, kind: str) -> None:
    got, answer = ask(url + path, given)
    error = json.loads(answer)
    assert (got, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["request_id"]
    assert error["error"]["message"]


def test_a_body_of_a_megabyte_is_understood_aside(url: str) -> None:
    long = {**body("text", stream=True), "system": "long " * 200_000}
    assert blocks(events_of(ask(f"{url}/v1/messages", long)[1])) == [("text", "It is.")]
    status, answer = ask(f"{url}/v1/messages/count_tokens", long)
    assert status == 200
    assert json.loads(answer)["input_tokens"] > 50_000


def test_tokens_are_estimated_where_no_engine_counts_them(url: str) -> None:
    short, long = (json.loads(ask(f"{url}/v1/messages/count_tokens", body("x" * n))[1]) for n in (10, 4000))
    assert 0 < short["input_tokens"] < long["input_tokens"]


def test_and_counted_where_one_does(tmp_path: Path) -> None:
    pages: dict[str, Answer] = {"count": whole(b'{"count":1234,"tokens":[]}'), "fails": whole(b"{}", b"500 No")}
    with raw_engine(pages) as vllm, gateway(tmp_path, {}, vllm.url) as where:
        eventually(lambda: b'"kind":"vllm"' in ask(f"{where}/admin/state")[1].replace(b" ", b""))
        told = json.loads(ask(f"{where}/v1/messages/count_tokens", body("count", tools=[TOOL]))[1])
        assert told == {"input_tokens": 1234}
        asked = next(head for head in vllm.heads if head.startswith(b"POST /tokenize "))
        assert b"content-length" in asked
        assert 0 < json.loads(ask(f"{where}/v1/messages/count_tokens", body("fails"))[1])["input_tokens"] < 100
        ledger.check(where)


def test_the_key_may_come_as_x_api_key(tmp_path: Path) -> None:
    tenants = {"tenants": {"a": {"key_sha256": [hash_key("sk-a")]}}, "anonymous": {"allowed": False}}
    with double() as (_, engine), gateway(tmp_path, tenants, engine) as where:
        given = {"model": "double", "max_tokens": 3, "messages": [USER]}
        version = {"anthropic-version": "2023-06-01"}
        status, answer = ask(f"{where}/v1/messages", given, version)
        assert (status, json.loads(answer)["error"]["type"]) == (401, "authentication_error")
        assert ask(f"{where}/v1/messages", given, {**version, "x-api-key": "sk-a"})[0] == 200
        assert ask(f"{where}/v1/messages", given, {**version, "authorization": "Bearer sk-a"})[0] == 200


def test_a_client_that_leaves_within_a_stream_is_recorded_and_its_slot_is_free(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as where:
        given = {"model": "double", "messages": [{"role": "user", "content": "n=100000 itl=5"}], "stream": True}
        data = json.dumps(given).encode()
        host, port = where.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /v1/messages HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
            client.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
            assert b"message_start" in client.recv(65536)
        eventually(lambda: b'"cancelled"' in ask(f"{where}/admin/records")[1])
        ledger.check(where)
