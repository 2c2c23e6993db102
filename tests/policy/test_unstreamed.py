"""What policies make of answers in one piece, whose first token was seen by the engine at most."""

import random
from itertools import count
from statistics import fmean

import pytest

from headgate.config.gateway import RoutingConfig
from headgate.model.event import Arrived, Dispatch, Ended, FirstToken, Tick
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.pace import FIXED_TOKENS
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.promise import first_counts, per_token_s
from headgate.policy.replicas.gradient import STALE_S, UNKNOWN_SIZE, WINDOW, GradientLimit
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.outlier import FULLEST, LEAST_OUTPUT, answer_token_s
from headgate.policy.replicas.signs import HealthState, Saw
from headgate.policy.rollout.verdict import sample_of
from tests.policy.driven import settings_of
from tests.policy.records import record
from tests.policy.test_dispatcher import dispatcher, join, request
from tests.policy.test_health import replica, watching
from tests.policy.watched import Watched

PROMPT, OUTPUT, FIRST_S, TOKEN_S = 200, 300, 0.05, 0.01
WHOLE_S = FIRST_S + (OUTPUT - 1) * TOKEN_S


def serve(
    made: Dispatcher, at: float, *, stream: bool, slow: dict[str, float] | None = None, first_s: float | None = None,
    output: int = OUTPUT,
) -> str:  # fmt: skip
    """One request from beginning to end. `slow`: how many times as long each replica takes. Gives its replica."""
    asked = request(at=at, tokens=PROMPT, stream=stream)
    (sent,) = made.on(Arrived(asked), at)
    assert isinstance(sent, Dispatch)
    times = (slow or {}).get(sent.replica_id, 1.0)
    if stream:
        made.on(FirstToken(asked.id), at + times * FIRST_S)
    took_s = FIRST_S + max(0, output - 1) * TOKEN_S
    made.on(Ended(asked.id, Outcome.COMPLETED, (PROMPT, output), first_s), at + times * took_s)
    return sent.replica_id


def in_turn(names: str, slots: int | None) -> Dispatcher:
    """One that sends to each in turn."""
    made = Dispatcher(settings_of(routing=RoutingConfig(algorithm="round_robin")), Health(), random.Random(1))
    for name in names:
        join(made, name, slots)
    return made


def state(made: Dispatcher, name: str) -> HealthState:
    standing = made.book.standing(name)
    assert standing is not None
    return standing.state


@pytest.mark.parametrize("unstreamed", [0.2, 0.5, 0.8, 0.95])
def test_a_replica_that_happens_to_get_the_unstreamed_ones_is_neither_put_out_nor_cut(unstreamed: float) -> None:
    made, rng = in_turn("abcd", None), random.Random(1)
    for number in range(2000):
        serve(made, 4.0 * number, stream=rng.random() >= unstreamed)
    assert made.health.ejections == 0
    for load in made.index.loads.values():
        assert load.limit == UNKNOWN_SIZE[0]
        assert load.prefill_token_s < 2 * FIRST_S / PROMPT  # and not the whole answer's, 60 times as much
        assert load.tpot_s == pytest.approx(TOKEN_S, rel=0.05)


def test_what_the_engine_tells_counts_like_what_was_streamed() -> None:
    made = dispatcher(8)
    for number in range(100):
        serve(made, 4.0 * number, stream=False, first_s=0.1)
    load = made.index.loads["a"]
    assert load.prefill_token_s == pytest.approx(0.1 / (PROMPT + FIXED_TOKENS), rel=0.01)
    assert load.tpot_s == pytest.approx((WHOLE_S - 0.1) / (OUTPUT - 1), rel=0.01)


def test_where_nobody_tells_prefill_speed_stays_a_guess_and_short_answers_say_nothing() -> None:
    made = dispatcher(8)
    guess, pace = made.index.loads["a"].prefill_token_s, made.index.loads["a"].tpot_s
    for number in range(100):
        serve(made, 4.0 * number, stream=False, output=LEAST_OUTPUT - 1)
    assert (made.index.loads["a"].prefill_token_s, made.index.loads["a"].tpot_s) == (guess, pace)
    for number in range(100, 200):
        serve(made, 4.0 * number, stream=False)
    assert made.index.loads["a"].prefill_token_s == guess
    assert made.index.loads["a"].tpot_s == pytest.approx(TOKEN_S, rel=0.05)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED])
