"""What tenants cost each other is taken from the requests around a p99, and adds up to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.explain.costs import AROUND, MOST_WHO, around_p99, charged, costs
from headgate.explain.neighbours import Neighbour
from headgate.explain.why import UsualTimes, explain
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Attempt, EngineTimings, Gap, Record
from tests.policy.records import STAGES, record

USUAL = UsualTimes(accept_s=0.001, first_s=0.05, tokens=100, decode_s=0.4, tpot_s=0.02, gap_s=0.03, output_tokens=21)


def beside(tenant: str, since: float, until: float, tokens: int = 0, ended: float | None = None) -> Neighbour:
    return Neighbour(tenant, tenant, "fast", "a", tokens, tokens, since, until, until if ended is None else ended)


def shares(one: Record, near: list[Neighbour], *, first: bool = True) -> dict[str, float]:
    return charged(one, explain(one, near, [], USUAL), near, first=first)


def test_an_ordinary_request_is_its_own_tenants() -> None:
    assert shares(record(), [beside("u", 99.0, 100.1, 5000)]) == {"t": pytest.approx(0.051)}
    assert shares(record(), [], first=False) == {"t": pytest.approx(record().e2e_s)}


def test_a_wait_is_shared_by_the_time_that_others_had_the_room() -> None:
    waiting = record(queue_s=2.0, ahead=Ahead(9, 900, "u", 9, 900))
    near = [beside("u", 90.0, 91.0, ended=101.501), beside("v", 100.5, 101.0, ended=109.0), beside("w", 90.0, 95.0)]
    told = shares(waiting, near)
    assert told["u"] == pytest.approx(2.0 * 1.5 / 3.0, rel=1e-3)
    assert told["v"] == pytest.approx(2.0 * 1.5 / 3.0, rel=1e-3)
    assert "w" not in told
    assert sum(told.values()) == pytest.approx(waiting.ttft_s or 0.0)


def test_a_wait_whose_neighbours_are_unknown_is_the_tenants_that_was_ahead_or_no_tenants() -> None:
    waiting = record(queue_s=2.0, ahead=Ahead(9, 900, "u", 9, 900))
    assert shares(waiting, [])["u"] == pytest.approx(2.0)
    assert shares(record(queue_s=2.0), [])[""] == pytest.approx(2.0)


def test_a_slow_first_token_is_shared_by_what_others_had_prefilled() -> None:
    slow = record(first_s=1.05)
    near = [beside("u", 100.0, 101.051, 6000), beside("v", 100.0, 101.051, 2000), beside("w", 99.0, 99.5, 90000)]
    told = shares(slow, near)
    assert told["u"] == pytest.approx(3 * told["v"])
    assert told["u"] + told["v"] == pytest.approx(1.0)
    assert told["t"] == pytest.approx(0.051)


def test_the_own_tenants_other_requests_are_its_own_cost() -> None:
    assert set(shares(record(first_s=1.05), [beside("t", 100.0, 101.051, 6000)])) == {"t"}


def test_what_a_replica_did_is_no_tenants() -> None:
    attempt = Attempt("b", 0.001, 1.0, Outcome.REPLICA_FAILED, False, "gone")
    assert shares(record(retry_s=1.0, failed=(attempt,), failures=1), [beside("u", 100.0, 101.0, 900)])[""] == 1.0


def test_after_the_first_token_only_the_whole_time_is_charged() -> None:
    gappy = record(stream_s=2.4, gaps=(Gap(0.1, 2.0),), ttft_s=0.051)
    near = [beside("u", 100.0, 102.2, 9000)]
    assert set(shares(gappy, near)) == {"t"}
    told = shares(gappy, near, first=False)
    assert told["u"] > 1.9
    assert sum(told.values()) == pytest.approx(gappy.e2e_s)


def test_an_eviction_is_charged_to_those_that_were_there() -> None:
    evicted = record(
        stream_s=2.4, gaps=(Gap(0.1, 2.0),), ttft_s=0.051, engine=EngineTimings(prefill_ms=50, preemptions=1)
    )
    assert shares(evicted, [beside("u", 99.0, 99.5, ended=105.0)], first=False)["u"] > 1.5


@pytest.mark.parametrize(
    ("many", "at", "first", "last"), [(1, 0, 0, 0), (60, 0, 0, 0), (150, 1, 0, 2), (1000, 10, 6, 13)]
)
def test_the_requests_around_a_p99(many: int, at: int, first: int, last: int) -> None:
    slowest_first = [record(id=str(rank), first_s=9.0 - rank / 1000) for rank in range(many)]
    p99_s, around = around_p99(slowest_first[::-1], lambda one: one.ttft_s or 0.0)
    assert p99_s == slowest_first[at].ttft_s
    assert [one.id for one in around] == [str(rank) for rank in range(first, last + 1)]
    assert len(around) <= AROUND


def test_the_parts_of_a_tail_add_up_to_the_p99_and_the_worst_comes_first() -> None:
    tail, ranked = costs("t", 500, 2.0, [("a", {"t": 1.0, "u": 1.0}), ("b", {"t": 1.0, "u": 3.0, "v": 1.0, "": 1.0})])
    assert (tail.tenant, tail.requests, tail.explained, tail.example) == ("t", 500, 2, "b")
    assert (tail.own_s, tail.others_s, tail.none_s) == (0.5, 1.25, 0.25)
    assert [(cost.who, cost.whom, cost.seconds, cost.share) for cost in ranked] == [
        ("u", "t", 1.0, 0.5),
        ("v", "t", 0.25, 0.125),
    ]


def test_many_tenants_are_named_by_their_cost_and_the_rest_together() -> None:
    charges = {f"u{n}": float(n) for n in range(1, MOST_WHO + 4)}
    _, ranked = costs("t", 500, sum(charges.values()), [("a", charges)])
    assert len(ranked) == MOST_WHO + 1
    assert {cost.who for cost in ranked} >= {"other", "u11", "u4"}
    assert sum(cost.seconds for cost in ranked) == pytest.approx(sum(charges.values()))


def test_a_tail_that_took_no_time_costs_nobody_anything() -> None:
    tail, ranked = costs("t", 1, 0.0, [("a", {})])
    assert (tail.own_s, tail.others_s, tail.none_s, ranked) == (0.0, 0.0, 0.0, [])


@given(
    st.fixed_dictionaries({stage: st.floats(0, 5) for stage in STAGES}),
    st.lists(st.tuples(st.sampled_from("tuv"), st.floats(95, 110), st.floats(0, 9), st.integers(0, 9000)), max_size=6),
    st.booleans(),
)
def test_what_is_charged_adds_up(
    stages: dict[str, Any], others: list[tuple[str, float, float, int]], first: bool
) -> None:
    one = record(**stages)
    near = [beside(tenant, since, since + took, tokens, since + 2 * took) for tenant, since, took, tokens in others]
    told = shares(one, near, first=first)
    assert all(seconds >= 0 for seconds in told.values())
    assert sum(told.values()) == pytest.approx((one.ttft_s or 0.0) if first else one.e2e_s, rel=0.02, abs=1e-3)
