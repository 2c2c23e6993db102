"""The hash chain by which a prompt is known: blocks of the whole prompt, as the engine will see it."""

import time
from typing import Any

import msgspec
import pytest

from headgate.gateway.intake.fields import UsualFields
from headgate.gateway.intake.prompt import _SEEDS, BLOCK_BYTES, MOST_LINKS, MOST_SEEDS, PromptFound, found_in

TEXT = " ".join(f"word{number}" for number in range(2000))
CHAT, TEXTS, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"


def found(path: str, **body: Any) -> PromptFound:
    return found_in(msgspec.convert(body, UsualFields), path, body)


def shared(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def chat(*contents: str, **more: Any) -> tuple[bytes, ...]:
    messages = [{"role": "user" if at % 2 else "system", "content": text} for at, text in enumerate(contents)]
    return found(CHAT, messages=messages, **more).chain("m", None, 1000)[0]


def test_a_conversation_that_grows_by_a_turn_matches_everything_before_it() -> None:
    before, after = chat(TEXT[:3000], "hello"), chat(TEXT[:3000], "hello", "hi", TEXT[5000:6000])
    assert shared(before, after) == len(before) - 1  # all but the block that was not full
    assert len(after) > len(before)


def test_a_prefix_shared_inside_one_message_is_found() -> None:
    one, other = chat(TEXT[:9000] + " first question"), chat(TEXT[:9000] + " another one")
    assert shared(one, other) == 9000 // BLOCK_BYTES


@pytest.mark.parametrize(
    ("path", "field", "text"),
    [
        (TEXTS, "prompt", TEXT),
        (TEXTS, "prompt", list(range(4000))),
        (EMBEDDINGS, "input", TEXT),
        (RESPONSES, "input", TEXT),
    ],
    ids=["text", "ids", "embedding", "response"],
)
def test_every_kind_of_prompt_has_a_chain(path: str, field: str, text: Any) -> None:
    whole = found(path, **{field: text}).chain("m", None, 1000)[0]
    part = found(path, **{field: text[: len(text) // 2]}).chain("m", None, 1000)[0]
    assert len(whole) > 2 * shared(whole, part) - 2 > 10
    assert whole == found(path, **{field: text}).chain("m", None, 1000)[0]


def test_tools_come_before_the_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": TEXT[:2000]}}]
    with_tools = chat("hello", tools=tools)
    assert shared(with_tools, chat("hello")) == 0
    assert shared(with_tools, chat("another", tools=tools)) >= 3
    assert shared(with_tools, chat("hello", tools=[{**tools[0], "type": "other"}])) == 0


def test_tools_of_a_response_come_first_too() -> None:
    def links(*names: str) -> tuple[bytes, ...]:
        tools = [{"type": "function", "name": name, "description": TEXT[:2000]} for name in names]
        return found(RESPONSES, input=TEXT[:3000], instructions="be brief", tools=tools).chain("m", None, 1000)[0]

    assert shared(links("f"), links("g")) == shared(links("f"), links()) == 0
    assert shared(links("f"), links("f")) == len(links("f")) > 9


def test_models_and_salts_share_nothing() -> None:
    def links(model: str, salt: str | None) -> tuple[bytes, ...]:
        return found(TEXTS, prompt=TEXT).chain(model, salt, 1000)[0]

    assert shared(links("m", None), links("n", None)) == 0
    assert shared(links("m", None), links("m", "salt")) == 0
    assert links("m", "salt") == links("m", "salt")
    assert links("m\ud800", "\udfff")  # odd names are no obstacle


def test_tokens_of_a_block_follow_the_prompts_own() -> None:
    links, each = found(TEXTS, prompt=TEXT).chain("m", None, 5000)
    assert (len(links) - 1) * each < 5000 <= len(links) * each
    assert found(TEXTS, prompt="x").chain("m", None, 1)[1] > 1


def test_the_chain_is_bounded_and_the_text_is_not_kept() -> None:
    one = found(TEXTS, prompt="x" * (MOST_LINKS + 100) * BLOCK_BYTES)
    assert len(one.chain("m", None, 1000)[0]) == MOST_LINKS
    assert one.chain("m", None, 1000)[0] == ()


def test_two_hundred_kilobytes_take_a_millisecond() -> None:
    times = []
    for _ in range(20):
        one = found(TEXTS, prompt=(TEXT * 20)[:220_000])
        began = time.thread_time()
        one.chain("m", None, 1000)
        times.append(time.thread_time() - began)
    assert min(times) <= 0.001


def test_names_of_models_from_clients_take_no_memory() -> None:
    for number in range(3 * MOST_SEEDS):
        assert len(found(TEXTS, prompt="x").chain(f"model {number}", None, 1)[0]) == 1
    assert len(_SEEDS) <= MOST_SEEDS
