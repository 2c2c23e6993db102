"""pydantic-ai's agents over OpenAI's chats, its responses and Anthropic's messages."""

from anthropic import AsyncAnthropic
from checks import KEY, MODEL, URL, check, clever, main
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Place(BaseModel):
    city: str = Field(max_length=20)


def models():  # type: ignore[no-untyped-def]
    openai = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    claude = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0))
    return {
        "chat": OpenAIChatModel(MODEL, provider=openai),
        "responses": OpenAIResponsesModel(MODEL, provider=openai),
        "messages": AnthropicModel(MODEL, provider=claude),
    }


@check
async def an_agent_by_each_api() -> None:
    for name, model in models().items():
        done = await Agent(model, model_settings={"max_tokens": 40}).run("Hello!")
        assert done.output, name


@check
async def a_stream_by_each_api() -> None:
    for name, model in models().items():
        async with Agent(model, model_settings={"max_tokens": 40}).run_stream("Hello!") as stream:
            assert [part async for part in stream.stream_text(delta=True)], name


@clever
async def an_agent_with_a_tool_by_each_api() -> None:
    for name, model in models().items():
        agent = Agent(model)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather in a city."""
            return f"21 degrees in {city}"

        done = await agent.run("Call get_weather.")
        assert done.output == "The answer is 21 degrees in Paris", name


@check
async def a_structured_answer() -> None:
    done = await Agent(models()["chat"], output_type=Place, model_settings={"max_tokens": 80}).run("Call final_result.")
    assert isinstance(done.output, Place)


main()
