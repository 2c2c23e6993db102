import math
import random
import time
from bisect import bisect_left
from typing import Any

import pytest

from headgate.config.gateway import ObserveConfig
from headgate.measure.figures import UNUSED_S, Figures
from headgate.measure.series import KIND_OF, TYPE_OF
from headgate.measure.windows import E2E, FIGURES, GAP, PART_S, QUEUE, TPOT, TTFT, WINDOWS
from headgate.model.lane import LANES
from headgate.model.outcome import ASIDE, MISSED, Outcome
from headgate.model.record import EngineTimings, Gap
from tests.observe.records import T0, compliance, figures, record


def count(of: Figures, figure: str, window_s: int, now: float, **which: str) -> int:
    return of.sketch(figure, window_s, now, **which).count


# -- what counts for what -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", Outcome)
def test_which_figures_a_request_counts_for(outcome: Outcome) -> None:
    given = figures()
    given.take([record(outcome=outcome, queue_s=0.1)], T0)
    given.take([record(outcome=outcome, queue_s=0.1, ttft_s=0.2)], T0)
    given.take([record(outcome=outcome, queue_s=0.1, ttft_s=0.2, tpot_s=0.01)], T0)
    seen = {figure: count(given, figure, 60, T0, lane="fast") for figure in FIGURES}
    sent_away = outcome.value in ("invalid", "too_long", "unknown_model", "unauthorized")
    assert seen == {
        "ttft": 2,
        "tpot": 1,
        "e2e": 3 if outcome is Outcome.COMPLETED else 0,
        "queue": 0 if sent_away else 3,
        "answer": 1 if outcome is Outcome.COMPLETED else 0,
        "gap": 0,
        "ttft_cold": 0,
        "ttft_warm": 2,
        "e2e_short": 3 if outcome is Outcome.COMPLETED else 0,
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_how_each_outcome_is_counted(outcome: Outcome) -> None:
    given = figures()
    given.take([record(outcome=outcome, model="m")], T0)
    counts = given.counts(60, T0, lane="fast")
    assert counts.requests == 1
    assert (counts.failed, counts.refused) == (outcome.kind == "failed", outcome.kind == "refused")
    assert counts.cancelled == (outcome in (Outcome.CANCELLED, Outcome.SLOW_CLIENT))
    lane = given.lanes["fast"]
    assert lane.refusals == ({outcome.value: 1} if outcome.kind == "refused" else {})
    assert sum(lane.errors.values()) == (outcome.kind != "ok")
    assert (counts.answered, counts.missed) == (outcome.kind == "ok", outcome in MISSED)
    assert counts.asked == (outcome not in ASIDE)
    (series,) = given.series.values()
    assert series.outcomes == {outcome.value: 1}


def test_over_all_arrivals_each_counts_once() -> None:
    given = figures()
    bound = LANES["fast"].ttft_target_s
    given.take([record(ttft_s=0.1, tpot_s=0.01, stream=True) for _ in range(60)], T0)
    given.take([record(outcome=Outcome.LANE_FULL, stream=True) for _ in range(20)], T0)
    given.take([record(outcome=Outcome.REPLICA_STALLED, ttft_s=0.1, stream=True) for _ in range(20)], T0)  # broke off
    counts = given.counts(60, T0, lane="fast")
    assert counts.beyond("ttft", count(given, "ttft", 60, T0, lane="fast")) == 20
    assert counts.beyond("e2e", count(given, "e2e", 60, T0, lane="fast")) == 40
    # Clients that lose patience are not refused, and still had no first token in time; others only changed their mind.
    given.take([record(outcome=Outcome.CANCELLED, e2e_s=bound + 9, stream=True) for _ in range(50)], T0)
    given.take([record(outcome=Outcome.CANCELLED, e2e_s=bound / 2, stream=True) for _ in range(50)], T0)
    given.take([record(outcome=Outcome.CANCELLED, e2e_s=bound + 9, ttft_s=0.1, stream=True)], T0)
    given.take([record(outcome=Outcome.CANCELLED, e2e_s=bound + 9)], T0)
    counts = given.counts(60, T0, lane="fast")
    assert (counts.asked, counts.gave_up) == (100, 50)
    assert counts.beyond("ttft", 81) == 70
    (p95,) = [kept for kept in compliance(given, "fast", T0) if (kept.figure, kept.percentile) == ("ttft", 95)]
    assert p95.share == pytest.approx(81 / 151)
    assert p95.served == 1.0


def test_a_lane_where_only_a_few_answers_are_streamed_is_not_late_for_its_refusals() -> None:
    """Ten of a hundred have a first token of their own: so has one of ten refusals, and p95 is kept at 2 % refused."""
    given = figures()
    given.take([record(ttft_s=0.1, stream=True) for _ in range(98)], T0)
    given.take([record() for _ in range(882)], T0)
    given.take([record(outcome=Outcome.LANE_FULL) for _ in range(20)], T0)
    kept = {(one.figure, one.percentile): one.share for one in compliance(given, "fast", T0)}
    assert kept["ttft", 95] == pytest.approx(0.98)
    assert kept["e2e", 95] == pytest.approx(0.98)


def test_every_outcome_has_a_kind_and_every_failure_a_type() -> None:
    assert {outcome.value: outcome.kind for outcome in Outcome} == KIND_OF
    assert set(TYPE_OF) == {outcome.value for outcome in Outcome if outcome.kind == "failed"}


def test_errors_have_types() -> None:
    given = figures()
    given.take(
        [
            record(outcome=Outcome.REPLICA_STALLED),
            record(outcome=Outcome.REPLICA_FAILED, message="CUDA error: Out of memory"),
            record(outcome=Outcome.ENGINE_FAILED),
            record(outcome=Outcome.LANE_FULL),
            record(outcome=Outcome.OVER_LIMIT),
            record(outcome=Outcome.CANCELLED),
            record(outcome=Outcome.NO_REPLICA),
        ],
        T0,
    )
    errors = {"timeout": 1, "out_of_memory": 1, "engine": 1, "refused": 2, "client": 1, "no_replica": 1}
    assert given.lanes["fast"].errors == errors


def test_late_cold_retried_and_tokens() -> None:
    given = figures()
    bound = LANES["fast"].ttft_target_s
    given.take(
        [
            record(ttft_s=bound, prompt_tokens=3, output_tokens=5),
            record(ttft_s=bound + 0.001, attempts=3, cold=True, replica="a", prompt_tokens=30, output_tokens=50),
            record("slow", ttft_s=bound + 0.001, attempts=1),
        ],
        T0,
    )
    counts = given.counts(60, T0, lane="fast")
    assert (counts.late, counts.cold, counts.retried) == (1, 1, 1)
    assert (counts.prompt_tokens, counts.output_tokens) == (33, 55)
    assert given.counts(60, T0).requests == 3
    assert given.lanes["fast"].retries == 2
    assert given.lanes["fast"].cold_requests == 1


def test_one_start_is_counted_once_however_many_requests_it_makes_cold() -> None:
    given = figures()
    together = [record(at=T0 + start, e2e_s=2.0, cold=True, replica="a") for start in (0.0, 0.5, 1.9)]
    given.take(together, T0 + 4)
    assert given.cold_starts == 1
    given.take([record(at=T0 + 1.0, e2e_s=9.0, cold=True, replica="a")], T0 + 10)
    assert given.cold_starts == 1  # sent before the first was done: long under way
    given.take([record(at=T0 + 50, e2e_s=2.0, cold=True, replica="a")], T0 + 60)
    assert given.cold_starts == 2
    given.take([record(at=T0 + 50, e2e_s=2.0, cold=True, replica="b")], T0 + 60)
    assert given.cold_starts == 3


@pytest.mark.parametrize("stage", ["accept_s", "queue_s", "retry_s"])
def test_a_request_met_a_replica_when_it_was_sent_there_not_when_it_came(stage: str) -> None:
    """The second came before the first was done, and reached the replica long after: that had been out meanwhile."""
    given = figures()
    given.take([record(at=T0, e2e_s=2.0, cold=True, replica="a")], T0 + 3)
    late: dict[str, Any] = {stage: 50.0}
    given.take([record(at=T0 + 1, e2e_s=60.0, cold=True, replica="a", **late)], T0 + 70)
    assert given.cold_starts == 2


def test_rates_tell_what_failed_from_what_was_refused() -> None:
    given = figures()
    now = T0
    for _ in range(400):
        now += 0.25
        failed = [record(outcome=Outcome.REPLICA_FAILED)] * 2
        given.take([record(), *failed, *[record(outcome=Outcome.LANE_FULL)] * 5], now)
    rates = given.rates(60, now)
    assert (rates.requests, rates.failed, rates.refused) == pytest.approx((32, 8, 20), rel=0.1)


def test_a_replica_that_fails_its_first_requests_has_still_started_once() -> None:
    given = figures()
    failing = [record(at=T0 + n, cold=True, replica="a", outcome=Outcome.REPLICA_FAILED) for n in range(3)]
    given.take([*failing, record(at=T0 + 5, cold=True, replica="a")], T0 + 6)
    assert given.cold_starts == 1


# -- windows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lognormal", "bimodal"])
def test_percentiles_of_a_lane_are_within_one_percent(kind: str) -> None:
    rng, given = random.Random(1), figures()
    values = {
        lane: [
            rng.lognormvariate(-1, 0.8) if kind == "lognormal" or rng.random() < 0.9 else rng.gauss(20, 1)
            for _ in range(3000)
        ]
        for lane in ("fast", "slow")
    }
    now = T0
    for place in range(0, 3000, 100):
        now += 1.5
        given.take(
            [record(lane, ttft_s=v, e2e_s=v) for lane, some in values.items() for v in some[place : place + 100]], now
        )
    for lane, some in values.items():
        for window_s in WINDOWS:
            for figure in ("ttft", "e2e"):
                sketch = given.sketch(figure, window_s, now, lane=lane)
                assert sketch.count == 3000
                for q in (0.5, 0.9, 0.95, 0.99, 0.999):
                    exact = sorted(some)[math.floor(q * 2999)]
                    assert sketch.quantile(q) == pytest.approx(exact, rel=0.01)
    both = given.sketch("ttft", 300, now)
    assert both.count == 6000
    assert both.quantile(0.95) == pytest.approx(
        sorted(values["fast"] + values["slow"])[math.floor(0.95 * 5999)], rel=0.01
    )


@pytest.mark.parametrize("window_s", WINDOWS)
def test_what_happened_leaves_a_window_in_time(window_s: int) -> None:
    given = figures()
    given.take([record(ttft_s=0.1, prompt_tokens=7, model="a")], T0)
    longest = PART_S if window_s < 3600 else 60.0
    for now, there in ((T0 + window_s - longest - 0.1, True), (T0 + window_s + 0.1, False)):
        given.take([], now)
        assert count(given, "ttft", window_s, now, lane="fast") == there
        assert count(given, "ttft", window_s, now, model="a") == there
        assert given.counts(window_s, now, lane="fast").prompt_tokens == 7 * there
        assert given.counts(window_s, now, model="a").requests == there


def test_reading_is_enough_for_time_to_pass() -> None:
    given = figures()
    given.take([record(ttft_s=0.1)], T0)
    assert count(given, "ttft", 60, T0 + 61, lane="fast") == 0
    assert count(given, "ttft", 300, T0 + 61, lane="fast") == 1
    assert given.counts(60, T0 + 62).requests == 0


@pytest.mark.parametrize("gap_s", [3500.0, 3661.0, 8000.0, 1e6])
def test_nothing_is_left_of_long_ago_however_long_nobody_asked(gap_s: float) -> None:
    given = figures()
    given.take([record(ttft_s=0.1)], T0)
    now = T0 + gap_s
    assert count(given, "ttft", 3600, now, lane="fast") == (gap_s < 3600)
    given.take([record(ttft_s=0.2)], now)
    assert count(given, "ttft", 60, now, lane="fast") == 1
    assert count(given, "ttft", 60, now, model="m") == 1
    assert len(given.timeline("fast", now)) <= 60


def test_series_do_not_all_close_at_once() -> None:
    given = figures(labels=1000)
    given.take([record(model=f"m{n}") for n in range(100)], T0)
    ends = [window.ends % PART_S for window in given._windows.values()]
    for tenth in range(10):
        assert 5 <= sum(tenth <= end / PART_S * 10 < tenth + 1 for end in ends) <= 15


def test_rates_are_right_from_the_first_seconds_on() -> None:
    given = figures()
    now = T0
    for _ in range(4000):
        now += 0.25
        given.take([record(prompt_tokens=8), record("slow", output_tokens=4)], now)
        if now - T0 in (3.0, 17.25, 58.0, 400.0, 999.0):
            for window_s in WINDOWS:
                rates = given.rates(window_s, now, lane="fast")
                assert rates.requests == pytest.approx(4, rel=0.15)
                assert rates.prompt_tokens == pytest.approx(32, rel=0.15)
                assert given.rates(window_s, now).output_tokens == pytest.approx(16, rel=0.15)
    assert given.rates(3600, now).requests == pytest.approx(8, rel=0.01)
    assert given.counts(3600, now).requests / given.span_s(3600, now) == pytest.approx(8, rel=0.01)


def test_figures_can_be_asked_for_by_model_version_and_tier() -> None:
    given = figures()
    for place, (model, version, tier) in enumerate(
        [("a", "1", "free"), ("a", "2", "free"), ("a", "2", "premium"), ("b", "2", "free")]
    ):
        for lane in ("fast", "slow"):
            outcome = Outcome.REPLICA_FAILED if version == "2" else Outcome.COMPLETED
            value = 2.0**place
            given.take([record(lane, model=model, version=version, tier=tier, ttft_s=value, outcome=outcome)], T0)
    given.take([record(model="a", version="1", tier="free", ttft_s=1.0, quantization="q4", gpu_type="x")], T0)
    assert count(given, "ttft", 60, T0) == 9
    assert count(given, "ttft", 60, T0, model="a") == 7
    assert count(given, "ttft", 60, T0, lane="slow", version="2") == 3
    assert count(given, "ttft", 60, T0, lane="slow", model="a", version="2", tier="premium") == 1
    assert given.sketch("ttft", 60, T0, tier="premium").quantile(0.5) == pytest.approx(4.0, rel=0.01)
    assert given.sketch("ttft", 60, T0, model="a", version="1").quantile(1.0) == pytest.approx(1.0, rel=0.01)
    assert given.counts(60, T0, version="2").failed == 6
    assert given.counts(60, T0, version="1").failed == 0
    assert count(given, "ttft", 60, T0, model="never") == 0
    assert count(given, "ttft", 60, T0, lane="never") == 0
    assert given.counts(60, T0, lane="never").requests == 0


def test_questions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="ttft"):
        figures().sketch("latency", 60, T0)
    with pytest.raises(ValueError, match="300"):
        figures().sketch("ttft", 61, T0)
    with pytest.raises(ValueError, match="300"):
        figures().counts(61, T0)


