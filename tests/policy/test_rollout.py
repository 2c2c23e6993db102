"""Who gets which version, and how a rollout goes from step to step."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headgate.config.models import (
    CanaryConfig,
    ModelConfig,
    QualityConfig,
    RuleConfig,
    ScorerConfig,
    VersionConfig,
    contradictions,
)
from headgate.policy.rollout.rollout import (
    NEXT,
    UNDER_WAY,
    No,
    Rollout,
    RolloutEvent,
    RolloutStep,
    Stage,
    TrafficSplit,
    digest_of,
    next_stage,
)
from headgate.policy.rollout.verdict import VersionSample
from tests.policy.test_verdict import ordinary

V1, V2 = VersionConfig(name="v1", model="a", weight=1), VersionConfig(name="v2", model="b")
CHAT = ModelConfig(name="chat", versions=(V1, V2))
QUICK = replace(CHAT, canary=CanaryConfig(step_requests=400, min_samples=20, limit_requests=4000, soak_s=100))


def started(config: ModelConfig = QUICK, mode: Any = "canary", share: float | None = None) -> Rollout:
    rollout = Rollout(config)
    assert isinstance(rollout.start("v2", mode, share, 10.0), RolloutStep)
    return rollout


def feed(rollout: Rollout, requests: int, now: float, factor: float = 1.0, seed: int = 1) -> RolloutStep | None:
    """Until something is done."""
    rng = random.Random(seed)
    for _ in range(requests):
        rollout.take(ordinary(rng, rng.random() < rollout.share, factor))
        step = rollout.look(now)
        if step is not None:
            return step
    return None


def refusal(answer: RolloutStep | No) -> str:
    assert isinstance(answer, No)
    return answer.why


# -- who gets what -------------------------------------------------------------------------------------------


def test_shares_are_what_they_say_and_a_session_stays_where_it_is() -> None:
    split = TrafficSplit((("v1", 0.75), ("v3", 0.25)), "v2", 0.2)
    picked = [split.pick(digest_of("chat", f"session {number}")) for number in range(20_000)]
    counts = Counter(picked)
    assert dict(picked) == pytest.approx({"v1": 0.6, "v2": 0.2, "v3": 0.2})
    assert all(count / 20_000 == pytest.approx(share, abs=0.01) for (_, share), count in counts.items())
    assert picked[:100] == [split.pick(digest_of("chat", f"session {number}")) for number in range(100)]


def test_when_the_share_grows_nobody_leaves_the_new_version_and_nobody_else_moves() -> None:
    shares = [TrafficSplit((("v1", 0.5), ("v3", 0.5)), "v2", share) for share in (0.05, 0.2, 0.5)]
    for number in range(3000):
        digest = digest_of("chat", str(number))
        versions = [split.pick(digest)[0] for split in shares]
        assert len([1 for before, after in pairwise(versions) if before != after]) <= 1
        assert "v2" not in versions or versions[versions.index("v2") :] == ["v2"] * (3 - versions.index("v2"))


def test_names_are_tried_on_different_sessions() -> None:
    split = TrafficSplit((("v1", 1.0),), "v2", 0.5)
    same = sum(split.pick(digest_of("a", str(n))) == split.pick(digest_of("b", str(n))) for n in range(2000))
    assert 900 < same < 1100


def test_rounding_leaves_nobody_without_a_version() -> None:
    assert TrafficSplit((("v1", 0.5), ("v3", 0.499999))).pick(b"\xff" * 16)[0] == "v3"


def test_configured_weights_without_a_rollout() -> None:
    rollout = Rollout(ModelConfig(name="chat", versions=(replace(V1, weight=95), replace(V2, weight=5))))
    assert rollout.split == TrafficSplit((("v1", 0.95), ("v2", 0.05)))
    assert rollout.shadow is None
    assert rollout.look(1.0) is None
    assert rollout.rows() == []
    rollout.take(VersionSample(True))  # nothing is compared


# -- canary --------------------------------------------------------------------------------------------------


def test_an_equal_version_goes_through_all_steps_soaks_and_gets_everything() -> None:
    rollout = Rollout(replace(QUICK, canary=replace(QUICK.canary, limit_requests=20_000)))
    assert isinstance(rollout.start("v2", "canary", None, 10.0), RolloutStep)
    assert rollout.split == TrafficSplit((("v1", 1.0),), "v2", 0.05)
    shares = []
    now = 10.0
    while rollout.stage is Stage.CANARY:
        now += 10.0
        assert feed(rollout, 20_000, now) is not None
        shares.append(rollout.share)
    assert shares == [0.2, 0.5, 0.5]
    assert rollout.stage.value == "soaking"
    assert rollout.since == 30.0  # the soak counts from the last step
    assert rollout.look(129.0) is None
    assert feed(rollout, 1, 130.0) is not None
    assert rollout.stage is Stage.PROMOTED
    assert rollout.split == TrafficSplit((("v2", 1.0),))
    assert [step.stage for step in rollout.history] == ["canary", "canary", "canary", "soaking", "promoted"]
    assert isinstance(rollout.rollback(200.0), RolloutStep)
    assert rollout.split == TrafficSplit((("v1", 1.0),))


def test_a_worse_version_is_rolled_back_by_itself() -> None:
    rollout = started()
    for _ in range(4):
        feed(rollout, 4000, 20.0, factor=1.5)
    assert rollout.stage is Stage.ROLLED_BACK
    assert "is more than 1.05 times the baseline's" in rollout.history[-1].reason
    assert rollout.split == TrafficSplit((("v1", 1.0),))
    assert rollout.rows()  # what it was judged by can still be seen
    assert rollout.look(30.0) is None


def test_harm_is_looked_for_during_the_soak() -> None:
    rollout = started()
    rollout.stage = Stage.SOAKING
    assert feed(rollout, 8000, 20.0, factor=2.0) is not None
    assert rollout.stage is Stage.ROLLED_BACK


@pytest.mark.parametrize(("when_unsure", "stage"), [("rollback", Stage.ROLLED_BACK), ("hold", Stage.HELD)])
def test_not_enough_evidence_is_an_answer(when_unsure: Any, stage: Stage) -> None:
    rollout = started(replace(QUICK, canary=replace(QUICK.canary, when_unsure=when_unsure, limit_requests=1500)))
    for _ in range(5):
        feed(rollout, 4000, 20.0)
    assert rollout.stage is stage
    assert rollout.history[-1].reason.startswith("not enough evidence after 1500 requests: ")
    assert rollout.share == (0.5 if stage is Stage.HELD else 0.0)


def test_a_canary_that_nobody_gets_is_not_promoted() -> None:
    rollout = started()
    for _ in range(4000):
        rollout.take(VersionSample(False, 0.1))
    step = rollout.look(20.0)
    assert step is not None
    assert step.reason.endswith("no request of it has ended")


def test_after_holding_it_is_still_rolled_back_for_harm_but_never_promoted_by_itself() -> None:
    rollout = started()
    rollout.stage = Stage.HELD
    assert feed(rollout, 3000, 20.0) is None
    assert feed(rollout, 8000, 20.0, factor=2.0) is not None
    assert rollout.stage is Stage.ROLLED_BACK


# -- the other ways ------------------------------------------------------------------------------------------


def test_blue_green_switches_at_once_and_back() -> None:
    rollout = started(mode="blue_green")
    assert rollout.split == TrafficSplit((("v2", 1.0),))
    assert rollout.judge is None  # nothing beside it to compare with
    assert isinstance(rollout.rollback(20.0), RolloutStep)
    assert rollout.split == TrafficSplit((("v1", 1.0),))
    assert refusal(rollout.rollback(21.0)).startswith("there is nothing to roll back: chat is rolled back")


def test_a_split_is_compared_and_never_decided() -> None:
    rollout = started(mode="split", share=0.4)
    assert rollout.split == TrafficSplit((("v1", 1.0),), "v2", 0.4)
    assert feed(rollout, 4500, 20.0, factor=2.0) is None
    assert rollout.verdict is not None
    assert rollout.verdict.state == "worse"
    assert isinstance(rollout.promote(30.0), RolloutStep)
    assert rollout.split == TrafficSplit((("v2", 1.0),))


def test_a_shadow_leaves_every_request_where_it_was() -> None:
    rollout = started(mode="shadow", share=0.3)
    assert rollout.split == TrafficSplit((("v1", 1.0),))
    assert rollout.shadow == ("v2", 0.3)
    assert started(mode="shadow").shadow == ("v2", 0.05)
    assert isinstance(rollout.rollback(20.0), RolloutStep)
    assert rollout.shadow is None


def test_after_a_promotion_the_next_one_comes_back_to_it() -> None:
    v3 = VersionConfig(name="v3", model="c")
    rollout = Rollout(replace(QUICK, versions=(V1, V2, v3)))
    rollout.start("v2", "blue_green", None, 1.0)
    rollout.start("v3", "canary", None, 2.0)
    assert rollout.split == TrafficSplit((("v2", 1.0),), "v3", 0.05)
    rollout.rollback(3.0)
    assert rollout.split == TrafficSplit((("v2", 1.0),))


def test_what_can_not_be_done_says_why() -> None:
    rollout = Rollout(replace(QUICK, versions=(V1, V2, VersionConfig(name="v3", model="c", weight=1))))
    assert refusal(rollout.start("v9", "canary", None, 1.0)) == "chat has no version v9; there is v1, v2, v3"
    assert "has 50% already" in refusal(rollout.start("v3", "canary", None, 1.0))
    assert "serves clients" in refusal(rollout.start("v3", "shadow", None, 1.0))
    assert "a share is for a split" in refusal(rollout.start("v2", "canary", 0.3, 1.0))
    assert "above 0 and below 1" in refusal(rollout.start("v2", "split", 1.0, 1.0))
    assert refusal(rollout.promote(1.0)) == "nothing of chat is being tried out"
    assert refusal(rollout.rollback(1.0)) == "there is nothing to roll back: chat is stable"
    assert isinstance(rollout.start("v2", "canary", None, 1.0), RolloutStep)
    assert "promote it or roll it back first" in refusal(rollout.start("v3", "split", None, 2.0))
    assert refusal(Rollout(CHAT).start("v1", "split", None, 1.0)) == "v1 has all requests already"


# -- the table -----------------------------------------------------------------------------------------------


def test_every_pair_of_stage_and_event_is_written_down() -> None:
    assert set(NEXT) == set(Stage)
    assert all(len(row) == len(RolloutEvent) for row in NEXT.values())
    for stage in Stage:
        assert next_stage(stage, RolloutEvent.ROLLBACK) in (Stage.STABLE, Stage.ROLLED_BACK)
        if stage in UNDER_WAY:
            assert next_stage(stage, RolloutEvent.PROMOTE) is Stage.PROMOTED
    by_itself = [
        next_stage(stage, happened) for happened in (RolloutEvent.FINE, RolloutEvent.UNDECIDED) for stage in Stage
    ]
    assert by_itself.count(Stage.PROMOTED) == 2  # only those that are: nothing is promoted without its soak


def test_at_its_last_step_a_canary_is_proved_fine_by_the_requests_that_are_left() -> None:
    rollout = started()
    while rollout.share < 0.5:
        assert feed(rollout, 4000, 20.0) is not None
    judge = rollout.judge
    assert judge is not None
    assert judge._in_all is not None
    left = QUICK.canary.limit_requests - judge.requests
    assert 0 < left < QUICK.canary.limit_requests
    assert judge._in_all - judge._exposure == pytest.approx(left * 0.5 * 0.5)


# -- restarts ------------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was() -> None:
    rollout = started()
    feed(rollout, 4000, 20.0)
    assert rollout.share == 0.2
    again = Rollout(QUICK)
    assert again.restore(rollout.to_dict()) is None
    assert again.split == rollout.split
    assert (again.stage, again.since, list(again.history)) == (rollout.stage, rollout.since, list(rollout.history))
    assert again.judge is not None
    assert again.judge.requests == 0  # what was seen is seen anew
    step = feed(again, 4000, 30.0, seed=2)
    assert step is not None
    assert step.share == 0.5
    last = Rollout(replace(QUICK, canary=replace(QUICK.canary, limit_requests=20_000)))
    assert last.restore(again.to_dict()) is None
    assert feed(last, 20_000, 40.0, seed=4) is not None
    assert last.stage is Stage.SOAKING
    done = Rollout(QUICK)
    last.promote(50.0)
    assert done.restore(last.to_dict()) is None
    assert done.judge is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stage": "odd"}, "can't be read"),
        ({"mode": "odd"}, "can't be read"),
        ({"weights": {"v1": "x"}}, "can't be read"),
        ({"history": [{"at": "x"}]}, "can't be read"),
        ({"weights": {"v9": 1.0}}, "versions of chat have changed: v9"),
        ({"candidate": "v9"}, "versions of chat have changed: v9"),
        ({"weights": {"v1": 0.0}}, "none has a weight"),
    ],
)
def test_what_was_kept_of_something_else_is_not_taken(change: dict[str, Any], why: str) -> None:
    rollout = Rollout(QUICK)
    kept = {**started().to_dict(), **change}
    said = rollout.restore(kept)
    assert said is not None
    assert why in said
    assert rollout.stage is Stage.STABLE


# -- config --------------------------------------------------------------------------------------------------


def complaints(*models: ModelConfig, served: set[str] | None = None) -> list[str]:
    known = None if served is None else frozenset(served)
    return [f"{path}: {problem}" for path, problem in contradictions(models, known)]


def test_what_a_config_can_not_mean() -> None:
    small = ModelConfig(name="small", use="a")
    assert complaints(CHAT, served={"a", "b"}) == []
    assert complaints(CHAT, small, ModelConfig(name="auto", use="chat"), served={"a", "b"}) == []
    assert "models[1].name: chat is already the name of models[0]" in complaints(CHAT, CHAT)
    assert "replicas serve chat under that name" in complaints(CHAT, served={"a", "b", "chat"})[0]
    assert complaints(ModelConfig(name="x")) == ["models[0]: expected either versions, or rules and use"]
    assert complaints(replace(CHAT, use="a"))[0] == "models[0]: expected either versions, or rules and use"
    assert "two versions v1" in complaints(replace(CHAT, versions=(V1, replace(V2, name="v1"))))[0]
    assert "could not be told apart" in complaints(replace(CHAT, versions=(V1, replace(V2, model="a"))))[0]
    assert "no replica serves b; there is a" in complaints(CHAT, served={"a"})[0]
    assert "a weight above 0" in complaints(replace(CHAT, versions=(V2,)))[0]
    steps = [complaints(replace(CHAT, canary=CanaryConfig(steps=some))) for some in ((), (0.5, 0.2), (0.5, 1.0))]
    assert all("expected shares that grow" in one[0] for one in steps)
    assert "less than unacceptable" in complaints(replace(CHAT, canary=CanaryConfig(acceptable=1.3)))[0]
    assert "3 steps of step_requests" in complaints(replace(CHAT, canary=CanaryConfig(limit_requests=3000)))[0]


def test_what_scores_can_not_mean() -> None:
    def complaint(**given: Any) -> list[str]:
        return complaints(replace(CHAT, canary=CanaryConfig(quality=QualityConfig(**given))))

    program, address = ("score",), "http://127.0.0.1:9/score"
    assert (
        complaint()
        == complaint(scorer=ScorerConfig(command=program))
        == complaint(scorer=ScorerConfig(url=address))
        == []
    )
    assert "quality.acceptable: expected less than unacceptable" in complaint(acceptable=0.03)[0]
    for scorer in (ScorerConfig(), ScorerConfig(command=program, url=address)):
        assert "quality.scorer: expected either a command or a url" in complaint(scorer=scorer)[0]


def test_what_rules_can_not_mean() -> None:
    rule = RuleConfig(name="r", use="a")
    assert "for requests that no rule fits" in complaints(ModelConfig(name="x", rules=(rule,)))[0]
    between = replace(rule, prompt_tokens_above=10, prompt_tokens_below=11)
    assert "nothing fits both" in complaints(ModelConfig(name="x", rules=(between,), use="a"))[0]
    nested = ModelConfig(name="y", rules=(replace(rule, when_full="x"),), use="a")
    assert "has rules of its own" in complaints(ModelConfig(name="x", use="a"), nested)[0]
    unknown = complaints(CHAT, ModelConfig(name="x", use="huge"), served={"a", "b"})
    assert unknown == ["models[1].use: no replica serves huge; there is a, b, chat"]
    assert complaints(ModelConfig(name="x", use="a"), served=set()) == [
        "models[0].use: no replica serves a; there is none with a name"
    ]


# -- beside pools that grow ---------------------------------------------------------------------------------------


def test_the_share_waits_for_the_tried_versions_replicas_and_only_grows() -> None:
    rollout = started(CHAT, "split", 0.5)
    rollout.hold(0.0)
    assert rollout.split.share == 0.0
    assert rollout.planned == {"a": 1.0, "b": 0.5}
    assert rollout.climb(0.2)
    assert rollout.split.share == 0.2
    assert rollout.planned == {"a": pytest.approx(0.8), "b": 0.5}
    assert not rollout.climb(0.1)
    assert rollout.climb(3.0)
    assert rollout.split.share == 0.5
    assert isinstance(rollout.rollback(20.0), RolloutStep)
    assert rollout.planned == {"a": 1.0}


def test_a_promoted_version_gets_the_rest_as_its_replicas_come() -> None:
    rollout = started(CHAT, "blue_green")
    rollout.hold(0.3)
    assert rollout.split == TrafficSplit((("v1", 1.0),), "v2", 0.3)
    assert rollout.planned == {"a": pytest.approx(0.7), "b": 1.0}
    assert rollout.climb(1.0)
    assert rollout.split == TrafficSplit((("v2", 1.0),))
    assert rollout.planned == {"b": 1.0}
