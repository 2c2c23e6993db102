"""Rules choose a model by what is asked, and say why."""

from typing import Any

import pytest

from headgate.model.models_config import ModelConfig, RuleConfig
from headgate.policy.capability import Ask, Room, ask_of, choose, fits

FREE, FULL = Room(8, 3), Room(8, 8)


def rule(**what: Any) -> RuleConfig:
    return RuleConfig(**{"name": "r", "use": "small", **what})


def rooms(**known: Room) -> Any:
    asked: list[str] = []

    def room(model: str) -> Room:
        asked.append(model)
        return known[model]

    room.asked = asked  # type: ignore[attr-defined]
    return room


@pytest.mark.parametrize(
    ("what", "fitting", "not_fitting"),
    [
        ({}, Ask(), None),
        ({"tasks": frozenset({"extract", "classify"})}, Ask(task="extract"), Ask(task="chat")),
        ({"prompt_tokens_above": 100}, Ask(prompt_tokens=101), Ask(prompt_tokens=100)),
        ({"prompt_tokens_below": 100}, Ask(prompt_tokens=99), Ask(prompt_tokens=100)),
        ({"tools": True}, Ask(tools=True), Ask()),
        ({"tools": False}, Ask(), Ask(tools=True)),
        ({"images": True}, Ask(images=True), Ask()),
        ({"images": False}, Ask(), Ask(images=True)),
        ({"response_format": frozenset({"json_schema"})}, Ask(response_format="json_schema"), Ask()),
        ({"response_format": frozenset({"text"})}, Ask(), Ask(response_format="json_object")),
        ({"headers": {"X-App": "mobile"}}, Ask(headers={"x-app": "mobile"}), Ask(headers={"x-app": "web"})),
        ({"tools": True, "images": True}, Ask(tools=True, images=True), Ask(tools=True)),
    ],
)
def test_all_that_a_rule_says_must_fit(what: dict[str, Any], fitting: Ask, not_fitting: Ask | None) -> None:
    assert fits(rule(**what), fitting)
    assert not_fitting is None or not fits(rule(**what), not_fitting)


def test_the_first_rule_that_fits_counts_and_says_what_it_was_about() -> None:
    model = ModelConfig(
        name="auto",
        rules=(
            rule(name="seeing", images=True, use="vision"),
            rule(name="short", prompt_tokens_below=1000, tools=False, response_format=frozenset({"text"})),
            rule(
                name="mine", tasks=frozenset({"code"}), headers={"x-app": "ide"}, tools=True, images=False, use="coder"
            ),
        ),
        use="large",
    )
    nobody = rooms()
    assert choose(model, Ask(prompt_tokens=10, images=True), nobody).model == "vision"
    short = choose(model, Ask(prompt_tokens=10), nobody)
    assert (short.model, short.reason) == ("small", "rule short: 10 prompt tokens, no tools, format text")
    mine = choose(model, Ask(task="code", prompt_tokens=5000, tools=True, headers={"x-app": "ide"}), nobody)
    assert (mine.model, mine.reason) == ("coder", "rule mine: task code, tools, no images, header x-app")
    other = choose(model, Ask(prompt_tokens=5000), nobody)
    assert (other.model, other.reason) == ("large", "no rule fits")
    assert nobody.asked == []  # room is asked for only where something could be used instead


def test_a_full_model_is_left_for_the_one_that_may_be_used_instead_if_that_has_room() -> None:
    model = ModelConfig(name="auto", rules=(rule(when_full="large"),), use="large", when_full="small", full_above=0.75)
    assert choose(model, Ask(), rooms(small=FREE)).model == "small"
    full = choose(model, Ask(), rooms(small=FULL, large=FREE))
    assert (full.model, full.reason) == ("large", "rule r; small is full (8 of 8, 0 waiting)")
    both = choose(model, Ask(), rooms(small=Room(8, 6), large=Room(0, 0)))
    assert (both.model, both.reason) == ("small", "rule r; small is full, and large too")
    queue = choose(model, Ask(), rooms(small=Room(8, 1, 4), large=FREE))
    assert queue.model == "large"


def test_the_reverse_only_where_it_is_allowed() -> None:
    simple = rule(name="simple", tools=False)
    one_way = ModelConfig(name="auto", rules=(simple,), use="large")
    assert choose(one_way, Ask(tools=True), rooms(large=FULL, small=FREE)).model == "large"
    both_ways = ModelConfig(name="auto", rules=(simple,), use="large", when_full="small")
    assert choose(both_ways, Ask(tools=True), rooms(large=FULL, small=FREE)).model == "small"


def test_a_name_without_rules_is_an_alias_that_may_have_a_way_out() -> None:
    model = ModelConfig(name="auto", use="small", when_full="large")
    assert choose(model, Ask(), rooms(small=FREE)).reason == "the only choice"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Ask()),
        ({"tools": [{}], "messages": "odd"}, Ask(tools=True)),
        ({"functions": [{}]}, Ask(tools=True)),
        ({"tools": []}, Ask()),
        ({"response_format": {"type": "json_object"}}, Ask(response_format="json_object")),
        ({"response_format": {"type": 3}}, Ask()),
        ({"response_format": "json"}, Ask()),
        ({"messages": [{"content": [{"type": "text"}, {"type": "image_url"}]}]}, Ask(images=True)),
        ({"messages": [{"content": [{"type": []}, {"type": {}}, {}, 5]}]}, Ask()),
        ({"input": [{"content": [{"type": "input_image"}]}, "text"]}, Ask(images=True)),
        ({"messages": [{"content": [{"type": "text"}]}, "odd", {"content": "hello"}, {"content": ["odd"]}]}, Ask()),
    ],
)
def test_what_a_body_asks_for(body: dict[str, Any], expected: Ask) -> None:
    assert ask_of(body, {}, "", 1) == expected
