"""Renders a Grafana dashboard of the gateway's figures, with the promises of the config drawn in.

The dashboard shows what the page at `/` shows, over days, and for all gateways together. Import it and choose a
Prometheus.
"""

import json

from headgate.config.gateway import GatewayConfig
from headgate.export.fleet_figures import one_fleet, utilisation, waiting_per_replica
from headgate.export.panels import Board, PanelQuery, heatmap, line, stat, states
from headgate.export.prometheus_rules import HISTOGRAMS, MISSED, share_of
from headgate.model.labels import plain
from headgate.policy.promises.burn import FAST, SLOW
from headgate.policy.promises.promise import promises
from headgate.policy.promises.words import FIGURES

LANE = 'lane=~"$lane"'
RATE = "$__rate_interval"


def dashboard(config: GatewayConfig) -> str:
    """The dashboard as JSON, as Grafana imports it."""
    board = Board()
    _overview(board, config)
    _latency(board, config)
    _promises(board)
    _traffic(board)
    _queues(board, config)
    _fleet(board, config)
    _process(board)
    _reported(board)
    return json.dumps(board.model("Headgate", "headgate", "headgate_waiting"), indent=2) + "\n"


# -- rows -------------------------------------------------------------------------------------------------


def _overview(board: Board, config: GatewayConfig) -> None:
    board.row("Now")
    board.add(
        stat("Promises", "The worst lane.", PanelQuery("max(headgate_slo_state)"), states_of=True, steps=(1, 2)),
        4, 4,
    )  # fmt: skip
    ended = f"sum(rate(headgate_requests_total[{RATE}]))"
    board.add(stat("Requests", "Ended, however.", PanelQuery(ended), unit="reqps"), 4, 4)
    tokens = f'sum(rate(headgate_tokens_total{{direction="output"}}[{RATE}]))'
    board.add(stat("Output tokens", "Per second.", PanelQuery(tokens), unit="short"), 4, 4)
    share = _or_none(share_of(MISSED, "5m").replace("sum by (lane) ", "sum"))
    budget = 1 - config.observe.availability
    about = "Refused or failed, of all that asked in 5 min."
    board.add(stat("Not answered", about, PanelQuery(share), unit="percentunit", steps=(budget, FAST * budget)), 4, 4)
    target = config.observe.utilisation_target
    common = one_fleet(config)
    use = PanelQuery(utilisation() if common else "avg(headgate_utilisation)")
    board.add(stat("Utilisation", f"Target {target:.0%}.", use, unit="percentunit", steps=(target, 0.9)), 4, 4)
    queue = float(config.observe.queue_per_replica)
    waiting = PanelQuery(waiting_per_replica() if common else "max(headgate_waiting_per_replica)")
    board.add(stat("Waiting per replica", f"Target {plain(queue, 6)}.", waiting, steps=(queue, 2 * queue)), 4, 4)


def _latency(board: Board, config: GatewayConfig) -> None:
    board.row("Latency")
    for figure, name in {**FIGURES, "queue": "wait in the gateway"}.items():
        percentiles = [
            PanelQuery(_quantile(percentile, figure), f"{{{{lane}}}} p{percentile:g}") for percentile in (50, 95, 99)
        ]
        lines = _promise_lines(config, figure)
        about = "Of the served, over all gateways, from histograms." + (" Dashed: what is promised." if lines else "")
        bounds = [PanelQuery(lines, "{{lane}} p{{percentile}} promised", dashed=True)] if lines else []
        board.add(line(_title(name), about, *percentiles, *bounds, unit="s"), 12, 9)
    for figure in ("ttft", "e2e"):
        buckets = f"sum by (le) (increase({HISTOGRAMS[figure]}_bucket{{{LANE}}}[{RATE}]))"
        name = f"{_title(FIGURES[figure])} of every request"
        board.add(heatmap(name, "How many took how long.", PanelQuery(buckets, "{{le}}")), 12, 8)
    exact = PanelQuery(
        f'headgate_latency_seconds{{{LANE}, percentile=~"99|99.9", window="5m"}}', "{{lane}} {{figure}} p{{percentile}}"
    )
    board.add(
        line(
            "p99 and p99.9 to within 1 %", "Of the served, as each gateway measures them, over 5 min.", exact, unit="s"
        ),
        24,
        8,
    )


