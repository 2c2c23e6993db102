"""LiteLLM, as an OpenAI server's client and as a Messages server's."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices

import litellm
from checks import KEY, MODEL, URL, check, clever, main

litellm.telemetry = False
OPENAI: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}
ANTHROPIC: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY, "num_retries": 0}
HELLO = [{"role": "user", "content": "Hello!"}]
CALL = [{"role": "user", "content": "Call get_weather."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def said(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@check
def a_chat() -> None:
    answer = litellm.completion(**OPENAI, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


@check
def a_stream() -> None:
    assert said(litellm.completion(**OPENAI, messages=HELLO, max_tokens=12, stream=True))


@check
async def asynchronously() -> None:
    answer = await litellm.acompletion(**OPENAI, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content


@check
def as_a_messages_server() -> None:
    answer = litellm.completion(**ANTHROPIC, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content
    assert said(litellm.completion(**ANTHROPIC, messages=HELLO, max_tokens=12, stream=True))


@clever
def tools_either_way() -> None:
    for way in (OPENAI, ANTHROPIC):
        answer = litellm.completion(**way, messages=CALL, tools=[WEATHER], max_tokens=80)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather"
        result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
        turns = [*CALL, answer.choices[0].message.model_dump(), result]
        answer = litellm.completion(**way, messages=turns, tools=[WEATHER], max_tokens=80)
        assert answer.choices[0].message.content == "The answer is 21 degrees"


@clever
def embeddings() -> None:
    assert len(litellm.embedding(**OPENAI, input=["a", "b"], encoding_format="float").data) == 2


@check
def a_text_completion() -> None:
    found = litellm.text_completion(
        **{**OPENAI, "model": f"text-completion-openai/{MODEL}"}, prompt="Once", max_tokens=4
    )
    assert found.choices[0].text


main()
