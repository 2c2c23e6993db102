from typing import Any

import pytest

from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.policy.scaling.cost import ReplicaHours
from headgate.surface import usage as module
from headgate.surface.access import AdminAccess
from headgate.surface.usage import HOUR_S, KEEP_HOURS, UsageTable, as_csv


def record(wall: float, **more: Any) -> Record:
    made = {
        "id": "1", "at": 0.0, "lane": "fast", "tenant": "acme", "model": "m", "outcome": Outcome.COMPLETED,
        "status": 200,
        "replica": "r", "prompt_tokens": 10, "output_tokens": 5, "cached_tokens": 4,
    }  # fmt: skip
    return Record(wall=wall, **{**made, **more})


class Scene:
    def __init__(self, names: int = 10) -> None:
        self.wall = 1000.0 * HOUR_S
        self.usage = UsageTable(names, AdminAccess((), loopback_only=True), lambda: self.wall)

    def take(self, *records: Record) -> None:
        self.usage.take(records, 0.0)


def test_requests_and_tokens_are_added_up_by_tenant_model_and_hour() -> None:
    s = Scene()
    s.take(record(s.wall), record(s.wall + 1), record(s.wall - 1), record(s.wall, tenant="other one"))
    rows = s.usage.rows(2 * HOUR_S)
    assert [(row.hour / HOUR_S, row.tenant, row.requests, row.output_tokens) for row in rows] == [
        (1000, "acme", 2, 10),
        (999, "acme", 1, 5),
        (1000, "other one", 1, 5),
    ]
    s.wall += 10
    assert {row.hour for row in s.usage.rows(1.0)} == {1000 * HOUR_S}


def test_what_failed_through_our_fault_or_was_refused_has_no_tokens_and_what_the_client_left_has() -> None:
    s = Scene()
    s.take(
        record(s.wall, outcome=Outcome.REPLICA_FAILED),
        record(s.wall, outcome=Outcome.CANCELLED, output_tokens=2),
        record(s.wall, outcome=Outcome.OVER_LIMIT, replica=None),
    )
    served, refused = s.usage.rows(HOUR_S)
    assert (served.requests, served.failed, served.left) == (2, 1, 1)
    assert (served.prompt_tokens, served.cached_tokens, served.output_tokens) == (10, 4, 2)
    assert (refused.model, refused.refused, refused.prompt_tokens) == ("", 1, 0)


def test_an_answer_of_4xx_is_not_a_client_that_left() -> None:
    s = Scene()
    s.take(
        record(s.wall, outcome=Outcome.INVALID),
        record(s.wall, outcome=Outcome.UNKNOWN_MODEL),
        record(s.wall, outcome=Outcome.SLOW_CLIENT),
    )
    (row,) = s.usage.rows(HOUR_S)
    assert (row.requests, row.invalid, row.left) == (3, 2, 1)


def test_made_up_models_are_one_other_and_nobody_known_is_not_counted() -> None:
    s = Scene(names=2)
    s.take(*(record(s.wall, model=f"m{number}") for number in range(5)), record(s.wall, tenant=""))
    assert {row.model: row.requests for row in s.usage.rows(HOUR_S)} == {"m0": 1, "m1": 1, "other": 3}


def test_it_is_bounded_in_time_and_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    s = Scene()
    for hour in range(5):
        s.take(record(s.wall + hour * HOUR_S))
    assert [row.hour for row in s.usage.rows(1e9)] == [int(s.wall) + hour * HOUR_S for hour in (2, 3, 4)]
    s.wall += (KEEP_HOURS + 10) * HOUR_S
    s.take(record(s.wall))
    assert len(s.usage.rows(1e9)) == 1


def test_no_name_becomes_a_formula() -> None:
    s = Scene()
    s.take(record(s.wall, tenant='=HYPERLINK("x")'))
    assert b',"\'=HYPERLINK(""x"")",' in as_csv(s.usage.rows(HOUR_S))


def test_each_tenant_has_its_share_of_what_the_replicas_of_an_hour_cost() -> None:
    s = Scene()
    held = ReplicaHours(0.0)
    held.see(2, 0, 0.0, s.wall)
    held.see(2, 0, 3600.0, s.wall + 3600)
    s.usage = UsageTable(10, AdminAccess((), loopback_only=True), lambda: s.wall, held, price=3.0)
    s.take(record(s.wall), record(s.wall, tenant="big", prompt_tokens=40), record(s.wall, replica=None, model="x"))
    costs = {row.tenant: row.cost for row in s.usage.rows(HOUR_S) if row.tokens}
    assert costs == {"acme": pytest.approx(6.0 * 15 / 60), "big": pytest.approx(6.0 * 45 / 60)}
    assert "cost" in as_csv(s.usage.rows(HOUR_S)).decode().splitlines()[0]
    assert Scene().usage.rows(HOUR_S) == []
