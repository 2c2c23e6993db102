"""A new version is judged rightly, and not before there is proof. benchmarks/rollout.py does it many times more."""

import random
from collections import Counter
from collections.abc import Callable
from math import exp, log

import pytest

from headgate.config.models import CanaryConfig
from headgate.model.outcome import Outcome
from headgate.policy.rollout.contest import BlockVariance, Contest, Failures, Fine, Harm, log_mean
from headgate.policy.rollout.verdict import FALSE_ALARM, LINE, Judge, VersionSample, sample_of
from tests.policy.records import record

CONFIG = CanaryConfig()


def ordinary(rng: random.Random, canary: bool, factor: float = 1.0) -> VersionSample:
    """A request; one in 200 takes five times as long."""
    ttft = 0.15 * exp(rng.gauss(0, 0.6)) * (5 if rng.random() < 1 / 200 else 1)
    tpot = 0.025 * exp(rng.gauss(0, 0.25))
    output = min(1024, 2 + int(150 * exp(rng.gauss(0, 0.7))))
    if canary:
        ttft, tpot = ttft * factor, tpot * factor
    return VersionSample(canary, ttft, tpot, ttft + tpot * (output - 1), 0.0, output, False)


Make = Callable[[random.Random, bool], VersionSample]


def judged(seed: int, make: Make, limit: int = 20_000) -> tuple[str, int, str]:
    """The verdict at 50 %, after how many requests, and why."""
    rng, judge = random.Random(seed), Judge(CONFIG)
    judge.step(0.5, limit)
    for number in range(limit):
        judge.take(make(rng, rng.random() < 0.5))
        if judge.news:
            verdict = judge.verdict()
            if verdict.state != "undecided":
                return verdict.state, number, verdict.reason
    return "undecided", limit, judge.verdict().reason


# -- rightly -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_equal_versions_are_found_fine_and_worse_ones_worse() -> None:
    equal = [judged(seed, ordinary) for seed in range(6)]
    assert Counter(state for state, _, _ in equal)["fine"] >= 5
    assert all(number >= 1500 for _, number, _ in equal)  # fewer would prove nothing about a p99
    worse = [judged(seed, lambda rng, canary: ordinary(rng, canary, 1.2)) for seed in range(3)]
    assert {state for state, _, _ in worse} == {"worse"}
    assert max(number for _, number, _ in worse) < 6000


def test_what_is_worse_is_named() -> None:
    def slow_to_start(rng: random.Random, canary: bool) -> VersionSample:
        one = ordinary(rng, canary)
        assert one.ttft_s is not None
        return VersionSample(
            canary, one.ttft_s * (1.5 if canary else 1), one.tpot_s, one.e2e_s, 0.0, one.output_tokens, False
        )

    def queued(rng: random.Random, canary: bool) -> VersionSample:
        return VersionSample(canary, queue_s=rng.expovariate(1 / (0.4 if canary else 0.1)))

    def failing(rng: random.Random, canary: bool) -> VersionSample:
        return VersionSample(canary, failed=rng.random() < (0.3 if canary else 0.001))

    def talkative(rng: random.Random, canary: bool) -> VersionSample:
        return VersionSample(canary, output_tokens=int(rng.uniform(50, 150) * (2 if canary else 1)))

    def terse(rng: random.Random, canary: bool) -> VersionSample:
        return VersionSample(canary, output_tokens=int(rng.uniform(50, 150) * (1 if canary else 2)))

    assert judged(1, slow_to_start)[2].startswith("TTFT p9")
    assert judged(1, queued)[2].startswith("queue wait p95 is more than 1.05 times")
    state, number, why = judged(1, failing)
    assert (state, number < 200) == ("worse", True)
    assert "of its requests failed" in why
    assert judged(1, talkative)[2] == "its answers are more than 1.25 times as long"
    assert judged(1, terse)[2] == "its answers are more than 1.25 times as short"


