"""Writes /metrics: every figure, by the names and labels that dashboards and alerts rely on."""

from collections.abc import Collection
from typing import Final, Protocol

from headgate.config.gateway import ObserveConfig
from headgate.gateway.account import Account
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.measure.gpu import Gpus
from headgate.measure.pulse import Pulse
from headgate.measure.tenant_availability import RESULTS, TenantAvailability, result_of
from headgate.measure.windows import ANSWER, E2E, FIGURES, GAP, QUEUE, TPOT, TTFT, WINDOWS, WindowCounts
from headgate.model.labels import OTHER
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import RESULTS as HEDGE_RESULTS
from headgate.policy.dispatch.shared_limits import SharedLimits
from headgate.policy.promises.alert import Severity
from headgate.policy.promises.slo import Slo
from headgate.publish.exposition import Exposition, Family

ALL: Final = ("lane", "model", "version", "tier", "quantization", "gpu_type")
HISTOGRAMS: Final = {
    TTFT: Family("headgate_time_to_first_token_seconds", "histogram", "Arrival to first token", *ALL),
    TPOT: Family("headgate_time_per_output_token_seconds", "histogram", "Mean time between tokens of a request", *ALL),
    E2E: Family("headgate_request_duration_seconds", "histogram", "Arrival to end of completed requests", *ALL),
    QUEUE: Family("headgate_queue_seconds", "histogram", "Waiting here for a replica with room", *ALL),
    GAP: Family("headgate_inter_token_gap_seconds", "histogram", "From one token of a stream to its next", *ALL),
    ANSWER: Family(
        "headgate_answer_per_token_seconds", "histogram",
        "Time per output token of answers in one piece whose first token nobody saw", *ALL,
    ),
}  # fmt: skip
COLD_TTFT: Final = Family(
    "headgate_cold_time_to_first_token_seconds", "histogram", "Arrival to first token, of cold replicas only", "lane"
)
LONG_ANSWERS: Final = Family(
    "headgate_long_answer_duration_seconds", "histogram", "Arrival to end of answers longer than e2e_p99_tokens", "lane"
)
PREFILL: Final = Family(
    "headgate_prefill_seconds",
    "histogram",
    "Prompt to first token, by the engine's word, else at the replica",
    "lane",
)
DECODE: Final = Family(
    "headgate_decode_seconds", "histogram", "First token to last, by the engine's word, else of the stream", "lane"
)
TENANT_TTFT: Final = Family(
    "headgate_tenant_time_to_first_token_seconds", "histogram", "Arrival to first token", "tenant"
)
TENANT_TOKENS: Final = Family("headgate_tenant_tokens_total", "counter", "Tokens", "tenant", "direction")
CACHED: Final = Family(
    "headgate_cached_prompt_tokens_total", "counter", "Prompt tokens found in a prefix cache", "lane", "model"
)
HIT_RATE: Final = Family(
    "headgate_prefix_cache_hit_ratio", "gauge", "Share of prompt tokens found in a prefix cache, over 5 min", "lane"
)
REQUESTS: Final = Family("headgate_requests_total", "counter", "Requests by how they ended", *ALL, "outcome")
REQUESTS_ONLY: Final = Family("headgate_requests_total", "counter", "Requests by how they ended", "lane", "outcome")
REFUSALS: Final = Family("headgate_refusals_total", "counter", "Requests told to come back later", "lane", "reason")
ERRORS: Final = Family("headgate_errors_total", "counter", "Requests that did not complete, by type", "lane", "type")
TOKENS: Final = Family("headgate_tokens_total", "counter", "Tokens", "direction", "lane", "model")
TOKENS_ONLY: Final = Family("headgate_tokens_total", "counter", "Tokens", "direction")
COLD_REQUESTS: Final = Family(
    "headgate_cold_requests_total", "counter", "Requests whose replica had not served before", "lane"
)
COLD_STARTS: Final = Family("headgate_cold_starts_total", "counter", "Times a replica was new to its first requests")
ENDED_EARLY: Final = Family(
    "headgate_answers_ended_total", "counter", "Answers that reached their cap, or were ended: cap, repetition, time",
    "task", "by",
)  # fmt: skip
SAVED: Final = Family(
    "headgate_decode_saved_tokens_total", "counter", "Tokens that answers ended early were allowed and did not say",
    "task", "by",
)  # fmt: skip
RETRIES: Final = Family("headgate_retries_total", "counter", "Further replicas tried for a request")
HEDGES: Final = Family(
    "headgate_hedges_total", "counter", "Requests sent to a second replica, by what came of it", "lane", "result"
)