# -- since the start, and the last hour --------------------------------------------------------------------


def test_histograms_only_grow() -> None:
    given = figures()
    given.take([record(ttft_s=0.3, tpot_s=0.02, queue_s=0.05, e2e_s=2.0)], T0)
    given.take([record(ttft_s=0.3, tpot_s=0.02, queue_s=0.05, e2e_s=2.0)], T0 + 3600)
    (series,) = given.series.values()
    for figure, value in ((TTFT, 0.3), (TPOT, 0.02), (E2E, 2.0), (QUEUE, 0.05)):
        histogram = series.histograms[figure]
        assert sum(histogram.numbers) == 2
        assert histogram.numbers[bisect_left(histogram.edges.values, value)] == 2
        assert histogram.sum == pytest.approx(2 * value)


def test_compliance_is_the_share_of_the_last_hour_within_each_bound() -> None:
    given = figures()
    assert compliance(given, "fast", T0) == []
    tokens: dict[str, Any] = {"output_tokens": 2, "stream_s": 0.1}
    given.take([record(ttft_s=0.3, tpot_s=0.05, e2e_s=1.0, **tokens) for _ in range(90)], T0)
    given.take([record(ttft_s=1.0, tpot_s=0.1, e2e_s=8.0, **tokens) for _ in range(10)], T0)
    kept = {(k.figure, k.percentile): (k.share, k.kept) for k in compliance(given, "fast", T0)}
    assert kept == {
        ("ttft", 50): (0.9, True),
        ("ttft", 95): (0.9, False),
        ("ttft", 99): (1.0, True),
        ("tpot", 50): (0.9, True),
        ("gap", 99): (1.0, True),
        ("e2e", 95): (0.9, False),
        ("e2e", 99): (1.0, True),
    }
    assert compliance(given, "never", T0) == []
    assert compliance(given, "fast", T0 + 3700) == []


