"""An unstreamed answer that the gateway asks for as a stream is a whole completion, whatever its events look like; or
its one request fails, with an error that says why."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import ledger
from tests.engine.process import ask
from tests.gateway.raw_engine import STREAM, Answer, chunk, events, raw_engine, whole
from tests.gateway.test_gateway import chat, gateway

pytestmark = pytest.mark.timeout(60)
PATH = "/v1/chat/completions"
DONE = b"[DONE]"
TEXT = "Hello world!"
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "internal"}
USAGE = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'


def part(delta: Any = None, *, finish: Any = None, spaces: bool = False, **more: Any) -> bytes:
    """An event of one choice. `more`: fields of the event; None: it has no such field."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    said = {name: value for name, value in {**HEAD, "choices": [choice], **more}.items() if value is not None}
    return json.dumps(said, separators=None if spaces else (",", ":")).encode()


def stream(*deltas: Any, finish: Any = "stop", end: tuple[bytes, ...] = (DONE,), **more: Any) -> bytes:
    """A stream of these deltas. `more`: fields of each event."""
    return events(*[part(delta, **more) for delta in deltas], part(finish=finish, **more), *end)


def texts(**more: Any) -> list[dict[str, Any]]:
    """`more`: fields of each delta."""
    return [{"content": piece, **more} for piece in ("Hello", " world", "!")]


def lined(data: bytes, end: bytes = b"\n") -> bytes:
    lines = [b"data: " + part({"content": TEXT}), b"", b"data: " + part(finish="stop"), b"", b"data: [DONE]", b"", b""]
    return STREAM + chunk(data + end.join(lines)) + b"0\r\n\r\n"


def told(*pieces: bytes) -> bytes:
    """A stream of texts, each spelled as in JSON."""
    around = part({"content": "TEXT"})
    return events(*[around.replace(b"TEXT", piece) for piece in pieces], part(finish="stop"), DONE)


def beside(word: bytes) -> bytes:
    """An event with a text that is not the answer's, in the bytes in which an answer's often is."""
    return b'{"about":{"text":"%b"},"choices":[{"index":0,"delta":{"content": "Hello world!"}}]}' % word


