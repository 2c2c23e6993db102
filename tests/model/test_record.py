from math import inf, nan

import pytest

from headgate.model.outcome import Outcome
from headgate.model.record import (
    FIRST_KEPT,
    LAST_KEPT,
    Attempt,
    EngineTimings,
    OwnPromise,
    Record,
    kept,
    own_promise,
)


def test_of_many_failed_attempts_the_first_and_the_last_few_are_kept() -> None:
    failed: tuple[Attempt, ...] = ()
    for number in range(1000):
        failed = kept(failed, Attempt("a", float(number), 0.0, Outcome.REPLICA_FAILED, True, ""))
        assert len(failed) == min(number + 1, FIRST_KEPT + LAST_KEPT)
    assert [int(one.at_s) for one in failed] == [0, 1, 2, 3, 996, 997, 998, 999]


@pytest.mark.parametrize(
    ("timings", "output", "first_s"),
    [
        (EngineTimings(), 10, None),
        (EngineTimings(queue_ms=100, prefill_ms=200, decode_ms=1500), 10, 0.5),  # also what it took to get there
        (EngineTimings(prefill_ms=300, decode_ms=2040), 10, 0.0),  # the engine's clock is not ours
        (EngineTimings(decode_ms=1500), 10, 0.5),
        (EngineTimings(prefill_ms=300), 10, 0.3),
        (EngineTimings(prefill_ms=300), 1, 2.0),
        (EngineTimings(prefill_ms=300, decode_ms=5000), 10, None),
        (EngineTimings(prefill_ms=5000), 10, None),
        (EngineTimings(prefill_ms=300, decode_ms=-1), 10, None),
        (EngineTimings(prefill_ms=-300, decode_ms=1), 10, None),
        (EngineTimings(prefill_ms=nan, decode_ms=1), 10, None),
        (EngineTimings(prefill_ms=1, decode_ms=inf), 10, None),
    ],
)
def test_an_engine_is_believed_about_its_first_token_as_far_as_it_can_be(
    timings: EngineTimings, output: int, first_s: float | None
) -> None:
    assert timings.first_s(2.0, output) == (None if first_s is None else pytest.approx(first_s))


def test_an_answer_whose_first_token_nobody_saw_is_an_answer() -> None:
    def ended(outcome: Outcome, ttft_s: float | None) -> tuple[bool, bool]:
        record = Record(id="r", at=0.0, lane="fast", tenant="t", model="m", outcome=outcome, ttft_s=ttft_s)
        return record.answered, record.whole

    assert ended(Outcome.COMPLETED, None) == (True, True)
    assert ended(Outcome.COMPLETED, 0.1) == (True, False)
    assert ended(Outcome.CANCELLED, 0.1) == (True, False)
    assert ended(Outcome.CANCELLED, None) == (False, False)


@pytest.mark.parametrize(
    ("stream", "ttft_s", "e2e_s", "outcome", "kept_it"),
    [
        (True, 0.4, 3.0, Outcome.COMPLETED, True),
        (True, 0.41, 3.0, Outcome.COMPLETED, False),
        (True, 0.3, 0.35, Outcome.REPLICA_FAILED, True),
        (True, None, 0.1, Outcome.REPLICA_FAILED, False),
        (True, None, 0.0, Outcome.LANE_FULL, False),
        (True, None, 0.1, Outcome.COMPLETED, None),  # without a token
        (False, None, 0.4, Outcome.COMPLETED, True),
        (False, None, 0.5, Outcome.COMPLETED, None),
        (False, None, 0.4, Outcome.CANCELLED, None),
        (True, None, 0.5, Outcome.SLOW_CLIENT, False),
        (True, None, 0.5, Outcome.OVER_LIMIT, None),
        (True, None, 9.0, Outcome.INVALID, None),
    ],
)
def test_a_promise_is_kept_missed_or_cant_be_told(
    stream: bool, ttft_s: float | None, e2e_s: float, outcome: Outcome, kept_it: bool | None
) -> None:
    judged = own_promise((0.4, None), stream, ttft_s, None, e2e_s, outcome)
    assert judged == OwnPromise(ttft_s=0.4, ttft_kept=kept_it)


def test_each_of_two_promises_is_judged_by_itself() -> None:
    found = [own_promise((None, 0.05), True, 9.0, tpot_s, 9.0, Outcome.COMPLETED) for tpot_s in (None, 0.05, 0.06)]
    assert [(one.ttft_kept, one.tpot_kept) for one in found] == [(None, None), (None, True), (None, False)]