# -- cost ---------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_a_record_costs_a_few_microseconds() -> None:
    rng, given = random.Random(8), figures()
    records = [
        record(
            rng.choice(list(LANES)), model=f"m{rng.randrange(12)}", ttft_s=rng.lognormvariate(-1, 1),
            tpot_s=rng.lognormvariate(-3, 0.5), queue_s=rng.expovariate(20), e2e_s=rng.lognormvariate(1, 1),
        )
        for _ in range(10_000)
    ]  # fmt: skip
    best, now = math.inf, T0
    for _ in range(5):
        for place in range(0, len(records), 250):
            now += 0.25
            began = time.thread_time()
            given.take(records[place : place + 250], now)
            best = min(best, time.thread_time() - began)
    print(f"{best / 250 * 1e6:.1f} µs a record")
    assert best / 250 < 40e-6


def test_bounds_are_as_documented() -> None:
    assert WINDOWS[-1] <= UNUSED_S  # what is forgotten is in no window


# -- gaps, cold and warm, long and short ----------------------------------------------------------------------


def test_the_gap_promise_is_about_every_gap_not_about_the_mean() -> None:
    """A stream of 100 tokens with two silences of a second has a mean of 40 ms: by the mean all was well."""
    given = figures()
    gaps = (Gap(0.1, 1.0), Gap(2.0, 1.0), Gap(3.0, 0.02))
    for _ in range(50):
        given.take([record(ttft_s=0.1, tpot_s=0.04, stream_s=3.96, output_tokens=100, gaps=gaps, stream=True)], T0)
    assert given.sketch("tpot", 300, T0, lane="fast").quantile(0.99) == pytest.approx(0.04, rel=0.02)
    found = given.sketch("gap", 300, T0, lane="fast")
    assert found.count == 50 * 99
    assert found.quantile(0.99) == pytest.approx(1.0, rel=0.02)
    assert found.quantile(0.5) == pytest.approx(0.02, rel=0.1)
    shares = {(kept.figure, kept.percentile): kept.share for kept in compliance(given, "fast", T0)}
    assert shares["gap", 99] == pytest.approx(97 / 99)
    (series,) = given.series.values()
    assert sum(series.histograms[GAP].numbers) == 50 * 99


