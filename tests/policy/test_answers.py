from dataclasses import replace

import pytest

from headgate.policy.promises.alert import Severity
from headgate.policy.promises.availability import BACK_S, DOWN_S, FleetWatch, ShareWatch, TenantWatch, bounds
from headgate.policy.promises.burn import Availability, Burn
from headgate.policy.promises.promise import FleetReading, Tail, TenantReading, beyond
from headgate.policy.promises.words import about_outage, about_promise, about_share, about_tenant

OK, WARNING, CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL


def shares(asked: int, refused: int = 0, failed: int = 0, budget: float = 0.001) -> ShareWatch:
    burn, watch = Burn(budget), ShareWatch("fast", budget)
    burn.add(asked, failed, 0.0, refused)
    watch.on(burn, 0.0)
    return watch


@pytest.mark.parametrize(
    ("asked", "missed", "severity"),
    [
        (1000, 9, OK), (1000, 10, WARNING), (1000, 49, WARNING), (1000, 50, CRITICAL), (859, 520, CRITICAL),
        (8, 4, CRITICAL), (20, 4, OK), (3, 3, CRITICAL), (2, 2, OK), (0, 0, OK),
    ],
)  # fmt: skip
def test_a_share_is_worth_a_warning_from_1_percent_and_critical_from_5(
    asked: int, missed: int, severity: Severity
) -> None:
    watch = shares(asked, refused=missed)
    assert (watch.refused.severity, watch.failed.severity) == (severity, OK)
    watch = shares(asked, failed=missed)
    assert (watch.refused.severity, watch.failed.severity) == (OK, severity)


def test_where_more_may_go_without_an_answer_more_is_needed_to_say_so() -> None:
    assert bounds(0.001) == (0.01, 0.05)
    assert bounds(0.1) == (0.1, 0.5)
    assert bounds(0.5) == (0.5, 0.75)
    assert shares(100, refused=20, budget=0.5).refused.severity is OK
    assert shares(100, refused=60, budget=0.5).refused.severity is WARNING
    assert shares(100, refused=100, budget=1.0).refused.severity is OK  # nothing is promised


def test_what_is_said_of_a_share() -> None:
    refused, failed = shares(100, refused=40).refused, shares(100, failed=40).failed
    said = about_share(refused, "refused")
    assert said.startswith("40 % of the requests of the last 5 min were refused (40). Look at headgate_refusals_total")
    assert about_share(failed, "failed").startswith("40 % of the requests of the last 5 min failed (40). Look at")
    assert about_share(shares(100).refused, "refused") == "0 % of the requests of the last 5 min were refused (0)"
    assert about_share(shares(0).refused, "refused") == "refused: idle, nobody asked in the last 5 min"


def test_availability_of_nobody_is_not_known() -> None:
    assert Availability(0, 0, 0).share is None
    found = Availability(10, 3, 1)
    assert (found.missed, found.answered, found.share) == (4, 6, 0.6)


def test_an_outage_is_said_at_once_and_over_when_one_has_been_back_for_a_while() -> None:
    watch = FleetWatch()
    assert watch.on(FleetReading(up=2), 0.0) == [None, None]
    out = FleetReading(up=0, down=("a", "b"), why="connection refused", starting=1, parked=1, outage=True)
    outage, down = watch.on(out, 1.0)
    assert outage is not None
    assert down is None
    assert outage.severity is CRITICAL
    assert outage.message.startswith(
        "no replica is usable, nothing can be answered (2 down, 1 starting, 1 parked): connection refused. Wait"
    )
    back = FleetReading(up=1, down=("b",))
    watch.on(back, 2.0)
    assert watch.outage.tell(watch.outage).startswith("over, for less than 5 s: usable replicas: 1 (1 down)")
    (over, _) = watch.on(back, 2.0 + BACK_S)
    assert over is not None
    assert over.severity is OK


def test_a_replica_that_stays_down_is_a_warning_that_names_it() -> None:
    watch = FleetWatch()
    down = FleetReading(up=3, down=("a", "b", "c", "d", "e"), why="its warm-up failed")
    assert watch.on(down, 0.0) == [None, None]
    (_, said) = watch.on(down, DOWN_S)
    assert said is not None
    assert said.severity is WARNING
    assert said.message.startswith("5 of 8 replicas down: a, b, c, d and 1 more (its warm-up failed). Start them")
    watch.on(FleetReading(up=8), DOWN_S + 1)
    assert watch.down.tell(watch.down) == "none is down any more, since a few seconds"
    watch.on(FleetReading(up=8), DOWN_S + 40)
    assert watch.down.tell(watch.down) == "no replica is down"


