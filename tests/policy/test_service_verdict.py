"""One line says whether all is well, and if not, the worst of what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pytest

from headgate.policy.promises.alert import Severity
from headgate.policy.promises.promise import FleetReading
from headgate.policy.promises.slo import Known
from headgate.policy.promises.verdict import ServiceVerdict, lane_verdict, verdict

WELL = FleetReading(up=3)
OVER, NEAR = "over its promise", "near its promise"


@dataclass
class Minute:
    asked: int = 400
    missed: int = 0
    failed: int = 0
    over_limit: int = 0


def known(
    alert: str,
    value: float | None = 0.5,
    *,
    lane: str = "fast",
    severity: Severity = Severity.CRITICAL,
    bound: float = 0.5,
    easing: bool = False,
) -> Known:
    return Known(
        alert=alert, lane=lane, severity=severity, value=value, bound=bound, count=9, since=1.0, tell=lambda: "",
        easing=easing,
    )  # fmt: skip


def told(
    fleet: FleetReading = WELL, raised: Sequence[Known] = (), minute: Minute | None = None, *, idle: bool = False
) -> ServiceVerdict:
    return verdict(fleet, raised, minute or Minute(), idle=idle)


@pytest.mark.parametrize(
    ("fleet", "minute", "expected"),
    [
        (WELL, Minute(), ("ok", "All promises kept · 3 of 3 replicas · 0 refused")),
        (FleetReading(up=1), Minute(), ("ok", "All promises kept · 1 of 1 replica · 0 refused")),
        (WELL, Minute(missed=2), ("ok", "All promises kept · 3 of 3 replicas · 2 refused in 1 min")),
        (
            WELL,
            Minute(asked=1000, missed=3, failed=2, over_limit=1200),
            (
                "ok",
                "All promises kept · 3 of 3 replicas · 2 failed in 1 min · 1 refused in 1 min"
                " · 1,200 over their limit",
            ),
        ),
        (
            FleetReading(up=2, starting=1, parked=4),
            Minute(),
            ("ok", "All promises kept · 2 of 3 replicas, 1 starting, 4 parked · 0 refused"),
        ),
        # Requests without an answer are said before there are enough of them for an alert.
        (
            WELL,
            Minute(asked=5, missed=5),
            ("warning", "Refusing: 5 of 5 requests · 3 of 3 replicas · 5 refused in 1 min"),
        ),
        (
            WELL,
            Minute(asked=2, missed=1, failed=1),
            ("warning", "Failing: 1 of 2 requests · 3 of 3 replicas · 1 failed in 1 min · 0 refused"),
        ),
    ],
)  # fmt: skip
def test_without_alerts(fleet: FleetReading, minute: Minute, expected: tuple[str, str]) -> None:
    assert told(fleet, minute=minute) == expected


def test_idle_is_neither_kept_nor_broken() -> None:
    assert told(minute=Minute(asked=0), idle=True) == ("idle", "Idle: no requests in 5 min · 3 of 3 replicas")
    since_the_last_look = told(minute=Minute(asked=3), idle=True)
    assert since_the_last_look == ("ok", "All promises kept · 3 of 3 replicas · 0 refused")


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (
            FleetReading(up=0, down=("a", "b"), why="connection refused", outage=True),
            ("critical", "Down: 0 of 2 replicas answer (connection refused)"),
        ),
        (
            FleetReading(up=0, down=("a",), starting=1, outage=True),
            ("critical", "Down: 0 of 2 replicas answer, 1 starting"),
        ),
        (FleetReading(up=0, outage=True), ("critical", "Down: no replica is known")),
        (FleetReading(up=0, starting=2, outage=True), ("critical", "Down: 0 of 2 replicas ready")),
        (FleetReading(up=0, starting=1), ("warning", "Starting: 0 of 1 replica ready")),
        (
            FleetReading(up=0, starting=2, why="/health answered 503"),
            ("warning", "Starting: 0 of 2 replicas ready (/health answered 503)"),
        ),
        (FleetReading(up=0, parked=2, asleep=True), ("idle", "Asleep: no replica is in use, 2 parked")),
        (FleetReading(up=0, asleep=True), ("idle", "Asleep: no replica is in use")),
        (FleetReading(up=0), ("warning", "Starting: no replica is known yet")),
    ],
)
def test_no_replica_is_up(fleet: FleetReading, expected: tuple[str, str]) -> None:
    # What no replica causes is not said beside it, and that there were no requests excuses nothing.
    assert told(fleet, [known("failed_share")], Minute(missed=400, failed=400), idle=True) == expected


def test_a_replica_that_is_missing_is_said_at_once_and_why() -> None:
    fleet = FleetReading(up=2, down=("a",), why="connection refused")
    line = "At risk: 1 of 3 replicas down (connection refused)"
    assert told(fleet) == ("warning", f"{line} · 0 refused")
    assert told(fleet, idle=True) == ("warning", f"{line} · 0 refused")
    down = known("replica_down", 1.0, lane="", severity=Severity.WARNING)
    assert told(fleet, [down]) == ("warning", f"{line} · 0 refused")
    queue = known("queue_per_replica", 9.0, lane="", severity=Severity.WARNING)
    assert told(fleet, [queue, down]) == ("warning", f"{line}, and 1 more · 0 refused")
    broken = known("ttft_p95", 0.812)
    assert told(fleet, [down, broken]) == (
        "critical",
        "Broken: fast TTFT p95 is 812 ms, promised 500 ms; 1 of 3 replicas down (connection refused) · 0 refused",
    )
    over = "Recovering: no replica is down any more · 3 of 3 replicas · 0 refused"
    assert told(WELL, [down]) == ("warning", over)
    assert told(WELL, [known("no_usable_replica", lane=""), down]) == (
        "critical", over.replace("more ·", "more, and 1 more ·")
    )  # fmt: skip


def test_a_long_reason_is_cut_and_put_on_one_line() -> None:
    text = told(FleetReading(up=0, down=("a",), why="it\nsaid " + 100 * "no ", outage=True)).text
    assert "(it said no no" in text
    assert text.endswith("…)")
    assert len(text) < 130


def test_a_lane_without_its_replicas_is_down() -> None:
    fleet = FleetReading(up=1, down=("a",), why="connection refused", unserved=("lane long", "model x"))
    assert told(fleet, [known("ttft_p95")]) == (
        "critical",
        "Down for lane long, model x: none of its replicas answers (connection refused) · 0 refused",
    )


@pytest.mark.parametrize(
    ("alert", "expected"),
    [
        (known("ttft_p95", 0.812), "Broken: fast TTFT p95 is 812 ms, promised 500 ms"),
        (known("gap_p99_over_60s", inf), "Broken: fast gap between tokens p99 is missed, promised 500 ms"),
        (
            known("e2e_p95", 0.45, severity=Severity.WARNING),
            "At risk: fast end-to-end time p95 is 450 ms, promised 500 ms",
        ),
        (known("ttft_p95", 0.1, easing=True), "Recovering: fast TTFT p95 was over the promised 500 ms"),
        (
            known("ttft_p95", None, severity=Severity.WARNING),
            "Recovering: fast TTFT p95 was near the promised 500 ms",
        ),
        (known("failed_share", 0.3), "Failing: 30 % of lane fast in 5 min"),
        (known("refused_share", 0.38), "Refusing: 38 % of lane fast in 5 min"),
        (
            known("refused_share", None, lane="other"),
            "Refusing: 0 % of requests refused before they were read in 5 min",
        ),
        (known("error_budget", 20.0), "Failing: the error budget of lane fast is spent 20× too fast"),
        (known("error_budget", None), "Failing: the error budget of lane fast is spent 0× too fast"),
        (known("tenant_missed", 1.0, lane=""), "Broken: a tenant gets hardly any answers"),
        (
            known("ttft_over_usual", 0.2, severity=Severity.WARNING),
            "At risk: fast TTFT is twice what it usually is",
        ),
        (
            known("queue_per_replica", 12.0, lane="", severity=Severity.WARNING),
            "At risk: 12 requests wait for each replica",
        ),
        (
            known("queue_per_replica", None, lane="", severity=Severity.WARNING, easing=True),
            "Recovering, after: 0 requests wait for each replica",
        ),
        (
            known("utilisation", 0.92, lane="", severity=Severity.WARNING),
            "At risk: 92 % of the scarcest resource is taken",
        ),
        (
            known("utilisation", None, lane="", severity=Severity.WARNING),
            "At risk: 0 % of the scarcest resource is taken",
        ),
        (known("cold_starts", 0.1, lane="", severity=Severity.WARNING), "At risk: requests meet cold replicas"),
    ],
)
def test_each_alert_in_a_few_words(alert: Known, expected: str) -> None:
    level = "critical" if alert.severity is Severity.CRITICAL else "warning"
    assert told(raised=[alert]) == (level, f"{expected} · 3 of 3 replicas · 0 refused")


def test_the_worst_alert_is_named_and_the_others_are_counted_once() -> None:
    raised = [
        known("ttft_p99", 0.9),
        known("ttft_p99_over_60s", 0.9),
        known("queue_per_replica", 12.0, lane="", severity=Severity.WARNING),
        known("refused_share", 0.38),
        known("failed_share", 0.2, easing=True),
        known("e2e_p95", inf),
        known("error_budget", 20.0),
        known("error_budget", 20.0, lane="slow"),
    ]
    # That a percentile falls on the refused, and that they use up the budget, is no further fact.
    assert told(raised=raised).text.startswith("Refusing: 38 % of lane fast in 5 min, and 3 more · ")


# -- a lane's badge --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "minute", "expected"),
    [
        ([], Minute(), ("ok", "ok")),
        ([], Minute(missed=3), ("ok", "ok")),
        ([], Minute(asked=5, missed=5), ("warning", "5 of 5 refused")),
        ([], Minute(asked=5, missed=5, failed=5), ("warning", "5 of 5 failed")),
        ([known("ttft_p95"), known("refused_share", 0.38)], Minute(), ("critical", "38 % refused")),
        ([known("failed_share", None)], Minute(), ("critical", "0 % failed")),
        ([known("ttft_p99_over_60s"), known("ttft_p95", easing=True)], Minute(), ("critical", f"TTFT p99 {OVER}")),
        ([known("e2e_p95", easing=True)], Minute(), ("critical", f"end-to-end time p95 was {OVER}")),
        ([known("gap_p99", severity=Severity.WARNING)], Minute(), ("warning", f"gap between tokens p99 {NEAR}")),
        ([known("ttft_over_usual", severity=Severity.WARNING)], Minute(), ("warning", "TTFT twice the usual")),
        ([known("error_budget")], Minute(), ("critical", "error budget")),
    ],
)  # fmt: skip
def test_a_lanes_badge_is_the_worst_of_latency_failures_and_refusals(
    raised: list[Known], minute: Minute, expected: tuple[str, str]
) -> None:
    assert lane_verdict(raised, minute, "ok") == expected


def test_a_lane_without_requests_is_idle_and_with_too_few_unknown() -> None:
    nothing = Minute(asked=0)
    assert lane_verdict([], nothing, "idle") == ("idle", "idle")
    assert lane_verdict([], nothing, "unknown") == ("unknown", "too few to judge")
