import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.output import OutputConfig
from headgate.model.errors import InvalidRequest
from headgate.model.lane import LANES
from headgate.model.request import Request
from headgate.policy.answers.output import Output
from headgate.policy.compose import classifier, intake_for
from headgate.policy.dispatch.intake import Classifier, RequestIntake, classify

ANYONE = Tenant(name="anonymous")


def intake() -> RequestIntake:
    return intake_for(GatewayConfig(), dict(LANES))


def request(made: RequestIntake, allowed: int | None = None, choices: int = 1) -> Request:
    return made.request(
        id="r",
        arrived=10.0,
        model="m",
        lane=LANES["fast"],
        priority=3,
        tenant=ANYONE,
        name="x",
        prompt_tokens=9,
        allowed=allowed,
        stream=True,
        choices=choices,
        prefix=(),
        session=None,
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "streaming", "says_batch", "lane"),
    [
        (20_000, True, True, "long"),
        (100, True, True, "batch"),
        (511, True, False, "fast"),
        (512, True, False, "slow"),
        (100, False, False, "slow"),
    ],
)
def test_the_first_lane_that_matches_takes_the_request(
    prompt_tokens: int, streaming: bool, says_batch: bool, lane: str
) -> None:
    assert classify(uncached_tokens=prompt_tokens, streaming=streaming, says_batch=says_batch) == lane
    assert intake().lane(None, ANYONE, prompt_tokens, streaming, says_batch).name == lane


def test_a_named_lane_goes_before_the_tenants_and_that_before_the_prompts_length() -> None:
    night = Tenant(name="night", default_lane="batch")
    assert intake().lane("long", night, 9, True, False).name == "long"
    assert intake().lane(None, night, 9, True, False).name == "batch"


def test_a_lane_that_does_not_exist_or_is_not_open_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no lane 'quick'; there are fast, slow, long, batch"):
        intake().lane("quick", ANYONE, 9, True, False)
    with pytest.raises(InvalidRequest, match="lane 'fast' is not open to tenant 'night'"):
        intake().lane("fast", Tenant(name="night", lanes=frozenset({"batch"})), 9, True, False)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no task 'dance'; there are chat"):
        intake().allow(None, "dance", ANYONE, LANES["fast"], 9, True)
    assert intake().allow(7, None, ANYONE, LANES["fast"], 9, True).tokens == 7


def test_expected_output_is_the_usual_of_the_lane_or_what_is_allowed_if_that_is_less() -> None:
    made = intake()
    assert request(made).max_output == 128
    assert request(made, allowed=40, choices=3).max_output == 120
    for _ in range(200):
        made.learn(request(made, choices=2), "m", False, 0, 5000, 40)
    assert request(made).max_output == 20
    assert made.prompt_tokens("m", False, 400) == 100  # without text nothing was learned of the prompt


def test_bounds_count_from_the_arrival() -> None:
    made, lane = request(intake()), LANES["fast"]
    assert (made.wait_until, made.first_token_by) == (10.0 + lane.wait_bound_s, 10.0 + lane.ttft_target_s)
    assert (made.priority, made.tenant, made.weight, made.tier) == (3, "x", ANYONE.weight, ANYONE.tier)


def test_prompt_sizes_are_learned_by_the_name_that_the_client_asked_for() -> None:
    made = intake()
    for size in range(400, 1400, 100):
        made.learn(request(made), "public", False, size, size // 4 + 30, 9)
    assert made.prompt_tokens("public", False, 4000) == 1030
    assert made.prompt_tokens("public", True, 4000) == 1000


def test_a_new_config_changes_lines_and_caps_and_keeps_what_was_learned() -> None:
    made = intake()
    made.learn(request(made), "m", False, 100, 50, 9)
    made.reconfigure(Classifier(1000, 10), None)
    assert made.lane(None, ANYONE, 500, True, False).name == "slow"
    assert made.prompt_tokens("m", False, 100) == 50
    off = Output(OutputConfig(caps=False))
    made.reconfigure(classifier(GatewayConfig()), off)
    assert made.output is off


def test_the_lanes_that_depend_on_what_replicas_have_cached() -> None:
    made = intake()
    assert made.lanes_in_question(None, ANYONE, 100, True, False) == []  # fast, however much is cached
    assert made.lanes_in_question(None, ANYONE, 600, True, False) == ["fast", "slow"]
    assert made.lanes_in_question(None, ANYONE, 20_000, True, False) == ["fast", "slow", "long"]
    assert made.lanes_in_question(None, ANYONE, 20_000, False, True) == ["batch", "long"]
    assert made.lanes_in_question("slow", ANYONE, 20_000, True, False) == []
    assert made.lanes_in_question(None, Tenant(name="x", default_lane="slow"), 20_000, True, False) == []


def test_what_is_cached_may_be_told_with_the_question() -> None:
    made = intake()
    told = {None: 900, "fast": 900}
    lane, uncached = made.classified(
        None, ANYONE, (b"p",), 64.0, 1000, "m", True, False, lambda _, __, ___, ____, name: told.get(name, 0)
    )
    assert (lane.name, uncached) == ("fast", 100)
