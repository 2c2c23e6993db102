"""Functions: what may be asked, how a call is demanded, and how it is read back, on the bundled weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from headgate.engine.openai import ChatBody
from headgate.engine.tools import CLOSE, MOST_TOOLS, OPEN, CallStream, ToolCall, tools_of
from headgate.model.errors import InvalidRequest
from tests.engine.process import headgate

MODEL = "smollm2-135m-instruct"
TEMPLATE = Path(__file__).parent / "tools.jinja"
QWEN = TEMPLATE.read_text()


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"Use {name}.", "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string", "maxLength": 20}, unit={"enum": ["celsius", "kelvin"]})
CLOCK = tool("get_time", zone={"enum": ["UTC", "CET"]})
HELLO: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def body(**more: Any) -> ChatBody:
    return ChatBody(messages=HELLO, **more)


# -- what is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "more", "param"),
    [
        ("{{ messages }}", {"tools": [WEATHER]}, "tools"),
        ("{{ messages }}", {"tools": [WEATHER], "tool_choice": "required"}, "tools"),
        ("{{ tools }}", {"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ("{{ tools }}<tool_call><function=", {"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        (QWEN, {"tool_choice": "required"}, "tool_choice"),
        (QWEN, {"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        (QWEN, {"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        (QWEN, {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        (
            QWEN,
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
        ),
        (QWEN, {"tools": [{"type": "retrieval"}]}, "tools[0]"),
        (QWEN, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
        (QWEN, {"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0]"),
        (QWEN, {"tools": [WEATHER, WEATHER]}, "tools[1]"),
        (QWEN, {"tools": [tool(f"f{at}") for at in range(MOST_TOOLS + 1)]}, "tools"),
    ],
)
def test_what_makes_no_sense_or_cannot_be_done_is_refused_by_name(
    template: str, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tools_of(body(**more), template)
    assert refused.value.param == param


def test_no_tools_or_none_wanted_is_an_ordinary_chat() -> None:
    assert tools_of(body(), "{{ messages }}") is None
    assert tools_of(body(tools=[]), "{{ messages }}") is None
    assert tools_of(body(tools=[WEATHER], tool_choice="none"), "{{ messages }}") is None


def test_calls_are_looked_for_only_where_their_form_is_known() -> None:
    known, unknown = tools_of(body(tools=[WEATHER]), QWEN), tools_of(body(tools=[WEATHER]), "{{ tools }}")
    assert known is not None
    assert unknown is not None
    assert (known.read, known.grammar) == (True, None)
    assert (unknown.read, unknown.given) == (False, [WEATHER])


# -- what is said -------------------------------------------------------------------------------------------


def said(*pieces: str) -> tuple[str, list[ToolCall]]:
    stream, text, calls = CallStream(), "", list[ToolCall]()
    for piece in pieces:
        more, found = stream.push(piece)
        text, calls = text + more, calls + found
    more, found = stream.finish()
    assert stream.calls == len(calls + found)
    return text + more, calls + found


ONE = f'{OPEN}\n{{"name": "f", "arguments": {{"x": [1, "}}"]}}}}\n{CLOSE}'
F = ToolCall("f", '{"x": [1, "}"]}')


@pytest.mark.parametrize(
    ("text", "left", "calls"),
    [
        ("plain < words <tool", "plain < words <tool", []),
        (ONE, "", [F]),
        (f"Let me see. {ONE}", "Let me see. ", [F]),
        (f"{ONE}\n{ONE}\n", "", [F, F]),
        (f"{ONE} and so", " and so", [F]),
        (
            f'{OPEN}[{{"name": "f", "arguments": {{"x": [1, "}}"]}}}}, {{"name": "g"}}]{CLOSE}',
            "",
            [F, ToolCall("g", "{}")],
        ),
        (ONE.removesuffix(CLOSE), "", [F]),
        (f"{OPEN}no json{CLOSE}!", f"{OPEN}no json{CLOSE}!", []),
        (f'{OPEN}{{"name": "f", "arg', f'{OPEN}{{"name": "f", "arg', []),
        (f'{OPEN}{{"name": 3}}{CLOSE}', f'{OPEN}{{"name": 3}}{CLOSE}', []),
    ],
)
def test_text_and_calls_are_told_apart_wherever_the_pieces_end(text: str, left: str, calls: list[ToolCall]) -> None:
    assert said(text) == (left, calls)
    assert said(*text) == (left, calls)
    for size in (2, 3, 7):
        assert said(*(text[at : at + size] for at in range(0, len(text), size))) == (left, calls)


def test_text_is_held_back_only_as_long_as_it_may_become_a_call() -> None:
    stream = CallStream()
    assert stream.push("a <tool") == ("a ", [])
    assert stream.push("box") == ("<toolbox", [])


# -- on the bundled weights -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(model_path: Path) -> Iterator[OpenAI]:
    flags = ("--slots", "2", "--context", "768", "--chat-template", str(TEMPLATE))
    with (
        headgate("engine", "--port", "0", *flags) as (_, where),
        OpenAI(base_url=f"{where}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def asked(client: OpenAI, **more: Any) -> Any:
    given: Any = {"model": MODEL, "messages": HELLO, "tools": [WEATHER, CLOCK], "max_tokens": 120, "temperature": 0}
    return client.chat.completions.create(**{**given, **more})


@pytest.mark.model
@pytest.mark.timeout(120)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_demanded_call_comes_back_as_one_with_arguments_of_its_schema(client: OpenAI, choice: Any) -> None:
    answer = asked(client, tool_choice=choice, parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    if choice == "required":
        assert call.function.name in ("get_weather", "get_time")
    else:
        assert call.function.name == "get_time"
    assert set(arguments) == ({"city", "unit"} if call.function.name == "get_weather" else {"zone"})
    assert call.id


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_streamed_call_is_the_same_call(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = asked(client, tool_choice=named).choices[0].message.tool_calls[0].function
    chunks = [chunk.choices[0] for chunk in asked(client, tool_choice=named, stream=True)]
    calls = [call for choice in chunks for call in choice.delta.tool_calls or []]
    assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
        (0, whole.name, whole.arguments)
    ]
    assert "".join(choice.delta.content or "" for choice in chunks) == ""
    assert [choice.finish_reason for choice in chunks if choice.finish_reason] == ["tool_calls"]
    assert chunks[0].delta.role == "assistant"


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_call_the_model_makes_by_itself_is_read_too(client: OpenAI) -> None:
    def before(city: str) -> list[dict[str, Any]]:
        function = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "celsius"})}
        return [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        ]

    messages = [*before("London"), *before("Berlin"), *HELLO]
    answer = asked(client, messages=messages, tools=[WEATHER]).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls[0].function.name == "get_weather"
    assert "city" in json.loads(answer.message.tool_calls[0].function.arguments)


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_call_cut_off_by_its_limit_is_text_and_says_length(client: OpenAI) -> None:
    answer = asked(client, tool_choice="required", max_tokens=6).choices[0]
    assert answer.finish_reason == "length"
    assert answer.message.tool_calls is None
    assert answer.message.content.startswith(OPEN)


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_schema_that_no_grammar_can_be_made_of_is_refused(client: OpenAI) -> None:
    broken = tool("f", x={"type": "string", "pattern": "("})
    with pytest.raises(openai.BadRequestError, match="tools"):
        asked(client, tools=[broken], tool_choice="required")


@pytest.mark.model
@pytest.mark.timeout(120)
def test_references_into_a_schema_hold(client: OpenAI) -> None:
    parameters = {
        "$defs": {"level": {"enum": ["low", "high"]}},
        "type": "object",
        "properties": {"level": {"$ref": "#/$defs/level"}},
        "required": ["level"],
    }
    given = {"type": "function", "function": {"name": "set_level", "parameters": parameters}}
    (call,) = (
        asked(client, tools=[given], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    )
    assert json.loads(call.function.arguments)["level"] in ("low", "high")
