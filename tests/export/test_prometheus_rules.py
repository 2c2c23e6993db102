"""The rules as Prometheus itself judges them: its own `promtool` checks them, and says when each alert fires."""

import shutil
import subprocess
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.export.prometheus_rules import HISTOGRAMS, rules
from headgate.measure.edges import edges
from headgate.measure.tenant_availability import result_of
from headgate.measure.windows import FIGURES
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.promises.promise import promises

STEP_S = 15
MINUTE, HOUR = 60, 3600
CONFIG = GatewayConfig()
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: it comes with Prometheus (Debian: apt-get install prometheus)")
    return found


@dataclass
class Story:
    """What a gateway would have shown, a sample every 15 s, and what Prometheus must make of it."""

    config: GatewayConfig = CONFIG
    series: dict[str, list[float]] = field(default_factory=dict)
    """What happened in each step, for counters; values, for gauges."""
    gauges: set[str] = field(default_factory=set)
    tests: list[dict[str, Any]] = field(default_factory=list)

    def took(self, figure: str, seconds: float, steps: int, each: int = 60, lane: str = "fast") -> None:
        """`each` requests in each step, all of which took this long."""
        name, bounds = HISTOGRAMS[figure], edges(self.config.lanes)[FIGURES.index(figure)].values
        for edge in (*bounds, float("inf")):
            le = "+Inf" if edge == float("inf") else f"{edge:g}"
            self.count(f'{name}_bucket{{lane="{lane}", le="{le}"}}', each if seconds <= edge else 0, steps)
        self.count(f'{name}_count{{lane="{lane}"}}', each, steps)

    def count(self, series: str, each: float, steps: int) -> None:
        self.series.setdefault(series, []).extend([each] * steps)

    def ended(self, outcome: str, each: float, steps: int, lane: str = "fast") -> None:
        self.count(f'headgate_requests_total{{lane="{lane}", outcome="{outcome}"}}', each, steps)
        self.count(f'headgate_answers_total{{lane="{lane}", result="{result_of(Outcome(outcome))}"}}', each, steps)

    def gauge(self, series: str, value: float, steps: int) -> None:
        self.gauges.add(series)
        self.count(series, value, steps)

    def silent(self, alert: str, *at_s: int) -> None:
        self.tests += [{"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []} for at in at_s]

    def fires(self, alert: str, at_s: int, severity: str, look: str, *said: tuple[str, dict[str, str]]) -> None:
        """Exactly these, by what their summaries say and their labels."""
        expected = [
            {
                "exp_labels": {"severity": severity, **labels},
                "exp_annotations": {"summary": summary, "description": look},
            }
            for summary, labels in said
        ]
        self.tests.append({"eval_time": f"{at_s}s", "alertname": alert, "exp_alerts": expected})

    def samples(self) -> dict[str, list[float]]:
        return {
            name: values if name in self.gauges else list(accumulate(values)) for name, values in self.series.items()
        }

    def check(self, promtool: str, folder: Path) -> None:
        (folder / "rules.yaml").write_text(rules(self.config))
        inputs = [
            {
                "series": name,
                "values": " ".join(f"{v:g}" for v in (values if name in self.gauges else accumulate(values))),
            }
            for name, values in self.series.items()
        ]
        test = {"interval": f"{STEP_S}s", "input_series": inputs, "alert_rule_test": self.tests}
        (folder / "test.yaml").write_text(
            yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": f"{STEP_S}s", "tests": [test]})
        )
        done = subprocess.run([promtool, "test", "rules", str(folder / "test.yaml")], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


LOOK_TTFT = "Look at the queue wait: if it is most of it, add replicas; if not, long prefills are in the way."
LOOK_FAILED = (
    "Look at headgate_refusals_total by reason and at headgate_errors_total by type: add replicas, or bring back those "
    "that are out."
)
LOOK_TENANT = (
    "Look at /admin/slo's tenants and at headgate_refusals_total by reason: its weight, tier and models, and which "
    "replicas serve those."
)
LOOK_E2E = "Look for answers that grow (caps, stop sequences, time limit) and for requests that were evicted."


def promised(figure: str, percentile: str, share: float, lane: str = "fast") -> tuple[str, dict[str, str]]:
    labels = {"lane": lane, "figure": figure, "percentile": percentile[1:]}
    return f"Lane {lane}: {figure} {percentile} is at {share:g}% of what is promised.", labels


def steps(seconds: float) -> int:
    return round(seconds / STEP_S)


# -- the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        GatewayConfig(observe=ObserveConfig(availability=1.0, queue_per_replica=1, utilisation_target=1.0)),
        GatewayConfig(observe=ObserveConfig(availability=0.0)),
        GatewayConfig(lanes=tuple(replace(LANES["fast"], name=f"l-{n}_x") for n in range(40))),
        GatewayConfig(replicas=(Replica(id="a", url="http://a"),)),
    ],
    ids=["default", "all", "none", "many", "replicas in common"],
)
def test_promtool_accepts_the_rules(promtool: str, tmp_path: Path, config: GatewayConfig) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules(config))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_each_promise_of_the_config_is_recorded_with_its_bound() -> None:
    mine = replace(LANES["slow"], name="mine", e2e_p99_s=7.0)
    config = GatewayConfig(lanes=(replace(LANES["fast"], ttft_target_s=0.3), mine))
    recorded = {
        (rule["labels"]["lane"], rule["labels"]["figure"], rule["labels"]["percentile"]): rule["expr"]
        for group in yaml.safe_load(rules(config))["groups"]
        for rule in group["rules"]
        if rule.get("record") == "headgate:promise_seconds"
    }
    assert recorded == {
        (lane.name, p.figure, str(p.percentile)): f"vector({p.within_s:.9g})"
        for lane in config.lanes
        for p in promises(lane)
    }
    assert recorded["fast", "ttft", "95"] == "vector(0.3)"
    assert recorded["mine", "e2e", "99"] == "vector(7)"


