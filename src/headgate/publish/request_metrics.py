"""Writes the part of /metrics that is counted from records: latencies, tokens, outcomes and rates of lanes, models and
tenants."""

from typing import Final

from headgate.gateway.account import Account
from headgate.measure.figures import Figures
from headgate.measure.windows import ANSWER, E2E, FIGURES, GAP, QUEUE, TPOT, TTFT, WINDOWS, WindowCounts
from headgate.metrics.exposition import Exposition, Family

ALL: Final = ("lane", "model", "version", "tier", "quantization", "gpu_type")
HISTOGRAMS: Final = {
    TTFT: Family("headgate_time_to_first_token_seconds", "histogram", "Arrival to first token", *ALL),
    TPOT: Family("headgate_time_per_output_token_seconds", "histogram", "Mean time between tokens of a request", *ALL),
    E2E: Family("headgate_request_duration_seconds", "histogram", "Arrival to end of completed requests", *ALL),
    QUEUE: Family("headgate_queue_seconds", "histogram", "Waiting here for a replica with room", *ALL),
    GAP: Family("headgate_inter_token_gap_seconds", "histogram", "From one token of a stream to its next", *ALL),
    ANSWER: Family(
        "headgate_answer_per_token_seconds", "histogram",
        "Time per output token of answers in one piece whose first token was not seen", *ALL,
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
RELEGATED: Final = Family(
    "headgate_relegated_total", "counter", "Requests that waited in a lower lane than theirs", "lane", "to"
)
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


def write_requests(page: Exposition, figures: Figures) -> None:
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


def write_counts(page: Exposition, account: Account) -> None:
    """Writes the account's counts: without instruments no figures are made from records."""
    for (lane, outcome), number in account.ended.items():
        page.sample(REQUESTS_ONLY, (lane, outcome.value), number)
    page.sample(TOKENS_ONLY, ("prompt",), account.prompt_tokens)
    page.sample(TOKENS_ONLY, ("output",), account.output_tokens)


def write_lanes(page: Exposition, figures: Figures, now: float) -> None:
    for name, lane in figures.lanes.items():
        page.sample(COLD_REQUESTS, (name,), lane.cold_requests)
        for reason, number in lane.refusals.items():
            page.sample(REFUSALS, (name, reason), number)
        for above, number in lane.relegated.items():
            page.sample(RELEGATED, (above, name), number)
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
        _write_latency(page, figures, name, now)
        little = figures.little(name)
        if little is not None:
            page.sample(LITTLE_L, (name,), little.l)
            page.sample(LITTLE_LAMBDA, (name,), little.lambda_)
            page.sample(LITTLE_W, (name,), little.w)
            page.sample(LITTLE_RESIDUAL, (name,), little.residual)
    rates = figures.rates(60, now)
    page.sample(TOKEN_RATE, ("prompt",), rates.prompt_tokens)
    page.sample(TOKEN_RATE, ("output",), rates.output_tokens)


def _write_latency(page: Exposition, figures: Figures, lane: str, now: float) -> None:
    for window_s in WINDOWS:
        sketches = {figure: figures.sketch(figure, window_s, now, lane=lane) for figure in FIGURES}
        counts = figures.counts(window_s, now, lane=lane)
        for figure, sketch in sketches.items():
            if figure in WHOLE and sketch.count == sketches[WHOLE[figure]].count:
                continue  # nothing was left out, and the whole figure is written already
            served = sketch.quantiles(QUANTILES)
            _write_percentiles(page, LATENCY, (lane, figure), window_s, served)
            if figure in ARRIVED:
                missed = counts.beyond(figure, sketch.count)
                arrivals = sketch.quantiles(QUANTILES, missed) if missed else served
                _write_percentiles(page, ARRIVALS, (lane, figure), window_s, arrivals)
        if window_s == 3600:
            for kept in figures.kept(lane, sketches, counts):
                page.sample(COMPLIANCE, (lane, kept.figure, str(kept.percentile)), kept.share)


def _write_percentiles(
    page: Exposition, family: Family, of: tuple[str, str], window_s: int, values: list[float | None]
) -> None:
    for label, value in zip(PERCENTILE_LABELS, values, strict=True):
        if value is not None:
            page.sample(family, (*of, label, WINDOW_LABELS[window_s]), value)


def hit_rate(counts: WindowCounts) -> float | None:
    """Share of prompt tokens that were found in a prefix cache; None: no engine reported any."""
    return counts.cached_tokens / counts.prompt_tokens if counts.cached_tokens and counts.prompt_tokens else None