def test_gaps_are_those_of_one_choice_and_never_more_than_its_tokens_have() -> None:
    given = figures()
    gaps = (Gap(0.1, 0.3), Gap(0.5, 0.2), Gap(0.9, 0.1))
    given.take([record(ttft_s=0.1, tpot_s=0.3, stream_s=0.6, output_tokens=6, choices=2, gaps=gaps)], T0)
    assert given.sketch("gap", 60, T0, lane="fast").count == 2


def test_long_answers_are_not_held_to_the_p99_of_short_ones() -> None:
    """30 s up to 1 000 tokens: a story of 4 000 takes longer, and breaks no promise."""
    given = figures()
    for _ in range(98):
        given.take([record(e2e_s=5.0, output_tokens=900)], T0)
    given.take([record(e2e_s=70.0, output_tokens=4000), record(e2e_s=6.0, output_tokens=4000, choices=4)], T0)
    assert given.sketch("e2e", 300, T0, lane="fast").max == pytest.approx(70, rel=0.02)
    short = given.sketch("e2e_short", 300, T0, lane="fast")
    assert short.count == 99
    assert short.max == pytest.approx(6.0, rel=0.02)
    shares = {(kept.figure, kept.percentile): kept.share for kept in compliance(given, "fast", T0)}
    assert shares["e2e", 99] == 1.0
    assert sum(given.lanes["fast"].long_answers.numbers) == 1
    assert given.sketch("e2e_short", 300, T0).count == 99  # of all lanes together, too