def test_these_are_all_alerts_and_each_fires_below() -> None:
    groups = yaml.safe_load(rules(CONFIG))["groups"]
    assert [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule] == [
        "HeadgatePromiseAtRisk",
        "HeadgatePromiseBroken",
        "HeadgateP99OverPromise",
        "HeadgateTtftOverUsual",
        "HeadgateErrorBudgetBurnsFast",
        "HeadgateErrorBudgetBurns",
        "HeadgateRefusedShare",
        "HeadgateRefusedShareHigh",
        "HeadgateFailedShare",
        "HeadgateFailedShareHigh",
        "HeadgateTenantMissed",
        "HeadgatePromiseMissed",
        "HeadgateNoUsableReplica",
        "HeadgateReplicaDown",
        "HeadgateGatewayGone",
        "HeadgateColdStarts",
        "HeadgateQueuePerReplica",
        "HeadgateUtilisation",
    ]


# -- promises ----------------------------------------------------------------------------------------------


def test_a_promise_at_risk_and_broken(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("ttft", 0.2, steps(10 * MINUTE))
    story.took("ttft", 0.44, steps(10 * MINUTE))  # read off the histogram as 400 to 450 ms, of 500
    story.took("ttft", 0.6, steps(10 * MINUTE))  # 550 to 625 ms
    story.took("ttft", 0.2, steps(10 * MINUTE))
    story.silent("HeadgatePromiseAtRisk", 5 * MINUTE, 10 * MINUTE)
    story.fires(
        "HeadgatePromiseAtRisk", 20 * MINUTE - STEP_S, "warning", LOOK_TTFT,
        promised("ttft", "p50", 85), promised("ttft", "p95", 89.5),
    )  # fmt: skip
    story.silent("HeadgatePromiseBroken", 20 * MINUTE)
    story.fires(
        "HeadgatePromiseBroken", 30 * MINUTE - STEP_S, "critical", LOOK_TTFT,
        promised("ttft", "p50", 117.5), promised("ttft", "p95", 124.2),
    )  # fmt: skip
    story.silent("HeadgatePromiseAtRisk", 37 * MINUTE)
    story.silent("HeadgatePromiseBroken", 37 * MINUTE)
    story.check(promtool, tmp_path)


def test_a_promise_is_at_risk_as_soon_as_its_percentile_is_and_not_before(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("e2e", 1.0, steps(10 * MINUTE))
    story.took("e2e", 4.6, steps(20 * MINUTE))  # of 5 s at p95; within 30 s at p99
    story.silent("HeadgatePromiseAtRisk", 10 * MINUTE)
    # Five minutes are 20 steps. After one of them 5 % are slow, which is all that p95 lets be.
    story.silent("HeadgatePromiseAtRisk", 10 * MINUTE + STEP_S - 1)
    story.fires(
        "HeadgatePromiseAtRisk", 10 * MINUTE + STEP_S, "warning", LOOK_E2E, promised("e2e", "p95", 95)
    )  # fmt: skip
    story.check(promtool, tmp_path)


def test_three_requests_are_no_percentile(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("ttft", 9.0, 1, each=0)
    story.took("ttft", 9.0, 1, each=3)
    story.took("ttft", 9.0, steps(30 * MINUTE), each=0)
    for alert in ("HeadgatePromiseAtRisk", "HeadgatePromiseBroken", "HeadgateP99OverPromise"):
        story.silent(alert, *range(0, 20 * MINUTE, STEP_S))
    story.check(promtool, tmp_path)


def test_lanes_are_judged_by_their_own_bounds(promtool: str, tmp_path: Path) -> None:
    story = Story()
    for lane in ("long", "batch", "nobody"):
        story.took("ttft", 9.5, steps(10 * MINUTE), lane=lane)  # of 10 s and 300 s
    story.fires("HeadgatePromiseAtRisk", 9 * MINUTE, "warning", LOOK_TTFT, promised("ttft", "p95", 99.5, "long"))
    story.check(promtool, tmp_path)


def test_p99_over_its_bound_for_over_a_minute(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("ttft", 0.1, steps(10 * MINUTE))
    story.took("ttft", 2.1, 1)  # a burst, in one step
    story.took("ttft", 0.1, steps(10 * MINUTE) - 1)
    story.took("ttft", 2.1, steps(10 * MINUTE))
    story.silent("HeadgateP99OverPromise", *range(0, 20 * MINUTE, STEP_S))
    story.silent("HeadgateP99OverPromise", 20 * MINUTE + 45)
    story.fires(
        "HeadgateP99OverPromise", 21 * MINUTE + 15, "critical", LOOK_TTFT,
        (
            "Lane fast: ttft p99 has been over its bound for more than a minute, and is at 109.9% of what is promised.",
            promised("ttft", "p99", 0)[1],
        ),
    )  # fmt: skip
    story.check(promtool, tmp_path)


# -- what is usual -----------------------------------------------------------------------------------------


def test_ttft_over_twice_its_usual(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("ttft", 0.09, steps(30 * MINUTE))  # between 80 and 100 ms: p50 is 90 ms
    story.took("ttft", 0.17, steps(10 * MINUTE))  # between 100 and 250 ms: p50 is 175 ms, less than twice as much
    story.took("ttft", 0.44, steps(HOUR))
    story.took("ttft", 0.09, steps(10 * MINUTE))
    story.silent("HeadgateTtftOverUsual", 15 * MINUTE, 30 * MINUTE, 36 * MINUTE, 39 * MINUTE)
    said = "Lane fast: half of the requests wait 425ms or longer for their first token, over 2 times what is usual."
    look = "Look at what changed: a new version, longer prompts, fewer replicas, a lower cache hit rate."
    for at in (46 * MINUTE, 99 * MINUTE):  # it does not learn what is wrong, however long that lasts
        story.fires("HeadgateTtftOverUsual", at, "warning", look, (said, {"lane": "fast"}))
    story.silent("HeadgateTtftOverUsual", 108 * MINUTE)
    story.check(promtool, tmp_path)


def test_milliseconds_are_no_matter_however_many_times_more(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.took("ttft", 0.0009, steps(30 * MINUTE))
    story.took("ttft", 0.009, steps(15 * MINUTE))
    story.silent("HeadgateTtftOverUsual", *range(30 * MINUTE, 45 * MINUTE, 5 * MINUTE))
    story.check(promtool, tmp_path)


# -- failures ----------------------------------------------------------------------------------------------


def test_an_outage_burns_the_budget_fast(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.ended("completed", 100, steps(HOUR))
    story.ended("replica_failed", 0, steps(HOUR))
    story.ended("completed", 0, steps(20 * MINUTE))
    story.ended("replica_failed", 100, steps(20 * MINUTE))
    story.ended("completed", 100, steps(10 * MINUTE))
    story.ended("replica_failed", 0, steps(10 * MINUTE))
    # Of an hour's requests 1.44 % are those of 52 s.
    story.silent("HeadgateErrorBudgetBurnsFast", 30 * MINUTE, HOUR, HOUR + 30)
    story.fires(
        "HeadgateErrorBudgetBurnsFast", 75 * MINUTE, "critical", LOOK_FAILED,
        ("Lane fast: 25.42% of requests were refused or failed in 1h, 0.1% may be.", {"lane": "fast"}),
    )  # fmt: skip
    story.silent("HeadgateErrorBudgetBurnsFast", 86 * MINUTE)  # the short window lets go
    story.check(promtool, tmp_path)


def test_a_slow_leak_burns_it_slowly(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.ended("completed", 999, steps(HOUR))
    story.ended("engine_failed", 1, steps(HOUR))  # within budget
    story.ended("completed", 990, steps(2 * HOUR))
    story.ended("engine_failed", 10, steps(2 * HOUR))  # ten times as fast
    story.silent("HeadgateErrorBudgetBurns", HOUR, 2 * HOUR)
    story.silent("HeadgateErrorBudgetBurnsFast", *range(0, 3 * HOUR, 10 * MINUTE))
    story.fires(
        "HeadgateErrorBudgetBurns", 3 * HOUR - STEP_S, "warning", LOOK_FAILED,
        ("Lane fast: 0.7% of requests were refused or failed in 6h, 0.1% may be.", {"lane": "fast"}),
    )  # fmt: skip
    story.check(promtool, tmp_path)


def test_own_limits_clients_faults_and_a_single_failure_burn_nothing(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.ended("completed", 1, steps(HOUR))
    for outcome in ("over_limit", "cancelled"):
        story.ended(outcome, 10, steps(HOUR))
    story.ended("no_replica", 0, steps(30 * MINUTE))
    story.ended("no_replica", 1, 4)
    story.ended("no_replica", 0, steps(30 * MINUTE) - 4)
    for alert in ("HeadgateErrorBudgetBurns", "HeadgateErrorBudgetBurnsFast", "HeadgateFailedShare"):
        story.silent(alert, *range(0, HOUR, MINUTE))
    story.check(promtool, tmp_path)


def test_a_tenant_that_gets_no_answers_is_said_where_its_lane_is_well(promtool: str, tmp_path: Path) -> None:
    """Its own limits are its own matter."""
    story = Story()
    story.ended("completed", 10_000, steps(30 * MINUTE))
    story.ended("lane_full", 2, steps(30 * MINUTE))
    for tenant, result, each in (
        ("big", "answered", 10_000), ("small", "refused", 2), ("small", "answered", 0), ("greedy", "over_limit", 50),
        ("greedy", "answered", 5), ("half", "failed", 1), ("half", "answered", 2),
    ):  # fmt: skip
        series = f'headgate_tenant_requests_total{{lane="fast", tenant="{tenant}", result="{result}"}}'
        story.count(series, each, steps(30 * MINUTE))
    story.silent("HeadgateRefusedShare", 20 * MINUTE)
    said = "Tenant small in lane fast: 100% of its requests of 5m were refused or failed."
    story.fires(
        "HeadgateTenantMissed", 20 * MINUTE, "critical", LOOK_TENANT, (said, {"lane": "fast", "tenant": "small"})
    )
    story.check(promtool, tmp_path)


def test_refusals_burn_the_budget_and_are_said_by_their_share(promtool: str, tmp_path: Path) -> None:
    """520 of 859, as a lane under a flood has it."""
    story = Story()
    story.ended("completed", 34, steps(HOUR))
    story.ended("lane_full", 0, steps(30 * MINUTE))
    story.ended("lane_full", 52, steps(30 * MINUTE))
    story.silent("HeadgateRefusedShare", *range(0, 30 * MINUTE, MINUTE))
    look = "Look at headgate_refusals_total by reason: add replicas; lanes.*.wait_bound_s and .queue_limit say when a "
    look += (
        "request is refused. Lane other is of requests refused before they were read: headgate_wire_refusals_total, "
    )
    look += "limits.connections and .bodies_bytes."
    said = ("Lane fast: 60.47% of the requests of 5m were refused.", {"lane": "fast"})
    for alert, severity in (("HeadgateRefusedShare", "warning"), ("HeadgateRefusedShareHigh", "critical")):
        story.fires(alert, 40 * MINUTE, severity, look, said)
    for alert in ("HeadgateFailedShare", "HeadgateFailedShareHigh"):
        story.silent(alert, *range(0, HOUR, 5 * MINUTE))
    story.fires(
        "HeadgateErrorBudgetBurnsFast", HOUR - STEP_S, "critical", LOOK_FAILED,
        ("Lane fast: 43.33% of requests were refused or failed in 1h, 0.1% may be.", {"lane": "fast"}),
    )  # fmt: skip
    missed = [
        (
            f"Lane fast: {p.figure} p{p.percentile} over all arrivals is of a request that got no answer, "
            f"{humanized(p.within_s)} are promised.",
            {"lane": "fast", "figure": p.figure, "percentile": str(p.percentile)},
        )
        for p in promises(LANES["fast"])
    ]
    story.silent("HeadgatePromiseMissed", 29 * MINUTE)
    story.fires("HeadgatePromiseMissed", 40 * MINUTE, "critical", LOOK_FAILED, *missed)
    story.check(promtool, tmp_path)


def humanized(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1e3:g}ms"


def test_three_failures_of_three_are_enough_and_two_are_not(promtool: str, tmp_path: Path) -> None:
    story = Story()
    for lane, failed in (("fast", 3), ("slow", 2)):
        story.ended("completed", 0, steps(10 * MINUTE), lane)
        story.ended("no_replica", 0, steps(5 * MINUTE), lane)
        story.ended("no_replica", failed, 1, lane)
        story.ended("no_replica", 0, steps(5 * MINUTE) - 1, lane)
    story.fires(
        "HeadgateFailedShareHigh", 6 * MINUTE, "critical",
        "Look at headgate_errors_total by type and at the replicas that are out.",
        ("Lane fast: 100% of the requests of 5m failed.", {"lane": "fast"}),
    )  # fmt: skip
    story.check(promtool, tmp_path)


def test_no_usable_replica_and_a_replica_that_is_down(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.gauge('headgate_outage{instance="g:80"}', 0, steps(10 * MINUTE))
    story.gauge('headgate_outage{instance="g:80"}', 1, steps(5 * MINUTE))
    story.gauge('headgate_unserved{instance="h:80"}', 0, steps(12 * MINUTE))
    story.gauge('headgate_unserved{instance="h:80"}', 1, steps(3 * MINUTE))
    for name, begins in (("a", 5 * MINUTE), ("parked", 15 * MINUTE)):
        series = f'headgate_replica_down{{instance="g:80", replica="{name}"}}'
        story.gauge(series, 0, steps(begins))
        story.gauge(series, 1, steps(15 * MINUTE - begins))
    story.silent("HeadgateNoUsableReplica", *range(0, 10 * MINUTE, MINUTE))
    look = "Start them again, or look at their logs; /admin/fleet says what is known of each."
    said = "{}: no replica is usable, or none for some lane or model: requests can't be answered."
    g, h = ((said.format(name), {"instance": name}) for name in ("g:80", "h:80"))
    story.fires("HeadgateNoUsableReplica", 10 * MINUTE, "critical", look, g)
    story.fires("HeadgateNoUsableReplica", 14 * MINUTE, "critical", look, g, h)
    story.silent("HeadgateReplicaDown", 5 * MINUTE)
    story.fires(
        "HeadgateReplicaDown", 6 * MINUTE, "warning",
        "Start it again, or look at its log; health.failures and .cooldown_s say when it is out and back.",
        ("g:80: replica a is down.", {"instance": "g:80", "replica": "a"}),
    )  # fmt: skip
    story.check(promtool, tmp_path)


LOOK_GONE = "Look whether headgate serve runs there and whether Prometheus reaches its /metrics."


def test_a_gateway_that_is_gone_and_one_that_never_was(promtool: str, tmp_path: Path) -> None:
    story = Story()
    there = steps(10 * MINUTE)
    for number in (1, 2):
        labels = f'{{job="headgate", instance="g{number}:80"}}'
        story.gauge(f"headgate_waiting_per_replica{labels}", 0, there if number == 1 else 4 * there)
        story.gauge(f"up{labels}", 1, there if number == 1 else 4 * there)
    story.gauge('up{job="headgate", instance="g1:80"}', 0, 3 * there)
    story.gauge('up{job="other", instance="x:80"}', 0, 4 * there)  # nobody of ours
    story.silent("HeadgateGatewayGone", 0, 9 * MINUTE, 10 * MINUTE)
    gone = ("Gateway g1:80 does not answer.", {"job": "headgate", "instance": "g1:80"})
    for at in (11 * MINUTE, 35 * MINUTE):
        story.fires("HeadgateGatewayGone", at, "critical", LOOK_GONE, gone)
    story.check(promtool, tmp_path)


def test_no_gateway_at_all(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.gauge('up{job="other", instance="x:80"}', 1, steps(10 * MINUTE))
    story.fires("HeadgateGatewayGone", 2 * MINUTE, "critical", LOOK_GONE, ("No gateway answers.", {}))
    story.check(promtool, tmp_path)


def test_cold_starts_after_a_deployment(promtool: str, tmp_path: Path) -> None:
    story = Story()
    cold, starts = 'headgate_cold_requests_total{lane="fast"}', "headgate_cold_starts_total"
    story.ended("completed", 100, steps(80 * MINUTE))
    story.count(starts, 0, steps(HOUR))
    story.count(starts, 3, 1)
    story.count(starts, 0, steps(20 * MINUTE) - 1)
    story.count(cold, 0, steps(30 * MINUTE))
    story.count(cold, 10, steps(2 * MINUTE))  # without a deployment
    story.count(cold, 0, steps(28 * MINUTE) + 1)
    story.count(cold, 10, steps(5 * MINUTE))
    story.count(cold, 0, steps(15 * MINUTE) - 1)
    story.silent("HeadgateColdStarts", *range(0, HOUR, MINUTE))
    story.fires(
        "HeadgateColdStarts", 65 * MINUTE, "warning",
        "Look at the new replicas' warm-up and at health.ramp_s.",
        ("10% of requests meet a cold replica since others came into use.", {}),
    )  # fmt: skip
    story.silent("HeadgateColdStarts", 72 * MINUTE)
    story.check(promtool, tmp_path)


# -- room --------------------------------------------------------------------------------------------------


def test_a_queue_above_its_target(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.gauge("headgate_waiting_per_replica", 8, steps(10 * MINUTE))
    story.gauge("headgate_waiting_per_replica", 30, 1)  # a burst
    story.gauge("headgate_waiting_per_replica", 2, steps(10 * MINUTE) - 1)
    story.gauge("headgate_waiting_per_replica", 9.5, steps(10 * MINUTE))
    story.silent("HeadgateQueuePerReplica", *range(0, 20 * MINUTE + STEP_S, STEP_S))
    story.fires(
        "HeadgateQueuePerReplica", 20 * MINUTE + 2 * STEP_S, "warning",
        "Add replicas, or look for ones that are out or slower than the others.",
        ("9.5 requests wait for each usable replica, the target is 8.", {}),
    )  # fmt: skip
    story.check(promtool, tmp_path)


def test_utilisation_past_its_target(promtool: str, tmp_path: Path) -> None:
    story = Story()
    story.gauge("headgate_utilisation", 0.4, steps(10 * MINUTE))
    story.gauge("headgate_utilisation", 1.0, steps(MINUTE))  # a burst
    story.gauge("headgate_utilisation", 0.4, steps(9 * MINUTE))
    story.gauge("headgate_utilisation", 0.8, steps(20 * MINUTE))
    story.silent("HeadgateUtilisation", *range(0, 23 * MINUTE, STEP_S))
    story.fires(
        "HeadgateUtilisation", 30 * MINUTE, "warning",
        "Latency bends at 80 % and knows no bound near 95 %: add replicas before it does.",
        ("80% of the scarcest resource is taken, the target is 65%.", {}),
    )  # fmt: skip
    story.check(promtool, tmp_path)
