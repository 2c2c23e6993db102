"""OpenAI's own client: chats, streams, tools, structured answers, text completions, embeddings, responses, models."""

import json
import time
from typing import Any

import openai
from checks import KEY, MODEL, SMALL, URL, check, clever, main
from pydantic import BaseModel, Field

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASYNC = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
FLAT: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
CALL: list[Any] = [{"role": "user", "content": "Call get_weather."}]


class Place(BaseModel):
    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


@check
def a_chat() -> None:
    answer = CLIENT.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@check
def a_stream_with_usage() -> None:
    stream = CLIENT.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None


@check
async def asynchronously() -> None:
    stream = await ASYNC.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True)
    assert [chunk async for chunk in stream]


@check
def a_demanded_call_whole_and_streamed() -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    given: dict[str, Any] = {"model": MODEL, "messages": CALL, "tools": [WEATHER], "tool_choice": choice}
    answer = CLIENT.chat.completions.create(**given, max_tokens=80)
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "get_weather"
    with CLIENT.chat.completions.stream(**given, max_tokens=80) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    assert len([piece for piece in pieces if piece]) > 1
    assert final.choices[0].message.tool_calls


@clever
def a_turn_with_a_tool() -> None:
    messages = list(CALL)
    answer = CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    said = answer.choices[0].message
    assert said.tool_calls
    messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "21 degrees"}]
    answer = CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "The answer is 21 degrees"


@check
def a_structured_answer() -> None:
    asked: list[Any] = [{"role": "user", "content": "Where is the Louvre?"}]
    answer = CLIENT.chat.completions.parse(model=MODEL, messages=asked, response_format=Place, max_tokens=80)
    assert isinstance(answer.choices[0].message.parsed, Place)


@check
def a_text_completion() -> None:
    assert CLIENT.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8).choices[0].text
    assert list(CLIENT.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, stream=True))


@clever
def embeddings() -> None:
    found = CLIENT.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert len(found.data) == 2


@check
def a_response_whole_and_streamed() -> None:
    assert CLIENT.responses.create(model=MODEL, input="Hello!", max_output_tokens=16).output_text
    with CLIENT.responses.stream(model=MODEL, input="Hello!", max_output_tokens=16) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text
    assert kinds[0] == "response.created"


@check
def a_response_with_a_demanded_call() -> None:
    given: dict[str, Any] = {"model": MODEL, "input": "Call get_weather.", "tools": [FLAT], "max_output_tokens": 80}
    choice = {"type": "function", "name": "get_weather"}
    answer = CLIENT.responses.create(**given, tool_choice=choice)
    assert [item.name for item in answer.output if item.type == "function_call"] == ["get_weather"]
    with CLIENT.responses.stream(**given, tool_choice=choice) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert len(pieces) > 1
    assert "".join(pieces) == next(item.arguments for item in final.output if item.type == "function_call")


@clever
def a_turn_of_responses_with_a_function() -> None:
    turns: list[Any] = [{"role": "user", "content": "Call get_weather."}]
    answer = CLIENT.responses.create(model=MODEL, input=turns, tools=[FLAT])
    call = next(item for item in answer.output if item.type == "function_call")
    turns += [*answer.output, {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}]
    answer = CLIENT.responses.create(model=MODEL, input=turns, tools=[FLAT], reasoning={"effort": "low"})
    assert answer.output_text == "The answer is 21 degrees"


@clever
def files_and_a_batch() -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 8}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": asked} for name in ("one", "two")
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = CLIENT.files.create(file=("asked.jsonl", data), purpose="batch")
    assert CLIENT.files.content(file.id).content == data
    made = CLIENT.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    until = time.monotonic() + 60
    while made.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < until, made.status
        time.sleep(0.2)
        made = CLIENT.batches.retrieve(made.id)
    assert (made.status, made.request_counts.completed) == ("completed", 2)
    told = [json.loads(line) for line in CLIENT.files.content(made.output_file_id).text.splitlines()]
    assert {line["custom_id"] for line in told} == {"one", "two"}
    assert made.id in [batch.id for batch in CLIENT.batches.list()]
    assert CLIENT.files.delete(file.id).deleted


@check
def models() -> None:
    found = {model.id: model for model in CLIENT.models.list()}
    assert found
    if not SMALL:
        assert found[MODEL].created == 1700000000
        assert found[MODEL].max_model_len == 4096


@check
def errors_are_the_clients_own() -> None:
    try:
        CLIENT.chat.completions.create(model="gpt-9", messages=HELLO)
    except openai.NotFoundError as error:
        assert "gpt-9" in str(error)
    else:
        raise AssertionError("an unknown model was taken")


main()