def test_cold_and_warm_replicas_are_told_apart() -> None:
    given = figures()
    given.take([record(ttft_s=4.0, cold=True), record(ttft_s=0.1), record(ttft_s=0.1), record(cold=True)], T0)
    cold, warm = (given.sketch(name, 60, T0, lane="fast") for name in ("ttft_cold", "ttft_warm"))
    assert (cold.count, warm.count) == (1, 2)
    assert cold.max == pytest.approx(4.0, rel=0.02)
    assert warm.max == pytest.approx(0.1, rel=0.02)
    assert sum(given.lanes["fast"].cold_ttft.numbers) == 1


def test_prefill_and_decode_by_the_engines_word_or_else_as_seen_from_here() -> None:
    given = figures()
    given.take([record(stream=True, ttft_s=0.3, first_s=0.2, stream_s=1.0)], T0)
    timings = EngineTimings(prefill_ms=100.0, decode_ms=700.0)
    given.take([record(stream=False, first_s=0.9, engine=timings), record(stream=False, first_s=0.9)], T0)
    lane = given.lanes["fast"]
    assert (sum(lane.prefill.numbers), sum(lane.decode.numbers)) == (2, 2)
    assert lane.prefill.sum == pytest.approx(0.3)
    assert lane.decode.sum == pytest.approx(1.7)


