"""Renders the promises and alerts as Prometheus recording and alerting rules, from the gateway's config.

`policy/promises/slo.py` judges the same promises in process, by the same bounds and windows. Two differences: there,
percentiles are over all arrivals; here, they are over the served, and a rule of its own has the misses. And they are
read off histograms, whose edges lie close around each bound, and cover all gateways that are scraped together.

Loads into Prometheus 2.42 or later. Scrape every 15 s or more often: one alert looks at single minutes.
"""

from typing import Any

import yaml

from headgate.config.gateway import GatewayConfig
from headgate.export.fleet_figures import one_fleet, utilisation, waiting_per_replica
from headgate.model.labels import plain
from headgate.policy.promises.availability import DOWN_S, FEW, MOST, bounds, hardly_any
from headgate.policy.promises.burn import FAST, LEAST_FAILED, SLOW, reachable
from headgate.policy.promises.promise import LEAST, USUAL_PERCENTILE, Promise, promises
from headgate.policy.promises.slo import (
    AT_RISK,
    CALM_S,
    COLD_LEAST,
    COLD_SHARE,
    COLD_WATCH_S,
    IMMATERIAL,
    QUEUE_S,
    TWICE,
    USE_S,
    USUAL_LEAST,
)
from headgate.policy.promises.words import LOOK, LOOK_REFUSED, LOOK_SHARE, LOOK_TENANT
from headgate.policy.replicas.baseline import LEAST as USUAL_POINTS
from headgate.policy.replicas.baseline import POINT_S

HISTOGRAMS = {
    "ttft": "headgate_time_to_first_token_seconds",
    "tpot": "headgate_time_per_output_token_seconds",
    "e2e": "headgate_request_duration_seconds",
    "queue": "headgate_queue_seconds",
    "gap": "headgate_inter_token_gap_seconds",
    "answer": "headgate_answer_per_token_seconds",
}
COUNTED = {**HISTOGRAMS, "gap": HISTOGRAMS["tpot"]}
"""The histogram that counts each figure's requests; the gap histogram would count gaps, of which there are as many as
tokens."""
LONG = "headgate_long_answer_duration_seconds"
"""Answers for which no duration is promised: they are in the e2e histogram too, and are subtracted from it."""
ANSWERS = "headgate_answers_total"
TENANTS = "headgate_tenant_requests_total"
ASKED = "answered|refused|failed"
"""Results that count for availability: without clients' own errors and tenants over their own limits."""
MISSED = "refused|failed"
PROMISED = "on (lane, figure, percentile) headgate:promise_seconds"

OF_LANE = "Lane {{ $labels.lane }}: {{ $value | humanizePercentage }}"
GONE_S = 30.0
"""Seconds before an absent gateway alerts: a single failed scrape means nothing."""

Rule = dict[str, Any]


def rules(config: GatewayConfig) -> str:
    """The rule file, as `promtool check rules` accepts it."""
    groups = [
        _group("headgate-promises", 15, _promises(config)),
        _group("headgate-usual", 60, _usual()),
        _group("headgate-error-budget", 15, _budget(1 - config.observe.availability)),
        _group("headgate-answers", 15, _answers(config, 1 - config.observe.availability)),
        _group("headgate-presence", 15, _presence()),
        _group("headgate-cold-starts", 15, _cold_starts()),
        _group("headgate-capacity", 15, _capacity(config)),
    ]
    text = yaml.dump({"groups": [g for g in groups if g["rules"]]}, Dumper=_Dumper, sort_keys=False, width=1000)
    return f"# Made by `headgate export prometheus-rules`: change the config, not this file.\n{text}"


def _group(name: str, interval_s: int, made: list[Rule]) -> dict[str, Any]:
    """Rules of a group are evaluated one after the other: each sees what the rules before it have just recorded."""
    return {"name": name, "interval": f"{interval_s}s", "rules": made}


def quantile(percentile: float, figure: str, window: str) -> str:
    """The quantile by lane. For e2e at p99, without the answers that are too long for its promise."""
    buckets = f"sum by (lane, le) (rate({HISTOGRAMS[figure]}_bucket[{window}]))"
    if (figure, percentile) == ("e2e", 99):
        buckets = f"{buckets} - (sum by (lane, le) (rate({LONG}_bucket[{window}])) or 0 * {buckets})"
    return f"histogram_quantile({percentile / 100:g}, {buckets})"


# -- promises ---------------------------------------------------------------------------------------------


