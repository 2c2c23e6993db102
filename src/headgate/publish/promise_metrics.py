"""Writes the part of /metrics that promises are judged by: their state, availability, burn, and answers by result."""

from collections.abc import Collection
from typing import Final

from headgate.gateway.account import Account
from headgate.measure.promised import PromisedEach
from headgate.measure.tenant_availability import RESULTS, TenantAvailability, result_of
from headgate.metrics.exposition import Exposition, Family
from headgate.model.labels import OTHER
from headgate.policy.promises.alert import Severity
from headgate.policy.promises.slo import Slo

STATE: Final = Family(
    "headgate_slo_state", "gauge", "Promises: 0 ok, 1 at risk, 2 broken, -1 idle or too few to tell", "lane", "figure",
    "percentile",
)  # fmt: skip
AVAILABILITY: Final = Family(
    "headgate_availability", "gauge",
    "Answered of those that asked, without clients' errors and tenants over their limits; absent without requests",
    "lane", "window",
)  # fmt: skip
BURN: Final = Family(
    "headgate_error_budget_burn", "gauge", "How many times too fast the error budget is used up", "lane", "window"
)
SEVERITIES: Final = frozenset(severity.value for severity in Severity)
BURN_LABELS: Final = {300: "5m", 1800: "30m", 3600: "1h", 21_600: "6h"}
ANSWERS: Final = Family(
    "headgate_answers_total", "counter", "Requests by whether they were answered, every lane from the start", "lane",
    "result",
)  # fmt: skip
UNSEEN: Final = Family(
    "headgate_wire_refusals_total", "counter", "Requests refused before they were understood: 503 places or memory "
    "taken, 408 late, others malformed", "status",
)  # fmt: skip
UNSEEN_STATUSES: Final = (400, 408, 413, 431, 503)
"""Statuses written from the start, as 0; others appear with their first refusal."""
TENANT_REQUESTS: Final = Family(
    "headgate_tenant_requests_total", "counter", "Requests by tenant, and whether they were answered", "lane", "tenant",
    "result",
)  # fmt: skip
TENANT_AVAILABILITY: Final = Family(
    "headgate_tenant_availability", "gauge", "Answered of those of a tenant that asked in 5 min", "lane", "tenant"
)
OWN: Final = Family(
    "headgate_own_promises_total", "counter",
    "What requests promised for themselves; a refused or failed one has missed it, unknown: no token's time was seen",
    "lane", "figure", "result",
)  # fmt: skip
QUOTES: Final = Family(
    "headgate_quotes_total", "counter",
    "Requests by whether they kept the p99 time to first token that they were told; untold: none could be; unknown: no "
    "token's time was seen, or its client left before", "lane", "result",
)  # fmt: skip


def write_each(page: Exposition, promised: PromisedEach) -> None:
    for key, number in promised.own.items():
        page.sample(OWN, key, number)
    for told, number in promised.quotes.items():
        page.sample(QUOTES, told, number)


def write_promises(page: Exposition, slo: Slo, now: float) -> None:
    state = slo.state(now)
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


def write_answers(page: Exposition, account: Account, lanes: Collection[str]) -> None:
    """Writes counters that are still 0 too: for a scraper, a counter that first appears with a hundred refusals has
    not risen at all."""
    counts = {(lane, result): 0 for lane in lanes for result in RESULTS}
    for (lane, outcome), number in account.ended.items():
        key = (lane if lane in lanes else OTHER, result_of(outcome))
        counts[key] = counts.get(key, 0) + number
    for key, number in counts.items():
        page.sample(ANSWERS, key, number)
    for status, number in (dict.fromkeys(UNSEEN_STATUSES, 0) | account.unseen).items():
        page.sample(UNSEEN, (str(status),), number)


def write_tenants(page: Exposition, tenants: TenantAvailability, now: float) -> None:
    for (lane, tenant), figures in tenants.of.items():
        for result, number in figures.results.items():
            page.sample(TENANT_REQUESTS, (lane, tenant, result), number)
    for lane, tenant, share in tenants.shares(now):
        page.sample(TENANT_AVAILABILITY, (lane, tenant), share)
