"""The engine's API over real sockets and real weights, mostly through the official OpenAI client."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.process import ask, headgate

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]

MODEL = "smollm2-135m-instruct"
SYSTEM = "You are a helpful harbour master who knows every ship, every captain and every tide by heart. Be brief."
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def url(model_path: Path) -> Iterator[str]:
    flags = ("--slots", "4", "--context", "512", "--system-prompt", SYSTEM)
    with headgate("engine", "--port", "0", *flags) as (_, where):
        yield where


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def figure(url: str, name: str, **labels: str) -> float:
    text = ask(f"{url}/metrics")[1].decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise AssertionError(f"no {name} {labels} in /metrics")


# -- completions ------------------------------------------------------------------------------------------


def test_a_chat_is_answered_with_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_a_stream_says_the_same_as_the_whole_and_ends_with_usage(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage or chunks[-1].usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_the_asynchronous_client_works_too(url: str) -> None:
    async def both() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, temperature=0)
                    for _ in "ab"
                )
            )
            return [answer.choices[0].message.content for answer in answers]

    one, other = asyncio.run(both())
    assert one == other


def test_text_and_token_ids_are_the_same_prompt(client: OpenAI, url: str) -> None:
    tokens = json.loads(ask(f"{url}/tokenize", {"prompt": "The sea is"})[1])["tokens"]
    by_text = client.completions.create(model=MODEL, prompt="The sea is", max_tokens=6, temperature=0)
    by_ids = client.completions.create(model=MODEL, prompt=tokens, max_tokens=6, temperature=0)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == len(tokens)


def test_several_prompts_and_choices_are_numbered_in_order(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["One,", "Two,"], n=2, max_tokens=3, temperature=0)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_a_seed_repeats_a_draw_and_different_choices_differ(client: OpenAI) -> None:
    def draw(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=10, temperature=1.5, seed=seed, n=2
        )
        return [choice.message.content for choice in answer.choices]

    assert draw(7) == draw(7)
    assert draw(7)[0] != draw(7)[1]


def test_a_continuation_draws_what_the_original_would_have(url: str) -> None:
    def tokens(prompt: list[int], count: int) -> list[int]:
        body = {"prompt": prompt, "max_tokens": count, "temperature": 1.2, "seed": 3, "return_token_ids": True}
        choice: dict[str, list[int]] = json.loads(ask(f"{url}/v1/completions", body)[1])["choices"][0]
        return choice["token_ids"]

    prompt = json.loads(ask(f"{url}/tokenize", {"prompt": "Once upon a time"})[1])["tokens"]
    whole = tokens(prompt, 12)
    assert tokens(prompt + whole[:5], 7) == whole[5:]


def test_a_chat_goes_on_from_where_it_broke_off(url: str) -> None:
    def say(messages: list[Any], count: int, **more: Any) -> dict[str, Any]:
        body = {"messages": messages, "max_tokens": count, "temperature": 0, **more}
        answer: dict[str, Any] = json.loads(ask(f"{url}/v1/chat/completions", body)[1])
        return answer

    whole = say(HELLO, 12)["choices"][0]["message"]["content"]
    begun = say(HELLO, 4)["choices"][0]["message"]["content"]
    answer = say([*HELLO, {"role": "assistant", "content": begun}], 8, continue_final_message=True)
    assert begun + answer["choices"][0]["message"]["content"] == whole
    assert say(HELLO, 1, continue_final_message=True)["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"frequency_penalty": 0.8, "repetition_penalty": 1.2},
        {"temperature": 1.1, "seed": 5},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["greedy", "penalties", "a seed", "a grammar"],
)
def test_what_another_engine_began_is_gone_on_with_exactly(url: str, more: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Make a JSON list of three fruits."}], "max_tokens": 24}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **more}

    def say(**further: Any) -> tuple[list[str], dict[str, int]]:
        lines = ask(f"{url}/v1/chat/completions", body | further)[1].decode().split("data: ")[1:-1]
        events = [json.loads(line) for line in lines]
        return [one["choices"][0]["delta"]["content"] for one in events if one["choices"]], events[-1]["usage"]

    whole, usage = say()
    for said in (1, 9, len(whole) - 1):
        rest, again = say(continued=whole[:said])
        assert "".join(rest) == "".join(whole[said:])  # drafts that are right come in one piece, and are tried by time
        assert again["total_tokens"] == usage["total_tokens"]


def test_a_stream_carries_every_token_id_even_of_text_that_is_held_back(url: str) -> None:
    body = {"prompt": "Once", "max_tokens": 24, "temperature": 0, "stream": True, "return_token_ids": True}
    body |= {"stop": ["zzzz", " the the the"], "ignore_eos": True, "stream_options": {"include_usage": True}}
    events = ask(f"{url}/v1/completions", body)[1].decode().split("data: ")[1:-1]
    chunks = [json.loads(event) for event in events]
    ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]
    assert len(ids) == chunks[-1]["usage"]["completion_tokens"]


def test_stop_strings_end_the_text_before_them(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="A, B, C,", max_tokens=12, temperature=0).choices[0].text
    stop = whole[5:8]
    answer = client.completions.create(model=MODEL, prompt="A, B, C,", max_tokens=12, temperature=0, stop=[stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs_name_the_drawn_token_and_the_likeliest(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 3
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token
    text = client.completions.create(model=MODEL, prompt="The", max_tokens=2, temperature=0, logprobs=1)
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.token_logprobs or []) == 2


def test_logit_bias_forces_and_a_schema_shapes_the_answer(client: OpenAI, url: str) -> None:
    token = json.loads(ask(f"{url}/tokenize", {"prompt": " yes"})[1])["tokens"][0]
    forced = client.completions.create(
        model=MODEL, prompt="Well?", max_tokens=3, temperature=0, logit_bias={str(token): 100}
    )
    assert forced.choices[0].text == " yes yes yes"
    schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    shaped = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert isinstance(json.loads(shaped.choices[0].message.content or "")["ok"], bool)


def test_a_prefix_served_before_comes_from_the_cache_and_a_system_prompt_from_the_first_request(url: str) -> None:
    def cached(content: str) -> int:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": 1, "temperature": 0}
        usage = json.loads(ask(f"{url}/v1/chat/completions", body)[1])["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached("When is high tide?") >= 16
    long = "Tell me about the tides. " * 8
    first, second = cached(long), cached(long)
    assert second > first


def test_timings_are_for_whoever_asks(url: str) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "stream": True, "temperature": 0}
    plain = ask(f"{url}/v1/chat/completions", body)[1]
    asked = ask(f"{url}/v1/chat/completions", body, {"x-headgate-timings": "1"})[1]
    assert b'"timings"' not in plain
    last = json.loads(asked.decode().split("data: ")[-2])
    assert set(last["timings"]) == {
        "tokenize_ms", "queue_ms", "prefill_ms", "decode_ms", "detokenize_ms",
        "cached_tokens", "prefill_chunks", "preemptions", "yields",
    }  # fmt: skip


# -- refusals ---------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.chat.completions.create(model="gpt-9", messages=HELLO)


def test_a_prompt_over_the_context_is_refused_or_cut_from_the_left_by_option(url: str) -> None:
    body = {"prompt": "ship " * 600, "max_tokens": 4, "temperature": 0}
    status, answer = ask(f"{url}/v1/completions", body)
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "512" in error["message"]
    status, answer = ask(f"{url}/v1/completions", {**body, "truncate_prompt": True})
    assert (status, json.loads(answer)["usage"]["prompt_tokens"]) == (200, 508)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": HELLO, "temperature": "hot"}, "temperature"),
        ("chat/completions", {"messages": HELLO, "temperature": -1}, "temperature"),
        ("chat/completions", {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"messages": HELLO, "n": 99}, "n"),
        ("chat/completions", {"messages": HELLO, "lane": "overtaking"}, "lane"),
        ("chat/completions", {"messages": HELLO, "logit_bias": {"a": 1}}, "logit_bias"),
        ("chat/completions", {"messages": HELLO, "stop": ["x"] * 99}, "stop"),
        ("chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ("chat/completions", {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format"),
        ("chat/completions", {"messages": [{**HELLO[0], "tool_calls": 5}]}, "messages[0].tool_calls"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x" * 9000, "tool_calls": 5}]},
            "messages[0].tool_calls",
        ),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ""}, "prompt"),
        ("completions", {"prompt": [1, "a"]}, "prompt"),
        ("completions", {"prompt": [99999999]}, "prompt"),
        ("completions", {"prompt": "x", "echo": True}, "echo"),
        ("completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("completions", {"prompt": "x", "best_of": 3}, "best_of"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(url: str, path: str, body: dict[str, Any], param: str) -> None:
    status, answer = ask(f"{url}/v1/{path}", body)
    error = json.loads(answer)["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert error["message"]


def test_a_body_that_is_no_json_is_a_400(url: str) -> None:
    assert ask(f"{url}/v1/completions", b'{"prompt": ')[0] == 400


# -- cancel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_at_once(url: str, stream: bool) -> None:
    parts = urlsplit(url)
    body = json.dumps({"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": stream}).encode()
    before = figure(url, "headgate_engine_requests_total", outcome="cancelled")
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        eventually(lambda: figure(url, "headgate_engine_sequences_running") == 1)
    eventually(lambda: figure(url, "headgate_engine_sequences_running") == 0)
    assert figure(url, "headgate_engine_kv_blocks", state="owned") == 0
    assert figure(url, "headgate_engine_requests_total", outcome="cancelled") == before + 1


def test_a_schema_that_never_compiles_stops_no_stream(client: OpenAI, url: str) -> None:
    endless = {"type": "object", "patternProperties": {f"^k{n}[a-z]*$": {"type": "string"} for n in range(1200)}}
    body = {
        "prompt": "x",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": endless}},
    }
    answers: list[tuple[int, bytes]] = []
    stream = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=450, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    sender = threading.Thread(target=lambda: answers.append(ask(f"{url}/v1/completions", body)))
    sender.start()
    meanwhile = sum(not answers for _ in stream)
    sender.join()
    [(status, answer)] = answers
    error = json.loads(answer)["error"]
    assert (status, error["param"]) == (400, "response_format")
    assert "0.5 s" in error["message"]
    assert meanwhile >= 5
    began = time.perf_counter()
    assert ask(f"{url}/v1/completions", body)[0] == 400
    assert time.perf_counter() - began < 0.4  # remembered


def eventually(true: Any, within_s: float = 10.0) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends


# -- the rest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/deep"])
def test_a_ready_engine_is_healthy_in_every_sense(url: str, path: str) -> None:
    assert ask(url + path)[0] == 200


def test_models_lists_the_one_model_with_its_context(client: OpenAI, url: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert json.loads(ask(f"{url}/v1/models")[1])["data"][0]["max_model_len"] == 512


def test_tokenize_takes_text_or_messages(url: str) -> None:
    text = json.loads(ask(f"{url}/tokenize", {"content": "Hello there"})[1])
    chat = json.loads(ask(f"{url}/tokenize", {"messages": HELLO})[1])
    assert text["count"] == len(text["tokens"]) == 2
    assert chat["count"] > text["count"]
    assert ask(f"{url}/tokenize", {})[0] == 400


def test_tokenizing_has_bounds(url: str) -> None:
    status, answer = ask(f"{url}/tokenize", {"prompt": "word " * 300_000})
    assert status == 400
    assert "at most 1048576 bytes" in json.loads(answer)["error"]["message"]
    text = {"prompt": "some words to count " * 40_000}
    with ThreadPoolExecutor(40) as clients:
        asked = [clients.submit(ask, f"{url}/tokenize", text) for _ in range(40)]
        statuses = {one.result()[0] for one in asked}
    assert statuses == {200, 503}
    assert ask(f"{url}/tokenize", {"prompt": "x"})[0] == 200


def test_the_cold_start_is_told_by_phase(url: str) -> None:
    for phase in ("process", "weights", "KV", "warm-up"):
        assert figure(url, "headgate_engine_cold_start_seconds", phase=phase) > 0


def test_the_page_shows_the_state(url: str) -> None:
    status, page = ask(f"{url}/")
    assert status == 200
    assert b"ready" in page
    assert MODEL.encode() in page


def test_a_long_prompt_is_tokenized_off_the_loop_and_answered_all_the_same(url: str) -> None:
    body = {"prompt": "tide " * 480, "max_tokens": 1, "temperature": 0}
    assert json.loads(ask(f"{url}/v1/completions", body)[1])["usage"]["completion_tokens"] == 1


# -- how it is sampled --------------------------------------------------------------------------------------


def test_a_client_that_names_no_sampling_gets_what_the_models_card_recommends(client: OpenAI, url: str) -> None:
    def say(seed: int, **settings: float) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=24, seed=seed, extra_body=settings
        )
        return answer.choices[0].message.content

    card = json.loads(ask(f"{url}/v1/models")[1])["data"][0]
    assert card["default_sampling_params"] == {"temperature": 0.2, "top_p": 0.9}
    assert b"temperature 0.2, top_p 0.9 (SmolLM2&#x27;s model card)" in ask(f"{url}/")[1]
    assert [say(seed) for seed in range(4)] == [say(seed, temperature=0.2, top_p=0.9) for seed in range(4)]
    assert [say(seed) for seed in range(4)] != [say(seed, temperature=1.0) for seed in range(4)]
