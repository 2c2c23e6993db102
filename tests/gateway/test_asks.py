"""What one request may ask for: values out of range, fields that steer engines, many answers, pictures."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.output import OutputConfig
from headgate.gateway.answer.bounded import Several, ended_in, told_whole
from headgate.gateway.intake.abilities import Abilities
from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.asks import Identities
from headgate.model.errors import InvalidRequest
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.policy.answers.output import Output
from headgate.policy.compose import classifier
from headgate.policy.dispatch.intake import RequestIntake
from headgate.replica.fields import COUNTS, GUARDS, LENGTHS, LISTS, PROBABILITIES
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from tests.engine.process import ask, headgate
from tests.gateway.scene import scene
from tests.gateway.test_gateway import chat, double, eventually, gateway, post, seen
from tests.gateway.test_output import Connection
from tests.gateway.test_responses import responder
from tests.gateway.test_websocket import answer, error, opened, say
from tests.replica.engine import END, STREAM, event, token
from tests.wire.serving import live

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 400).decode()


def acceptor(
    *kinds: str, tenant: Tenant | None = None, lane: Lane | None = None, open_fields: frozenset[str] = frozenset()
) -> Acceptor:
    lanes = dict(LANES) if lane is None else {name: replace(lane, name=name) for name in LANES}
    identities = Identities((), tenant or Tenant(name="anonymous"))
    intake = RequestIntake(lanes, classifier(GatewayConfig()), Output(OutputConfig()))
    made = Acceptor(intake, identities, WireLimits(), open_fields)
    replicas = [Replica(id=str(at), url="http://x", kind=kind) for at, kind in enumerate(kinds)]
    made.abilities = Abilities(lambda: replicas)
    return made


def accept(body: dict[str, Any], *kinds: str, path: str = CHAT, **more: Any) -> Accepted:
    exchange = Exchange(Connection(), 0.0)
    exchange.path, exchange.headers, exchange.request_id = path, {}, "r"
    given: dict[str, Any] = {"model": "m"}
    given |= {"messages": [{"role": "user", "content": "Hello"}]} if path == CHAT else {}
    given |= {"prompt": "Hello"} if path == TEXT else {}
    given |= {"input": "Hello"} if path in ("/v1/embeddings", "/v1/responses") else {}
    exchange.body = json.dumps({**given, **body}).encode()
    return acceptor(*kinds, **more).accept(exchange)


# -- OpenAI's own ranges ----------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("temperature", 2.01, "between 0 and 2"),
    ("temperature", -0.1, "between 0 and 2"),
    ("top_p", 1.5, "between 0 and 1"),
    ("top_p", -1, "between 0 and 1"),
    ("presence_penalty", 2.5, "between -2 and 2"),
    ("frequency_penalty", -3, "between -2 and 2"),
    ("n", 0, "between 1 and 128"),
    ("n", 129, "between 1 and 128"),
    ("n", -5, "between 1 and 128"),
    ("top_logprobs", 1_000_000, "between 0 and 20"),
    ("top_logprobs", -1, "between 0 and 20"),
    ("logprobs", 6, "between 0 and 5"),
    ("stop", ["a"] * 5, "at most 4"),
    ("stop", ["a"] * 100_000, "at most 4"),
    ("stop", "a" * 2000, "at most 1024 characters"),
    ("logit_bias", {"5": 101}, "between -100 and 100"),
    ("logit_bias", {"5": -1e9}, "between -100 and 100"),
    ("tools", [{}] * 129, "at most 128"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("max_completion_tokens", 0, "at least 1"),
    ("max_tokens", 100.5, "int"),
    ("max_tokens", "100", "int"),
    ("n", True, "int"),
    ("n", 1.5, "int"),
    ("seed", "x", "int"),
    ("seed", 1.5, "int"),
    ("temperature", "hot", "float"),
    ("stop", [1], "str"),
    ("stop", {}, "str"),
    ("logit_bias", {"5": "x"}, "float"),
    ("logit_bias", [[1, 101]], "between -100 and 100"),
    ("logit_bias", [[1, 1e308]], "between -100 and 100"),
    ("logit_bias", [[["x"] * 100, 1]], "pairs"),
    ("logit_bias", [5], "pairs"),
    ("logit_bias", [[1, "x"]], "number or false"),
    ("logit_bias", 5, "object"),
    ("stream", "yes", "bool"),
]


@pytest.mark.parametrize(("field", "value", "said"), WRONG)
def test_a_value_out_of_range_is_refused_by_name_with_its_range(field: str, value: Any, said: str) -> None:
    for path in (CHAT, TEXT):
        with pytest.raises(InvalidRequest, match=said) as refused:
            accept({field: value}, path=path)
        assert refused.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0), ("temperature", 2), ("top_p", 0.0), ("top_p", 1), ("presence_penalty", -2), ("n", 128),
        ("top_logprobs", 20), ("logprobs", True), ("stop", ["a"] * 4), ("stop", ""), ("logit_bias", {"5": -100}),
        ("seed", -(2**59)), ("seed", 2**63 - 1), ("max_tokens", 1), ("service_tier", "auto"),
    ],
)  # fmt: skip
def test_the_ends_of_a_range_are_in_it(field: str, value: Any) -> None:
    assert accept({field: value}).body[field] == value


def test_a_dialect_may_take_more_if_all_who_serve_the_model_do() -> None:
    more = {"stop": ["a"] * 12, "temperature": 3.0, "tools": [{}] * 500}
    assert accept(more, "vllm").body["stop"] == ["a"] * 12
    assert accept({"logprobs": 15}, "vllm", "llama_cpp", path=TEXT).body["logprobs"] == 15
    with pytest.raises(InvalidRequest, match="at most 4"):
        accept({"stop": ["a"] * 12}, "vllm", "openai")
    with pytest.raises(InvalidRequest, match="at most 16"):
        accept({"stop": ["a"] * 17}, "vllm", "headgate")
    with pytest.raises(InvalidRequest, match="between 0 and 20"):
        accept({"top_logprobs": 21}, "vllm")
    with pytest.raises(InvalidRequest, match="at least 0"):
        accept({"temperature": -1}, "vllm")
    with pytest.raises(InvalidRequest, match="lane 'slow' allows 64"):
        accept({"stop": ["a"] * 65}, "vllm")


def test_a_task_alias_is_looked_at_as_the_model_that_it_stands_for() -> None:
    assert accept({"model": "code", "stop": ["a"] * 5}, "vllm").request.model == "default"


# -- nulls and whole numbers --------------------------------------------------------------------------------------


def test_null_is_the_same_as_not_given() -> None:
    nothing = {"n": None, "stream": None, "max_tokens": None, "stop": None, "model": None, "user": None, "tools": None}
    found = accept({**nothing, "stream_options": {"include_usage": None}})
    assert found.request.choices == 1
    assert not found.request.stream
    assert not [name for name, value in found.body.items() if value is None]
    assert found.encoded == b""
    streamed = accept({"stream": True, "stream_options": {"include_usage": None}})
    assert streamed.body["stream_options"] == {"include_usage": True}
    assert not streamed.wants_usage


def test_a_whole_number_may_be_written_as_a_float() -> None:
    found = accept({"max_tokens": 100.0, "n": 2.0, "seed": 7.0})
    assert [found.body[name] for name in ("max_tokens", "n", "seed")] == [100, 2, 7]
    assert all(type(found.body[name]) is int for name in ("max_tokens", "n", "seed"))
    assert (found.request.choices, found.encoded) == (2, b"")
    with pytest.raises(InvalidRequest, match="n_predict must be a whole number"):
        accept({"n_predict": 1.5})
    response = accept({"max_output_tokens": 64.0}, "vllm", path="/v1/responses")
    assert response.body["max_output_tokens"] == 64


# -- what several answers cost ------------------------------------------------------------------------------------


def test_n_times_max_tokens_is_what_is_counted_with() -> None:
    assert accept({"max_tokens": 100}).request.max_output == 100
    found = accept({"max_tokens": 100, "n": 8})
    assert (found.request.choices, found.request.max_output) == (8, 800)


@pytest.mark.parametrize("name", COUNTS)
def test_other_names_for_n_count_too(name: str) -> None:
    found = accept({name: 5, "n": 2, "max_tokens": 10}, path=TEXT)
    assert (found.request.choices, found.request.max_output) == (5, 50)
    if name == "best_of":
        for value in (-1, 21, 129):
            with pytest.raises(InvalidRequest, match="best_of must be between 0 and 20"):
                accept({name: value}, path=TEXT)
        return
    with pytest.raises(InvalidRequest, match="at least 1"):
        accept({name: 0}, path=TEXT)
    with pytest.raises(InvalidRequest, match=r"129 answers, and lane 'slow' allows 128"):
        accept({name: 129}, path=TEXT)


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        (["one", "two", "three"], 3, None),
        ([5, 6, 7, 8], 1, 4),
        ([[1, 2], [3], [4, 5, 6]], 3, 6),
        ([""], 1, None),
    ],
)
def test_each_prompt_of_a_list_is_answered_for_itself(prompt: Any, prompts: int, tokens: int | None) -> None:
    found = accept({"prompt": prompt, "n": 2, "max_tokens": 10}, path=TEXT)
    assert (found.request.choices, found.request.max_output) == (2 * prompts, 20 * prompts)
    if tokens is not None:
        assert found.request.prompt_tokens == tokens
        assert found.prompt.text_bytes == 0  # nothing is learned of how many tokens text has


@pytest.mark.parametrize("prompt", [[1, "two"], [1, [2]], [None], [True, False], [1.5]])
def test_a_list_of_who_knows_what_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be text") as refused:
        accept({"prompt": prompt}, path=TEXT)
    assert refused.value.param == "prompt"


def test_a_lane_bounds_answers_and_texts() -> None:
    with pytest.raises(InvalidRequest, match=r"100 prompts × 2 answers, and lane 'slow' allows 128") as refused:
        accept({"prompt": ["x"] * 100, "n": 2}, path=TEXT)
    assert refused.value.param == "prompt"
    lane = replace(LANES["slow"], choices_limit=4, inputs_limit=3)
    with pytest.raises(InvalidRequest, match=r"5 answers, and lane 'slow' allows 4 \(lanes.slow.choices_limit\)"):
        accept({"n": 5}, lane=lane)
    assert accept({"input": ["a"] * 3}, lane=lane, path="/v1/embeddings").request.choices == 1
    with pytest.raises(InvalidRequest, match="4 texts, and lane 'slow' allows 3") as refused:
        accept({"input": ["a"] * 4}, lane=lane, path="/v1/embeddings")
    assert refused.value.param == "input"
    with pytest.raises(InvalidRequest, match="2049 texts"):
        accept({"input": [[1, 2]] * 2049}, path="/v1/embeddings")


def test_a_lane_bounds_lists_and_logprobs() -> None:
    assert accept({"logit_bias": {str(token): 1 for token in range(1024)}})
    with pytest.raises(InvalidRequest, match="1025 entries, and lane 'slow' allows 1024"):
        accept({"logit_bias": {str(token): 1 for token in range(1025)}})
    with pytest.raises(InvalidRequest, match="1025 entries"):
        accept({"logit_bias": [[1, 1]] * 1025}, "llama_cpp")
    lane = replace(LANES["slow"], logprobs_limit=2, stops_limit=1, entries_limit=8)
    assert accept({"logprobs": True, "top_logprobs": 2}, lane=replace(lane, logprobs_limit=2))
    with pytest.raises(InvalidRequest, match="top_logprobs: 3, and lane 'slow' allows 2"):
        accept({"top_logprobs": 3}, lane=lane)
    with pytest.raises(InvalidRequest, match="logprobs: 3, and"):
        accept({"logprobs": 3}, lane=lane, path=TEXT)
    with pytest.raises(InvalidRequest, match="2 stop sequences"):
        accept({"stop": ["a", "b"]}, lane=lane)
    with pytest.raises(InvalidRequest, match="logprobs: 1, and lane 'slow' allows 0"):
        accept({"logprobs": True}, lane=replace(lane, logprobs_limit=0))


@pytest.mark.parametrize("more", [{"max_output_tokens": 100_000}, {"min_tokens": 50}, {"n_predict": -1}])
def test_what_an_engine_is_told_does_not_depend_on_how_the_body_was_spelled(more: dict[str, Any]) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3, **more}
    sent = []
    for spelled in (json.dumps(asked), json.dumps(asked, separators=(",", ":"))):
        exchange = Exchange(Connection(), 0.0)
        exchange.path, exchange.headers, exchange.request_id, exchange.body = CHAT, {}, "r", spelled.encode()
        accepted = acceptor().accept(exchange)
        sent.append(json.loads(accepted.encoded or json.dumps(accepted.body)))
    assert sent[0] == sent[1]
    assert sent[0].get("min_tokens", 0) <= sent[0]["max_tokens"] == 3
    assert not sent[0].keys() & {"max_output_tokens", "n_predict"}


@pytest.mark.parametrize("name", PROBABILITIES)
def test_other_names_for_top_logprobs_are_bounded_too(name: str) -> None:
    assert accept({name: 20}).body[name] == 20
    for value in (21, 1_000_000, -1):
        with pytest.raises(InvalidRequest, match=name) as refused:
            accept({name: value})
        assert refused.value.param == name
    with pytest.raises(InvalidRequest, match="n_probs: 30"):
        accept({"prompt_logprobs": 3, "n_probs": 30, "top_n_tokens": 5})


@pytest.mark.parametrize("name", LISTS)
def test_engines_own_lists_are_bounded(name: str) -> None:
    assert accept({name: [1] * 1024}).body[name] == [1] * 1024
    with pytest.raises(InvalidRequest, match="1025 entries"):
        accept({"stop_token_ids": [2], name: [1] * 1025})
    assert accept({name: "what the engine makes of it"})


# -- the output cap by other names --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LENGTHS)
def test_other_names_for_max_tokens_are_capped_as_that(name: str) -> None:
    unlimited = accept({name: -1})
    assert name not in unlimited.body
    assert unlimited.body["max_tokens"] == 384
    assert accept({name: 100_000}).body["max_tokens"] == 4096
    asked = accept({name: 50})
    assert (asked.body["max_tokens"], asked.request.max_output) == (50, 50)
    both = accept({name: 100_000, "max_tokens": 20})
    assert (both.body["max_tokens"], name in both.body) == (20, False)
    less = accept({name: 5, "max_tokens": 20})
    assert less.body["max_tokens"] == 5
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number"):
        accept({name: "many"})
    assert accept({name: 9000}, tenant=Tenant(name="t", caps=False)).body["max_tokens"] == 9000


def test_of_several_names_the_least_counts() -> None:
    assert accept({"n_predict": 70, "max_new_tokens": 30, "max_length": 50}).body["max_tokens"] == 30
    assert accept({"max_output_tokens": 40}).body["max_tokens"] == 40
    assert "max_output_tokens" not in accept({"max_output_tokens": 40}).body
    native = accept({"max_tokens": 9000, "max_completion_tokens": 9000, "n_predict": -1}, "vllm", path="/v1/responses")
    assert native.body["max_output_tokens"] == 4096
    assert not {"max_tokens", "max_completion_tokens", "n_predict"} & native.body.keys()


def test_the_least_length_is_no_longer_than_the_cap() -> None:
    assert accept({"min_tokens": 100_000}).body["min_tokens"] == 384
    assert accept({"min_tokens": 5, "max_tokens": 9}).body["min_tokens"] == 5
    assert accept({"min_tokens": 500}, tenant=Tenant(name="t", caps=False)).body["min_tokens"] == 500


# -- what only trusted keys may send ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GUARDS)
def test_what_steers_an_engine_is_refused_by_name(name: str) -> None:
    for path in (CHAT, TEXT, "/v1/embeddings", "/v1/responses"):
        kinds = ("vllm",) if path == "/v1/responses" else ()
        with pytest.raises(InvalidRequest, match=f"{name}: only trusted keys") as refused:
            accept({name: {"a": 1}}, *kinds, path=path)
        assert refused.value.param == name
        assert accept({name: {"a": 1}}, *kinds, path=path, tenant=Tenant(name="t", trusted=True)).body[name] == {"a": 1}
    assert accept({name: 1}, open_fields=frozenset({name})).body[name] == 1


def test_what_nobody_here_knows_passes_through() -> None:
    harmless = {
        "top_k": 5,
        "min_p": 0.1,
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "s",
        "x": [1],
    }
    found = accept(harmless)
    assert {name: found.body[name] for name in harmless} == harmless


# -- pictures -------------------------------------------------------------------------------------------------------

PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": PICTURE}},
    {"type": "image_url", "image_url": PICTURE},
    {"type": "input_image", "image_url": PICTURE, "detail": "low"},
    {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
    {"type": "file", "file": {"file_data": PICTURE, "filename": "a.pdf"}},
    {"type": "input_file", "file_data": PICTURE},
    {"type": "image", "image": PICTURE},
    {"image_url": {"url": PICTURE}},
]


@pytest.mark.parametrize("part", PARTS)
def test_a_picture_is_no_text(part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "What is this?"}
    found = accept({"messages": [{"role": "user", "content": [text, part]}], "stream": True})
    assert found.request.prompt_tokens < 200
    assert found.request.lane == "fast"
    assert found.prompt.text_bytes == 0
    assert json.loads(msgspec.json.encode(found.body))["messages"][0]["content"][1] == part
    if part.get("type", "").startswith("input_"):
        item = {"role": "user", "content": [part]}
        response = accept(
            {"input": [item, {"type": "function_call_output", "output": [part]}, part]}, "vllm", path="/v1/responses"
        )
        assert response.request.prompt_tokens < 500


def test_pictures_tell_conversations_apart_and_text_beside_them_counts() -> None:
    def asked(url: str, **more: Any) -> Accepted:
        part = {"type": "image_url", "image_url": {"url": url}, **more}
        return accept({"messages": [{"role": "user", "content": [part]}]})

    assert asked(PICTURE).request.prefix == asked(PICTURE).request.prefix
    assert asked(PICTURE).request.prefix != asked(PICTURE[:-30] + "x" * 30).request.prefix
    assert asked("https://example.org/a.png").request.prefix != asked("https://example.org/b.png").request.prefix
    assert asked(PICTURE, text="word " * 20_000).request.lane == "long"
    hidden = accept({"messages": [{"role": "user", "type": "image_url", "content": "word " * 20_000}]})
    assert hidden.request.lane == "long"
    many = [{"type": "image_url", "image_url": {"url": "https://x"}}] * 300
    assert accept({"messages": [{"role": "user", "content": many}]}).request.lane == "long"


@pytest.mark.parametrize("kind", [[], {}, 5, None])
def test_a_part_whose_type_is_no_word_is_the_engines_to_refuse(kind: Any) -> None:
    parts = [{"type": kind, "text": "x"}, 5, None]
    assert accept({"messages": [{"role": "user", "content": parts}]}).request.prompt_tokens > 0
    assert accept({"messages": [{"role": "user", "content": {"type": kind}}]}).request.prompt_tokens > 0
    assert (
        accept({"messages": [{"role": "tool", "output": {"type": "image", "image": PICTURE}}]}).prompt.text_bytes == 0
    )


# -- an answer in one piece -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ({"tools": [{"type": "function"}]}, True),
        ({"functions": [{}]}, True),
        ({"logprobs": True}, True),
        ({"logprobs": 0}, True),
        ({"top_logprobs": 3}, True),
        ({"prompt_logprobs": 1}, True),
        ({"tools": [], "logprobs": False, "modalities": None}, False),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)
def test_what_engines_say_otherwise_in_streams_is_not_streamed(more: dict[str, Any], whole: bool) -> None:
    assert told_whole(more) is whole


# -- the end of time, for several choices ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (b'{"choices":[{"index":1,"finish_reason":"stop"},{"index":2,"finish_reason":null}]}', {1}),
        (b'{"choices":[{"index":"x","finish_reason":"stop"}]}', set()),
        (b'{"choices":[{"finish_reason":"stop"}]}', set()),
        (b'{"choices":5}', set()),
        (b'"finish_reason"', set()),
    ],
)
def test_which_choices_an_event_ends(said: bytes, ended: set[int]) -> None:
    assert ended_in(said) == ended


@live
async def test_those_that_have_ended_are_noted_and_all_else_passes() -> None:
    async with scene() as made:
        made.gate.read_by = lambda relay: Several(relay)
        client, talk = await made.asking()
        talk.send(STREAM + token("a"))
        talk.send(event(b'{"choices":[{"index":0,"delta":{},"finish_reason": null}]}'))
        talk.send(event(b'{"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}') + event(b"[DONE]") + END)
        answer = await client.answer()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert made.gate.relays[0].ended == {1}
        await made.gate.ended.get()
    async with scene() as made:
        made.gate.read_by = lambda relay: Several(relay)
        client, talk = await made.asking()
        talk.send(b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}")
        assert (await client.answer()).status == 400
        await made.gate.ended.get()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


def events_of(answer: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in answer.strip().split(b"\n\n") if b"[DONE]" not in part]


def test_a_stream_with_several_choices_ends_in_time_too(tmp_path: Path, engine: str) -> None:
    lanes = {"fast": {"generation_s": 1.0}, "slow": {"generation_s": 1.0}}
    with gateway(tmp_path, {"lanes": lanes}, engine) as url:
        body = chat("itl=20 n=1000", stream=True, n=3)
        status, answer = ask(f"{url}{CHAT}", body)
        assert status == 200
        finished = {
            choice["index"]: choice["finish_reason"]
            for said in events_of(answer)
            for choice in said["choices"]
            if choice.get("finish_reason")
        }
        assert finished == {0: "length", 1: "length", 2: "length"}
        assert answer.endswith(b"data: [DONE]\n\n")
        eventually(lambda: seen(engine)["running"] == 0)


# -- as clients meet it ---------------------------------------------------------------------------------------------


def test_several_choices_take_as_many_slots(tmp_path: Path, engine: str) -> None:
    lanes = {name: {"wait_bound_s": 30} for name in ("fast", "slow")}
    with gateway(tmp_path, {"lanes": lanes}, engine, slots=4) as url:
        before = seen(engine)["seen"]
        held = post(url, chat("ttft=20000", n=3))
        eventually(lambda: seen(engine)["running"] == 1)
        wide = post(url, chat("ttft=20000", n=2))
        eventually(lambda: json.loads(ask(f"{url}/admin/ledger")[1])["waiting_by_model"] == 1)
        one = post(url, chat("ttft=20000"))
        eventually(lambda: json.loads(ask(f"{url}/admin/ledger")[1])["waiting_by_model"] == 2)
        assert seen(engine)["seen"] == before + 1  # the last slot is kept for the two
        held.close()
        eventually(lambda: seen(engine)["running"] == 2)
        assert json.loads(ask(f"{url}/admin/ledger")[1])["room"] == 3
        wide.close()
        one.close()
        eventually(lambda: json.loads(ask(f"{url}/admin/ledger")[1])["room"] == 0)


def test_several_choices_are_reserved_as_so_many(tmp_path: Path, engine: str) -> None:
    with gateway(tmp_path, {"anonymous": {"tokens_per_min": 1000}}, engine) as url:
        held = post(url, chat("ttft=20000", n=8, max_tokens=100))
        eventually(lambda: seen(engine)["running"] == 1)
        status, answer = ask(f"{url}{CHAT}", chat("x", max_tokens=128, n=2))
        assert status == 429, answer
        held.close()
        eventually(lambda: seen(engine)["running"] == 0)


def test_a_name_that_nobody_serves_is_a_404_that_lists_what_there_is(tmp_path: Path) -> None:
    with double(model="llama") as (_, one), double(model="llama") as (_, two), gateway(tmp_path, {}, one, two) as url:
        for path, body in (
            (CHAT, chat("x", model="gpt-9")),
            (TEXT, {"model": "gpt-9", "prompt": "x"}),
            ("/v1/embeddings", {"model": "gpt-9", "input": "x"}),
            ("/v1/responses", {"model": "gpt-9", "input": "x"}),
        ):
            status, answer = ask(url + path, body)
            error = json.loads(answer)["error"]
            assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "llama" in error["message"]
        for name in ("llama", "default", "", "chat"):
            assert ask(f"{url}{CHAT}", chat("n=1", model=name))[0] == 200
        assert seen(one)["seen"] + seen(two)["seen"] == 4


def test_an_operators_limit_for_requests_that_name_none_counts(tmp_path: Path) -> None:
    with headgate("serve", "--port", "0", "--max-tokens", "7") as (_, url):
        answer = json.loads(ask(f"{url}{CHAT}", chat("Tell a long story about the sea."))[1])
        assert answer["usage"]["completion_tokens"] <= 7
        assert answer["choices"][0]["finish_reason"] == "length"
        asked = json.loads(ask(f"{url}{CHAT}", chat("Tell a long story about the sea.", max_tokens=12))[1])
        assert 7 < asked["usage"]["completion_tokens"] <= 12


def test_over_a_websocket_the_same_is_refused(tmp_path: Path, engine: str) -> None:
    with gateway(tmp_path, {}, engine) as url, opened(url) as client:
        before = seen(engine)["seen"]
        for body, param in (
            (chat("x", kv_transfer_params={}), "kv_transfer_params"),
            (chat("x", n=129), "n"),
            (chat("x", model="gpt-9"), "model"),
        ):
            say(client, body)
            assert error(client)["error"]["param"] == param
        assert seen(engine)["seen"] == before
        say(client, chat("n=1", n=None, max_tokens=5.0))
        assert answer(client)[-1] == "[DONE]"


def test_an_answer_in_one_piece_with_tools_is_asked_for_in_one_piece(tmp_path: Path) -> None:
    lanes = {"slow": {"generation_s": 1.0}}
    with responder() as engine, gateway(tmp_path, {"lanes": lanes}, engine) as url:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        for more in ({"tools": tools}, {"logprobs": True, "top_logprobs": 2}):
            assert ask(f"{url}{CHAT}", chat("x", **more))[0] == 200
        asked = json.loads(ask(f"{engine}/asked")[1])
        assert [one.get("stream") for one in asked] == [None, None]


def test_what_engines_are_sent_has_no_other_name_for_its_cap(tmp_path: Path) -> None:
    with responder() as engine, gateway(tmp_path, {}, engine) as url:
        assert ask(f"{url}{CHAT}", chat("x", n_predict=-1, max_new_tokens=9000, min_tokens=9000))[0] == 200
        (asked,) = json.loads(ask(f"{engine}/asked")[1])
        assert {name: asked.get(name) for name in ("max_tokens", "n_predict", "max_new_tokens")} == {
            "max_tokens": 4096,
            "n_predict": None,
            "max_new_tokens": None,
        }
        assert asked["min_tokens"] == 4096


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    "asked",
    [
        [["a"]], [[1], ["a"]], [[1, "a"]], [[1], "a"], ["a", [1]], ["a", 1], [1, "a"], [[[1]]], [[]], [[1], []],
        [{"text": "a"}], ["a", {"text": "a"}], [True], [[True]], [1.5], [[1.5]], [None], [[None]], [[1], None],
        [1, None],
    ],
)  # fmt: skip
def test_a_prompt_is_text_or_token_ids_or_a_list_of_either(path: str, asked: list[Any]) -> None:
    name = "input" if path.endswith("embeddings") else "prompt"
    with pytest.raises(InvalidRequest, match=f"{name} must be text, a list of texts, token ids") as refused:
        accept({"model": "m", name: asked}, path=path)
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("name", "value", "entries"),
    [
        ("bad_words_ids", [[1] * 2000], 2000),
        ("bad_words", [["a"] * 600, ["b"] * 600], 1200),
        ("guided_choice", {"a": {"b": ["c"] * 1025}}, 1025),
        ("stop_token_ids", [[]] * 1025, 1025),
        ("stop_token_ids", [1] * 1025, 1025),
    ],
)
def test_entries_are_counted_however_deep_they_are(name: str, value: Any, entries: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: {entries} entries, and lane 'slow' allows 1024") as refused:
        accept({name: value})
    assert refused.value.param == name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([-1], "-1"), ([1, -5, 2], "-5"), ([[-1]], "-1"), ([[1], [2, -3]], "-3"), ([2**31], "2147483648"),
        ([[1], [10**18]], "10{18}"),
    ],
)  # fmt: skip
def test_token_ids_no_engine_has_are_refused_by_name(path: str, asked: list[Any], told: str) -> None:
    name = "input" if path.endswith("embeddings") else "prompt"
    with pytest.raises(InvalidRequest, match=f"{name} must hold token ids from 0 to 2147483647, got {told}") as refused:
        accept({"model": "m", name: asked}, path=path)
    assert refused.value.param == name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("asked", "tokens"), [("a", 0), (["a"], 0), (["a", "b"], 0), ([1, 2], 2), ([[1, 2], [3]], 3), ([0, 2**31 - 1], 2)]
)
def test_what_openai_documents_is_taken(path: str, asked: Any, tokens: int) -> None:
    name = "input" if path.endswith("embeddings") else "prompt"
    found = accept({"model": "m", name: asked}, path=path)
    assert found.body[name] == asked
    if tokens:
        assert found.request.prompt_tokens == tokens
