"""The tree: for each way to be slow the cause that is named and the knob that turns it; nothing when all is well."""

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from headgate.cli.engine import FLAGS
from headgate.config.engine import EngineConfig
from headgate.config.gateway import GatewayConfig, Tenant
from headgate.explain.diagnose import DriftView, Finding, LaneView, View, findings
from headgate.explain.explanation import Kind
from headgate.explain.remedies import ANSWERS, GROUPS, REFUSALS
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.promises.promise import Promise, promises

FAST = LANES["fast"]
HEALTHY = LaneView(
    lane=FAST, requests=1000, measured_s={"ttft_p95": 0.2, "ttft_p99": 0.4, "gap_p99": 0.05, "e2e_p99": 6.0},
    e2e_p999_s=9.0, queue_p99_s=0.01, first_lost={"own_prompt": 1.0}, token_lost={"generation": 3.0}, prompt_p99=400,
    output_p50=200, output_p99=500, waited=10, heaviest="acme", heaviest_share=0.3, cold=1, stalled=2, failed=0,
)  # fmt: skip


MADE = {f"{one.name}_s": one for one in promises(FAST)}


def found(whole: View | None = None, **lane: Any) -> list[Finding]:
    """The findings of a healthy lane but for what is given. Percentiles are given as in `ttft_p99_s`."""
    measured = {MADE[name].name: lane.pop(name) for name in list(lane) if name in MADE}
    one = replace(HEALTHY, measured_s={**HEALTHY.measured_s, **measured}, **lane)
    return findings(replace(whole or View(), lanes=(one,)))


def test_nothing_to_report_is_an_empty_list() -> None:
    assert found() == []
    assert findings(View()) == []
    assert found(waited=500) == []
    assert found(refused={Outcome.OVER_LIMIT: 3, Outcome.LANE_FULL: 9}) == []


def test_a_lane_with_a_handful_of_requests_has_no_tail() -> None:
    assert found(requests=19, ttft_p99_s=9.0, gap_p99_s=9.0, e2e_p999_s=900.0, cold=0, stalled=0) == []


def test_a_replica_that_drifts_from_its_profile_is_named() -> None:
    near = DriftView("near", "h100", 1.1, 500)
    assert found(View(drifts=(near,))) == []
    (slow,) = found(View(drifts=(near, DriftView("slow", "h100", 1.5, 500), DriftView("slower", "h100", 2.0, 500))))
    assert (slow.severity, slow.figure, slow.evidence["which"]) == ("warning", "profile", "slow, slower")
    assert "tokens of slower take 2.00 times" in slow.cause
    (fast,) = found(View(drifts=(DriftView("fast", "h100", 0.5, 500),)))
    assert fast.severity == "note"


# -- time to first token --------------------------------------------------------------------------------------

FIRST: list[tuple[dict[Kind, float], str]] = [
    ({"queue": 9.0, "own_prompt": 1.0}, "queue"),
    ({"flood": 3.0, "queue": 4.0, "long_prefill": 6.0}, "queue"),  # waiting is one branch, whoever was ahead
    ({"long_prefill": 9.0, "queue": 1.0, "own_prompt": 8.0}, "long_prefill"),
    ({"cold_replica": 9.0, "queue": 1.0}, "cold"),
    ({"asleep": 9.0, "queue": 1.0}, "asleep"),
    ({"killed_replica": 4.0, "refused_replica": 3.0, "retry": 1.0, "queue": 5.0}, "failing"),
    ({"gc_pause": 2.0, "loop_lag": 2.0, "queue": 3.0}, "gateway"),
    ({"slow_client": 4.0, "queue": 3.0}, "slow_client"),
    ({"own_prompt": 4.0, "queue": 3.0}, "own_prompt"),
    ({"unknown": 4.0, "queue": 3.0}, "unknown"),
    ({"generation": 4.0, "queue": 3.0}, "batch"),
    ({}, "unknown"),
]


@pytest.mark.parametrize(("lost", "branch"), FIRST)
def test_slow_first_tokens(lost: dict[Kind, float], branch: str) -> None:
    (finding,) = found(ttft_p99_s=3.0, first_lost=lost)
    cause, knob = ANSWERS[branch]
    assert (finding.severity, finding.figure, finding.lane) == ("critical", "ttft_p99", "fast")
    assert (finding.cause, finding.knob) == (cause, knob.format(lane="fast"))
    assert finding.evidence["ttft_p99_s"] == 3.0
    assert finding.evidence["promised_s"] == FAST.ttft_p99_s
    assert {f"lost_{kind}_s" for kind in lost} <= set(finding.evidence)


@pytest.mark.parametrize(
    ("p95", "p99", "severity", "figure"),
    [
        (0.41, 0.5, "warning", "ttft_p95"),
        (0.51, 0.6, "critical", "ttft_p95"),
        (0.45, 1.9, "warning", "ttft_p99"),
        (0.45, 2.1, "critical", "ttft_p99"),
        (1.0, 3.0, "critical", "ttft_p95"),
    ],
)
def test_the_worst_promise_is_told_and_near_it_is_a_warning(p95: float, p99: float, severity: str, figure: str) -> None:
    (finding,) = found(ttft_p95_s=p95, ttft_p99_s=p99)
    assert (finding.severity, finding.figure) == (severity, figure)