LATENCY: Final = Family(
    "headgate_latency_seconds", "gauge", "Percentiles of the served over sliding windows, within 1 %", "lane",
    "figure", "percentile", "window",
)  # fmt: skip
ARRIVALS: Final = Family(
    "headgate_arrivals_latency_seconds", "gauge",
    "Percentiles of all arrivals over sliding windows; +Inf: of one that was refused or failed", "lane", "figure",
    "percentile", "window",
)  # fmt: skip
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
PERCENTILE_LABELS: Final = tuple(f"{100 * q:g}" for q in QUANTILES)
"""Values of the label `percentile`. Not `quantile`: that label belongs to summaries, and promtool objects."""
ARRIVED: Final = ("ttft", "tpot", "e2e", "answer")
"""Figures that are also written over all arrivals."""
WHOLE: Final = {"ttft_warm": "ttft", "e2e_short": "e2e"}
"""Figures that are part of another, and the other."""
WINDOW_LABELS: Final = {60: "1m", 300: "5m", 3600: "1h"}
WAITING: Final = Family("headgate_waiting", "gauge", "Requests waiting here", "lane")
RUNNING: Final = Family("headgate_running", "gauge", "Requests at the replicas", "lane")
RATE: Final = Family("headgate_requests_per_second", "gauge", "Requests that ended, over the last minute", "lane")
TOKEN_RATE: Final = Family("headgate_tokens_per_second", "gauge", "Tokens over the last minute", "direction")
LITTLE_L: Final = Family("headgate_little_l", "gauge", "Requests in a lane, time-weighted mean of 5 min", "lane")
LITTLE_LAMBDA: Final = Family("headgate_little_lambda", "gauge", "Arrivals per second, mean of 5 min", "lane")
LITTLE_W: Final = Family("headgate_little_w", "gauge", "Seconds from arrival to end, mean of 5 min", "lane")
LITTLE_RESIDUAL: Final = Family(
    "headgate_little_residual", "gauge", "(L - lambda W) / L; near 0 if all is well", "lane"
)
COMPLIANCE: Final = Family(
    "headgate_sla_compliance", "gauge",
    "Share of the last hour's arrivals within a promised bound; those refused or failed are not", "lane", "figure",
    "percentile",
)  # fmt: skip

UTILISATION: Final = Family(
    "headgate_utilisation", "gauge", "Share of the usable replicas' scarcest resource that is taken, 0 to 1"
)
UTILISATION_BY: Final = Family(
    "headgate_utilisation_by", "gauge", "Share of each of their resources that is taken, 0 to 1", "resource"
)
WAITING_EACH: Final = Family("headgate_waiting_per_replica", "gauge", "Requests waiting here for each usable replica")
COST: Final = Family(
    "headgate_cost_per_1000_tokens", "gauge", "Replica-hours held, by their price, over the tokens of the last hour"
)
HELD: Final = Family(
    "headgate_replica_seconds_total", "counter", "Replicas over time, from asked for to gone, whatever they did"
)
USABLE: Final = Family("headgate_replica_usable", "gauge", "Share of its room it may use", "replica")
BUSY: Final = Family("headgate_replica_requests", "gauge", "Requests it has", "replica")
LIMIT: Final = Family("headgate_replica_limit", "gauge", "Requests it may have from this gateway", "replica")
SLOTS: Final = Family(
    "headgate_replica_slots", "gauge", "Requests it can have from all gateways, where that is known", "replica"
)
OUTSTANDING: Final = Family("headgate_replica_tokens", "gauge", "Tokens outstanding", "replica")
TOKEN_LIMIT: Final = Family(
    "headgate_replica_token_limit", "gauge", "Tokens that all gateways may have outstanding there", "replica"
)
PREFILL_BUSY: Final = Family(
    "headgate_replica_prefill_busy", "gauge", "Share of its time that prompts from this gateway take, 0 to 1", "replica"
)
REPORTED: Final = {
    "batch_size": Family("headgate_replica_batch_size", "gauge", "Sequences in its batch", "replica"),
    "batch_limit": Family("headgate_replica_batch_limit", "gauge", "Sequences its batch can have", "replica"),
    "kv_ratio": Family("headgate_replica_kv_ratio", "gauge", "Share of its KV memory in use", "replica"),
    "waiting": Family("headgate_replica_waiting", "gauge", "Requests in its own queue", "replica"),
    "warm": Family("headgate_replica_warm", "gauge", "0: its warm-up failed, and it gets no requests", "replica"),
    "preemptions": Family("headgate_replica_preemptions_total", "counter", "Sequences put back by it", "replica"),
    "evictions": Family("headgate_replica_evictions_total", "counter", "Cached blocks given up by it", "replica"),
}
"""By key of ProbedReplica.load, and only for replicas that report the key."""
GATEWAYS: Final = Family("headgate_gateways", "gauge", "Gateways that share limits, this one included, as last seen")
CONNECTED: Final = Family(
    "headgate_shared_connected", "gauge", "0: what gateways share can't be reached, and each keeps to its part"
)
PART: Final = Family("headgate_replica_room_part", "gauge", "This gateway's part of each replica's room, 0 to 1")
COLD_START: Final = Family("headgate_cold_start_seconds", "gauge", "What its last start took", "replica", "phase")

