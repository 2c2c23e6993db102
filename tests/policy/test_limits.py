from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.policy.tenants.limits import UNLIMITED, Grant, OverLimit, Rate, RateLimiter, RateView, TenantLimits

BOTH = TenantLimits(requests_per_min=60, tokens_per_min=6_000)
"""One request and a hundred tokens a second."""


def granted(answer: Grant | OverLimit) -> Grant:
    assert isinstance(answer, Grant)
    return answer


def refused(answer: Grant | OverLimit) -> OverLimit:
    assert isinstance(answer, OverLimit)
    return answer


def rounded(view: RateView) -> RateView:
    requests, tokens = (
        one and Rate(one.limit, one.remaining, round(one.reset_s, 6)) for one in (view.requests, view.tokens)
    )
    return RateView(requests, tokens)


def test_a_rested_tenant_may_use_a_minutes_worth_at_once_and_then_its_rate() -> None:
    limits = RateLimiter()
    granted(limits.take("a", BOTH, 6_000, 0.0))
    assert refused(limits.take("a", BOTH, 100, 0.5)).retry_after_s == pytest.approx(0.5)
    granted(limits.take("a", BOTH, 100, 1.0))
    refused(limits.take("a", BOTH, 100, 1.5))


def test_a_refusal_names_the_limit_that_takes_longest_and_costs_nothing() -> None:
    limits = RateLimiter()
    for _ in range(60):
        granted(limits.take("a", BOTH, 10, 0.0))
    over = refused(limits.take("a", BOTH, 10, 0.0))
    assert (over.which, round(over.retry_after_s, 6)) == ("requests", 1.0)
    assert rounded(over.view) == RateView(Rate(60, 0, 60.0), Rate(6_000, 5_400, 6.0))
    tokens = refused(limits.take("a", BOTH, 5_900, 0.0))
    assert (tokens.which, round(tokens.retry_after_s, 6)) == ("tokens", 5.0)
    granted(limits.take("a", BOTH, 10, 1.0))


def test_tenants_do_not_share_and_without_limits_cost_nothing() -> None:
    limits = RateLimiter()
    granted(limits.take("a", BOTH, 6_000, 0.0))
    granted(limits.take("b", BOTH, 6_000, 0.0))
    free = TenantLimits()
    grant = granted(limits.take("c", free, 10**9, 0.0))
    limits.settle(grant, 5, 0.0)
    limits.give_back(grant, 0.0)
    assert grant is UNLIMITED
    assert limits.view("c", free, 0.0) == RateView(None, None)
    assert len(limits) == 2


def test_one_larger_than_the_bucket_passes_when_it_is_full_and_is_paid_off() -> None:
    limits = RateLimiter()
    granted(limits.take("a", BOTH, 12_000, 0.0))
    assert refused(limits.take("a", BOTH, 100, 0.0)).retry_after_s == pytest.approx(61.0)
    assert refused(limits.take("a", BOTH, 9_000, 0.0)).retry_after_s == pytest.approx(120.0)
    granted(limits.take("a", BOTH, 9_000, 120.0))


def test_a_rate_of_less_than_one_request_a_minute_still_serves() -> None:
    limits, rare = RateLimiter(), TenantLimits(requests_per_min=0.5)
    granted(limits.take("a", rare, 1, 0.0))
    assert refused(limits.take("a", rare, 1, 0.0)).retry_after_s == pytest.approx(120.0)
    granted(limits.take("a", rare, 1, 120.0))


def test_settling_refunds_what_was_not_used_and_charges_what_was_used_beyond() -> None:
    limits = RateLimiter()
    less, more = (granted(limits.take("a", BOTH, 1_000, 0.0)) for _ in range(2))
    limits.settle(less, 200, 0.0)
    assert rounded(limits.view("a", BOTH, 0.0)).tokens == Rate(6_000, 4_800, 12.0)
    limits.settle(more, 1_500, 0.0)
    assert rounded(limits.view("a", BOTH, 0.0)).tokens == Rate(6_000, 4_300, 17.0)


def test_extra_charges_stop_one_bucket_below_empty() -> None:
    limits = RateLimiter()
    grant = granted(limits.take("a", BOTH, 6_000, 0.0))
    limits.settle(grant, 10**9, 0.0)
    assert limits.view("a", BOTH, 0.0).tokens == Rate(6_000, 0, 120.0)


def test_giving_back_leaves_no_trace() -> None:
    limits = RateLimiter()
    before = limits.view("a", BOTH, 5.0)
    limits.give_back(granted(limits.take("a", BOTH, 700, 5.0)), 5.0)
    assert limits.view("a", BOTH, 5.0) == before


def test_full_buckets_are_forgotten_first_and_then_the_one_nearest_to_full() -> None:
    limits = RateLimiter(most=3)
    granted(limits.take("small", BOTH, 100, 0.0))
    granted(limits.take("large", BOTH, 6_000, 0.0))
    granted(limits.take("middle", BOTH, 3_000, 0.0))
    granted(limits.take("new", BOTH, 5_000, 0.5))
    assert sorted(limits._accounts) == ["large", "middle", "new"]
    granted(limits.take("newer", BOTH, 100, 40.0))
    assert sorted(limits._accounts) == ["large", "new", "newer"]
    granted(limits.take("newest", BOTH, 100, 1_000.0))
    assert sorted(limits._accounts) == ["newest"]