def test_a_lane_that_nobody_can_serve_is_an_outage_of_its_own() -> None:
    watch = FleetWatch()
    (said, _) = watch.on(FleetReading(up=3, down=("a",), unserved=("lane long", "model m")), 0.0)
    assert said is not None
    assert said.severity is CRITICAL
    assert said.message.startswith("no replica is usable for lane long, model m. Start theirs again")


def test_a_fleet_that_sleeps_is_no_outage() -> None:
    watch = FleetWatch()
    assert watch.on(FleetReading(up=0, parked=2, asleep=True), 0.0) == [None, None]
    assert about_outage(watch.seen) == "usable replicas: 0 (2 parked)"
    assert about_outage(FleetReading(up=0, outage=True)).startswith(
        "no replica is usable, nothing can be answered (none is known). Start"
    )


@pytest.mark.parametrize(
    ("down", "starting", "does"),
    [
        (("a",), 0, "Start them again, or look at their logs;"),
        ((), 1, "Wait for those that start; if they are not ready soon, look at their logs;"),
        (("a",), 1, "Wait for those that start; start the others again, or look at their logs;"),
    ],
)
def test_who_starts_already_is_not_to_be_started(down: tuple[str, ...], starting: int, does: str) -> None:
    assert f". {does} /admin" in about_outage(FleetReading(up=0, down=down, starting=starting, outage=True))


def test_a_tenant_without_answers_is_said_and_its_own_limits_are_not_ours() -> None:
    watch = TenantWatch(0.001)
    assert watch.on(None, 0.0) is None
    assert about_tenant(watch.alert, watch.seen) == "tenants: none asked in vain in the last 5 min"
    assert watch.on(TenantReading("fast", "small", 4, 4), 1.0) is None  # too few
    assert watch.on(TenantReading("fast", "small", 100, 40), 2.0) is None  # it gets most of its answers
    change = watch.on(TenantReading("fast", "small", 9, 9), 3.0)
    assert change is not None
    assert change.severity is Severity.CRITICAL
    assert change.message.startswith(
        "tenant small in lane fast: 100 % of its 9 requests of the last 5 min were refused or failed"
    )
    watch.on(TenantReading("fast", "small", 9, 8, others=2), 4.0)
    assert ", and so with 2 more" in about_tenant(watch.alert, watch.seen)
    changes = [watch.on(None, 5.0 + second) for second in range(60)]
    assert [one.severity for one in changes if one is not None] == [Severity.OK]
    assert TenantWatch(1.0).on(TenantReading("fast", "small", 9, 9), 0.0) is None  # nothing is promised


def test_refused_ones_have_a_figure_as_often_as_the_answered_do() -> None:
    assert beyond(0, 0, 7) == 7.0  # nobody was answered: all of them missed it
    assert beyond(100, 100, 7) == 7.0
    assert beyond(10, 100, 7) == pytest.approx(0.7)  # nine of ten answers come in one piece
    assert beyond(120, 100, 7) == 7.0  # also those who left have it
    assert beyond(0, 100, 7) == 0.0


def test_both_percentiles_are_told_each_by_its_name() -> None:
    from headgate.policy.promises.alert import Alert, AlertLevel

    alert = Alert("ttft_p95", "fast", (AlertLevel(CRITICAL),), lambda _: "")
    tail = Tail(float("inf"), 100, 20, 0.25)
    assert tail.served_s == 0.25
    alert.see(tail.value_s, 0.5, tail.count, (2.0,), 0.0)
    assert about_promise(alert, "ttft", 95, 5, tail).startswith(
        "TTFT p95 over all arrivals of the last 5 min is of one that got no answer, the promised 500 ms is missed "
        "(100 requests, 20 of them refused or failed; 250 ms over the served). Look at headgate_refusals_total"
    )
    none = replace(tail, of_served_s=None)
    assert "20 of them refused or failed; none was served" in about_promise(alert, "ttft", 95, 5, none)
    alert.see(0.3, 0.5, 100, (0.6,), 1.0)
    few = Tail(0.3, 100, 1, 0.29)
    said = about_promise(alert, "ttft", 95, 5, few)
    assert "(100 requests, 1 of them refused or failed; 290 ms over the served)" in said
