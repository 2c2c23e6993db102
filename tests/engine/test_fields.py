"""No field that another server knows is quietly ignored: it is honoured, says nothing, or is refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.completion_create_params import CompletionCreateParamsBase

from headgate.engine.fields import HINTS, INSTEAD, NOTHING, ONLY_OF_CHATS, ONLY_OF_TEXT, REFUSED, told
from headgate.engine.openai import ChatBody, TextBody
from headgate.engine.structured import rules_of
from headgate.model.errors import InvalidRequest
from headgate.wire.body import json as wire_json
from tests.engine.process import ask, headgate

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
TEXT: dict[str, Any] = {"prompt": "Say hello."}
HONOURED = {field.encode_name for kind in (ChatBody, TextBody) for field in msgspec.structs.fields(kind)}
OTHERS = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of cache_prompt cache_salt chat_template
chat_template_kwargs continue_final_message custom_logit_processor documents dry_allowed_length dry_base dry_multiplier
dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range early_stopping ebnf echo grammar guided_choice
guided_decoding_backend guided_grammar guided_json guided_json_object guided_regex guided_whitespace_pattern id_slot
ignore_eos image_data include_reasoning include_stop_str_in_output json_schema kv_transfer_params length_penalty
logits_processors lora lora_path min_keep min_p min_tokens mirostat mirostat_eta mirostat_tau mm_processor_kwargs
n_discard n_indent n_keep n_predict n_probs penalize_nl post_sampling_probs priority prompt_logprobs regex repeat_last_n
repeat_penalty repetition_penalty request_id response_fields return_token_ids return_tokens return_tokens_as_token_ids
samplers separate_reasoning skip_special_tokens spaces_between_special_tokens stop_regex stop_token_ids structural_tag
structured_outputs suffix t_max_predict_ms tfs_z thinking_token_budget timings_per_token top_k top_n_sigma
truncate_prompt_tokens typical_p use_beam_search vllm_xargs xtc_probability xtc_threshold
""".split()  # noqa: SIM905
"""What vLLM, SGLang and llama.cpp take beside OpenAI's fields."""
ASKING = (True, False, 0, 1, 0.5, 7, "high", ["x"], {"x": 1})
"""At least one of these asks for something, whatever the field."""


def chat(**fields: Any) -> ChatBody:
    return wire_json.convert(told({"messages": HELLO, **fields}, chat=True), ChatBody)


def test_every_field_of_openai_and_of_other_engines_has_its_place_in_the_tables() -> None:
    openai = {*chat_params.CompletionCreateParamsBase.__annotations__, *CompletionCreateParamsBase.__annotations__}
    openai |= {"stream"}
    known = HONOURED | REFUSED.keys() | HINTS
    assert {*openai, *OTHERS} - known == set()
    assert not HONOURED & REFUSED.keys()
    assert not HINTS & REFUSED.keys()
    assert INSTEAD.keys() <= REFUSED.keys() | ONLY_OF_CHATS.keys() | ONLY_OF_TEXT.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_field_that_is_not_honoured_is_refused_by_name_unless_it_asks_for_nothing(name: str) -> None:
    refused = 0
    for value in (*ASKING, *NOTHING, *REFUSED[name]):
        neutral = any(value == one and type(value) is type(one) for one in REFUSED[name])
        for path, body in ((True, {"messages": HELLO, name: value}), (False, {**TEXT, name: value})):
            if neutral:
                told(body, path)
                continue
            with pytest.raises(InvalidRequest) as error:
                told(body, path)
            assert error.value.param == name
            assert error.value.message.startswith(f"{name} is not supported by the embedded engine")
            refused += 1
    assert refused or name in ("include_reasoning", "separate_reasoning")


@pytest.mark.parametrize(("table", "path"), [(ONLY_OF_CHATS, False), (ONLY_OF_TEXT, True)])
def test_a_field_of_the_other_path_is_refused_there(table: dict[str, tuple[Any, ...]], path: bool) -> None:
    for name, neutral in table.items():
        for value in neutral:
            told({name: value}, path)
        with pytest.raises(InvalidRequest) as error:
            told({name: "something"}, path)
        assert error.value.param == name


def test_nothing_is_the_same_as_not_said_and_whole_numbers_may_have_a_point() -> None:
    fields = dict.fromkeys(sorted(HONOURED - {"messages", "prompt"}))
    assert chat(**fields) == chat()
    assert chat(max_tokens=100.0, n=2.0).max_tokens == 100
    with pytest.raises(InvalidRequest):
        chat(max_tokens=100.5)
    assert told([1], chat=True) == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "integer"}},
        {"guided_json": '{"type": "integer"}'},
        {"guided_json_object": True},
        {"guided_regex": "^[a-z]+/[0-9]+\n$"},
        {"guided_choice": ["yes", 'n"o']},
        {"guided_grammar": 'start: "a" | "b"', "guided_decoding_backend": "guidance"},
        {"json_schema": {"type": "integer"}},
        {"regex": "a|b"},
        {"structured_outputs": {"json": {"type": "integer"}, "disable_any_whitespace": True, "regex": None}},
        {"structured_outputs": {"choice": ["a", "b"]}, "response_format": {"type": "text"}},
        {"structured_outputs": {"json_object": True, "structural_tag": None}},
    ],
)
def test_a_form_of_the_output_may_be_asked_for_in_any_servers_words(fields: dict[str, Any]) -> None:
    rules = rules_of(chat(**fields))
    assert rules is not None
    assert rules.param.split(".")[0] in fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"guided_json": {}, "guided_regex": "", "guided_choice": [], "guided_grammar": "", "guided_json_object": False},
        {
            "structured_outputs": {},
            "guided_decoding_backend": "",
            "json_schema": {},
            "regex": "",
            "response_format": {},
        },
        {"structured_outputs": {"json": None, "choice": [], "backend": "xgrammar", "whitespace_pattern": None}},
    ],
)
def test_a_form_that_says_nothing_is_none(fields: dict[str, Any]) -> None:
    assert rules_of(chat(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": " " * 70_000}, "guided_json"),
        ({"guided_regex": "a\\"}, "guided_regex"),
        ({"guided_regex": "a" * 70_000}, "guided_regex"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"guided_grammar": "%llguidance {}"}, "guided_grammar"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"regex": "a", "guided_choice": ["a"]}, "regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rules_of(chat(**fields))
    assert refused.value.param == param


# -- over sockets -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ mood }}{{ reasoning_effort }}"
        "{% if add_generation_prompt %}answer:{% endif %}"
    )
    flags = ("--slots", "4", "--context", "512", "--chat-template", str(template))
    with headgate("engine", "--port", "0", *flags) as (_, where):
        yield where