def test_settling_for_a_tenant_forgotten_meanwhile_charges_but_refunds_nothing() -> None:
    limits = RateLimiter(most=1)
    grant = granted(limits.take("a", BOTH, 1_000, 0.0))
    granted(limits.take("b", BOTH, 1_000, 0.0))
    limits.settle(grant, 0, 0.0)
    limits.give_back(grant, 0.0)
    assert sorted(limits._accounts) == ["b"]
    limits.settle(grant, 3_000, 0.0)
    assert rounded(limits.view("a", BOTH, 0.0)).tokens == Rate(6_000, 4_000, 20.0)
    assert len(limits) == 1


def test_meeting_a_tenant_never_takes_a_long_sweep() -> None:
    limits = RateLimiter(most=50)
    for n in range(50):
        granted(limits.take(f"t{n:02}", BOTH, 1_000, 0.0))
    for n in range(50):
        granted(limits.take(f"t{n:02}", BOTH, 1_000 + n, 0.0))
    granted(limits.take("new", BOTH, 1, 0.0))
    assert len(limits) == 50
    assert sum(known > 20.0 for known, _ in limits._full) <= 8


def test_after_a_rush_memory_shrinks_a_few_at_a_time() -> None:
    limits = RateLimiter()
    for n in range(20):
        granted(limits.take(f"t{n:02}", BOTH, 1_000, 0.0))
    sizes = []
    for n in range(3):
        granted(limits.take(f"new{n}", BOTH, 1_000, 1_000.0))
        sizes.append(len(limits))
    assert sizes == [13, 6, 3]


@pytest.mark.parametrize("wrong", [{"requests_per_min": 0}, {"tokens_per_min": -1}, {"burst": float("inf")}])
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        TenantLimits(**wrong)


steps = st.lists(
    st.tuples(
        st.floats(0, 20), st.integers(0, 900), st.sampled_from(["keep", "settle", "back"]), st.integers(0, 1_200)
    ),
    max_size=50,
)


@settings(deadline=None)
@given(steps, st.sampled_from([0.25, 1.0, 2.0]))
def test_over_any_window_no_more_than_the_rate_and_one_burst_is_used(
    steps: list[tuple[float, int, str, int]], burst: float
) -> None:
    """Used: reserved, less what was refunded in the window."""
    limits, rule, now = RateLimiter(), TenantLimits(tokens_per_min=1_000, burst=burst), 1e6
    log: list[tuple[float, int]] = []
    for pause, tokens, what, used in steps:
        now += pause
        answer = limits.take("a", rule, tokens, now)
        if isinstance(answer, OverLimit):
            assert answer.retry_after_s > 0
            continue
        log.append((now, tokens))
        if what == "settle":
            limits.settle(answer, min(used, tokens), now)
            log.append((now, min(used, tokens) - tokens))
        elif what == "back":
            limits.give_back(answer, now)
            log.append((now, -tokens))
    for start in range(len(log)):
        total = 0
        for when, tokens in log[start:]:
            total += tokens
            assert total <= (when - log[start][0]) * 1_000 / 60 + max(1_000 * burst, 900) + 0.1


@settings(deadline=None)
@given(steps)
def test_coming_back_when_told_to_is_always_early_enough_and_never_too_late(
    steps: list[tuple[float, int, str, int]],
) -> None:
    limits, rule, now = RateLimiter(), TenantLimits(requests_per_min=7, tokens_per_min=1_000), 3e5
    for pause, tokens, _, _ in steps:
        now += pause
        answer = limits.take("a", rule, tokens, now)
        if isinstance(answer, OverLimit):
            if answer.retry_after_s > 2e-3:
                refused(limits.take("a", rule, tokens, now + answer.retry_after_s - 1e-3))
            now += answer.retry_after_s
            granted(limits.take("a", rule, tokens, now))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 130)), max_size=20))
def test_whatever_was_reserved_only_what_was_settled_counts(uses: list[tuple[int, int]]) -> None:
    limits, rule = RateLimiter(), TenantLimits(tokens_per_min=6_000)
    grants = [granted(limits.take("a", rule, reserved, 9.0)) for reserved, _ in uses]
    for grant, (_, used) in zip(grants, uses, strict=True):
        limits.settle(grant, used, 9.0)
    rate = limits.view("a", rule, 9.0).tokens
    assert rate is not None
    assert rate.reset_s == pytest.approx(sum(used for _, used in uses) / 100, abs=1e-6)


@pytest.mark.parametrize("per_min", [0.5, 1, 60])
def test_a_look_says_what_taking_would_and_reserves_nothing(per_min: float) -> None:
    limits, one = RateLimiter(), TenantLimits(requests_per_min=per_min, tokens_per_min=100)
    assert limits.look("t", one, 1, 0.0) is None
    assert len(limits) == 0
    while limits.look("t", one, 1, 0.0) is None:
        granted(limits.take("t", one, 1, 0.0))
    reserved = limits.reserved
    over = limits.look("t", one, 1, 0.0)
    assert over == refused(limits.take("t", one, 1, 0.0))
    assert over is not None
    assert limits.reserved == reserved
    assert limits.look("t", one, 1, over.retry_after_s) is None
