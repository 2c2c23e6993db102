"""PromQL about a whole fleet, from the figures of every gateway in front of it: true for one gateway and for N.

Each gateway counts its own requests, so these add up. What a replica can take is the replica's, however many gateways
tell of it: where its slots are known the largest figure counts once (gateways that share through Redis have a part of
it each, those that know nothing of each other believe to have all of it). Where they are not, each gateway finds out
how many of its own requests fit beside the others', so these limits add up too. A replica that any gateway may use is
in use: one gateway that can't reach it, or has not found it yet, does not make the fleet smaller.
"""

from headgate.model.gateway_config import GatewayConfig

_USABLE = "(max by (replica) (headgate_replica_usable) > 0)"
_ROOM = "(max by (replica) (headgate_replica_slots) or sum by (replica) (headgate_replica_limit))"


def waiting_per_replica() -> str:
    """Requests that wait in all gateways, for each replica in use. Also where there is none."""
    return f"sum(headgate_waiting) / clamp_min(count{_USABLE} or vector(0), 1)"


def utilisation() -> str:
    """Share of the room of replicas in use that is taken, 0 to 1, above it where gateways send more than there is room
    for. Nothing where no replica is in use."""
    taken = f"sum(sum by (replica) (headgate_replica_requests) and {_USABLE})"
    return f"{taken} / sum(clamp_min(floor({_ROOM} * {_USABLE}), 1))"


def one_fleet(config: GatewayConfig) -> bool:
    """Whether gateways with this config have their replicas in common, under the same names. Those that a gateway
    starts for itself on its own machine are called the same on every machine."""
    return bool(config.replicas) or config.fleet.kind in ("kubernetes", "ray")