def said(url: str, **fields: Any) -> dict[str, Any]:
    status, answer = ask(
        f"{url}/v1/chat/completions", {"messages": HELLO, "max_tokens": 24, "temperature": 0, **fields}
    )
    assert status == 200, answer
    body: dict[str, Any] = json.loads(answer)
    return {**body["choices"][0], "usage": body["usage"]}


def text(url: str, **fields: Any) -> str:
    return str(said(url, **fields)["message"]["content"])


def refusal(url: str, **fields: Any) -> dict[str, Any]:
    status, answer = ask(f"{url}/v1/chat/completions", {"messages": HELLO, "max_tokens": 24, **fields})
    assert status == 400, answer
    error: dict[str, Any] = json.loads(answer)["error"]
    return error


@pytest.mark.model
@pytest.mark.timeout(60)
def test_choices_expressions_and_grammars_shape_the_answer(url: str) -> None:
    assert text(url, guided_choice=["crimson", "azure"]) in ("crimson", "azure")
    assert text(url, structured_outputs={"regex": r"[0-9]{3}/[a-c]{2}"})[3] == "/"
    assert text(url, structured_outputs={"grammar": 'start: "x" ("y" | "z") "!"'}) in ("xy!", "xz!")
    assert isinstance(json.loads(text(url, guided_json='{"type": "boolean"}')), bool)


@pytest.mark.model
@pytest.mark.timeout(60)
def test_with_ignore_eos_a_grammar_ends_when_it_is_complete(url: str) -> None:
    answer = said(url, guided_choice=["crimson"], ignore_eos=True, max_tokens=40)
    assert (answer["message"]["content"], answer["finish_reason"]) == ("crimson", "stop")
    assert len(text(url, regex="[a-z]+", ignore_eos=True)) > 24


@pytest.mark.model
@pytest.mark.timeout(60)
def test_min_tokens_and_stop_token_ids_move_the_end(url: str) -> None:
    whole = said(url, return_token_ids=True, ignore_eos=True)
    ids = whole["token_ids"]
    stop = ids[5]
    first = ids.index(stop)
    stopped = said(url, stop_token_ids=[stop], return_token_ids=True, ignore_eos=True)
    assert (stopped["token_ids"], stopped["finish_reason"]) == (ids[: first + 1], "stop")
    assert whole["message"]["content"].startswith(stopped["message"]["content"])
    later = said(url, stop_token_ids=[stop], min_tokens=first + 5, ignore_eos=True)
    assert later["usage"]["completion_tokens"] >= first + 5
    word = whole["message"]["content"].split()[0]
    assert said(url, stop=word, min_tokens=20, ignore_eos=True)["usage"]["completion_tokens"] >= 20
    assert refusal(url, min_tokens=25)["param"] == "min_tokens"
    assert refusal(url, min_tokens=-1)["param"] == "min_tokens"
    assert refusal(url, stop_token_ids=[10**9])["param"] == "stop_token_ids"
    assert refusal(url, stop_token_ids=list(range(999)))["param"] == "stop_token_ids"


@pytest.mark.model
@pytest.mark.timeout(60)
def test_the_template_gets_what_the_client_tells_it_and_nothing_that_is_the_engines(url: str) -> None:
    plain = said(url)["usage"]["prompt_tokens"]
    assert said(url, chat_template_kwargs={"mood": "very cheerful indeed"})["usage"]["prompt_tokens"] > plain
    assert said(url, reasoning_effort="high")["usage"]["prompt_tokens"] > plain
    assert said(url, chat_template_kwargs={"unused": True})["usage"]["prompt_tokens"] == plain
    assert refusal(url, chat_template_kwargs={"messages": []})["param"] == "chat_template_kwargs"
    assert refusal(url, chat_template_kwargs={"mood": "x" * 20_000})["param"] == "chat_template_kwargs"


@pytest.mark.model
@pytest.mark.timeout(60)
def test_what_is_not_honoured_is_refused_over_the_wire(url: str) -> None:
    for name in ("prompt_logprobs", "bad_words", "allowed_token_ids"):
        assert refusal(url, **{name: [5]})["param"] == name
        said(url, **{name: None})
    assert refusal(url, top_logprobs=3)["param"] == "top_logprobs"
    assert refusal(url, guided_regex="(([a-z]{1,100}){1,100}){1,100}")["param"] == "guided_regex"
