"""Renders a KEDA ScaledObject: it scales the engines on the gateways' queue depth, and on the engines' utilisation.

One figure is not enough: a queue is empty as long as engines have room, even where they are nearly full, so by itself
it would remove engines until requests wait. KEDA makes a HorizontalPodAutoscaler, which follows the larger of the two
needs. Both figures cover the whole fleet, whatever the number of gateways (fleet_figures.py). An interactive pool never
scales to zero: its first request would wait for a cold start.
"""

import math
from typing import Any

from headgate.config.gateway import GatewayConfig
from headgate.export.fleet_figures import utilisation, waiting_per_replica
from headgate.export.kubernetes import Manifest, ManifestValues, dump, refuse_pools

PROMETHEUS = "http://prometheus-server.monitoring.svc:80"
POLL_S = 5
INTERACTIVE_S = 60.0
"""Seconds. A lane that promises its first token sooner than this is interactive: a user waits for it."""


def keda(config: GatewayConfig, parts: ManifestValues, prometheus: str = PROMETHEUS) -> str:
    head = "# Made by `headgate export keda`: change the config, not this file.\n"
    if config.fleet.kubernetes.scaled_here:
        head += "# Set fleet.kubernetes.scaled_here to false: the gateway must not scale the same engines.\n"
    return head + dump(scaled_object(config, parts, prometheus))


def scaled_object(config: GatewayConfig, parts: ManifestValues, prometheus: Any = PROMETHEUS) -> Manifest:
    refuse_pools(config)
    scale = config.fleet.scale
    least = min(scale.min, scale.max) if not interactive(config) else max(1, scale.min)
    queue = _trigger("queue", waiting_per_replica(), scale.queue_per_replica, prometheus)
    use = _trigger("use", utilisation(), scale.utilisation_target, prometheus)
    meta = {"name": parts.engine_name} | ({"namespace": parts.namespace} if parts.namespace is not None else {})
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": meta,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": parts.engine_name},
            "minReplicaCount": least + scale.warm,
            "maxReplicaCount": scale.max,
            "pollingInterval": POLL_S,
            "cooldownPeriod": math.ceil(scale.idle_s),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(config)}},
            "triggers": [queue, use],
        },
    }


def interactive(config: GatewayConfig) -> bool:
    return any(lane.ttft_target_s < INTERACTIVE_S for lane in config.lanes)


def _behavior(config: GatewayConfig) -> Manifest:
    """Scales up at once, by at most double or two pods per up cooldown; scales down slowly, by `down_share` per down
    cooldown, as policy/scaling/scale.py does."""
    scale = config.fleet.scale
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
