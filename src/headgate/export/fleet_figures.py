"""Renders PromQL about a whole fleet, from the figures of every gateway in front of it: true for one gateway and for N.

Each gateway counts its own requests, so these add up. A replica's slots belong to the replica, however many gateways
report them: where they are known, the largest figure counts once (gateways that share through Redis each have a part of
the slots, gateways that know nothing of each other each assume all of them). Where the slots are unknown, each gateway
finds out how many of its own requests fit beside the others', so these limits add up too. A replica that any gateway
may use is in use: one gateway that can't reach it, or has not found it yet, does not make the fleet smaller.
"""

from headgate.config.gateway import GatewayConfig

_USABLE = "(max by (replica) (headgate_replica_usable) > 0)"
_ROOM = "(max by (replica) (headgate_replica_slots) or sum by (replica) (headgate_replica_limit))"


def waiting_per_replica(pool: str = "") -> str:
    """Requests waiting in all gateways, per replica in use; with no replica in use, all waiting requests. `pool`: those
    for which this pool is to grow, per replica of it; empty: of the whole fleet."""
    waiting = f'headgate_pool_waiting{{pool="{pool}"}}' if pool else "headgate_waiting"
    return f"sum({waiting}) / clamp_min(count{_usable(pool)} or vector(0), 1)"


def utilisation(pool: str = "") -> str:
    """Share of the scarcest resource of replicas in use that is taken (policy/replicas/utilisation.py), 0 to 1, or more
    where gateways send more requests than there are slots. Absent where no replica is in use. `pool`: of its replicas;
    empty: of all."""
    return f"max({' or '.join(_named(resource, expr) for resource, expr in _resources(pool).items())})"


def _usable(pool: str) -> str:
    """The replicas in use, of the pool or of the whole fleet."""
    members = f'max by (replica) (headgate_pool_member{{pool="{pool}"}})'
    return f"({_USABLE} and {members})" if pool else _USABLE


def _resources(pool: str) -> dict[str, str]:
    """PromQL for the taken share of each resource. Each gateway knows its own prompts and tokens, so these add up; what
    an engine reports is the same for all gateways."""
    usable = _usable(pool)
    taken = f"sum(sum by (replica) (headgate_replica_requests) and {usable})"
    prompts = "clamp_max(sum by (replica) (headgate_replica_prefill_busy), 1)"
    limits = f"(max by (replica) (headgate_replica_token_limit) and {usable})"
    batch, limit = (f"max by (replica) (headgate_replica_batch_{what})" for what in ("size", "limit"))
    queued = f"(max by (replica) (headgate_replica_waiting) or 0 * {batch})"
    found = {
        "slots": f"{taken} / sum(clamp_min(floor({_ROOM} * {usable}), 1))",
        "batch": f"avg(clamp_max(({batch} + {queued}) / ({limit} > 0), 1) and {usable})",
        "prefill": f"avg({prompts} and {usable})",
        "kv": f"avg(max by (replica) (headgate_replica_kv_ratio) and {usable})",
        "tokens": f"sum(sum by (replica) (headgate_replica_tokens) and {limits}) / sum({limits})",
    }
    # The share of time in which requests wait is measured for the fleet as a whole; a pool's waiting requests are a
    # figure of their own.
    return found if pool else {**found, "waiting": 'max(headgate_utilisation_by{resource="waiting"})'}


def _named(resource: str, expr: str) -> str:
    """Gives the series a label of its own: `or` keeps only one of several series with equal labels."""
    return f'label_replace({expr}, "resource", "{resource}", "", "")'


def one_fleet(config: GatewayConfig) -> bool:
    """Whether gateways with this config share their replicas, under the same names. Replicas that a gateway starts on
    its own machine have the same names on every machine."""
    return bool(config.replicas) or any(pool.kind != "processes" for pool in config.fleet.every)
