"""Rules choose a model by what is asked, and say why."""

from typing import Any

import pytest

from headgate.config.models import ModelConfig, RuleConfig
from headgate.policy.rollout.capability import RequestTraits, Room, ask_of, choose, fits

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
        ({}, RequestTraits(), None),
        ({"tasks": frozenset({"extract", "classify"})}, RequestTraits(task="extract"), RequestTraits(task="chat")),
        ({"prompt_tokens_above": 100}, RequestTraits(prompt_tokens=101), RequestTraits(prompt_tokens=100)),
        ({"prompt_tokens_below": 100}, RequestTraits(prompt_tokens=99), RequestTraits(prompt_tokens=100)),
        ({"tools": True}, RequestTraits(tools=True), RequestTraits()),
        ({"tools": False}, RequestTraits(), RequestTraits(tools=True)),
        ({"images": True}, RequestTraits(images=True), RequestTraits()),
        ({"images": False}, RequestTraits(), RequestTraits(images=True)),
        (
            {"response_format": frozenset({"json_schema"})},
            RequestTraits(response_format="json_schema"),
            RequestTraits(),
        ),
        ({"response_format": frozenset({"text"})}, RequestTraits(), RequestTraits(response_format="json_object")),
        (
            {"headers": {"X-App": "mobile"}},
            RequestTraits(headers={"x-app": "mobile"}),
            RequestTraits(headers={"x-app": "web"}),
        ),
        ({"tools": True, "images": True}, RequestTraits(tools=True, images=True), RequestTraits(tools=True)),
    ],
)
def test_all_that_a_rule_says_must_fit(
    what: dict[str, Any], fitting: RequestTraits, not_fitting: RequestTraits | None
) -> None:
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
    assert choose(model, RequestTraits(prompt_tokens=10, images=True), nobody).model == "vision"
    short = choose(model, RequestTraits(prompt_tokens=10), nobody)
    assert (short.model, short.reason) == ("small", "rule short: 10 prompt tokens, no tools, format text")
    mine = choose(model, RequestTraits(task="code", prompt_tokens=5000, tools=True, headers={"x-app": "ide"}), nobody)
    assert (mine.model, mine.reason) == ("coder", "rule mine: task code, tools, no images, header x-app")
    other = choose(model, RequestTraits(prompt_tokens=5000), nobody)
    assert (other.model, other.reason) == ("large", "no rule fits")
    assert nobody.asked == []  # room is asked for only where something could be used instead


def test_a_full_model_is_left_for_the_one_that_may_be_used_instead_if_that_has_room() -> None:
    model = ModelConfig(name="auto", rules=(rule(when_full="large"),), use="large", when_full="small", full_above=0.75)
    assert choose(model, RequestTraits(), rooms(small=FREE)).model == "small"
    full = choose(model, RequestTraits(), rooms(small=FULL, large=FREE))
    assert (full.model, full.reason) == ("large", "rule r; small is full (8 of 8, 0 waiting)")
    both = choose(model, RequestTraits(), rooms(small=Room(8, 6), large=Room(0, 0)))
    assert (both.model, both.reason) == ("small", "rule r; small is full, and large too")
    queue = choose(model, RequestTraits(), rooms(small=Room(8, 1, 4), large=FREE))
    assert queue.model == "large"


def test_the_reverse_only_where_it_is_allowed() -> None:
    simple = rule(name="simple", tools=False)
    one_way = ModelConfig(name="auto", rules=(simple,), use="large")
    assert choose(one_way, RequestTraits(tools=True), rooms(large=FULL, small=FREE)).model == "large"
    both_ways = ModelConfig(name="auto", rules=(simple,), use="large", when_full="small")
    assert choose(both_ways, RequestTraits(tools=True), rooms(large=FULL, small=FREE)).model == "small"


def test_a_name_without_rules_is_an_alias_that_may_have_a_way_out() -> None:
    model = ModelConfig(name="auto", use="small", when_full="large")
    assert choose(model, RequestTraits(), rooms(small=FREE)).reason == "the only choice"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, RequestTraits()),
        ({"tools": [{}], "messages": "odd"}, RequestTraits(tools=True)),
        ({"functions": [{}]}, RequestTraits(tools=True)),
        ({"tools": []}, RequestTraits()),
        ({"response_format": {"type": "json_object"}}, RequestTraits(response_format="json_object")),
        ({"response_format": {"type": 3}}, RequestTraits()),
        ({"response_format": "json"}, RequestTraits()),
        ({"messages": [{"content": [{"type": "text"}, {"type": "image_url"}]}]}, RequestTraits(images=True)),
        ({"messages": [{"content": [{"type": []}, {"type": {}}, {}, 5]}]}, RequestTraits()),
        ({"input": [{"content": [{"type": "input_image"}]}, "text"]}, RequestTraits(images=True)),
        (
            {"messages": [{"content": [{"type": "text"}]}, "odd", {"content": "hello"}, {"content": ["odd"]}]},
            RequestTraits(),
        ),
    ],
)
def test_what_a_body_asks_for(body: dict[str, Any], expected: RequestTraits) -> None:
    assert ask_of(body, {}, "", 1) == expected