@pytest.mark.parametrize("promise", promises(FAST), ids=lambda promise: promise.name)
def test_every_promise_of_a_lane_is_looked_at(promise: Promise) -> None:
    assert found(None, **{f"{promise.name}_s": 0.8 * promise.within_s}) == []
    for times, severity in ((0.81, "warning"), (1.01, "critical")):
        (finding,) = found(None, **{f"{promise.name}_s": times * promise.within_s})
        assert (finding.figure, finding.severity) == (promise.name, severity)
        assert finding.evidence["promised_s"] == promise.within_s


def test_what_was_never_promised_is_never_off() -> None:
    lane = Lane(name="x", priority=0, ttft_target_s=300.0, gap_target_s=9.0, wait_bound_s=9.0, weight=1)
    assert found(lane=lane, ttft_p95_s=100.0, ttft_p99_s=100.0, e2e_p99_s=800.0, e2e_p999_s=900.0) == []
    assert found(ttft_p95_s=None, ttft_p99_s=None, gap_p99_s=None, e2e_p99_s=None, e2e_p999_s=None) == []


@pytest.mark.parametrize(
    ("tenant", "knob"), [("acme", "tenants.acme.requests_per_min"), ("anonymous", "anonymous.requests_per_min")]
)
def test_a_flood_is_its_tenants(tenant: str, knob: str) -> None:
    lost: dict[Kind, float] = {"flood": 5.0, "queue": 1.0}
    (finding,) = found(ttft_p99_s=3.0, first_lost=lost, waited=900, heaviest=tenant, heaviest_share=0.9)
    assert tenant in finding.cause
    assert finding.knob.startswith(knob)


def test_a_lanes_own_cap_is_raised_before_replicas_are_bought() -> None:
    capped = replace(FAST, concurrency=4)
    lost: dict[Kind, float] = {"queue": 5.0}
    (finding,) = found(View(utilisation=0.3), lane=capped, ttft_p99_s=3.0, first_lost=lost)
    assert finding.knob == "lanes.fast.concurrency"
    _, full = found(View(utilisation=0.7), lane=capped, ttft_p99_s=3.0, first_lost=lost)[::-1]
    assert full.cause == ANSWERS["queue"][0]


# -- time per token, and all of it ------------------------------------------------------------------------------

TOKENS: list[tuple[dict[str, Any], str]] = [
    ({"token_lost": {"generation": 5.0}, "long_beside": 0.6}, "long_context"),
    ({"token_lost": {"generation": 5.0}, "long_beside": 0.1}, "batch"),
    ({"token_lost": {"eviction": 5.0, "generation": 1.0}, "long_beside": 0.6}, "eviction"),
    ({"token_lost": {"gave_way": 5.0, "generation": 1.0}}, "gave_way"),
    ({"token_lost": {"long_prefill": 5.0}}, "long_prefill"),
    ({"token_lost": {"slow_client": 5.0}}, "slow_client"),
    ({"token_lost": {"gc_pause": 5.0}}, "gateway"),
    ({"token_lost": {"cold_replica": 5.0}}, "cold"),
    ({"token_lost": {"unknown": 5.0}}, "unknown"),
]


@pytest.mark.parametrize(("given", "branch"), TOKENS)
def test_slow_tokens(given: dict[str, Any], branch: str) -> None:
    (finding,) = found(gap_p99_s=0.25, **given)
    assert (finding.severity, finding.figure) == ("critical", "gap_p99")
    assert (finding.cause, finding.knob) == (ANSWERS[branch][0], ANSWERS[branch][1].format(lane="fast"))


WHOLE: list[tuple[dict[str, Any], str]] = [
    ({"token_lost": {"generation": 50.0}, "output_p99": 4000}, "ballooning"),
    ({"token_lost": {"generation": 50.0}, "output_p99": 500}, "batch"),
    ({"token_lost": {"eviction": 50.0}, "output_p99": 4000}, "eviction"),
    ({"first_lost": {"queue": 50.0}}, "queue"),
]


@pytest.mark.parametrize(("given", "branch"), WHOLE)
@pytest.mark.parametrize("off", [{"e2e_p99_s": 31.0}, {"e2e_p999_s": 61.0}])
def test_slow_answers(off: dict[str, Any], given: dict[str, Any], branch: str) -> None:
    (finding,) = found(**off, **given)
    assert (finding.severity, finding.cause) == ("critical", ANSWERS[branch][0])
    assert finding.figure in ("e2e_p99", "e2e_p99.9")
    assert finding.evidence["output_p50"] == 200


def test_what_was_said_of_first_tokens_is_not_said_again_of_the_whole() -> None:
    (finding,) = found(ttft_p99_s=3.0, first_lost={"queue": 50.0}, e2e_p99_s=31.0, token_lost={})
    assert finding.figure == "ttft_p99"