LOOP_LAG: Final = Family("headgate_loop_lag_seconds", "gauge", "Event loop's lateness in the last minute", "percentile")
GC_SECONDS: Final = Family(
    "headgate_gc_pause_seconds_total", "counter", "Time the garbage collector stopped everything"
)
GC_PAUSES: Final = Family("headgate_gc_pauses_total", "counter", "Garbage collections")
GPU_USE: Final = Family("headgate_gpu_utilisation", "gauge", "Share of time it was computing", "gpu")
GPU_USED: Final = Family("headgate_gpu_memory_used_bytes", "gauge", "Memory in use", "gpu")
GPU_TOTAL: Final = Family("headgate_gpu_memory_total_bytes", "gauge", "Memory it has", "gpu")

STATE: Final = Family(
    "headgate_slo_state", "gauge", "Promises: 0 ok, 1 at risk, 2 broken, -1 idle or too few to tell", "lane", "figure",
    "percentile",
)  # fmt: skip
AVAILABILITY: Final = Family(
    "headgate_availability", "gauge",
    "Answered of those that asked, without clients' errors and tenants over their limits; absent where nobody asked",
    "lane", "window",
)  # fmt: skip
ANSWERS: Final = Family(
    "headgate_answers_total", "counter", "Requests by whether they were answered, every lane from the start", "lane",
    "result",
)  # fmt: skip
TENANT_REQUESTS: Final = Family(
    "headgate_tenant_requests_total", "counter", "Requests by tenant, and whether they were answered", "lane", "tenant",
    "result",
)  # fmt: skip
UNSEEN: Final = Family(
    "headgate_wire_refusals_total", "counter", "Requests refused before they were understood: 503 places or memory "
    "taken, 408 late, others malformed", "status",
)  # fmt: skip
UNSEEN_STATUSES: Final = (400, 408, 413, 431, 503)
"""Statuses written from the start, as 0; others appear with their first refusal."""
TENANT_AVAILABILITY: Final = Family(
    "headgate_tenant_availability", "gauge", "Answered of those of a tenant that asked in 5 min", "lane", "tenant"
)
REPLICAS: Final = Family("headgate_replicas", "gauge", "Replicas by what is to be thought of them", "condition")
DOWN: Final = Family(
    "headgate_replica_down",
    "gauge",
    "1: neither usable nor parked nor on its way; 0: all is as it should be",
    "replica",
)
OUTAGE: Final = Family("headgate_outage", "gauge", "1: no replica is usable, and nobody wanted that")
UNSERVED: Final = Family("headgate_unserved", "gauge", "Lanes and models whose replicas are all down")
BURN: Final = Family(
    "headgate_error_budget_burn", "gauge", "How many times too fast the error budget is used up", "lane", "window"
)
SEVERITIES: Final = frozenset(severity.value for severity in Severity)
BURN_LABELS: Final = {300: "5m", 1800: "30m", 3600: "1h", 21_600: "6h"}


class ServingGateway(Protocol):
    """The part of gateway/gateway.py that is used here."""

    dispatcher: Dispatcher
    account: Account