def test_a_canary_that_only_fails_is_noticed_at_five_percent_within_a_few_failures() -> None:
    rng, judge = random.Random(3), Judge(CONFIG)
    judge.step(0.05, None)
    failures = 0
    while judge.verdict().state != "worse":
        canary = rng.random() < 0.05
        judge.take(VersionSample(canary, failed=canary))
        failures += canary
    assert failures <= 15


def test_without_proof_of_few_failures_it_is_not_fine() -> None:
    def rarely(rng: random.Random, canary: bool) -> VersionSample:
        if rng.random() < (0.035 if canary else 0.025):
            return VersionSample(canary, failed=True)
        took_s = 0.1 * exp(rng.gauss(0, 0.1))
        return VersionSample(canary, took_s, took_s, took_s, None, None, False)

    state, _, why = judged(2, rarely, 6000)
    assert state == "undecided"
    assert why.endswith("more of its requests may fail")


# -- never by chance -----------------------------------------------------------------------------------------


def test_evidence_of_harm_is_seldom_wrong_however_often_one_looks() -> None:
    """Ville's inequality: of equal ones at most α ever reach 1/α. A usual test at 5 %, looked at each time, would call
    most of them worse."""
    wrong = naive = 0
    for seed in range(150):
        rng, harm, spread = random.Random(seed), Harm(), BlockVariance()
        reached = looked = False
        for _ in range(150):
            hers = sum(rng.random() < 0.2 for _ in range(20))
            harm.take(hers, 20, 0.2, 20 * 0.16)
            spread.take(hers - 4, 20 * 0.16)
            reached |= harm.log_evidence >= log(20)
            looked |= spread.scores > 1.645 * spread.variance**0.5
        wrong += reached
        naive += looked
    assert wrong <= 0.05 * 150
    assert naive > 0.3 * 150


def test_clumps_do_not_count_as_if_each_were_by_itself() -> None:
    """A replica that stalls delays ten at once."""
    wrong = 0
    for seed in range(200):
        rng, harm = random.Random(seed), Harm()
        for _ in range(60):
            hers = 10 * sum(rng.random() < 0.2 for _ in range(4))
            harm.take(hers, 40, 0.2, 40 * 0.16)
        wrong += harm.log_evidence >= log(1 / 0.05)
    assert wrong <= 0.05 * 200


def test_the_line_for_fine_is_crossed_without_drift_in_few_cases() -> None:
    crossed = 0
    for seed in range(400):
        rng, fine = random.Random(seed), Fine()
        over = False
        for step in range(1, 101):
            fine.take(rng.gauss(0, 1), 1.0)
            over |= fine.z(step / 100) >= LINE
        crossed += over
    assert 0.005 * 400 <= crossed <= 0.05 * 400


def test_nothing_is_known_before_anything_has_ended() -> None:
    judge = Judge(CONFIG)
    assert judge.verdict().reason == "too few requests have ended so far"
    judge.step(0.05, None)
    for number in range(5000):
        judge.take(ordinary(random.Random(number), number % 20 == 0))
    verdict = judge.verdict()
    assert (verdict.state, verdict.reason[:13]) == ("undecided", "no harm so fa")  # nothing is promoted from here
    assert not judge.news or not judge.news


def test_differences_that_nobody_notices_are_none() -> None:
    def instant(rng: random.Random, canary: bool) -> VersionSample:
        return VersionSample(canary, rng.uniform(0.001, 0.002) * (3 if canary else 1), None, 0.01, 0.001, None, False)

    assert judged(1, instant)[0] == "fine"


def test_answers_that_are_all_of_one_length_can_be_compared_too() -> None:
    assert judged(1, lambda rng, canary: VersionSample(canary, 0.1, 0.02, 1.0, 0.0, 16, False))[0] == "fine"
    longer = judged(1, lambda rng, canary: VersionSample(canary, output_tokens=32 if canary else 16))
    assert (longer[0], longer[1] < 2000) == ("worse", True)


