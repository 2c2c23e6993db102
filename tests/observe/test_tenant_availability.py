import json

import pytest

from headgate.measure.tenant_availability import LOOK_S, MOST_TOLD, UNUSED_S, TenantAvailability
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.policy.promises.promise import TenantReading
from tests.observe.records import T0, record


def test_availability_by_lane_and_tenant_without_its_own_limits_and_faults() -> None:
    tenants = TenantAvailability(10, 0.001, LANES)
    taken = [record(tenant="premium") for _ in range(339)]
    taken += [record(tenant="premium", outcome=Outcome.LANE_FULL) for _ in range(500)]
    taken += [record(tenant="premium", outcome=Outcome.NO_REPLICA) for _ in range(20)]
    taken += [record(tenant="free", outcome=Outcome.OVER_LIMIT) for _ in range(50)]
    taken += [record(tenant="free", outcome=Outcome.CANCELLED), record(tenant="free"), record("nowhere", tenant="free")]
    taken += [record(tenant="", outcome=Outcome.INVALID), record(tenant="made up", outcome=Outcome.UNAUTHORIZED)]
    tenants.take(taken, T0)
    told = {(one["lane"], one["tenant"]): one for one in json.loads(json.dumps(tenants.told(T0), allow_nan=False))}
    premium = told["fast", "premium"]
    assert premium["availability"]["5m"] == {
        "share": pytest.approx(339 / 859), "asked": 859, "answered": 339, "refused": 500, "failed": 20,
    }  # fmt: skip
    assert premium["burn"]["1h"] == pytest.approx(520 / 859 / 0.001)
    assert told["fast", "free"]["availability"]["5m"]["share"] == 1.0
    assert told["fast", "free"]["over_limit"] == 50
    assert set(told) == {("fast", "premium"), ("fast", "free"), ("other", "free")}
    assert {(lane, name): share for lane, name, share in tenants.shares(T0)}["fast", "free"] == 1.0
    assert tenants.of["fast", "free"].results == {
        "answered": 1, "refused": 0, "failed": 0, "over_limit": 50, "client": 1,
    }  # fmt: skip
    assert list(tenants.shares(T0 + 600)) == []  # nobody has asked since


def test_tenants_are_told_apart_up_to_a_bound_and_forgotten_when_they_are_gone() -> None:
    tenants = TenantAvailability(3, 0.001, LANES)
    tenants.take([record(tenant=f"t{n}") for n in range(1000)], T0)
    assert {name for _, name in tenants.of} == {"t0", "t1", "t2", "other"}
    assert len(tenants.told(T0)) == 4 <= MOST_TOLD
    later = T0 + UNUSED_S + LOOK_S + 1
    tenants.take([], later)
    assert tenants.of == {}
    tenants.take([record(tenant="new")], later)
    assert list(tenants.of) == [("fast", "new")]


def test_the_one_that_gets_fewest_answers_is_found_among_those_that_asked_lately() -> None:
    tenants = TenantAvailability(1000, 0.001, LANES)
    assert tenants.worst(T0) is None
    tenants.take([record(tenant="big") for _ in range(500)], T0)
    tenants.take([record(tenant="greedy", outcome=Outcome.OVER_LIMIT) for _ in range(50)], T0)
    tenants.take([record(tenant="few", outcome=Outcome.LANE_FULL) for _ in range(4)], T0)
    assert tenants.worst(T0) is None
    tenants.take([record(tenant="half", outcome=Outcome.NO_REPLICA) for _ in range(6)], T0)
    tenants.take([record(tenant="half") for _ in range(6)], T0)
    assert tenants.worst(T0) == TenantReading("fast", "half", 12, 6)
    tenants.take([record(tenant="small", outcome=Outcome.LANE_FULL) for _ in range(7)], T0)
    assert tenants.worst(T0) == TenantReading("fast", "small", 7, 7, others=1)
    assert tenants.worst(T0 + 400) is None
    tenants.take([record(tenant=f"t{n}", outcome=Outcome.LANE_FULL) for n in range(900) for _ in range(5)], T0 + 401)
    found = tenants.worst(T0 + 401)
    assert found is not None
    assert found.others == MOST_TOLD - 1  # no more are looked at