WHOLE: dict[str, bytes] = {
    **{
        f"object-{name}": stream(*texts(), object=value)
        for name, value in {
            "none": None,
            "empty": "",
            "other": "chat.completions.chunk",
            "text": "text_completion",
            "number": 5,
            "list": ["x"],
        }.items()
    },
    "index-null": events(
        *[part(delta).replace(b'"index":0', b'"index":null') for delta in (*texts(), {})],
        part(finish="stop").replace(b'"index":0', b'"index":null'),
        DONE,
    ),
    "role-null": stream(*texts(role=None)),
    "role-empty": stream(*texts(role="")),
    "role-number": stream(*texts(role=5)),
    "finish-empty-before": events(*[part(delta, finish="") for delta in texts()], part(finish="stop"), DONE),
    "finish-empty-after": stream(*texts(), end=(part(finish=""), DONE)),
    "reasoning-empty": stream(*texts(reasoning_content="", reasoning="")),
    "message-instead": events(
        json.dumps(
            {**HEAD, "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}]}
        ).encode(),
        DONE,
    ),
    "text-instead": events(
        *[part().replace(b'"delta":{}', b'"text":"%b"' % piece) for piece in (b"Hello", b" world!")],
        part(finish="stop"),
        DONE,
    ),
    "empty-events": events(b"", part({"content": TEXT}), b" ", part(finish="stop"), b"", DONE),
    "sign-of-life": events(b'{"type":"ping"}', part({"content": TEXT}), b"{}", part(finish="stop"), DONE),
    "choices-null": events(part({"content": TEXT}), b'{"choices":null}', part(finish="stop"), DONE),
    "byte-order-mark": lined(b"\xef\xbb\xbf"),
    "carriage-returns": lined(b": hello\r\n\r\n", b"\r\n"),
    "error-null-first": events(
        *[b'{"error":null,' + one[1:] for one in (part({"content": TEXT}), part(finish="stop"))], DONE
    ),
    "done-and-a-space": stream(*texts(), end=(b"[DONE] ",)),
    "no-done": stream(*texts(), end=()),
    "no-done-usage": stream(*texts(), end=(USAGE,)),
    "dies-after-the-last": stream(*texts(), end=())[:-5].replace(b"content-type", b"connection: close\r\ncontent-type"),
    "error-after-the-last": stream(*texts(), end=(b'{"choices":[],"error":{"message":"late","code":500}}', DONE)),
    "model-none": stream(*texts(), model=None),
    "model-number": stream(*texts(), model=5),
    "model-beside": stream(*texts(), about={"model": "internal"}, response=5),
    "spaces": events(*[part(delta, spaces=True) for delta in texts()], part(finish="stop", spaces=True), DONE),
}  # fmt: skip
"""Streams of which the whole text must arrive."""
SAID: dict[str, tuple[bytes, str]] = {
    "pair": (told(b"a ", b"\\ud83d", b"\\ude00", b" b"), "a \U0001f600 b"),
    "pair-first": (told(b"\\ud83d", b"\\ude00", b" b"), "\U0001f600 b"),
    "half": (told(b"a ", b"\\ud83d", b" b"), "a \ufffd b"),
    "half-last": (told(b"a ", b"\\ud83d"), "a \ufffd"),
    "beside": (events(beside(b"a"), beside(b"b"), beside(b"c"), part(finish="stop"), DONE), TEXT * 3),
    "quotes": (told(b'\\"', b"\\\\", b'\\\\\\"', b"x"), '"\\\\"x'),
}
REFUSED: dict[str, tuple[bytes, int]] = {
    "error": (events(part({"content": "a"}), b'{"error":{"message":"no","code":400}}', DONE), 400),
    "error-spaces": (events(b'{ "error": {"message":"no","code":400}}', DONE), 400),
    "error-later": (events(b'{"id":"x","error":{"message":"no","code":400}}', DONE), 400),
    "error-with-choices": (events(b'{"choices":[],"error":{"message":"no","code":400}}', DONE), 400),
    "error-plain": (events(b'{"object":"error","message":"no","type":"BadRequestError","code":400}', DONE), 400),
    "error-500": (events(part({"content": "a"}), b'{"error":"no"}', DONE), 502),
    "created": (stream(*texts()).replace(b"200 OK", b"201 Created"), 502),
    "partial": (stream(*texts()).replace(b"200 OK", b"206 Partial"), 502),
    "only-empty-finishes": (stream(*texts(), finish=""), 502),
    "no-choices": (events(b"{}", DONE), 502),
    "broken-last": (events(part({"content": "a"}), part({"tool_calls": 5}, finish="stop"), DONE), 502),
}
USAGES: dict[str, bytes] = {
    "negative": b'{"prompt_tokens":-5,"completion_tokens":3}',
    "huge": b'{"prompt_tokens":5,"completion_tokens":%b}' % (b"9" * 20),
    "digits": b'{"prompt_tokens":%b,"completion_tokens":3}' % (b"9" * 400),
    "no-number": b'{"prompt_tokens":NaN,"completion_tokens":3}',
    "infinite": b'{"prompt_tokens":5,"completion_tokens":1e999}',
    "null": b"null",
    "nulls": b'{"prompt_tokens":null,"completion_tokens":null}',
    "empty": b"{}",
    "list": b"[]",
    "text": b'"x"',
}
TWO = events(
    part().replace(b'"delta":{}', b'"delta":{"content":"B"}').replace(b'"index":0', b'"index":1'),
    part({"content": "A"}),
    part(finish="stop").replace(b'"index":0', b'"index":1'),
    DONE,
)
LINE = "The sea is vast and blue, and nobody has seen the end of it. "
LOOPS: dict[str, bytes] = {
    "plain": part({"content": LINE}),
    "behind-an-empty-thought": part({"reasoning_content": "", "content": LINE}),
    "thought": part({"reasoning": LINE}),
    "empty-finish": part({"content": LINE}, finish=""),
}
"""Events that come again and again."""
ANSWERS: dict[str, Answer] = {
    **{f"loop-{name}": [STREAM, chunk(b"data: %b\n\n" % line)] for name, line in LOOPS.items()},
    **{f"whole-{name}": answer for name, answer in WHOLE.items()},
    **{f"said-{name}": answer for name, (answer, _) in SAID.items()},
    **{f"refused-{name}": answer for name, (answer, _) in REFUSED.items()},
    **{
        f"usage-{name}": stream(*texts(), end=(USAGE[:12] + b'],"usage":' + usage + b"}", DONE))
        for name, usage in USAGES.items()
    },
    "usage-twice": stream(*texts(), end=(USAGE, b'{"choices":[],"usage":{}}', DONE)),
    "one-of-two": TWO,
    "calls": stream({"tool_calls": [{**CALL, "id": "a"}, {**CALL, "id": "b"}]}, {"tool_calls": [{**CALL, "id": "c"}]}),
    "call": stream(
        {"tool_calls": [{**CALL, "index": 0, "id": "a"}]},
        {"tool_calls": [{"index": 0, "id": "", "function": {"name": "", "arguments": "{}"}}]},
    ),
    "completion": events(
        *[
            json.dumps({"object": "x", "choices": [{"index": 0, "text": piece, "finish_reason": finish}]}).encode()
            for piece, finish in (("Hello", None), (" world!", "stop"))
        ],
        DONE,
    ),
    "long": stream(*[{"role": "assistant", "content": f"{number} {'x' * 1900}"} for number in range(15_000)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {
        "retry": {"attempts": 1},
        "timeouts": {"stall_s": 3},
        "output": {"aliases": [{"name": "public", "task": "chat", "model": "m"}]},
        "health": {"failures": 1000},
    }
    with raw_engine(ANSWERS) as engine, gateway(tmp_path_factory.mktemp("gateway"), config, engine.url) as where:
        yield where


def answer(url: str, say: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """The status and the body, which is JSON by the letter."""

    def no_number(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    status, said = ask(url + PATH, {**chat(f"say={say}"), "model": "public", **more})
    body: dict[str, Any] = json.loads(said, parse_constant=no_number)
    return status, body


@pytest.mark.parametrize("name", WHOLE)
def test_no_text_is_lost_whatever_an_engine_calls_it(url: str, name: str) -> None:
    status, body = answer(url, f"whole-{name}")
    assert status == 200, body
    (choice,) = body["choices"]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", TEXT)
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert (body["object"], body["model"], "error" in body) == ("chat.completion", "public", False)
    assert "internal" not in json.dumps(body)
    ledger.check(url)


@pytest.mark.parametrize("name", SAID)
def test_pieces_are_put_together_as_they_were_meant(url: str, name: str) -> None:
    status, body = answer(url, f"said-{name}")
    assert (status, body["choices"][0]["message"]["content"]) == (200, SAID[name][1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_answer_is_an_error_that_says_why(url: str, name: str) -> None:
    status, body = answer(url, f"refused-{name}")
    assert status == REFUSED[name][1]
    assert body["error"]["message"]
    assert ask(url + PATH, chat("hello"))[0] == 200
    ledger.check(url)


@pytest.mark.parametrize("name", USAGES)
def test_counts_that_can_not_be_true_are_not_passed_on(url: str, name: str) -> None:
    status, body = answer(url, f"usage-{name}")
    assert (status, body["headgate_usage"]) == (200, "estimated")
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["total_tokens"] == 3 + body["usage"]["prompt_tokens"] < 100


def test_nor_do_they_replace_good_ones(url: str) -> None:
    body = answer(url, "usage-twice")[1]
    assert (body["usage"]["total_tokens"], "headgate_usage" in body) == (8, False)


def test_an_answer_of_which_one_choice_has_not_ended_is_not_whole(url: str) -> None:
    assert answer(url, "one-of-two", n=2)[0] == 502


def test_calls_without_an_index_are_told_apart_by_their_ids(url: str) -> None:
    calls = answer(url, "calls")[1]["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["a", "b", "c"]


def test_what_is_empty_replaces_nothing(url: str) -> None:
    (call,) = answer(url, "call")[1]["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]) == ("a", {"name": "f", "arguments": "{}{}"})


def test_a_text_completion_is_one_whatever_its_events_are_called(url: str) -> None:
    status, said = ask(f"{url}/v1/completions", {"model": "public", "prompt": "say=completion"})
    body = json.loads(said)
    assert (status, body["object"], body["choices"][0]["text"]) == (200, "text_completion", TEXT)
    assert "message" not in body["choices"][0]


def test_a_long_answer_in_many_events_holds_nobody_up(url: str) -> None:
    began = time.monotonic()
    status, body = answer(url, "long", max_tokens=4000)
    assert (status, len(body["choices"][0]["message"]["content"])) == (
        200,
        15_000 * 1901 + sum(map(len, map(str, range(15_000)))),
    )
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_ended_however_it_is_told(url: str, name: str, streamed: bool) -> None:
    said = ask(url + PATH, {**chat(f"say=loop-{name}", stream=streamed), "model": "public"})[1]
    assert b'"headgate_stop":"repetition"' in said
    ledger.check(url)


RESPONSES: dict[str, tuple[bytes, str]] = {
    "plain": (stream(*texts()), TEXT),
    "error-null": (WHOLE["error-null-first"], TEXT),
    "pair": SAID["pair"],
    "half": SAID["half"],
    "half-last": SAID["half-last"],
    "in-parts": (stream(*[{"content": [{"type": "text", "text": one["content"]}]} for one in texts()]), TEXT),
    "usage": (stream(*texts(), usage={"prompt_tokens": "5", "completion_tokens": []}), TEXT),
    "usage-text": (stream(*texts(), usage="x"), TEXT),
    "empty-events": (WHOLE["empty-events"], TEXT),
    "model-beside-half": (told(b"\\ud83d", b"\\ude00"), "\U0001f600"),
}  # fmt: skip
"""Chats of which responses are made, and their texts."""


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in front of an engine that has no responses."""
    models = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"x"}]}'
    config = {"retry": {"attempts": 1}, "output": {"aliases": [{"name": "public", "task": "chat", "model": "m"}]}}
    answers: dict[str, Answer] = {name: answer for name, (answer, _) in RESPONSES.items()}
    with (
        raw_engine(answers, {"/v1/models": whole(models)}) as engine,
        gateway(tmp_path_factory.mktemp("gateway"), config, engine.url) as where,
    ):
        yield where


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_that_is_made_of_a_chat_has_its_whole_text(translated: str, name: str, streamed: bool) -> None:
    body = {"model": "public", "input": f"say={name}", "stream": streamed}
    status, said = ask(f"{translated}/v1/responses", body)
    assert status == 200
    lines = [line[6:] for line in said.split(b"\n") if line.startswith(b"data: ")] if streamed else [said]
    events_ = [json.loads(line) for line in lines]
    response = events_[-1]["response"] if streamed else events_[-1]
    assert (response["status"], response["model"]) == ("completed", "public")
    assert response["output"][0]["content"][0]["text"] == RESPONSES[name][1]
    if streamed:
        deltas = [event["delta"] for event in events_ if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == RESPONSES[name][1]
    assert b"internal" not in said
    ledger.check(translated)