def test_tenants_are_told_apart_as_far_as_labels_go() -> None:
    given = Figures(dict(LANES), ObserveConfig(labels=2), T0)
    for number in range(5):
        given.take([record(tenant=f"t{number}", ttft_s=0.1, prompt_tokens=10, output_tokens=5)], T0)
    given.take([record(tenant="t0", outcome=Outcome.LANE_FULL), record(tenant=""), record(tenant="t0")], T0)
    given.take([record(tenant="x", outcome=Outcome.UNAUTHORIZED)], T0)
    assert list(given.tenants.known) == ["t0", "t1", "other"]
    first, other = given.tenants.known["t0"], given.tenants.known["other"]
    assert (sum(first.ttft.numbers), sum(other.ttft.numbers)) == (1, 3)
    assert (other.prompt_tokens, other.output_tokens) == (30, 15)


def test_a_trace_stands_for_those_like_it() -> None:
    given = figures()
    slow = record(ttft_s=3.0, tpot_s=0.05, e2e_s=9.0, queue_s=2.0, wall=1e9, gaps=(Gap(0.1, 0.4),))
    refused = record(outcome=Outcome.INVALID, ttft_s=None)
    given.take([slow, refused], T0)
    given.exemplify(slow, "ab" * 16)
    given.exemplify(refused, "cd" * 16)
    found = [
        exemplar
        for series in given.series.values()
        for histogram in series.histograms
        for exemplar in histogram.exemplars.values()
    ]
    assert {value for _, value, _ in found} == {3.0, 0.05, 9.0, 2.0, 0.4}
    assert {trace for trace, _, _ in found} == {"ab" * 16}
    assert {wall for _, _, wall in found} == {1e9 + 9.0}