def _promises(config: GatewayConfig) -> list[Rule]:
    made = [
        _record("promise_seconds", f"vector({promise.within_s:.9g})", lane=lane.name, **_labels(promise))
        for lane in config.lanes
        for promise in promises(lane)
    ]
    asked = {(p.figure, p.percentile): p for lane in config.lanes for p in promises(lane)}.values()
    made += [_latency(promise, "5m", promise.least) for promise in asked]
    made += [_latency(promise, "1m", LEAST) for promise in asked if promise.percentile == 99]
    what = "{{ $labels.lane }}: {{ $labels.figure }} p{{ $labels.percentile }}"
    of_promise = "is at {{ $value | humanizePercentage }} of what is promised"
    return [
        *made,
        _alert(
            "HeadgatePromiseAtRisk",
            "warning",
            f"headgate:latency_seconds:5m / {PROMISED} >= {AT_RISK:g}",
            f"Lane {what} {of_promise}.",
            _look(),
        ),
        _alert(
            "HeadgatePromiseBroken",
            "critical",
            f"headgate:latency_seconds:5m / {PROMISED} >= 1",
            f"Lane {what} {of_promise}.",
            _look(),
        ),
        _alert(
            "HeadgateP99OverPromise",
            "critical",
            f"headgate:latency_seconds:1m / {PROMISED} > 1",
            "Lane {{ $labels.lane }}: {{ $labels.figure }} p99 has been over its bound for more than a minute, "
            f"and {of_promise}.",
            _look(),
            for_s=60,
        ),
    ]


def _labels(promise: Promise) -> dict[str, str]:
    return {"figure": promise.figure, "percentile": str(promise.percentile)}


def _latency(promise: Promise, window: str, least: int) -> Rule:
    """Records one percentile; absent where there are too few requests to tell."""
    count = f"sum by (lane) (increase({COUNTED[promise.figure]}_count[{window}]))"
    expr = f"{quantile(promise.percentile, promise.figure, window)}\nand on (lane) {count} >= {least}"
    return _record(f"latency_seconds:{window}", expr, **_labels(promise))


def _look() -> str:
    """Where to look first, by figure."""
    first, *others, last = LOOK
    text = f'{{{{ if eq $labels.figure "{first}" }}}}{LOOK[first]}'
    for figure in others:
        text += f'{{{{ else if eq $labels.figure "{figure}" }}}}{LOOK[figure]}'
    return f"{text}{{{{ else }}}}{LOOK[last]}{{{{ end }}}}"


# -- what is usual ----------------------------------------------------------------------------------------


def _usual() -> list[Rule]:
    """Compares with what is usual, as policy/replicas/baseline.py does: the median of a day's calm moments. After a day
    of the same trouble no calm moment is left to compare with, and the trouble is the new usual."""
    name, now, calm = "HeadgateTtftOverUsual", "headgate:ttft_seconds:5m", "headgate:ttft_seconds:calm"
    count = f"sum by (lane) (increase({HISTOGRAMS['ttft']}_count[5m]))"
    minutes = int(USUAL_POINTS * POINT_S / 60)
    promised = 'headgate:promise_seconds{figure="ttft", percentile="95"}'
    return [
        _record(
            "ttft_seconds:5m", f"{quantile(USUAL_PERCENTILE, 'ttft', '5m')}\nand on (lane) {count} >= {USUAL_LEAST}"
        ),
        _record(
            "ttft_seconds:usual",
            f"quantile_over_time(0.5, {calm}[1d])\nand on (lane) count_over_time({calm}[1d]) >= {minutes}",
        ),
        _alert(
            name,
            "warning",
            f"{now} > {TWICE:g} * headgate:ttft_seconds:usual\n"
            f"and on (lane) ({now} - headgate:ttft_seconds:usual) > {IMMATERIAL:g} * sum by (lane) ({promised})",
            "Lane {{ $labels.lane }}: half of the requests wait {{ $value | humanizeDuration }} or longer for their "
            f"first token, over {plain(TWICE, 6)} times what is usual.",
            "Look at what changed: a new version, longer prompts, fewer replicas, a lower cache hit rate.",
        ),
        _record("ttft_seconds:calm", f'{now}\nunless on (lane) ALERTS{{alertname="{name}", alertstate="firing"}}'),
    ]


# -- failures ---------------------------------------------------------------------------------------------