def _promises(board: Board) -> None:
    board.row("Promises")
    state = PanelQuery(
        f"max by (lane, figure, percentile) (headgate_slo_state{{{LANE}}})", "{{lane}} {{figure}} p{{percentile}}"
    )
    board.add(states("State", "Idle, ok, at risk (80 % of the bound) or broken.", state), 12, 9)
    kept = PanelQuery(f"headgate_sla_compliance{{{LANE}}}", "{{lane}} {{figure}} p{{percentile}}")
    about = "Share of the last hour's arrivals; those refused or failed are not."
    board.add(line("Within the bound", about, kept, unit="percentunit"), 12, 9)
    burn = PanelQuery(f"headgate_error_budget_burn{{{LANE}}}", "{{lane}} {{window}}")
    board.add(
        line("Error budget burn", "1 uses it up just in time.", burn, marks=((SLOW, "orange"), (FAST, "red"))), 12, 8
    )
    shares = [
        PanelQuery(
            _or_none(share_of(result, RATE, f"{LANE}, "), f"headgate_waiting{{{LANE}}}"), f"{{{{lane}}}} {result}"
        )
        for result in ("refused", "failed")
    ]
    about = "Share of those that asked, without clients' errors and tenants over their limits."
    board.add(line("Refused and failed", about, *shares, unit="percentunit"), 12, 8)
    tenants = PanelQuery(f"min by (lane, tenant) (headgate_tenant_availability{{{LANE}}})", "{{lane}} {{tenant}}")
    board.add(line("Answered, by tenant", "Share of those that asked in 5 min.", tenants, unit="percentunit"), 12, 8)
    served = PanelQuery(
        f'headgate_arrivals_latency_seconds{{{LANE}, percentile=~"95|99", window="5m"}}',
        "{{lane}} {{figure}} p{{percentile}}",
    )
    about = "Over all arrivals, as each gateway measures them: no line where one that got no answer is it."
    board.add(line("p95 and p99 of all arrivals", about, served, unit="s"), 12, 8)


def _traffic(board: Board) -> None:
    board.row("Traffic")
    ended = PanelQuery(
        f"sum by (lane, outcome) (rate(headgate_requests_total{{{LANE}}}[{RATE}]))", "{{lane}} {{outcome}}"
    )
    board.add(line("Requests by outcome", "Per second.", ended, unit="reqps", stacked=True), 12, 8)
    tokens = PanelQuery(f"sum by (direction) (rate(headgate_tokens_total{{{LANE}}}[{RATE}]))", "{{direction}}")
    board.add(line("Tokens", "Per second.", tokens, unit="short"), 12, 8)
    refused = PanelQuery(
        f"sum by (lane, reason) (rate(headgate_refusals_total{{{LANE}}}[{RATE}]))", "{{lane}} {{reason}}"
    )
    board.add(line("Refusals by reason", "Told to come back later.", refused, unit="reqps", stacked=True), 12, 8)
    hits = PanelQuery(f"headgate_prefix_cache_hit_ratio{{{LANE}}}", "{{lane}}")
    board.add(line("Prefix cache", "Share of prompt tokens that were found in one.", hits, unit="percentunit"), 12, 8)
    first = f"rate(headgate_tenant_time_to_first_token_seconds_bucket[{RATE}])"
    tenants = PanelQuery(f"histogram_quantile(0.99, sum by (tenant, le) ({first}))", "{{tenant}} p99")
    board.add(line("Time to first token by tenant", "As many as labels may have values.", tenants, unit="s"), 12, 8)
    errors = PanelQuery(f"sum by (lane, type) (rate(headgate_errors_total{{{LANE}}}[{RATE}]))", "{{lane}} {{type}}")
    board.add(line("Errors by type", "Per second.", errors, unit="reqps", stacked=True), 12, 8)


def _queues(board: Board, config: GatewayConfig) -> None:
    board.row("Queues and room")
    waiting = PanelQuery(f"sum by (lane) (headgate_waiting{{{LANE}}})", "{{lane}} waiting")
    running = PanelQuery(f"sum by (lane) (headgate_running{{{LANE}}})", "{{lane}} running")
    board.add(line("Waiting and running", "Requests here, and at the replicas.", waiting, running), 12, 8)
    target = float(config.observe.queue_per_replica)
    each = PanelQuery("headgate_waiting_per_replica", "{{instance}}")
    board.add(line("Waiting per replica", f"Target {plain(target, 6)}.", each, marks=((target, "orange"),)), 12, 8)
    use = PanelQuery("headgate_utilisation", "{{instance}}")
    marks = ((config.observe.utilisation_target, "orange"), (0.95, "red"))
    about = "Of the scarcest resource. Latency bends at 80 % and knows no bound near 95 %."
    each_of = PanelQuery("max by (resource) (headgate_utilisation_by)", "{{resource}}", dashed=True)
    board.add(line("Utilisation", about, use, each_of, unit="percentunit", marks=marks), 8, 8)
    l_now = PanelQuery(f"sum by (lane) (headgate_little_l{{{LANE}}})", "{{lane}} L")
    product = PanelQuery(
        f"sum by (lane) (headgate_little_lambda{{{LANE}}} * headgate_little_w{{{LANE}}})", "{{lane}} λ·W", dashed=True
    )
    board.add(line("Little's law", "Counted, and what rate and time say.", l_now, product), 8, 8)
    residual = PanelQuery(f"headgate_little_residual{{{LANE}}}", "{{lane}}")
    about = "(L − λW) / L: far from 0, a counter lies or the load is changing."
    board.add(line("Little's law, what is left", about, residual, unit="percentunit"), 8, 8)


