"""Writes docs/metrics.md: every family of a gateway's /metrics with its type, labels, unit and meaning.

python -m headgate.publish.metrics_page > docs/metrics.md
"""

from collections.abc import Iterator

from headgate.metrics.exposition import Family
from headgate.publish import fleet_metrics, metrics, promise_metrics, request_metrics

SUFFIX_UNITS = {
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_ratio": "share, 0 to 1",
    "_tokens": "tokens",
}
"""Unit by the end of a name; a counter's `_total` is left out first. The first that fits counts."""
UNITS = {
    "headgate_availability": "share, 0 to 1",
    "headgate_cost_per_1000_tokens": "currency of price_per_replica_hour",
    "headgate_error_budget_burn": "multiple of the allowed rate",
    "headgate_gateways": "gateways",
    "headgate_gpu_utilisation": "share, 0 to 1",
    "headgate_little_l": "requests",
    "headgate_little_lambda": "requests per second",
    "headgate_little_residual": "share",
    "headgate_little_w": "seconds",
    "headgate_outage": "0 or 1",
    "headgate_pool_member": "0 or 1",
    "headgate_pool_price": "currency of observe.currency",
    "headgate_pool_replicas": "replicas",
    "headgate_pool_waiting": "requests",
    "headgate_pool_wanted": "replicas",
    "headgate_replica_batch_limit": "sequences",
    "headgate_replica_batch_size": "sequences",
    "headgate_replica_down": "0 or 1",
    "headgate_replica_limit": "requests",
    "headgate_replica_prefill_busy": "share, 0 to 1",
    "headgate_replica_requests": "requests",
    "headgate_replica_room_part": "share, 0 to 1",
    "headgate_replica_slots": "requests",
    "headgate_replica_token_limit": "tokens",
    "headgate_replica_usable": "share, 0 to 1",
    "headgate_replica_waiting": "requests",
    "headgate_replica_warm": "0 or 1",
    "headgate_replicas": "replicas",
    "headgate_requests_per_second": "requests per second",
    "headgate_running": "requests",
    "headgate_shared_connected": "0 or 1",
    "headgate_sla_compliance": "share, 0 to 1",
    "headgate_slo_state": "-1, 0, 1 or 2",
    "headgate_tenant_availability": "share, 0 to 1",
    "headgate_tokens_per_second": "tokens per second",
    "headgate_unserved": "lanes and models",
    "headgate_utilisation": "share, 0 to 1",
    "headgate_utilisation_by": "share, 0 to 1",
    "headgate_waiting": "requests",
    "headgate_waiting_per_replica": "requests",
}
"""Unit by name, where the name does not end with it."""
ABOUT = """# Metrics

Generated from the families in `publish/request_metrics.py`, `publish/promise_metrics.py`,
`publish/fleet_metrics.py` and `publish/metrics.py`:

    python -m headgate.publish.metrics_page > docs/metrics.md

What `GET /metrics` of a gateway shows, as Prometheus text or OpenMetrics, and what OTLP exports. A family without
samples is left out of a scrape: GPU families without a GPU, shared limits without Redis, what an engine reports only
where it does. With `observe.instruments: false` only `headgate_requests_total` (by lane and outcome),
`headgate_tokens_total` (by direction), answers, queues, replicas and the process remain. Values of `model`, `version`
and `tenant` are bounded: beyond the bound they are counted as `other`. The embedded engine has a `/metrics` of its
own (`engine/status.py`).
"""


def families() -> Iterator[Family]:
    """Every family of the modules, in the order of the files; of two with one name the first."""
    found: dict[str, Family] = {}
    for module in (request_metrics, promise_metrics, fleet_metrics, metrics):
        for value in vars(module).values():
            for one in value.values() if isinstance(value, dict) else (value,):
                if isinstance(one, Family):
                    found.setdefault(one.name, one)
    yield from found.values()


def unit_of(family: Family) -> str:
    """Raises KeyError for a family whose unit neither its name nor UNITS tells."""
    if family.name in UNITS:
        return UNITS[family.name]
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    for suffix, unit in SUFFIX_UNITS.items():
        if name.endswith(suffix):
            return unit
    if family.kind == "counter":
        return "count"
    raise KeyError(f"the unit of {family.name} is not known: add it to UNITS in publish/metrics_page.py")


def as_markdown() -> str:
    lines = [ABOUT, "| name | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for family in families():
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {unit_of(family)} | {family.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
