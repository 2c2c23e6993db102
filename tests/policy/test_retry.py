import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import RetryConfig
from headgate.policy.dispatch.retry import DEATH_S, GENTLE, REFILL_S, RetryBudget, RetryVerdict


def allowed(budget: RetryBudget, tries: int, now: float, floor: int) -> int:
    return sum(bool(budget.spend(now, floor)) for _ in range(tries))


def test_a_replicas_death_is_absorbed_while_its_in_flight_shrinks_with_each_failure() -> None:
    budget = RetryBudget()
    assert all(budget.spend(1.0 + 0.001 * n, 64 - n) for n in range(64))
    assert budget.spend(1.1, 1) is RetryVerdict.BUDGET_SPENT


def test_a_floor_is_forgotten_after_the_death_it_belongs_to() -> None:
    budget = RetryBudget(floor=3)
    assert allowed(budget, 5, 0.0, 64) == 5
    assert allowed(budget, 5, DEATH_S + 0.1, 1) == 0


def test_in_the_long_run_one_request_in_ten_may_be_retried() -> None:
    budget = RetryBudget(RetryConfig(ratio=0.1), floor=0)
    retried = 0
    for _ in range(10_000):
        budget.earn(0.0)
        retried += bool(budget.spend(0.0, 5))
    assert retried == pytest.approx(1_000, abs=6)


def test_good_times_save_up_no_more_than_the_floor() -> None:
    budget = RetryBudget()
    for n in range(10_000):
        budget.earn(0.01 * n)
    assert allowed(budget, 1_000, 100.0, 8) == 8


def test_the_floor_comes_back_with_time_where_hardly_anything_is_sent() -> None:
    budget = RetryBudget(floor=4)
    assert allowed(budget, 9, 0.0, 1) == 4
    assert allowed(budget, 9, REFILL_S / 2, 1) == 2
    assert allowed(budget, 9, 2 * REFILL_S, 1) == 4


def test_one_request_is_sent_three_times_at_most_and_asking_again_costs_nothing() -> None:
    budget = RetryBudget(RetryConfig(attempts=3))
    assert budget.spend(0.0, 8, attempts=1) is RetryVerdict.AGAIN
    assert budget.spend(0.0, 8, attempts=2) is RetryVerdict.AGAIN
    assert budget.spend(0.0, 8, attempts=3) is RetryVerdict.TOO_MANY_ATTEMPTS
    assert budget.debt == 2.0


def test_what_has_begun_or_was_not_sent_has_a_larger_budget_of_its_own() -> None:
    budget = RetryBudget(RetryConfig(ratio=0.1), floor=3)
    assert sum(bool(budget.spend(0.0, 1, gentle=True)) for _ in range(50)) == 3 * GENTLE
    assert allowed(budget, 9, 0.0, 1) == 3, "it takes nothing from the others"
    budget.earn(0.0)
    assert budget.gentle_debt == pytest.approx(3 * GENTLE - 0.1 * GENTLE)
    assert sum(bool(budget.spend(REFILL_S, 1, gentle=True)) for _ in range(50)) == 3 * GENTLE
    assert budget.spend(REFILL_S, 1, attempts=3, gentle=True) is RetryVerdict.TOO_MANY_ATTEMPTS


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.integers(0, 12)), max_size=80),
    st.sampled_from([0.02, 0.1, 0.5]),
)
def test_over_any_window_retries_are_bounded(steps: list[tuple[float, bool, int]], ratio: float) -> None:
    budget, now = RetryBudget(RetryConfig(ratio=ratio), floor=2), 100.0
    log: list[tuple[float, bool, int]] = []  # when, a retry, the floor told
    for pause, failure, floor in steps:
        now += pause
        if failure:
            log.append((now, bool(budget.spend(now, floor)), floor))
        else:
            budget.earn(now)
            log.append((now, False, -1))
    for start in range(len(log)):
        retries = requests = 0
        floor = max([2, *(told for when, _, told in log[:start] if when >= log[start][0] - DEATH_S)])
        for when, retried, told in log[start:]:
            floor, retries, requests = max(floor, told), retries + retried, requests + (told < 0)
            window_s = when - log[start][0]
            assert retries <= ratio * requests + floor * (1 + window_s / REFILL_S) + 1e-6