def _fleet(board: Board, config: GatewayConfig) -> None:
    board.row("Replicas")
    conditions = PanelQuery("sum by (condition) (headgate_replicas)", "{{condition}}")
    about = "Down: neither usable nor parked nor on its way."
    board.add(line("Replicas by condition", about, conditions, stacked=True), 8, 8)
    usable = PanelQuery("headgate_replica_usable", "{{replica}}")
    board.add(line("Usable", "Share of its room that a replica may use; 0: it is out.", usable), 8, 8)
    full = PanelQuery("headgate_replica_requests / headgate_replica_limit", "{{replica}}")
    board.add(line("Requests of what it may have", "", full, unit="percentunit"), 8, 8)
    board.add(line("Tokens outstanding", "", PanelQuery("headgate_replica_tokens", "{{replica}}")), 8, 8)
    cold = PanelQuery(f"sum by (lane) (rate(headgate_cold_requests_total{{{LANE}}}[{RATE}]))", "{{lane}} cold requests")
    starts = PanelQuery(f"sum(rate(headgate_cold_starts_total[{RATE}]))", "cold starts")
    retries = PanelQuery(f"sum(rate(headgate_retries_total[{RATE}]))", "retries")
    board.add(line("Cold starts and retries", "Per second.", cold, starts, retries), 12, 8)
    if config.observe.price_per_replica_hour is not None:
        cost = PanelQuery("headgate_cost_per_1000_tokens", "{{instance}}")
        board.add(line("Cost per 1 000 tokens", "By observe.price_per_replica_hour.", cost), 12, 8)


def _process(board: Board) -> None:
    board.row("The gateway itself")
    lag = PanelQuery("headgate_loop_lag_seconds", "{{instance}} p{{percentile}}")
    board.add(line("Event loop lag", "How late it gets to things; 1: the worst of a minute.", lag, unit="s"), 12, 8)
    pauses = PanelQuery(f"rate(headgate_gc_pause_seconds_total[{RATE}])", "{{instance}}")
    board.add(line("Garbage collection", "Share of the time.", pauses, unit="percentunit"), 12, 8)


def _reported(board: Board) -> None:
    """A collapsed row: without such engines or GPUs its panels are empty."""
    board.row("Where replicas and machines report it", closed=True)
    for title, expr, unit in (
        ("KV memory in use", "headgate_replica_kv_ratio", "percentunit"),
        ("Batch of what it can be", "headgate_replica_batch_size / headgate_replica_batch_limit", "percentunit"),
        ("Waiting in the replica", "headgate_replica_waiting", "short"),
        ("Preemptions per second", f"rate(headgate_replica_preemptions_total[{RATE}])", "short"),
        ("Evictions per second", f"rate(headgate_replica_evictions_total[{RATE}])", "short"),
    ):
        board.add(line(title, "", PanelQuery(expr, "{{replica}}"), unit=unit), 8, 8)
    board.add(
        line("Last start", "", PanelQuery("headgate_cold_start_seconds", "{{replica}} {{phase}}"), unit="s"), 8, 8
    )
    board.add(line("GPU", "", PanelQuery("headgate_gpu_utilisation", "{{gpu}}"), unit="percentunit"), 12, 8)
    memory = PanelQuery("headgate_gpu_memory_used_bytes / headgate_gpu_memory_total_bytes", "{{gpu}}")
    board.add(line("GPU memory", "", memory, unit="percentunit"), 12, 8)


# -- expressions ------------------------------------------------------------------------------------------


def _quantile(percentile: float, figure: str) -> str:
    rate = f"rate({HISTOGRAMS[figure]}_bucket{{{LANE}}}[{RATE}])"
    return f"histogram_quantile({percentile / 100:g}, sum by (lane, le) ({rate}))"


def _promise_lines(config: GatewayConfig, figure: str) -> str:
    """The promised bounds of the lanes shown, as series labelled with lane and percentile."""
    lines = [
        _labelled(f"vector({promise.within_s:.9g})", lane=lane.name, percentile=str(promise.percentile))
        for lane in config.lanes
        for promise in promises(lane)
        if promise.figure == figure
    ]
    return f"({' or '.join(lines)}) and on (lane) headgate_waiting{{{LANE}}}" if lines else ""


def _labelled(expr: str, **labels: str) -> str:
    for name, value in labels.items():
        expr = f'label_replace({expr}, "{name}", "{value}", "", "")'
    return expr


def _or_none(share: str, lanes: str = "") -> str:
    """Makes the share 0, not absent, where nothing of the kind has happened yet."""
    return f"({share}) or {f'0 * sum by (lane) ({lanes})' if lanes else 'vector(0)'}"


def _title(name: str) -> str:
    return name[0].upper() + name[1:]