def test_a_prompt_of_which_nothing_is_heard_counts_as_prefilled_after_its_usual_time(outcome: Outcome) -> None:
    made = dispatcher(8)
    for number in range(50):
        serve(made, 4.0 * number, stream=True)  # 0.05 s for 200 tokens
    load, asked = made.index.loads["a"], [request(at=300.0, tokens=PROMPT, stream=False) for _ in range(2)]
    for one in asked:
        made.on(Arrived(one), 300.0)
    assert (load.prefill_tokens, load.decode_tokens) == (2 * PROMPT, 0)
    made.on(Tick(), 300.04)
    assert (load.prefill_tokens, load.decode_tokens) == (2 * PROMPT, 0)
    made.on(Tick(), 300.06)  # the first; the second waits for it
    assert (load.prefill_tokens, load.decode_tokens) == (PROMPT, PROMPT)
    made.on(Ended(asked[1].id, outcome, (PROMPT, OUTPUT)), 300.07)
    assert (load.prefill_tokens, load.decode_tokens) == (0, PROMPT)
    made.on(Tick(), 301.0)  # it is over: there is nothing left to move
    made.on(Ended(asked[0].id, outcome, (PROMPT, OUTPUT)), 301.0)
    assert (load.prefill_tokens, load.decode_tokens, load.requests) == (0, 0, 0)


def test_an_embedding_is_all_prefill() -> None:
    made = dispatcher(8)
    for number in range(100):
        serve(made, 4.0 * number, stream=False, output=0)
    assert made.index.loads["a"].prefill_token_s == pytest.approx(FIRST_S / (PROMPT + FIXED_TOKENS), rel=0.01)


def test_an_end_without_usage_says_nothing_of_its_replicas_pace() -> None:
    made = dispatcher(8)
    guess = made.index.loads["a"].prefill_token_s
    asked = request(stream=False)
    made.on(Arrived(asked), 0.0)
    made.on(Ended(asked.id, Outcome.COMPLETED), 9.0)
    assert made.index.loads["a"].prefill_token_s == guess


@pytest.mark.parametrize("stream", [True, False])
def test_a_slow_replica_is_put_out_whichever_way_it_is_asked(stream: bool) -> None:
    made = in_turn("abc", 8)
    for number in range(300):
        serve(made, 20.0 * number, stream=stream, slow={"b": 5.0})
    assert made.health.ejections == 1
    assert state(made, "b") is not HealthState.UP


def test_answers_are_compared_with_answers_and_only_if_they_are_long_enough() -> None:
    assert answer_token_s(1.0, 0, LEAST_OUTPUT - 1) is None
    assert answer_token_s(2.1, 400, 100) == pytest.approx(0.02)


# -- health -----------------------------------------------------------------------------------------------------

CLOCK = count()


def answers(health: Watched, name: str, times: int, token_s: float | None, in_flight: int = 1) -> HealthState:
    for _ in range(times):
        now = float(next(CLOCK))
        health.served(name, None, 100, None, now, token_s, in_flight)
        verdict = health.on(name, Saw.SUCCESS, now)
        if verdict.usable == 0.0:
            return HealthState.EJECTED
    return verdict.state


def test_one_whose_answers_take_three_times_as_long_is_an_outlier() -> None:
    health = watching("a", "b", "c")
    answers(health, "a", 30, 0.02)
    answers(health, "b", 30, 0.02)
    assert answers(health, "c", 18, 0.07) is HealthState.UP
    assert answers(health, "c", 10, 0.07) is HealthState.EJECTED
    standing = health.of["c"]
    assert standing.why == "slow answers"
    assert health.ejections == 1


def test_one_that_ramps_up_is_judged_by_its_answers_and_not_by_what_says_nothing() -> None:
    health = watching("a", "b")
    answers(health, "a", 30, 0.02)
    answers(health, "b", 30, 0.02)
    for says, expected in (
        ((0.08,) * 5, HealthState.EJECTED),
        ((0.05,) * 9, HealthState.RAMPING),  # slower by more than the margin, but not three times as slow
        ((0.08, 0.02) * 2, HealthState.RAMPING),
    ):
        now = float(next(CLOCK))
        health.add(replica("new"), now, HealthState.RAMPING)
        for token_s in says:
            health.served("new", None, 100, None, now, token_s)
            health.served("new", None, 100, None, now, None)
            health.on("new", Saw.SUCCESS, now)
        standing = health.of["new"]
        assert standing.state is expected


@pytest.mark.parametrize(("times", "in_flight", "expected"), [
    (4.0, 10, HealthState.EJECTED), (4.0, 20, HealthState.UP), (5.9, 20, HealthState.UP),
    (7.0, 20, HealthState.EJECTED),
    (5.9, 300, HealthState.UP), (7.0, 300, HealthState.EJECTED),
])  # fmt: skip
def test_the_fuller_one_of_two_may_be_slower_for_that_and_no_more(
    times: float, in_flight: int, expected: HealthState
) -> None:
    assert FULLEST == 2.0
    health = watching("a", "b")
    answers(health, "a", 30, 0.05, 10)
    assert answers(health, "b", 40, 0.05 * times, in_flight) is expected


# -- limits -----------------------------------------------------------------------------------------------------


