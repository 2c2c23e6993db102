"""Writes the part of /metrics that is about replicas: their conditions, queues, load, utilisation and cost."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from headgate.config.gateway import ObserveConfig
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.metrics.exposition import Exposition, Family
from headgate.model.replica import Replica
from headgate.policy.dispatch.view import DispatcherView
from headgate.policy.scaling.member import PoolCounts

REPLICAS: Final = Family("headgate_replicas", "gauge", "Replicas by what is to be thought of them", "condition")
DOWN: Final = Family(
    "headgate_replica_down",
    "gauge",
    "1: neither usable nor parked nor on its way; 0: all is as it should be",
    "replica",
)
OUTAGE: Final = Family("headgate_outage", "gauge", "1: no replica is usable, and that was not asked for")
UNSERVED: Final = Family("headgate_unserved", "gauge", "Lanes and models whose replicas are all down")
WAITING: Final = Family("headgate_waiting", "gauge", "Requests waiting here", "lane")
RUNNING: Final = Family("headgate_running", "gauge", "Requests at the replicas", "lane")
WAITING_EACH: Final = Family("headgate_waiting_per_replica", "gauge", "Requests waiting here for each usable replica")
HEDGES: Final = Family(
    "headgate_hedges_total", "counter", "Requests sent to a second replica, by what came of it", "lane", "result"
)
UTILISATION: Final = Family(
    "headgate_utilisation", "gauge", "Share of the usable replicas' scarcest resource that is taken, 0 to 1"
)
UTILISATION_BY: Final = Family(
    "headgate_utilisation_by", "gauge", "Share of each of their resources that is taken, 0 to 1", "resource"
)
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
    "kv_tokens": Family("headgate_replica_kv_tokens", "gauge", "Tokens in its KV memory, as it says", "replica"),
    "step_tokens": Family("headgate_replica_step_tokens", "gauge", "Tokens of its longest step, as it says", "replica"),
    "waiting": Family("headgate_replica_waiting", "gauge", "Requests in its own queue", "replica"),
    "warm": Family("headgate_replica_warm", "gauge", "0: its warm-up failed, and it gets no requests", "replica"),
    "preemptions": Family("headgate_replica_preemptions_total", "counter", "Sequences put back by it", "replica"),
    "evictions": Family("headgate_replica_evictions_total", "counter", "Cached blocks given up by it", "replica"),
}
"""By key of ProbedReplica.load, and only for replicas that report the key."""
POOL_WANTED: Final = Family("headgate_pool_wanted", "gauge", "Replicas of the pool that should be so", "pool", "state")
POOL_REPLICAS: Final = Family("headgate_pool_replicas", "gauge", "Replicas of the pool by state", "pool", "state")
POOL_MEMBER: Final = Family("headgate_pool_member", "gauge", "1: the replica is of this pool", "pool", "replica")
POOL_WAITING: Final = Family(
    "headgate_pool_waiting", "gauge", "Requests waiting here for which this pool is to grow", "pool"
)
POOL_PRICE: Final = Family("headgate_pool_price", "gauge", "Price of each of its replicas per hour", "pool")
COLD_START: Final = Family("headgate_cold_start_seconds", "gauge", "What its last start took", "replica", "phase")
GATEWAYS: Final = Family("headgate_gateways", "gauge", "Gateways that share limits, this one included, as last seen")
CONNECTED: Final = Family(
    "headgate_shared_connected", "gauge", "0: what gateways share can't be reached, and each keeps to its part"
)
PART: Final = Family("headgate_replica_room_part", "gauge", "This gateway's part of each replica's room, 0 to 1")


class ProbedReplica(Protocol):
    """The part of upkeep/prober.py that is used here."""

    @property
    def replica(self) -> Replica: ...
    @property
    def load(self) -> dict[str, float]: ...


def write_conditions(page: Exposition, view: DispatcherView, conditions: Conditions) -> None:
    fleet = conditions.read(view.at)
    by_condition = {
        "up": fleet.up,
        "starting": fleet.starting - fleet.waking,
        "waking": fleet.waking,
        "parked": fleet.parked - fleet.sleeping,
        "asleep": fleet.sleeping,
        "down": len(fleet.down),
    }
    for condition, number in by_condition.items():
        page.sample(REPLICAS, (condition,), number)
    down = frozenset(fleet.down)
    for replica_id in view.replicas:
        page.sample(DOWN, (replica_id,), int(replica_id in down))
    page.sample(OUTAGE, (), int(fleet.outage))
    page.sample(UNSERVED, (), len(fleet.unserved))


def write_queues(page: Exposition, view: DispatcherView) -> None:
    for name, counts in view.lanes.items():
        page.sample(WAITING, (name,), counts.waiting)
        page.sample(RUNNING, (name,), counts.running)
    page.sample(WAITING_EACH, (), view.waiting / max(1, view.usable))
    for labels, number in view.hedges.items():
        page.sample(HEDGES, labels, number)


def write_loads(page: Exposition, view: DispatcherView) -> None:
    for replica_id, seen in view.replicas.items():
        replica = (replica_id,)
        page.sample(USABLE, replica, seen.usable)
        page.sample(BUSY, replica, seen.requests)
        page.sample(LIMIT, replica, seen.limit)
        if seen.replica.slots is not None:
            page.sample(SLOTS, replica, seen.replica.slots)
        page.sample(OUTSTANDING, replica, seen.tokens)
        if seen.replica.token_limit is not None:
            page.sample(TOKEN_LIMIT, replica, seen.replica.token_limit)
        if seen.prefill_busy is not None:
            page.sample(PREFILL_BUSY, replica, seen.prefill_busy)
    if view.use.largest is not None:
        page.sample(UTILISATION, (), view.use.largest)
    for resource, share in view.use.known.items():
        page.sample(UTILISATION_BY, (resource,), share)


def write_pools(page: Exposition, pools: Mapping[str, PoolCounts]) -> None:
    """Writes the pools of a fleet that has several."""
    for name, pool in pools.items():
        for state, number in pool.wanted.items():
            page.sample(POOL_WANTED, (name, state), number)
        for state, number in pool.replicas.items():
            page.sample(POOL_REPLICAS, (name, state), number)
        for replica_id in pool.members:
            page.sample(POOL_MEMBER, (name, replica_id), 1)
        page.sample(POOL_WAITING, (name,), pool.waiting)
        if pool.price is not None:
            page.sample(POOL_PRICE, (name,), pool.price)


def write_shared(page: Exposition, view: DispatcherView) -> None:
    """Writes what gateways share; nothing where no limits are shared."""
    if view.shared is not None:
        page.sample(GATEWAYS, (), view.shared.gateways)
        page.sample(CONNECTED, (), int(view.shared.connected))
        page.sample(PART, (), view.shared.part)


def write_reported(page: Exposition, watches: Iterable[ProbedReplica]) -> None:
    """Writes what engines report of themselves."""
    for watch in watches:
        for key, value in watch.load.items():
            family = REPORTED.get(key)
            if family is not None:
                page.sample(family, (watch.replica.id,), value)
            elif key.startswith("cold_start_"):
                phase = key.removeprefix("cold_start_").removesuffix("_s")
                page.sample(COLD_START, (watch.replica.id, phase), value)


def write_cost(page: Exposition, figures: Figures, observe: ObserveConfig) -> None:
    page.sample(HELD, (), figures.held.total_s)
    cost = cost_per_1000_tokens(observe, figures)
    if cost is not None:
        page.sample(COST, (), cost)


def cost_per_1000_tokens(observe: ObserveConfig, figures: Figures) -> float | None:
    """Cost per 1000 tokens of the last hour; None: no price is configured, instruments are off, or there were no
    tokens."""
    price = observe.price_per_replica_hour
    return None if price is None or not observe.instruments else figures.held.last_hour().per_1000_tokens(price)
