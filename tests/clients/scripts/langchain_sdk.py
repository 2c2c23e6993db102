"""LangChain's chat models of OpenAI and Anthropic: invoke, stream, tools, structured answers, the responses API."""

from typing import Any

from checks import KEY, MODEL, URL, check, clever, main
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

GIVEN: dict[str, Any] = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "max_tokens": 80}
CHAT = ChatOpenAI(**GIVEN)
RESPONSES = ChatOpenAI(**GIVEN, use_responses_api=True)
CLAUDE = ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, max_tokens=80)
BOTH = {"chat": CHAT, "responses": RESPONSES, "messages": CLAUDE}


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=20)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


@check
def invoke_by_each_api() -> None:
    for name, model in BOTH.items():
        answer = model.invoke("Hello!")
        assert answer.text, name
        assert answer.usage_metadata["output_tokens"] > 0, name


@check
def stream_by_each_api() -> None:
    for name, model in BOTH.items():
        assert "".join(chunk.text for chunk in model.stream("Hello!")), name


@check
async def asynchronously() -> None:
    assert (await CHAT.ainvoke("Hello!")).text


@clever
def a_turn_with_a_tool_by_each_api() -> None:
    for name, model in BOTH.items():
        bound = model.bind_tools([get_weather])
        turns: list[Any] = [("user", "Call get_weather.")]
        answer = bound.invoke(turns)
        assert answer.tool_calls[0]["name"] == "get_weather", name
        turns += [answer, get_weather.invoke(answer.tool_calls[0])]
        assert bound.invoke(turns).text == "The answer is 21 degrees in Paris", name


@check
def a_structured_answer() -> None:
    found = CHAT.with_structured_output(Place).invoke("Where is the Louvre?")
    assert isinstance(found, Place)


@check
def a_structured_answer_by_a_demanded_call() -> None:
    for model in (CHAT, CLAUDE):
        found = model.with_structured_output(Place, method="function_calling").invoke("Where is the Louvre?")
        assert isinstance(found, Place)


@clever
def embeddings() -> None:
    made = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
    assert len(made.embed_documents(["a", "b"])) == 2


main()