def test_a_limit_of_which_nothing_is_known_stays_as_it_is() -> None:
    limit = GradientLimit(64, 8)
    for number in range(5000):
        limit.observe(None, 100, None, 64, 0.01 * number)
    assert limit.limit == 64


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.95, 1.0])
def test_a_queue_in_a_replica_is_found_whatever_is_streamed(share: float) -> None:
    """It serves eight at once: more wait inside."""
    limit, rng, now = GradientLimit(64, 8), random.Random(2), 0.0
    for _ in range(20_000):
        in_flight = max(1, int(limit.limit))
        now += 0.1 * max(1.0, 8 / in_flight)
        waits_s, token_s = 0.08 * max(0, in_flight - 8), 0.01 * rng.lognormvariate(0, 0.1)
        if rng.random() < share:
            limit.observe(None, 100, None, in_flight, now, answer_token_s(waits_s + 0.05 + 80 * token_s, 100, 81))
        else:
            limit.observe(waits_s + 0.05, 100, token_s, in_flight, now)
    assert 8 <= limit.limit <= 24


def test_chance_does_not_cut_the_limit_further_where_some_are_streamed_and_some_not() -> None:
    """Nothing queues, and single requests scatter widely. Over many runs the limits are the same."""

    def mean_limit(share: float, seed: int) -> float:
        limit, rng, total = GradientLimit(64, 8), random.Random(seed), 0.0
        for number in range(10_000):
            in_flight, now = int(min(0.9 * limit.limit, 70)), 0.02 * number
            if rng.random() < share:
                limit.observe(None, 400, None, in_flight, now, 0.02 * rng.lognormvariate(0, 1.0))
            else:
                limit.observe(0.1 * rng.lognormvariate(0, 1.0), 400, 0.02 * rng.lognormvariate(0, 0.1), in_flight, now)
            total += limit.limit
        return total / 10_000

    usual = fmean(mean_limit(0.0, seed) for seed in range(10))
    for share in (0.3, 0.5):
        assert fmean(mean_limit(share, seed) for seed in range(10)) > 0.9 * usual


@pytest.mark.parametrize("returns", [True, False])
def test_the_few_that_are_streamed_are_heard_too(returns: bool) -> None:
    """From some moment on first tokens queue beyond 20 at once; whole answers are too long to show it."""
    limit, now, lowest = GradientLimit(40, 8, 48), 0.0, 48.0
    for number in range(400 * WINDOW):
        now += 0.1
        in_flight, streamed = int(limit.limit), number % 20 == 0
        first_s = 0.05 + 0.2 * max(0, in_flight - 20) * (number > 100 * WINDOW)
        if not returns and number > 110 * WINDOW:
            streamed = False  # and nobody streams any more: it goes on without them
        limit.observe(first_s if streamed else None, 100, None, in_flight, now, None if streamed else 0.01)
        lowest = min(lowest, limit.limit)
    assert limit.limit > 30 if not returns else lowest < 30


def test_a_limit_that_is_not_in_use_is_not_cut() -> None:
    limit = GradientLimit(64, 8)
    for number in range(4000):
        limit.observe(0.05 if number % 400 < 200 else 0.5, 100, 0.02, 5, 0.1 * number)
        assert limit.limit == 64


def test_what_was_found_in_a_burst_fades_down_to_where_it_began() -> None:
    limit = GradientLimit(16, 4)
    for number in range(4000):
        limit.observe(0.05, 100, 0.02, int(limit.limit), 0.1 * number)
    found = limit.limit
    assert found > 32
    for number in range(4000, 40_000):
        limit.observe(0.05, 100, 0.02, 10, 0.1 * number)
    assert 22 <= limit.limit < min(found, 24)
    for number in range(40_000, 80_000):
        limit.observe(0.05, 100, 0.02, 1, 0.1 * number)
    assert 16 <= limit.limit <= 17


def test_what_is_kept_of_too_few_is_forgotten_with_its_window() -> None:
    limit = GradientLimit(8, 1)
    for number in range(8 + WINDOW // 4):
        limit.observe(0.05, 100, None, 4, 0.01 * number)
    limit.observe(0.05, 100, None, 4, STALE_S + 10.0)
    assert len(limit._signals[0].samples) == 1


# -- promises ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES.values(), ids=lambda lane: lane.name)
@pytest.mark.parametrize("output", [0, 1, 5, 300])
def test_an_answer_is_late_exactly_if_first_token_and_tokens_together_are(lane: Lane, output: int) -> None:
    promised_s = lane.ttft_target_s + output * lane.gap_target_s
    for e2e_s, late in ((0.99 * promised_s, False), (1.01 * promised_s, True)):
        assert (per_token_s(e2e_s, output, first_counts(lane)) > lane.gap_target_s) is late


def test_a_client_that_left_an_answer_in_one_piece_waited_for_all_of_it() -> None:
    left = sample_of(record(outcome=Outcome.CANCELLED, stream=False, ttft_s=None, first_s=5.0, stream_s=0.0), True)
    assert left is not None
    assert left.ttft_s is None
    assert left.e2e_s == pytest.approx(5.001)
    streamed = sample_of(record(outcome=Outcome.CANCELLED, ttft_s=None, first_s=5.0, stream_s=0.0), True)
    assert streamed is not None
    assert streamed.ttft_s == pytest.approx(5.001)
