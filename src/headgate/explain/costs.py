"""Adds up what tenants cost each other: the seconds of one tenant's p99 that another tenant's requests took.

The requests around a tenant's p99 are explained as `why.py` explains one. What a part took beyond the usual goes to the
tenants whose requests were in its way, in proportion: for a wait, by the time that they were at the replica; for a slow
first token or a gap, by what they had prefilled meanwhile. A tenant's own work is its own, and what a replica or the
gateway did is no tenant's. So the seconds add up to the p99.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest

import msgspec

from headgate.explain.explanation import Explanation, Kind, Part, Stage
from headgate.explain.neighbours import Neighbour
from headgate.model.labels import OTHER
from headgate.model.record import Record

NONE = ""
"""Stands for no tenant: a replica, the gateway, or an unknown cause."""
AROUND = 8
"""Maximum requests around a p99 that are explained."""
EACH = 50
"""Requests of a tenant for each that is explained: with fewer than that, the slowest alone."""
MOST_WHO = 8
"""Maximum tenants named beside each other as the cost of one; further ones are counted as `other`."""
BEFORE_FIRST: frozenset[Stage] = frozenset(("accept", "queue", "retry", "route", "engine_queue", "prefill"))
"""Stages that make up the time to the first token."""
OWN: frozenset[Kind] = frozenset(("own_prompt", "generation", "ordinary", "slow_client"))
BY_OTHERS: frozenset[Kind] = frozenset(("flood", "queue", "long_prefill", "eviction", "gave_way"))
"""Causes that are other requests. All further causes are no tenant's."""


class TenantCost(msgspec.Struct, frozen=True, gc=False):
    """What one tenant's requests cost another tenant."""

    who: str
    whom: str
    seconds: float
    """Seconds of the p99 of `whom`."""
    share: float
    """Share of that p99."""


class TenantTail(msgspec.Struct, frozen=True, gc=False):
    """What one tenant's p99 is made of. The last three add up to it."""

    tenant: str
    requests: int
    p99_s: float
    explained: int
    """Requests around the p99 from which the parts were taken."""
    example: str
    """The id of one of them."""
    own_s: float
    """Seconds of its own work, and of waiting for its own other requests."""
    others_s: float
    """Seconds that other tenants' requests took."""
    none_s: float
    """Seconds that are no tenant's: failed and cold replicas, the gateway's own pauses, unknown causes."""


def around_p99(records: Sequence[Record], measure: Callable[[Record], float]) -> tuple[float, list[Record]]:
    """The p99 of these requests and those next to it, slowest first. `records`: at least one."""
    last = len(records) // 100
    many = min(AROUND, max(1, len(records) // EACH))
    first = max(0, last - many // 2)
    slowest = nlargest(max(last + 1, first + many), records, key=measure)
    return measure(slowest[last]), slowest[first : first + many]


def charged(record: Record, explanation: Explanation, near: Sequence[Neighbour], *, first: bool) -> dict[str, float]:
    """Seconds of one request by the tenant that they are charged to. `first`: only those before its first token."""
    seconds: dict[str, float] = {}
    for part in explanation.parts:
        if first and part.stage not in BEFORE_FIRST:
            continue
        kind = part.because.kind
        lost_s = 0.0 if kind in OWN else min(part.excess_s, part.took_s)
        _add(seconds, record.tenant, part.took_s - lost_s)
        if kind not in BY_OTHERS:
            _add(seconds, NONE, lost_s)
            continue
        weights = _weights(record, part, near)
        whole = sum(weights.values())
        for tenant, weight in weights.items():
            _add(seconds, tenant, lost_s * weight / whole)
    return seconds


def costs(
    whom: str, requests: int, p99_s: float, explained: Iterable[tuple[str, Mapping[str, float]]]
) -> tuple[TenantTail, list[TenantCost]]:
    """One tenant's tail and what others cost it, most first. `explained`: the id of each request around its p99, and
    the seconds charged for it; at least one."""
    seconds: dict[str, float] = {}
    ids = []
    for request_id, charges in explained:
        ids.append(request_id)
        for tenant, took_s in charges.items():
            _add(seconds, tenant, took_s)
    whole = sum(seconds.values())
    scale = p99_s / whole if whole > 0 else 0.0
    others = {tenant: s for tenant, s in seconds.items() if tenant not in (whom, NONE)}
    named = nlargest(MOST_WHO, others, key=others.__getitem__)
    told = {tenant: others[tenant] for tenant in named}
    if rest_s := sum(s for tenant, s in others.items() if tenant not in told):
        _add(told, OTHER, rest_s)
    tail = TenantTail(
        whom, requests, p99_s, len(ids), ids[len(ids) // 2],
        seconds.get(whom, 0.0) * scale, sum(others.values()) * scale, seconds.get(NONE, 0.0) * scale,
    )  # fmt: skip
    ranked = sorted(told.items(), key=lambda item: -item[1])
    return tail, [TenantCost(who, whom, s * scale, s / whole) for who, s in ranked]


def _weights(record: Record, part: Part, near: Sequence[Neighbour]) -> dict[str, float]:
    """How much each tenant's requests were in the way during a part. Where none of them is known any more, all of it is
    the tenant's that the cause names."""
    since = record.at + part.at_s
    until = since + part.took_s
    prefilling = part.because.kind == "long_prefill" or part.stage == "prefill"
    weights: dict[str, float] = {}
    for neighbour in near:
        if prefilling:
            weight = neighbour.prefilled_in(since, until) * neighbour.tokens
        else:
            weight = min(neighbour.ended_at, until) - max(neighbour.sent_at, since)
        if weight > 0:
            _add(weights, neighbour.tenant, weight)
    return weights or {str(part.because.figures.get("tenant", NONE)): 1.0}


def _add(seconds: dict[str, float], tenant: str, more: float) -> None:
    if more > 0:
        seconds[tenant] = seconds.get(tenant, 0.0) + more
