"""Scores of two versions: what is proven by them, when, and how seldom wrongly."""

import random
from collections import Counter
from collections.abc import Callable
from math import log

import pytest

from headgate.config.models import CanaryConfig, ModelConfig, QualityConfig, VersionConfig
from headgate.policy.rollout.quality import PAIRS, QualityBet, QualityContest
from headgate.policy.rollout.rollout import Rollout, RolloutStep, Stage
from headgate.policy.rollout.verdict import FALSE_ALARM, FALSE_PROMISE, Judge, VersionSample
from tests.policy.test_verdict import ordinary

Draw = Callable[[random.Random, float], float]


def thumbs(rng: random.Random, mean: float) -> float:
    return float(rng.random() < mean)


def judged(rng: random.Random, mean: float) -> float:
    """As a model that judges answers would score: spread over all of the range."""
    return rng.betavariate(3 * mean, 3 * (1 - mean))


def even(rng: random.Random, mean: float) -> float:
    return mean + rng.uniform(-0.02, 0.02)


def verdict(seed: int, draw: Draw, new: float, *, share: float = 0.5, most: int = 12_000) -> tuple[str, int]:
    """What the scores prove first: the old version's mean is 0.8."""
    rng, contest = random.Random(seed), QualityContest(0.01, 0.03)
    for number in range(most):
        canary = rng.random() < share
        if contest.take(canary, draw(rng, new if canary else 0.8)):
            if contest.harm.log_evidence >= log(1 / FALSE_ALARM):
                return "worse", number
            if contest.proven_fine(FALSE_PROMISE):
                return "fine", number
    return "unsure", most


@pytest.mark.parametrize(
    ("draw", "new", "share", "expected"),
    [
        (judged, 0.8, 0.5, "fine"),
        (judged, 0.7, 0.05, "worse"),
        (judged, 0.85, 0.5, "fine"),
        (judged, 0.76, 0.5, "worse"),
        (judged, 0.72, 0.5, "worse"),
        (thumbs, 0.72, 0.5, "worse"),
        (even, 0.8, 0.5, "fine"),
        (even, 0.76, 0.5, "worse"),
    ],
)
def test_what_is_equal_is_proven_fine_and_what_is_worse_worse(
    draw: Draw, new: float, share: float, expected: str
) -> None:
    found = Counter(verdict(seed, draw, new, share=share)[0] for seed in range(8))
    assert found[expected] >= 7
    assert set(found) <= {expected, "unsure"}


def test_a_verdict_is_seldom_wrong_however_often_it_is_looked_at() -> None:
    """At the edge of each claim, where a mistake is likeliest."""
    harmless = [verdict(seed, thumbs, 0.79, most=3000)[0] for seed in range(60)]
    assert harmless.count("worse") <= 4  # 2 % promised
    harmful = [verdict(seed, thumbs, 0.77, most=3000)[0] for seed in range(60)]
    assert harmful.count("fine") <= 6  # 4 % promised


def test_scores_of_conversations_count_for_less() -> None:
    """Eight scores in a row are of one version and alike: the first of them says nearly all."""

    def run(seed: int) -> str:
        rng, contest = random.Random(seed), QualityContest(0.01, 0.03)
        for _ in range(750):
            canary, mood = rng.random() < 0.5, rng.gauss(0, 0.15)
            for _ in range(8):
                if contest.take(canary, min(1.0, max(0.0, 0.79 + mood + rng.uniform(-0.02, 0.02)))) and (
                    contest.harm.log_evidence >= log(1 / FALSE_ALARM)
                ):
                    return "worse"
        return "not"

    assert [run(seed) for seed in range(40)].count("worse") <= 3


def test_a_score_waits_for_one_of_the_other_version_and_pairs_count_by_the_block() -> None:
    contest = QualityContest(0.01, 0.03)
    assert (contest.mean(True), contest.mean(False)) == (None, None)
    for _ in range(100):
        assert not contest.take(False, 0.5)
    assert not contest.close()  # all of one version
    for number in range(PAIRS):
        contest.take(False, 0.4)
        contest.take(False, 0.6)
        assert contest.take(True, 1.0) is (number == PAIRS - 1)
    assert contest.counts == {True: PAIRS, False: 100 + 2 * PAIRS}
    assert contest.mean(True) == 1.0
    assert contest.mean(False) == pytest.approx(0.5)
    assert contest.proven_fine(FALSE_PROMISE)
    assert contest.harm.log_evidence < 0


def test_scores_that_are_all_alike_are_proof_in_time() -> None:
    contest = QualityContest(0.01, 0.03)
    for _ in range(400):
        contest.take(False, 1.0)
        contest.take(True, 1.0)
    assert contest.proven_fine(FALSE_PROMISE)
    assert contest.harm.log_evidence < 0


