"""The length that an answer may have."""

from typing import Any

import pytest

from headgate.config.output import TASKS, AliasConfig, OutputConfig, TaskConfig
from headgate.policy.answers.output import MOST_STOPS, Allowance, Output, UnknownTask, apply

CEILING = 4096


def allow(
    named: str | None = None,
    asked: int | None = None,
    *,
    default: str | None = None,
    prompt: int = 100,
    ceiling: int = CEILING,
    most: int | None = None,
    caps: bool = True,
    config: OutputConfig | None = None,
    chat: bool = False,
) -> Allowance:
    found = Output(config or OutputConfig()).allow(named, default, asked, prompt, ceiling, most, caps, chat)
    assert isinstance(found, Allowance)
    return found


@pytest.mark.parametrize(
    ("task", "cap"), [("extract", 96), ("classify", 96), ("chat", 384), ("reason", 768), ("code", 768), ("other", 256)]
)
def test_a_task_has_its_cap_where_the_client_gives_no_value(task: str, cap: int) -> None:
    found = allow(task)
    assert (found.task, found.tokens, found.why) == (task, cap, f"{cap}; task={task}")
    assert allow(default=task).tokens == cap


def test_who_names_no_task_has_the_cap_of_all_others() -> None:
    assert (allow().task, allow().tokens, allow().why) == ("other", 256, "256; task=other")


def test_a_chat_that_names_no_task_is_a_chat_and_is_watched() -> None:
    found = allow(chat=True)
    assert (found.task, found.tokens, found.why, found.runaway) == ("chat", 384, "384; task=chat", "safe")
    assert (allow(chat=True, prompt=4001).tokens, allow(asked=3000, chat=True).tokens) == (256, 3000)
    assert (allow(asked=3000, chat=True).runaway, allow(asked=3000, chat=True).why) == ("safe", "")


def test_a_chat_that_says_otherwise_is_what_it_says() -> None:
    assert (allow("other", chat=True).task, allow("other", chat=True).runaway) == ("other", "off")
    assert (allow(default="code", chat=True).tokens, allow("extract", chat=True).tokens) == (768, 96)
    assert allow(chat=True, caps=False).runaway == "off"


def tasks(**changed: TaskConfig) -> OutputConfig:
    return OutputConfig(tasks={**TASKS, **changed})


def test_what_an_operator_sets_for_those_who_name_no_task_counts_for_chats_too() -> None:
    told = tasks(other=TaskConfig(max_tokens=600))
    found = allow(chat=True, config=told)
    assert (found.task, found.tokens, found.why, found.runaway) == ("chat", 600, "600; task=chat", "safe")
    assert allow("chat", config=told).tokens == 384
    assert allow(chat=True, config=tasks(other=TaskConfig(runaway="quick", stop=("###",)))).runaway == "quick"
    assert allow(chat=True, config=tasks(other=TaskConfig(stop=("###",)))).stop == ("###",)


def test_what_an_operator_sets_for_chats_counts_first() -> None:
    both = tasks(other=TaskConfig(max_tokens=600), chat=TaskConfig(max_tokens=500, runaway="off"))
    assert (allow(chat=True, config=both).tokens, allow(chat=True, config=both).runaway) == (500, "off")
    assert allow(chat=True, config=OutputConfig(tasks={"other": TaskConfig()})).task == "other"


def test_an_explicit_value_is_kept_up_to_the_lanes_ceiling() -> None:
    assert (allow(asked=3000).tokens, allow(asked=3000).why) == (3000, "")
    assert (allow(asked=9000).tokens, allow(asked=9000).why) == (CEILING, "4096; lane")
    assert allow(asked=CEILING).why == ""


def test_a_task_the_client_names_counts_even_beside_a_value_and_one_the_operator_named_does_not() -> None:
    assert (allow("chat", 3000).tokens, allow("chat", 3000).why) == (384, "384; task=chat")
    assert (allow(default="chat", asked=3000).tokens, allow(default="chat", asked=3000).why) == (3000, "")
    assert allow("code", default="chat").tokens == 768


def test_a_clients_value_is_never_raised() -> None:
    for task in (None, *TASKS):
        for asked in (1, 50, 95):
            assert allow(task, asked).tokens == asked
            assert allow(task, asked).why == ""


def test_a_long_prompt_tightens_every_tasks_cap_and_nobodys_value() -> None:
    assert (allow("code", prompt=4001).tokens, allow("code", prompt=4000).tokens) == (256, 768)
    assert allow("code", prompt=4001).why == "256; task=code; long prompt"
    assert allow("extract", prompt=4001).why == "96; task=extract"
    assert allow(asked=3000, prompt=9000).tokens == 3000


