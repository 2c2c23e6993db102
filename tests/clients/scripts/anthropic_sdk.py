"""Anthropic's own client against /v1/messages: sync, async, streamed, tools, an agent's loop, errors."""

from typing import Any

import anthropic
from checks import MODEL, SMALL, URL, check, clever, main

CLIENT = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
ASYNC = anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"name": "get_time", "description": "The time now.", "input_schema": {"type": "object"}}
CALL: list[Any] = [{"role": "user", "content": "Call get_weather and get_time."}]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@check
def a_message() -> None:
    answer = CLIENT.messages.create(model=MODEL, max_tokens=16, system="Be brief.", messages=HELLO)
    assert (answer.type, answer.role, answer.stop_reason) in (
        ("message", "assistant", "end_turn"),
        ("message", "assistant", "max_tokens"),
    )
    assert text_of(answer)
    assert answer.usage.output_tokens > 0
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) > 0
    assert answer._request_id


@check
def a_conversation_of_several_turns() -> None:
    turns: list[Any] = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}, *HELLO]
    assert text_of(CLIENT.messages.create(model=MODEL, max_tokens=8, messages=turns))


@check
def a_stream() -> None:
    with CLIENT.messages.stream(model=MODEL, max_tokens=16, messages=HELLO) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == text_of(final) != ""
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert final.usage.output_tokens > 0
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) > 0


@check
def the_events_of_a_stream() -> None:
    kinds = [event.type for event in CLIENT.messages.create(model=MODEL, max_tokens=8, messages=HELLO, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


@check
async def asynchronously() -> None:
    answer = await ASYNC.messages.create(model=MODEL, max_tokens=8, messages=HELLO)
    assert text_of(answer)
    async with ASYNC.messages.stream(model=MODEL, max_tokens=8, messages=HELLO) as stream:
        assert [text async for text in stream.text_stream]


@check
def tokens_are_counted() -> None:
    few = CLIENT.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    more = CLIENT.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief. " * 50).input_tokens
    assert 0 < few < more


@check
def a_demanded_call_whole_and_streamed() -> None:
    choice: Any = {"type": "tool", "name": "get_weather"}
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 80, "messages": CALL, "tools": [WEATHER]}
    answer = CLIENT.messages.create(**given, tool_choice=choice)
    assert answer.stop_reason == "tool_use"
    used = next(block for block in answer.content if block.type == "tool_use")
    assert used.name == "get_weather"
    assert "city" in used.input
    with CLIENT.messages.stream(**given, tool_choice=choice) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 1
    used = next(block for block in final.content if block.type == "tool_use")
    assert "city" in used.input


@clever
def an_agent_calls_tools_until_it_has_an_answer() -> None:
    messages: list[Any] = list(CALL)
    for _ in range(4):
        with CLIENT.messages.stream(model=MODEL, max_tokens=200, messages=messages, tools=[WEATHER, CLOCK]) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        if answer.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.name} says 21"}
            for block in answer.content
            if block.type == "tool_use"
        ]
        assert len(results) == 2
        messages.append({"role": "user", "content": results})
    assert text_of(answer) == "The answer is get_time says 21"


@clever
def the_clients_own_tool_runner() -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        return f"21 degrees in {city}"

    runner = CLIENT.beta.messages.tool_runner(
        model=MODEL, max_tokens=200, tools=[get_weather], messages=[{"role": "user", "content": "get_weather, please"}]
    )
    assert text_of(runner.until_done()) == "The answer is 21 degrees in Paris"


@clever
def reasoning_is_a_block_of_its_own() -> None:
    asked: list[Any] = [{"role": "user", "content": "think"}]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    answer = CLIENT.messages.create(model=MODEL, max_tokens=2000, messages=asked, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    with CLIENT.messages.stream(model=MODEL, max_tokens=2000, messages=asked, thinking=thinking) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    plain = CLIENT.messages.create(model=MODEL, max_tokens=99, messages=asked)
    assert [block.type for block in plain.content] == ["text"]


@check
def errors_are_the_clients_own() -> None:
    for given, kind in (
        ({"model": "gpt-9"}, anthropic.NotFoundError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError),
    ):
        try:
            CLIENT.messages.create(**{"model": MODEL, "max_tokens": 8, "messages": HELLO, **given})
        except kind as error:
            assert error.body["error"]["message"]
        else:
            raise AssertionError(f"{given} was taken")


@check
def pictures_are_passed_on_or_refused_by_name() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    try:
        answer = CLIENT.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": content}])
    except anthropic.BadRequestError as error:
        assert SMALL
        assert "text" in str(error)
    else:
        assert text_of(answer) == "You said: [image_url]What is it?"


main()
