"""Alerts and findings are one list: each fact once, with its cause."""

from typing import Any

import pytest

from headgate.explain.diagnose import Finding
from headgate.explain.troubles import troubles


def alert(name: str, severity: str = "critical", lane: str = "fast", **more: Any) -> dict[str, Any]:
    message = more.pop("message", f"{name} is off (9 requests). Look at the queue wait.")
    told = {"name": name, "lane": lane, "severity": severity, "since_s": 4.0, "message": message, "missed": False}
    return {**told, **more}


def finding(figure: str, lane: str = "fast", severity: str = "critical", cause: str = "a flood") -> Finding:
    return Finding(severity, figure, {"lost_s": 3.0}, cause, "limit the tenant", lane)  # type: ignore[arg-type]


def test_an_alert_and_the_finding_about_the_same_fact_are_one() -> None:
    (told,) = troubles([alert("ttft_p99")], [finding("ttft_p50")])
    assert (told.severity, told.lane, told.subject) == ("critical", "fast", "first_token")
    assert (told.text, told.cause, told.knob) == ("ttft_p99 is off (9 requests)", "a flood", "limit the tenant")
    assert (told.since_s, told.alerts, told.evidence) == (4.0, ("ttft_p99",), {"lost_s": 3.0})


def test_alerts_about_the_same_fact_are_one_with_the_worst_ones_words() -> None:
    given = [alert("ttft_p95", since_s=9.0), alert("ttft_p99_over_60s"), alert("ttft_p50", "warning", since_s=None)]
    (told,) = troubles(given, [])
    assert (told.severity, told.text, told.cause) == ("critical", "ttft_p95 is off (9 requests)", "")
    assert told.knob == "Look at the queue wait."
    assert (told.since_s, told.alerts) == (9.0, ("ttft_p95", "ttft_p99_over_60s", "ttft_p50"))


@pytest.mark.parametrize(
    ("name", "figure", "lane"),
    [
        ("no_usable_replica", "replicas", ""),
        ("replica_down", "replicas", ""),
        ("queue_per_replica", "queue_depth", ""),
        ("utilisation", "utilisation", ""),
        ("cold_starts", "cold_starts", ""),
        ("refused_share", "refusals", "fast"),
        ("failed_share", "errors", "fast"),
        ("ttft_over_usual", "ttft_p95", "fast"),
        ("gap_p99", "tpot_p50", "fast"),
        ("e2e_p99", "e2e_p99.9", "fast"),
    ],
)
def test_what_is_about_the_same_fact(name: str, figure: str, lane: str) -> None:
    assert len(troubles([alert(name, lane=lane)], [finding(figure, lane)])) == 1


def test_other_lanes_and_other_facts_stay_apart_and_the_worst_comes_first() -> None:
    told = troubles(
        [alert("queue_per_replica", "warning", lane=""), alert("ttft_p95")],
        [finding("ttft_p95", "slow"), finding("tpot_p50"), finding("refusals"), finding("refusals", cause="full")],
    )
    assert [one.severity for one in told] == ["critical", "warning", "note", "note", "note", "note"]
    # A figure that no alert judges is no broken promise.
    assert [one.subject for one in told[2:]] == ["refusals", "refusals", "first_token", "tokens"]
    assert (told[4].lane, told[4].text, told[4].since_s, told[4].alerts) == ("slow", "a flood", None, ())
    assert [one.text for one in told if one.subject == "refusals"] == ["a flood", "full"]


def test_two_causes_of_one_alert_are_both_told() -> None:
    (told,) = troubles([alert("refused_share")], [finding("refusals"), finding("refusals", cause="full")])
    assert (told.cause, told.knob, told.evidence) == ("a flood; full", "limit the tenant", {})


def test_a_message_without_advice_is_told_whole() -> None:
    (told,) = troubles([alert("tenant_missed", lane="", message="tenant x gets nothing", since_s=None)], [])
    assert (told.text, told.knob, told.since_s) == ("tenant x gets nothing", "", None)


def test_what_no_alert_judges_is_a_warning_at_most() -> None:
    told = troubles([], [finding("loop_lag", ""), finding("fairness", severity="note"), finding("utilisation", "")])
    assert [(one.subject, one.severity) for one in told] == [
        ("loop_lag", "warning"), ("fairness", "note"), ("utilisation", "note"),
    ]  # fmt: skip


def test_that_refusals_break_promises_and_use_up_the_budget_is_said_once() -> None:
    told = troubles(
        [
            alert("ttft_p95", missed=True), alert("e2e_p95"), alert("error_budget"),
            alert("refused_share", "warning", since_s=9.0), alert("tpot_p50", lane="slow", missed=True),
        ],
        [finding("refusals", cause="the lane is full")],
    )  # fmt: skip
    assert [(one.lane, one.subject, one.severity) for one in told] == [
        ("fast", "refusals", "critical"), ("fast", "whole", "critical"), ("slow", "tokens", "critical"),
    ]  # fmt: skip
    assert told[0].alerts == ("refused_share", "ttft_p95", "error_budget")
    assert (told[0].text, told[0].cause) == ("refused_share is off (9 requests)", "the lane is full")


def test_that_replicas_are_down_is_not_its_own_cause() -> None:
    down = Finding("critical", "replicas", {"out": 2, "why": "connection refused"}, "all are out", "start them", "")
    (told,) = troubles(
        [alert("no_usable_replica", lane="", message="none is usable: connection refused. Start.")], [down]
    )
    assert (told.text, told.cause, told.knob) == ("none is usable: connection refused", "", "start them")
    assert told.evidence == {"out": 2}


def test_missing_replicas_come_before_what_follows_from_them() -> None:
    told = troubles(
        [alert("refused_share"), alert("failed_share", lane="slow"), alert("no_usable_replica", lane="")], []
    )
    assert [one.subject for one in told] == ["replicas", "errors", "refusals"]