def _budget(budget: float) -> list[Rule]:
    """Burn rates of Google's SRE workbook, chapter 5: a long window shows that the burn matters, a short one that it
    still goes on."""
    if budget >= 1:
        return []
    made = [_record(f"missed_share:{window}", share_of(MISSED, window)) for window in ("5m", "30m", "1h", "6h")]
    for name, severity, factor, long, short in (
        ("HeadgateErrorBudgetBurnsFast", "critical", FAST, "1h", "5m"),
        ("HeadgateErrorBudgetBurns", "warning", SLOW, "6h", "30m"),
    ):
        limit = f"{reachable(factor, budget) * budget:.9g}"
        made.append(
            _alert(
                name,
                severity,
                f"headgate:missed_share:{long} > {limit}\n"
                f"and on (lane) headgate:missed_share:{short} > {limit}\n"
                f"and on (lane) {increase_of(MISSED, long)} >= {LEAST_FAILED}",
                f"{OF_LANE} of requests were refused or failed in {long}, {plain(budget * 100, 9)}% may be.",
                LOOK_REFUSED,
            )
        )
    return made


def share_of(results: str, window: str, more: str = "") -> str:
    """Share of the requests that asked for an answer which had one of these results, by lane. `more`: further
    matchers."""
    return (
        f'sum by (lane) (rate({ANSWERS}{{{more}result=~"{results}"}}[{window}]))\n'
        f'/ (sum by (lane) (rate({ANSWERS}{{{more}result=~"{ASKED}"}}[{window}])) > 0)'
    )


def increase_of(results: str, window: str) -> str:
    return f'sum by (lane) (increase({ANSWERS}{{result=~"{results}"}}[{window}]))'


def _answers(config: GatewayConfig, budget: float) -> list[Rule]:
    """Alerts on the shares of refused and of failed requests in five minutes, and on promises missed because of them,
    as in policy/promises/availability.py."""
    if budget >= 1:
        return []
    made = [_record(f"{result}_share:5m", share_of(result, "5m")) for result in ("refused", "failed")]
    worth, grave = bounds(budget)
    for result, words in (("refused", "were refused"), ("failed", "failed")):
        share, name = f"headgate:{result}_share:5m", f"Headgate{result.capitalize()}Share"
        count = increase_of(result, "5m")
        for suffix, severity, bound in (("", "warning", worth), ("High", "critical", grave)):
            made.append(
                _alert(
                    name + suffix,
                    severity,
                    f"{share} >= {bound:.9g}\n"
                    f"and on (lane) ({count} >= {LEAST_FAILED} or {count} >= {FEW} and on (lane) {share} >= {MOST:g})",
                    f"{OF_LANE} of the requests of 5m {words}.",
                    LOOK_SHARE[result],
                )
            )
    return [*made, _tenants(budget), _missed(config)]


def _tenants(budget: float) -> Rule:
    """One that gets hardly any answers, however well its lane is. As many as observe.labels are told apart."""
    by = "sum by (lane, tenant)"
    missed, asked = (f'{TENANTS}{{result=~"{results}"}}[5m]' for results in (MISSED, ASKED))
    return _alert(
        "HeadgateTenantMissed",
        "critical",
        f"{by} (rate({missed})) / ({by} (rate({asked})) > 0) >= {hardly_any(budget):.9g}\n"
        f"and on (lane, tenant) {by} (increase({missed})) >= {LEAST_FAILED}",
        "Tenant {{ $labels.tenant }} in lane {{ $labels.lane }}: {{ $value | humanizePercentage }} of its requests of "
        "5m were refused or failed.",
        LOOK_TENANT,
    )


def _missed(config: GatewayConfig) -> Rule:
    """Alerts where more requests get no answer than a percentile may be late: over all arrivals, that percentile is
    missed."""
    levels = sorted({promise.percentile for lane in config.lanes for promise in promises(lane)})
    missed = [
        f'headgate:promise_seconds{{percentile="{level}"}}\n'
        f"and on (lane) headgate:missed_share:5m > {1 - level / 100:.9g}\n"
        f"and on (lane) {increase_of(MISSED, '5m')} >= {LEAST_FAILED}"
        for level in levels
    ]
    return _alert(
        "HeadgatePromiseMissed",
        "critical",
        "\nor ".join(f"({one})" for one in missed),
        "Lane {{ $labels.lane }}: {{ $labels.figure }} p{{ $labels.percentile }} over all arrivals is of a request "
        "that got no answer, {{ $value | humanizeDuration }} are promised.",
        LOOK_REFUSED,
    )


