"""Renders a KEDA ScaledObject: it scales the engines on the gateways' queue depth, and on the engines' utilisation.

One figure is not enough: a queue is empty as long as engines have room, even where they are nearly full, so by itself
it would remove engines until requests wait. KEDA makes a HorizontalPodAutoscaler, which follows the larger of the two
needs. Both figures cover the whole pool, whatever the number of gateways (fleet_figures.py). An interactive pool never
scales to zero: its first request would wait for a cold start.
"""

import math
from typing import Any

from headgate.config.fleet import INTERACTIVE_S, PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.export.engine_pools import engine_pools, refuse_unexpressed
from headgate.export.fleet_figures import utilisation, waiting_per_replica
from headgate.export.kubernetes import Manifest, ManifestValues, dump

PROMETHEUS = "http://prometheus-server.monitoring.svc:80"
POLL_S = 5


def keda(config: GatewayConfig, parts: ManifestValues, prometheus: str = PROMETHEUS) -> str:
    refuse_unexpressed(config, parts.engine_kind, parts.namespace)
    head = "# Made by `headgate export keda`: change the config, not this file.\n"
    pools = engine_pools(config)
    if any(pool.kubernetes.scaled_here for pool in pools):
        key = "kubernetes.scaled_here of each pool" if config.fleet.pools else "fleet.kubernetes.scaled_here"
        head += f"# Set {key} to false: the gateway must not scale the same engines.\n"
    return head + "---\n".join(dump(scaled_object(config, parts, prometheus, pool)) for pool in pools)


def scaled_object(
    config: GatewayConfig, parts: ManifestValues, prometheus: Any = PROMETHEUS, pool: PoolConfig | None = None
) -> Manifest:
    """`pool` None: the only one."""
    pool = pool or engine_pools(config)[0]
    scale, name = pool.scale, parts.workload(pool.name)
    least = min(scale.min, scale.max) if not interactive(config, pool) else max(1, scale.min)
    queue = _trigger("queue", waiting_per_replica(pool.name), scale.queue_per_replica, prometheus)
    use = _trigger("use", utilisation(pool.name), scale.utilisation_target, prometheus)
    meta = {"name": name} | ({"namespace": parts.namespace} if parts.namespace is not None else {})
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": meta,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicaCount": least + scale.warm,
            "maxReplicaCount": scale.max,
            "pollingInterval": POLL_S,
            "cooldownPeriod": math.ceil(scale.idle_s),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scale)}},
            "triggers": [queue, use],
        },
    }


def interactive(config: GatewayConfig, pool: PoolConfig) -> bool:
    return any(lane.ttft_target_s < INTERACTIVE_S and pool.serves(lane.name) for lane in config.lanes)


def _behavior(scale: ScaleConfig) -> Manifest:
    """Scales up at once, by at most double or two pods per up cooldown; scales down slowly, by `down_share` per down
    cooldown, as policy/scaling/scale.py does."""
    up_s, down_s = (min(1800, max(1, math.ceil(s))) for s in (scale.up_cooldown_s, scale.down_cooldown_s))
    more = [
        {"type": "Percent", "value": 100, "periodSeconds": up_s},
        {"type": "Pods", "value": 2, "periodSeconds": up_s},
    ]
    fewer = [{"type": "Percent", "value": max(1, round(100 * scale.down_share)), "periodSeconds": down_s}]
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": more},
        "scaleDown": {
            "stabilizationWindowSeconds": min(3600, math.ceil(scale.down_cooldown_s)),
            "selectPolicy": "Max",
            "policies": fewer,
        },
    }


def _trigger(name: str, query: str, threshold: float, prometheus: Any) -> Manifest:
    """Value, not AverageValue: both figures are already per replica. Without figures the scale does not change."""
    metadata = {
        "serverAddress": prometheus,
        "query": query,
        "threshold": f"{threshold:g}",
        "ignoreNullValues": "false",
    }
    return {"type": "prometheus", "name": name, "metricType": "Value", "metadata": metadata}