def test_a_figure_that_few_requests_have_is_not_waited_for() -> None:
    def seldom_streamed(rng: random.Random, canary: bool) -> VersionSample:
        one = ordinary(rng, canary)
        tpot = one.tpot_s if rng.random() < 0.1 else None
        return VersionSample(canary, one.ttft_s, tpot, one.e2e_s, 0.0, one.output_tokens, False)

    assert judged(4, seldom_streamed)[0] == "fine"


# -- blocks --------------------------------------------------------------------------------------------------


def test_a_block_needs_both_versions() -> None:
    contest = Contest((50,), 1.05, 1.2, block=4)
    assert not any(contest.take(False, 1.0) for _ in range(8))
    assert not contest.close()
    assert contest.sketch(False).count == 8
    failures = Failures(1.5, 2)
    assert not failures.take(False, True)
    assert not failures.take(False, False)
    assert failures.counts[False] == [2, 1]


def test_failures_that_have_nothing_to_do_with_each_other_vary_no_more_than_chance() -> None:
    rng, failures = random.Random(5), Failures(1.5, 50)
    for _ in range(20_000):
        failures.take(rng.random() < 0.5, rng.random() < 0.1)
    assert failures.spread.factor < 1.3
    assert failures.worst_difference(1.64) < 0.02


def test_equal_values_are_shared() -> None:
    contest = Contest((90,), 1.0, None, block=40)
    for number in range(400):
        contest.take(number % 2 == 0, 1.0)
    assert contest.harms[90].log_evidence < 0.0
    assert contest.fines == {}


def test_how_it_is_shown() -> None:
    rng, judge = random.Random(1), Judge(CONFIG)
    assert all(row.baseline is None for row in judge.rows())
    judge.step(0.5, 20_000)
    for _ in range(8000):
        judge.take(ordinary(rng, rng.random() < 0.5, 1.15))
    rows = {(row.figure, row.percentile): row for row in judge.rows()}
    assert set(rows) == {
        ("error", 0), ("queue", 95), ("output", 50), ("output", 90),
        *((figure, percentile) for figure in ("ttft", "tpot", "e2e") for percentile in (90, 95, 99)),
    }  # fmt: skip
    tpot = rows["tpot", 90]
    assert tpot.baseline is not None
    assert tpot.canary is not None
    assert tpot.canary / tpot.baseline == pytest.approx(1.15, rel=0.03)
    assert tpot.worse > 0.9
    assert rows["output", 50].fine is None
    assert rows["error", 0].canary == 0.0
    assert judge.verdict().confidence == pytest.approx(1 - FALSE_ALARM, abs=FALSE_ALARM)


# -- what a record says --------------------------------------------------------------------------------------


def test_what_a_record_says_about_a_version() -> None:
    done = sample_of(record(), canary=True)
    assert done is not None
    assert (done.canary, done.output_tokens, done.failed) == (True, 21, False)
    assert done.ttft_s == pytest.approx(0.051)
    failed = sample_of(record(outcome=Outcome.REPLICA_FAILED), canary=False)
    assert failed == VersionSample(False, failed=True)
    assert sample_of(record(outcome=Outcome.INVALID), canary=True) == VersionSample(True, failed=True)
    for outcome in (Outcome.OVER_LIMIT, Outcome.UNAUTHORIZED, Outcome.SLOW_CLIENT):
        assert sample_of(record(outcome=outcome), canary=True) is None
    left = sample_of(record(outcome=Outcome.CANCELLED, ttft_s=None), canary=True)
    assert left is not None
    assert left.failed is None  # it waited at least so long; whose fault that is, nobody knows
    assert left.ttft_s == pytest.approx(0.451)
    assert sample_of(record(outcome=Outcome.CANCELLED), canary=True) is None


def test_the_mean_of_likelihood_ratios_needs_no_large_numbers() -> None:
    assert log_mean([0.0, 0.0]) == 0.0
    assert log_mean([2000.0, 0.0]) == pytest.approx(2000 - log(2))