def test_a_tenants_own_ceiling_counts_last_and_even_without_caps() -> None:
    assert (allow("chat", most=100).tokens, allow("chat", most=100).why) == (100, "100; tenant")
    assert (allow(asked=5000, most=1000, caps=False).tokens, allow(caps=False, most=None).tokens) == (1000, None)


def test_caps_can_be_off_for_a_tenant_and_for_all() -> None:
    for found in (allow("chat", 9000, caps=False), allow("chat", 9000, config=OutputConfig(caps=False))):
        assert (found.task, found.tokens, found.why, found.stop, found.runaway) == ("", 9000, "", (), "off")


def test_only_chat_is_watched_for_repetition_unless_configured() -> None:
    assert {task: allow(task).runaway for task in TASKS if allow(task).runaway != "off"} == {"chat": "safe"}


def test_a_task_that_is_not_there_is_refused_with_those_that_are() -> None:
    found = Output(OutputConfig()).allow("poetry", None, None, 1, CEILING, None, True)
    assert isinstance(found, UnknownTask)
    assert (found.task, found.known) == ("poetry", tuple(TASKS))


def test_a_models_alias_names_a_task_and_may_stand_for_another_name() -> None:
    output = Output(OutputConfig(aliases=(AliasConfig(name="summary", task="extract", model="llama"),)))
    alias = output.alias("summary")
    assert alias is not None
    assert (alias.task, alias.model) == ("extract", "llama")
    assert output.alias("llama") is None
    for task in TASKS:
        own = Output(OutputConfig()).alias(task)
        assert (own is None) if task == "other" else (own is not None and own.task == task)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ({}, {"max_tokens": 384}),
        ({"max_tokens": None}, {"max_tokens": 384}),
        ({"max_tokens": 9000}, {"max_tokens": 384}),
        ({"max_completion_tokens": 9000}, {"max_completion_tokens": 384}),
        ({"max_tokens": 9000, "max_completion_tokens": 500}, {"max_tokens": 384, "max_completion_tokens": 384}),
        ({"max_tokens": 9000, "max_completion_tokens": 10}, {"max_tokens": 384, "max_completion_tokens": 10}),
    ],
)
def test_whichever_field_the_client_uses_is_the_one_that_is_lowered(
    body: dict[str, Any], after: dict[str, Any]
) -> None:
    apply(allow("chat"), body)
    assert body == after


def test_without_any_limit_the_body_is_left_alone() -> None:
    body: dict[str, Any] = {"temperature": 0}
    apply(allow(caps=False), body)
    assert body == {"temperature": 0}


@pytest.mark.parametrize(
    ("given", "after"),
    [
        (None, ["###", "END"]),
        ("x", ["x", "###", "END"]),
        (["END"], ["END", "###"]),
        (["a", "b", "c"], ["a", "b", "c", "###"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"]),
        (["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"]),
        (7, 7),
    ],
)
def test_stops_are_added_to_the_clients_as_far_as_there_is_room(given: Any, after: Any) -> None:
    config = OutputConfig(tasks={**TASKS, "chat": TaskConfig(stop=("###", "END"))})
    body = {} if given is None else {"stop": given}
    apply(allow("chat", config=config), body)
    assert body["stop"] == after
    assert MOST_STOPS == 4


@pytest.mark.parametrize(
    "shaped",
    [
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a+"}},
        {"guided_json": {}, "guided_choice": ["a", "b"]},
        {"guided_regex": "a+"},
        {"grammar": "root ::= [a-z]+"},
        {"json_schema": {"type": "object"}},
        {"regex": "a+"},
        {"ebnf": "root ::= [a-z]+"},
        {"structural_tag": "x"},
        {"format": "json"},
    ],
)
def test_a_tasks_stops_never_cut_what_has_a_form(shaped: dict[str, Any]) -> None:
    told = tasks(chat=TaskConfig(stop=("###",)))
    body = {"stop": "x", **shaped}
    apply(allow("chat", config=told), body)
    assert body["stop"] == "x"


def test_a_tasks_stops_are_not_for_several_answers_and_nothing_asked_is_no_form() -> None:
    told = allow("chat", config=tasks(chat=TaskConfig(stop=("###",))))
    several: dict[str, Any] = {}
    apply(told, several, 2)
    assert "stop" not in several
    nothings: list[dict[str, Any]] = [{"tools": []}, {"response_format": None}, {"temperature": 1}]
    for body in nothings:
        apply(told, body)
        assert body["stop"] == ["###"]


def test_only_labels_have_stops_by_default_and_none_of_those_is_text() -> None:
    """A chat, an extract or code may spell a template's own marks; a label can't."""
    stops = {task: allow(task).stop for task in TASKS if allow(task).stop}
    assert set(stops) == {"classify"}
    assert len(stops["classify"]) <= MOST_STOPS
    assert all(stop.startswith("<|") and stop.endswith("|>") for stop in stops["classify"])