@pytest.mark.parametrize("margin", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("worse", [True, False])
def test_no_pair_loses_all_of_a_bet(margin: float, worse: bool) -> None:
    bet = QualityBet(margin, worse=worse)
    bet.take([-1.0, 1.0, 0.0], 1.0)
    assert bet.log_evidence > -20


# -- in a rollout ------------------------------------------------------------------------------------------------

CANARY = CanaryConfig(
    steps=(0.5,), step_requests=100, limit_requests=12_000, soak_s=1.0, quality=QualityConfig()
)  # fmt: skip


def judge_of(quality: QualityConfig | None = CANARY.quality) -> Judge:
    judge = Judge(CanaryConfig(quality=quality))
    judge.step(0.5, 6000)
    return judge


def test_without_being_asked_for_scores_count_nothing() -> None:
    judge = judge_of(None)
    for _ in range(100):
        judge.score(True, 0.0)
        judge.score(False, 1.0)
    assert judge.scores is None
    assert not judge.news
    assert not [row for row in judge.rows() if row.figure == "quality"]


def test_scores_are_a_row_beside_the_others_and_no_requests() -> None:
    judge = judge_of()
    for _ in range(100):
        judge.score(True, 0.25)
        judge.score(False, 0.75)
    assert (judge.scores, judge.requests, judge.canary_requests) == ((100, 100), 0, 0)
    assert judge.news
    (row,) = [row for row in judge.rows() if row.figure == "quality"]
    assert (row.percentile, row.baseline, row.canary) == (0, 0.75, 0.25)
    assert row.worse > 0.99
    assert row.fine is not None
    assert row.fine < 0.5
    verdict = judge.verdict()
    assert verdict.state == "worse"
    assert verdict.reason == "its mean score is 0.250 of 100 scores, the baseline's 0.750 of 100"


def rollout(seed: int, new: float | None, scored: float = 1.0) -> Rollout:
    """A rollout of a version that is as fast as the old one, to its end. `new`: its mean score; None: none is given to
    it."""
    versions = (VersionConfig(name="v1", model="a", weight=1), VersionConfig(name="v2", model="b"))
    it = Rollout(ModelConfig(name="chat", versions=versions, canary=CANARY))
    assert isinstance(it.start("v2", "canary", None, 1.0), RolloutStep)
    rng = random.Random(seed)
    for number in range(13_000):
        canary = rng.random() < it.share
        it.take(ordinary(rng, canary, 0.9))
        mean = new if canary else 0.8
        if mean is not None and rng.random() < scored:
            it.score(canary, judged(rng, mean))
        it.look(1.0 + number)
        if it.stage in (Stage.PROMOTED, Stage.ROLLED_BACK):
            return it
    return it


@pytest.mark.timeout(60)
def test_as_good_a_version_is_promoted_and_a_worse_one_rolled_back() -> None:
    assert [rollout(seed, 0.8).stage for seed in range(3)] == [Stage.PROMOTED] * 3
    worse = rollout(1, 0.72)
    assert worse.stage is Stage.ROLLED_BACK
    assert "its mean score is 0.7" in worse.history[-1].reason


@pytest.mark.timeout(60)
def test_without_scores_nothing_is_promoted_and_the_reason_says_so() -> None:
    unscored = rollout(1, 0.8, scored=0.0)
    assert unscored.stage is Stage.ROLLED_BACK
    assert "no score of its answers has come" in unscored.history[-1].reason
    halfway = rollout(1, None)
    assert "no score of its answers has come" in halfway.history[-1].reason
    few = rollout(1, 0.8, scored=0.01)
    assert few.stage is Stage.ROLLED_BACK
    assert "its mean score may still be 0.03 lower" in few.history[-1].reason


def test_scores_without_a_rollout_and_of_the_baseline_alone_are_taken_calmly() -> None:
    versions = (VersionConfig(name="v1", model="a", weight=1), VersionConfig(name="v2", model="b"))
    it = Rollout(ModelConfig(name="chat", versions=versions, canary=CANARY))
    it.score(True, 1.0)
    assert it.judge is None
    assert isinstance(it.start("v2", "canary", None, 1.0), RolloutStep)
    rng = random.Random(2)
    for number in range(12_001):
        it.take(ordinary(rng, rng.random() < 0.5))
        it.score(True, 1.0)
        it.look(1.0 + number)
    assert it.history[-1].stage == "rolled_back"
    assert "no score of the baseline's answers has come" in it.history[-1].reason


def test_a_sample_of_a_request_has_no_score() -> None:
    assert not hasattr(VersionSample(True), "quality")