class ProbedReplica(Protocol):
    """The part of upkeep/prober.py that is used here."""

    @property
    def replica(self) -> Replica: ...
    @property
    def load(self) -> dict[str, float]: ...


class Metrics:
    def __init__(
        self,
        gateway: ServingGateway,
        figures: Figures,
        pulse: Pulse,
        observe: ObserveConfig,
        watches: Collection[ProbedReplica],
        gpus: Gpus | None = None,
        slo: Slo | None = None,
        conditions: Conditions | None = None,
        tenants: TenantAvailability | None = None,
    ) -> None:
        self._gateway = gateway
        self._figures = figures
        self._pulse = pulse
        self._observe = observe
        self._watches = watches
        self._gpus = gpus
        self._slo = slo
        self._conditions = conditions or Conditions(gateway.dispatcher)
        self._tenants = tenants
        self._page = Exposition()

    def text(self, open_metrics: bool = False) -> bytes:
        """A whole page of exposition.CONTENT_TYPE, or OPEN_CONTENT_TYPE. The caller must have handed all closed records
        to the figures before."""
        page, now = self._page, self._pulse.clock()
        page.open = open_metrics
        if self._observe.instruments:
            self._requests(page)
            self._lanes(page, now)
            self._promises(page, now)
        else:
            self._only_counts(page)
        self._answers(page, now)
        self._queues(page)
        self._fleet(page, now)
        self._shared(page)
        self._process(page)
        return page.render()

    # -- requests --------------------------------------------------------------------------------------------

    def _requests(self, page: Exposition) -> None:
        figures = self._figures
        for labels, series in figures.series.items():
            for figure, family in HISTOGRAMS.items():
                page.histogram(family, labels, series.histograms[figure])
            for outcome, number in series.outcomes.items():
                page.sample(REQUESTS, (*labels, outcome), number)
        for (lane, model), tokens in figures.tokens.items():
            page.sample(TOKENS, ("prompt", lane, model), tokens.prompt)
            page.sample(TOKENS, ("output", lane, model), tokens.output)
            if tokens.cached:
                page.sample(CACHED, (lane, model), tokens.cached)
        for tenant, counted in figures.tenants.known.items():
            page.histogram(TENANT_TTFT, (tenant,), counted.ttft)
            page.sample(TENANT_TOKENS, (tenant, "prompt"), counted.prompt_tokens)
            page.sample(TENANT_TOKENS, (tenant, "output"), counted.output_tokens)
        for key, number in figures.ended.answers.items():
            page.sample(ENDED_EARLY, key, number)
        for key, number in figures.ended.tokens.items():
            page.sample(SAVED, key, number)
        page.sample(COLD_STARTS, (), figures.cold_starts)
        page.sample(RETRIES, (), sum(lane.retries for lane in figures.lanes.values()))

    def _only_counts(self, page: Exposition) -> None:
        """Writes the account's counts: without instruments no figures are made from records."""
        account = self._gateway.account
        for (lane, outcome), number in account.ended.items():
            page.sample(REQUESTS_ONLY, (lane, outcome.value), number)
        page.sample(TOKENS_ONLY, ("prompt",), account.prompt_tokens)
        page.sample(TOKENS_ONLY, ("output",), account.output_tokens)

    def _lanes(self, page: Exposition, now: float) -> None:
        figures = self._figures
        for name, lane in figures.lanes.items():
            page.sample(COLD_REQUESTS, (name,), lane.cold_requests)
            for reason, number in lane.refusals.items():
                page.sample(REFUSALS, (name, reason), number)
            for type_, number in lane.errors.items():
                page.sample(ERRORS, (name, type_), number)
            page.sample(RATE, (name,), figures.rates(60, now, lane=name).requests)
            hits = hit_rate(figures.counts(300, now, lane=name))
            if hits is not None:
                page.sample(HIT_RATE, (name,), hits)
            for family, histogram in (
                (PREFILL, lane.prefill),
                (DECODE, lane.decode),
                (COLD_TTFT, lane.cold_ttft),
                (LONG_ANSWERS, lane.long_answers),
            ):
                if any(histogram.numbers):
                    page.histogram(family, (name,), histogram)
            self._latency(page, name, now)
            little = figures.little(name)
            if little is not None:
                page.sample(LITTLE_L, (name,), little.l)
                page.sample(LITTLE_LAMBDA, (name,), little.lambda_)
                page.sample(LITTLE_W, (name,), little.w)
                page.sample(LITTLE_RESIDUAL, (name,), little.residual)
        rates = figures.rates(60, now)
        page.sample(TOKEN_RATE, ("prompt",), rates.prompt_tokens)
        page.sample(TOKEN_RATE, ("output",), rates.output_tokens)

    def _latency(self, page: Exposition, lane: str, now: float) -> None:
        for window_s in WINDOWS:
            sketches = {figure: self._figures.sketch(figure, window_s, now, lane=lane) for figure in FIGURES}
            counts = self._figures.counts(window_s, now, lane=lane)
            for figure, sketch in sketches.items():
                if figure in WHOLE and sketch.count == sketches[WHOLE[figure]].count:
                    continue  # nothing was left out, and the whole figure is written already
                served = sketch.quantiles(QUANTILES)
                self._percentiles(page, LATENCY, (lane, figure), window_s, served)
                if figure in ARRIVED:
                    missed = counts.beyond(figure, sketch.count)
                    arrivals = sketch.quantiles(QUANTILES, missed) if missed else served
                    self._percentiles(page, ARRIVALS, (lane, figure), window_s, arrivals)
            if window_s == 3600:
                for kept in self._figures.kept(lane, sketches, counts):
                    page.sample(COMPLIANCE, (lane, kept.figure, str(kept.percentile)), kept.share)

    def _percentiles(
        self, page: Exposition, family: Family, of: tuple[str, str], window_s: int, values: list[float | None]
    ) -> None:
        for label, value in zip(PERCENTILE_LABELS, values, strict=True):
            if value is not None:
                page.sample(family, (*of, label, WINDOW_LABELS[window_s]), value)

    def _promises(self, page: Exposition, now: float) -> None:
        if self._slo is not None:
            state = self._slo.state(now)
            for promise, known in state.promises:
                judged = known.severity.rank if known.standing in SEVERITIES else -1
                page.sample(STATE, (known.lane, promise.figure, str(promise.percentile)), judged)
            for lane, windows in state.availability.items():
                for window_s, found in windows.items():
                    if found.share is not None:
                        page.sample(AVAILABILITY, (lane, BURN_LABELS.get(window_s, f"{window_s}s")), found.share)
            for lane, burns in state.burns.items():
                for window_s, burn in burns.items():
                    page.sample(BURN, (lane, BURN_LABELS.get(window_s, f"{window_s}s")), burn)

    # -- the fleet -------------------------------------------------------------------------------------------

    def _answers(self, page: Exposition, now: float) -> None:
        """Writes the replicas' conditions, the answers, and the tenants' availability."""
        fleet = self._conditions.read(now)
        by_condition = {"up": fleet.up, "starting": fleet.starting, "parked": fleet.parked, "down": len(fleet.down)}
        for condition, number in by_condition.items():
            page.sample(REPLICAS, (condition,), number)
        down = frozenset(fleet.down)
        for replica_id in self._gateway.dispatcher.fleet.loads:
            page.sample(DOWN, (replica_id,), int(replica_id in down))
        page.sample(OUTAGE, (), int(fleet.outage))
        page.sample(UNSERVED, (), len(fleet.unserved))
        self._counted(page)
        if self._tenants is not None:
            for (lane, tenant), figures in self._tenants.of.items():
                for result, number in figures.results.items():
                    page.sample(TENANT_REQUESTS, (lane, tenant, result), number)
            for lane, tenant, share in self._tenants.shares(now):
                page.sample(TENANT_AVAILABILITY, (lane, tenant), share)

    def _counted(self, page: Exposition) -> None:
        """Writes counters that are still 0 too: for a scraper, a counter that first appears with a hundred refusals has
        not risen at all."""
        counts = {(lane, result): 0 for lane in self._gateway.dispatcher.lanes for result in RESULTS}
        for (lane, outcome), number in self._gateway.account.ended.items():
            key = (lane if lane in self._gateway.dispatcher.lanes else OTHER, result_of(outcome))
            counts[key] = counts.get(key, 0) + number
        for key, number in counts.items():
            page.sample(ANSWERS, key, number)
        for status, number in (dict.fromkeys(UNSEEN_STATUSES, 0) | self._gateway.account.unseen).items():
            page.sample(UNSEEN, (str(status),), number)

    def _queues(self, page: Exposition) -> None:
        dispatcher = self._gateway.dispatcher
        waiting = 0
        for name in dispatcher.lanes:
            waiting += dispatcher.waiting(name)
            page.sample(WAITING, (name,), dispatcher.waiting(name))
            page.sample(RUNNING, (name,), dispatcher.running(name))
        usable = sum(load.usable > 0 for load in dispatcher.fleet.loads.values())
        page.sample(WAITING_EACH, (), waiting / max(1, usable))
        if dispatcher.hedger is not None:
            for name in dispatcher.hedger.lanes:
                for result in HEDGE_RESULTS:
                    page.sample(HEDGES, (name, result), dispatcher.hedger.counts.get((name, result), 0))

    def _fleet(self, page: Exposition, now: float) -> None:
        loads, use = self._gateway.dispatcher.fleet.loads, self._gateway.dispatcher.use
        use.look(now)
        for replica_id, load in loads.items():
            replica = (replica_id,)
            page.sample(USABLE, replica, load.usable)
            page.sample(BUSY, replica, load.requests)
            page.sample(LIMIT, replica, load.limit)
            if load.replica.slots is not None:
                page.sample(SLOTS, replica, load.replica.slots)
            page.sample(OUTSTANDING, replica, load.tokens)
            if load.replica.token_limit is not None:
                page.sample(TOKEN_LIMIT, replica, load.replica.token_limit)
            busy = use.busy(replica_id)
            if busy is not None:
                page.sample(PREFILL_BUSY, replica, busy)
        for watch in self._watches:
            self._reported(page, watch)
        taken = use.read()
        if taken.largest is not None:
            page.sample(UTILISATION, (), taken.largest)
        for resource, share in taken.known.items():
            page.sample(UTILISATION_BY, (resource,), share)
        page.sample(HELD, (), self._figures.held.total_s)
        cost = cost_per_1000_tokens(self._observe, self._figures)
        if cost is not None:
            page.sample(COST, (), cost)

    def _shared(self, page: Exposition) -> None:
        """Writes what gateways share; nothing where no limits are shared."""
        dispatcher = self._gateway.dispatcher
        if isinstance(dispatcher.limits, SharedLimits):
            low, high = dispatcher.members.part
            page.sample(GATEWAYS, (), dispatcher.limits.gateways)
            page.sample(CONNECTED, (), int(dispatcher.limits.connected))
            page.sample(PART, (), high - low)

    def _reported(self, page: Exposition, watch: ProbedReplica) -> None:
        for key, value in watch.load.items():
            family = REPORTED.get(key)
            if family is not None:
                page.sample(family, (watch.replica.id,), value)
            elif key.startswith("cold_start_"):
                phase = key.removeprefix("cold_start_").removesuffix("_s")
                page.sample(COLD_START, (watch.replica.id, phase), value)

    # -- this process and machine ----------------------------------------------------------------------------

    def _process(self, page: Exposition) -> None:
        pulse = self._pulse
        for label, value in (
            ("50", pulse.lag.quantile(0.5)),
            ("99", pulse.lag.quantile(0.99)),
            ("100", pulse.lag.max),
        ):
            if value is not None:
                page.sample(LOOP_LAG, (label,), value)
        page.sample(GC_SECONDS, (), pulse.gc_pause_s)
        page.sample(GC_PAUSES, (), pulse.gc_pauses)
        for gpu in self._gpus.read() if self._gpus is not None else ():
            if gpu.utilisation is not None:
                page.sample(GPU_USE, (gpu.name,), gpu.utilisation)
            page.sample(GPU_USED, (gpu.name,), gpu.memory_used)
            page.sample(GPU_TOTAL, (gpu.name,), gpu.memory_total)


def hit_rate(counts: WindowCounts) -> float | None:
    """Share of prompt tokens that were found in a prefix cache; None: no engine reported any."""
    return counts.cached_tokens / counts.prompt_tokens if counts.cached_tokens and counts.prompt_tokens else None


def cost_per_1000_tokens(observe: ObserveConfig, figures: Figures) -> float | None:
    """Cost per 1000 tokens of the last hour; None: no price is configured, instruments are off, or there were no
    tokens."""
    price = observe.price_per_replica_hour
    return None if price is None or not observe.instruments else figures.held.last_hour().per_1000_tokens(price)
