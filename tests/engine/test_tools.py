"""Functions: what may be asked, how a call is demanded, and how it is read back, on the bundled weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from headgate.engine.openai import ChatBody
from headgate.engine.speech.calls import CLOSE, OPEN, Manner, Speech, Style, Thinks
from headgate.engine.speech.taught import taught
from headgate.engine.speech.tools import MOST_TOOLS, style_of, tools_of
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


LLAMA = """{%- if tools %}Environment: ipython
Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.{% endif %}"""


@pytest.mark.parametrize(
    ("template", "style", "is_taught"),
    [
        (QWEN, "marked", False),
        (LLAMA, "bare", False),
        ("{{ tools }}", None, False),
        ("{{ tools }}<tool_call><function=", None, False),
        ("{{ messages }}", "marked", True),
    ],
)
def test_how_calls_are_written_follows_from_the_template(template: str, style: Style | None, is_taught: bool) -> None:
    found = tools_of(body(tools=[WEATHER]), template)
    assert found is not None
    assert (found.style, found.taught, found.grammar) == (style, is_taught, None)
    assert found.given == [WEATHER]
    assert found.names == {"get_weather"}
    if style is not None:
        demanded = tools_of(body(tools=[WEATHER], tool_choice="required"), template)
        assert demanded is not None
        assert demanded.grammar is not None
        assert ("parameters" in demanded.grammar) == (style == "bare")
    assert is_taught or style_of(template) == style


# -- what is said -------------------------------------------------------------------------------------------


def said(style: Style | None, *pieces: str, thinks: Thinks = "no") -> tuple[str, str, list[tuple[str, str]], str]:
    """Reasoning, text, calls, and what broke off."""
    speech, reasoning, text = Speech(Manner(style, frozenset({"f", "go"}), thinks)), "", ""
    calls: list[tuple[str, str]] = []
    for part in [*(speech.push(piece) for piece in pieces), speech.finish()]:
        reasoning, text = reasoning + part.reasoning, text + part.text
        for at, name, arguments in part.calls:
            if name:
                assert at == len(calls)
                calls.append((name, arguments))
            else:
                calls[at] = (calls[at][0], calls[at][1] + arguments)
    assert speech.calls == len(calls)
    return reasoning, text, calls, speech.broken


def whatever_the_pieces(style: Style | None, text: str, found: tuple[Any, ...], thinks: Thinks = "no") -> None:
    assert said(style, text, thinks=thinks) == found
    for size in (1, 2, 3, 7):
        assert said(style, *(text[at : at + size] for at in range(0, len(text), size)), thinks=thinks) == found


ONE = f'{OPEN}\n{{"name": "f", "arguments": {{"x": [1, "}}\\""]}}}}\n{CLOSE}'
F = ("f", '{"x": [1, "}\\""]}')
MARKED: list[tuple[str, str, list[tuple[str, str]], str]] = [
    ("plain < words <tool", "plain < words <tool", [], ""),
    (ONE, "", [F], ""),
    (f"Let me see. {ONE}", "Let me see. ", [F], ""),
    (f"{ONE}\n{ONE}\n", "", [F, F], ""),
    (f"{ONE} and so", " and so", [F], ""),
    (ONE.replace('"f"', '"another"'), "", [("another", F[1])], ""),
    (
        f'{OPEN}[{{"name": "f", "arguments": {{"x": 1}}}}, {{"name": "go"}}]{CLOSE}',
        "",
        [("f", '{"x": 1}'), ("go", "{}")],
        "",
    ),
    (f'{OPEN}{{"arguments": {{}}, "name": "f"}}{CLOSE}', "", [("f", "{}")], ""),
    (ONE.removesuffix(CLOSE), "", [F], ""),
    (f"{OPEN}no json{CLOSE}!", f"{OPEN}no json{CLOSE}!", [], ""),
    (f'{OPEN}{{"name": "f", "arg', f'{OPEN}{{"name": "f", "arg', [], ""),
    (f'{OPEN}{{"name": "f", "arguments": {{"x', "", [("f", '{"x')], '{"name": "f", "arguments": {"x'),
    (f'{OPEN}{{"name": 3}}{CLOSE}', f'{OPEN}{{"name": 3}}{CLOSE}', [], ""),
]
CALL_F = '{"name": "f", "parameters": {"x": "a{"}}'
BARE: list[tuple[str, str, list[tuple[str, str]], str]] = [
    ("Hello {you}", "Hello {you}", [], ""),
    (CALL_F, "", [("f", '{"x": "a{"}')], ""),
    (f"<|python_tag|>{CALL_F}", "", [("f", '{"x": "a{"}')], ""),
    (f"\n{CALL_F}; {CALL_F}\n", "", [("f", '{"x": "a{"}')] * 2, ""),
    ('{"type": "function", "name": "go", "parameters": {}}', "", [("go", "{}")], ""),
    ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', [], ""),
    ('{"name": "fool"}', '{"name": "fool"}', [], ""),
    ('{"city": "Paris"}', '{"city": "Paris"}', [], ""),
    (f"I say {CALL_F}", f"I say {CALL_F}", [], ""),
    ('{"name": "go"}', "", [("go", "{}")], ""),
    ('{"name": "f", "parameters": {"x": ', "", [("f", '{"x": ')], '{"name": "f", "parameters": {"x": '),
    ('{"name": "f', '{"name": "f', [], ""),
    (f"{CALL_F} done", " done", [("f", '{"x": "a{"}')], ""),
]


@pytest.mark.parametrize(("text", "left", "calls", "broken"), MARKED)
def test_text_and_calls_are_told_apart_wherever_the_pieces_end(
    text: str, left: str, calls: list[tuple[str, str]], broken: str
) -> None:
    whatever_the_pieces("marked", text, ("", left, calls, broken))


@pytest.mark.parametrize(("text", "left", "calls", "broken"), BARE)
def test_a_call_without_marks_is_one_if_it_is_all_of_the_answer(
    text: str, left: str, calls: list[tuple[str, str]], broken: str
) -> None:
    whatever_the_pieces("bare", text, ("", left, calls, broken))


@pytest.mark.parametrize(
    ("thinks", "text", "reasoning", "left"),
    [
        ("may", "<think>\nLet me.\n\nSo.\n</think>\n\nFour.", "Let me.\n\nSo.", "Four."),
        ("may", "\n<think></think>Four.", "", "Four."),
        ("may", "Four, I <think>", "", "Four, I <think>"),
        ("may", "<thi", "", "<thi"),
        ("begun", "Let me.</think>Four.\n", "Let me.", "Four.\n"),
        ("begun", "Let me think on", "Let me think on", ""),
        ("begun", "a </thing> b</think>c", "a </thing> b", "c"),
        ("no", "<think>x</think>", "", "<think>x</think>"),
    ],
)
def test_reasoning_is_told_apart_from_the_answer(thinks: Thinks, text: str, reasoning: str, left: str) -> None:
    whatever_the_pieces(None, text, (reasoning, left, [], ""), thinks)


def test_calls_behind_reasoning_are_calls() -> None:
    whatever_the_pieces("marked", f"<think>\nf?\n</think>\n\n{ONE}", ("f?", "", [F], ""), "may")
    whatever_the_pieces("bare", f"hm</think>\n{CALL_F}", ("hm", "", [("f", '{"x": "a{"}')], ""), "begun")


def test_text_is_held_back_only_as_long_as_it_may_become_a_call_and_arguments_not_at_all() -> None:
    speech = Speech(Manner("marked", frozenset({"f"})))
    assert speech.push("a <tool").text == "a "
    assert speech.push("box").text == "<toolbox"
    speech.push(f'{OPEN}{{"name": "f", "arguments": ')
    assert [piece[1:] for piece in speech.push('{"ci').calls] == [("f", ""), ("", '{"ci')]
    assert [piece[1:] for piece in speech.push('ty": 1').calls] == [("", 'ty": 1')]


def test_a_template_without_functions_gets_them_as_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    made = taught(
        [
            {"role": "system", "content": "Be brief."},
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "2"}]},
            {"role": "tool", "tool_call_id": "1", "content": "sun"},
            {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "rain"}]},
        ],
        [WEATHER],
    )
    assert [message["role"] for message in made] == ["system", "user", "assistant", "user"]
    assert made[0]["content"].startswith("Be brief.\nYou may call")
    assert '"name": "get_weather"' in made[0]["content"]
    assert made[2]["content"].count(f'{OPEN}\n{{"name": "f", "arguments": {{"x": 1}}}}\n{CLOSE}') == 2
    assert "tool_calls" not in made[2]
    assert "sun" in str(made[3]["content"])
    assert "rain" in str(made[3]["content"])
    assert taught(HELLO, None) == HELLO
    assert taught(HELLO, [WEATHER])[0]["role"] == "system"


@pytest.mark.parametrize("calls", [[5], [{"function": 5}], [{"function": {"name": 5, "arguments": None}}]])
def test_nonsense_in_earlier_turns_fails_nothing_more(calls: object) -> None:
    taught([{"role": "assistant", "content": 5, "tool_calls": calls}, {"role": "tool", "content": None}], [WEATHER])


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
    assert {call.index for call in calls} == {0}
    assert [call.function.name for call in calls if call.function.name] == [whole.name]
    assert [call.id for call in calls if call.id] == [calls[0].id]
    assert "".join(call.function.arguments for call in calls) == whole.arguments
    assert len(calls) > 3
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
def test_a_call_cut_off_within_its_arguments_is_never_half_a_call(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = asked(client, tool_choice=named).usage.completion_tokens
    answer = asked(client, tool_choice=named, max_tokens=whole - 12).choices[0]
    assert (answer.finish_reason, answer.message.tool_calls) == ("length", None)
    assert '"get_weather"' in answer.message.content
    last = list(asked(client, tool_choice=named, max_tokens=whole - 12, stream=True))[-1].choices[0]
    assert last.finish_reason == "length"


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


# -- with a template that has no place for functions, and ends with a mark of reasoning -----------------------

THINKING = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if reasoning_effort != "low" %}<think>
{% endif %}{% endif %}{# </think> #}"""


@pytest.fixture(scope="module")
def plain(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING)
    with (
        headgate("engine", "--port", "0", "--slots", "2", "--context", "768", "--chat-template", str(template)) as (
            _,
            where,
        ),
        OpenAI(base_url=f"{where}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_demanded_call_is_one_whatever_the_template(plain: OpenAI) -> None:
    turns: list[Any] = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    answer = asked(plain, messages=turns, tool_choice="required", parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name in ("get_weather", "get_time")
    assert json.loads(call.function.arguments)


@pytest.mark.model
@pytest.mark.timeout(120)
def test_a_model_whose_template_lets_it_think_tells_that_apart(plain: OpenAI) -> None:
    given: dict[str, Any] = {"tools": openai.NOT_GIVEN, "max_tokens": 12}
    message = asked(plain, **given).choices[0].message
    assert message.reasoning_content
    assert message.content == ""
    deltas = [chunk.choices[0].delta for chunk in asked(plain, **given, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert not any(delta.content for delta in deltas)
    shallow = asked(plain, **given, reasoning_effort="low").choices[0].message
    assert shallow.content
    assert not hasattr(shallow, "reasoning_content")
