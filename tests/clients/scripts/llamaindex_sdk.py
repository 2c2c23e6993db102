"""LlamaIndex's OpenAILike: chat, stream, completion, tools."""

import os
import tempfile

os.environ.setdefault("NLTK_DATA", tempfile.gettempdir())

from checks import KEY, MODEL, URL, check, clever, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

GIVEN = {"model": MODEL, "api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "max_tokens": 60}
CHAT = OpenAILike(**GIVEN, is_chat_model=True, is_function_calling_model=True)
TEXT = OpenAILike(**GIVEN, is_chat_model=False)
HELLO = [ChatMessage(role="user", content="Hello!")]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


@check
def a_chat() -> None:
    assert CHAT.chat(HELLO).message.content


@check
def a_stream() -> None:
    assert "".join(part.delta or "" for part in CHAT.stream_chat(HELLO))


@check
async def asynchronously() -> None:
    assert (await CHAT.achat(HELLO)).message.content


@check
def a_completion() -> None:
    assert TEXT.complete("Once upon a time").text


@clever
def a_tool_is_called() -> None:
    tool = FunctionTool.from_defaults(get_weather)
    assert "21 degrees in Paris" in str(CHAT.predict_and_call([tool], "Call get_weather."))


main()