def _presence() -> list[Rule]:
    """Alerts on missing replicas and gateways. Only Prometheus can tell that a gateway is missing: it was scraped
    within a day, and can't be now; or there is none at all."""
    gone = "HeadgateGatewayGone"
    known = (
        "last_over_time(headgate_waiting_per_replica[1d]) or "
        f'ALERTS{{alertname="{gone}", alertstate="firing"}}'  # so that it does not end after a day
    )
    return [
        _alert(
            "HeadgateNoUsableReplica",
            "critical",
            "headgate_outage == 1 or headgate_unserved > 0",
            "{{ $labels.instance }}: no replica is usable, or none for some lane or model: requests can't be answered.",
            "Start them again, or look at their logs; /admin/fleet says what is known of each.",
        ),
        _alert(
            "HeadgateReplicaDown",
            "warning",
            "headgate_replica_down == 1",
            "{{ $labels.instance }}: replica {{ $labels.replica }} is down.",
            "Start it again, or look at its log; health.failures and .cooldown_s say when it is out and back.",
            for_s=DOWN_S,
        ),
        _alert(
            gone,
            "critical",
            f"(up == 0 and on (job, instance) ({known}))\nor absent(headgate_waiting_per_replica)",
            "{{ with $labels.instance }}Gateway {{ . }} does not answer{{ else }}No gateway answers{{ end }}.",
            "Look whether headgate serve runs there and whether Prometheus reaches its /metrics.",
            for_s=GONE_S,
        ),
    ]


def _cold_starts() -> list[Rule]:
    share, calm = "headgate:cold_share:5m", "headgate:cold_share:calm"
    watch = f"{COLD_WATCH_S / 60:g}m"
    return [
        _record(
            "cold_share:5m",
            "sum(rate(headgate_cold_requests_total[5m])) / (sum(rate(headgate_requests_total[5m])) > 0)",
        ),
        _record("cold_share:calm", f"{share}\nunless on () sum(increase(headgate_cold_starts_total[{watch}])) > 0"),
        _alert(
            "HeadgateColdStarts",
            "warning",
            f"{share} > {COLD_SHARE:g}\n"
            f"and {share} > {TWICE:g} * (avg_over_time({calm}[1d]) or vector(0))\n"
            f"and sum(increase(headgate_cold_requests_total[5m])) >= {COLD_LEAST}\n"
            f"and sum(increase(headgate_cold_starts_total[{watch}])) > 0",
            "{{ $value | humanizePercentage }} of requests meet a cold replica since others came into use.",
            "Look at the new replicas' warm-up and at health.ramp_s.",
        ),
    ]


# -- room -------------------------------------------------------------------------------------------------


def _capacity(config: GatewayConfig) -> list[Rule]:
    """Alerts on the fleet's queue and utilisation where gateways share a fleet; otherwise on those of each gateway."""
    queue, use = config.observe.queue_per_replica, config.observe.utilisation_target
    common = [_record("waiting_per_replica", waiting_per_replica()), _record("utilisation", utilisation())]
    each, taken = ("headgate:waiting_per_replica", "headgate:utilisation")
    if not one_fleet(config):
        common, each, taken = [], "headgate_waiting_per_replica", "headgate_utilisation"
    return [
        *common,
        _alert(
            "HeadgateQueuePerReplica",
            "warning",
            f"{each} > {queue}",
            f"{{{{ $value | humanize }}}} requests wait for each usable replica, the target is {queue}.",
            "Add replicas, or look for ones that are out or slower than the others.",
            for_s=QUEUE_S,
        ),
        _alert(
            "HeadgateUtilisation",
            "warning",
            f"avg_over_time({taken}[5m]) > {use:g}",
            f"{{{{ $value | humanizePercentage }}}} of the scarcest resource is taken, the target is "
            f"{plain(use * 100, 6)}%.",
            "Latency bends at 80 % and knows no bound near 95 %: add replicas before it does.",
            for_s=USE_S,
        ),
    ]


# -- YAML -------------------------------------------------------------------------------------------------


def _record(name: str, expr: str, **labels: str) -> Rule:
    return {"record": f"headgate:{name}", "expr": expr, **({"labels": labels} if labels else {})}


def _alert(name: str, severity: str, expr: str, summary: str, description: str, *, for_s: float = 0.0) -> Rule:
    return {
        "alert": name,
        "expr": expr,
        **({"for": f"{for_s:g}s"} if for_s else {}),
        "keep_firing_for": f"{CALM_S:g}s",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