# -- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "severity", "figure"),
    [
        (View(replicas_up=3, replicas_out=("b",)), "warning", "replicas"),
        (View(replicas_up=3, replicas_out=("b",), why_out="it wants a key"), "warning", "replicas"),
        (View(replicas_up=0, replicas_out=("a", "b")), "critical", "replicas"),
        (View(replicas_up=0), "critical", "replicas"),
        (View(replicas_up=0, replicas_starting=1, outage=True), "critical", "replicas"),
        (View(replicas_up=0, replicas_starting=1), "note", "replicas"),
        (View(replicas_up=0, replicas_parked=2, asleep=True), "note", "replicas"),
        (View(replicas_up=1, replicas_out=("b",), unserved=("lane long",)), "critical", "replicas"),
        (View(utilisation=0.7), "warning", "utilisation"),
        (View(utilisation=0.97), "critical", "utilisation"),
        (View(waiting_per_replica=9.0), "warning", "queue_depth"),
        (View(loop_lag_p99_s=0.03), "warning", "loop_lag"),
        (View(loop_lag_p99_s=0.3), "critical", "loop_lag"),
    ],
)
def test_what_is_wrong_with_the_whole(view: View, severity: str, figure: str) -> None:
    (finding,) = found(view)
    assert (finding.severity, finding.figure, finding.lane) == (severity, figure, "")
    assert finding.evidence
    assert finding.cause
    assert finding.knob


@pytest.mark.parametrize(
    ("given", "severity", "figure"),
    [
        ({"failed": 3}, "critical", "errors"),
        ({"waited": 50, "heaviest_share": 0.8}, "note", "fairness"),
        ({"preempted": 3}, "warning", "preemptions"),
        ({"cold": 20}, "warning", "cold_starts"),
        ({"stalled": 20}, "note", "slow_clients"),
    ],
)
def test_what_is_wrong_with_a_lane_beside_its_latency(given: dict[str, Any], severity: str, figure: str) -> None:
    (finding,) = found(**given)
    assert (finding.severity, finding.figure, finding.lane) == (severity, figure, "fast")


def test_clients_own_errors_do_not_hide_what_the_others_get() -> None:
    """Ten of twenty failed beside twenty thousand bad requests, and the budget was taken of them all."""
    among: dict[str, Any] = {"requests": 20_000, "asked": 20, "waited": 0, "cold": 0, "stalled": 0}
    (failed,) = found(**among, failed=10)
    assert (failed.figure, failed.evidence["failed"], failed.evidence["requests"]) == ("errors", 10, 20)
    (refused,) = found(**among, refused={Outcome.LANE_FULL: 10}, turned_away=10)
    assert (refused.severity, refused.figure, refused.evidence["requests"]) == ("critical", "refusals", 20)


@pytest.mark.parametrize("outcome", REFUSALS)
def test_refusals_are_told_by_reason(outcome: Outcome) -> None:
    (finding,) = found(refused={outcome: 50})
    assert (finding.severity, finding.evidence["reason"]) == (REFUSALS[outcome][0], outcome.value)


def test_every_refusal_is_explained_and_the_worst_comes_first() -> None:
    assert set(REFUSALS) == {outcome for outcome in Outcome if outcome.kind == "refused"}
    everything = found(
        View(replicas_up=0), ttft_p99_s=3.0, stalled=50, cold=50, refused={Outcome.OVER_LIMIT: 90}, failed=50
    )
    order = [finding.severity for finding in everything]
    assert order == sorted(order, key=["critical", "warning", "note"].index)
    assert len(everything) == 6


# -- the advice itself ----------------------------------------------------------------------------------------------


def test_every_branch_can_be_reached() -> None:
    reached = {branch for _, branch in (*FIRST, *TOKENS, *WHOLE)}
    assert reached == set(ANSWERS)
    assert set(GROUPS.values()) <= set(ANSWERS)


KNOBS = [knob for _, knob in ANSWERS.values()] + [knob for _, _, knob in REFUSALS.values()]


def test_flags_of_our_engine_that_are_recommended_exist() -> None:
    flags = {flag.spelled for flag in FLAGS}
    ours = {flag for knob in KNOBS for part in re.findall(r"our engine: ([^;)]+)", knob) for flag in part.split(", ")}
    assert ours
    assert ours <= flags


def test_config_keys_that_are_recommended_exist() -> None:
    sections: dict[str, Any] = {field.name: field.type for field in fields(GatewayConfig)}
    items = {"lanes": Lane, "tenants": Tenant, "replicas": Replica, "embedded": EngineConfig}
    named = {key for knob in KNOBS for key in re.findall(r"\b([a-z]+)(?:\[\]|\.\*|\.\{lane\})?\.([a-z_]+)\b", knob)}
    assert len(named) > 10
    for section, key in named:
        assert section in sections
        assert key in {field.name for field in fields(items.get(section) or sections[section])}
