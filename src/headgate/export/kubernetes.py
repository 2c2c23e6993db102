"""Renders manifests for a gateway and its engines on Kubernetes, from the gateway's config.

Either the gateway or KEDA scales the engines, never both: the gateway through the engines' scale subresource (then
there is one gateway: two would work against each other), or KEDA on the gateways' queue depth (then there may be
several).
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from headgate import __version__
from headgate.config.contradictions import did_you_mean
from headgate.config.fleet import PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.export.cluster_file import EngineEntry, in_cluster
from headgate.export.engine_pools import engine_pools, engine_words, refuse_unexpressed, served_as
from headgate.model.dialect import DIALECTS
from headgate.model.errors import UsageError

Manifest = dict[str, Any]

NOTICE_S = 5
"""Seconds for which, roughly, a pod that goes away is still in a Service's list; the pod serves meanwhile."""
USER = 10001
"""The user id of the Containerfile."""
MOUNT = "/etc/headgate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestValues:
    """The values that differ between clusters. In a Helm chart each is a template expression."""

    name: str = "headgate"
    namespace: str | None = None
    image: str = f"headgate:{__version__}"
    engine_image: str | None = None
    """None: the gateway's image."""
    gateways: Any = 1
    engines: Any = None
    """Number of engines; None: the minimum of fleet.scale. Not used where KEDA or the gateway scales the engines."""
    gpus: int = 0
    keda: bool = False
    gateway_resources: Any = field(
        default_factory=lambda: {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    )
    engine_resources: Any = None
    engine_kind: str = "headgate"
    """A kind of replica/dialects.py. Any other than headgate has its own image, which starts as its maker intended."""
    engine_args: Any = None
    """The engine's command line; None: that of `headgate engine`, and none for another kind."""
    config: str | None = None
    """The gateway's config file as it is mounted; None: it is made here."""

    @property
    def scaled_here(self) -> bool:
        return not self.keda and self.gateways == 1

    @property
    def engine_name(self) -> str:
        return f"{self.name}-engine"

    def workload(self, pool: str) -> str:
        """The name of a pool's Deployment."""
        return f"{self.engine_name}-{pool}" if pool else self.engine_name


def kubernetes(config: GatewayConfig, parts: ManifestValues, text: str = "") -> str:
    """All manifests, for `kubectl apply -f -`. `text`: the config file itself."""
    made = [it for group in manifests(config, parts, text).values() for it in group]
    return notes(config, parts) + "---\n".join(dump(it) for it in made)


def manifests(config: GatewayConfig, parts: ManifestValues, text: str = "") -> dict[str, list[Manifest]]:
    """The manifests by topic. Their order matters only to readers. Raises UsageError for what they can't express."""
    refuse_unexpressed(config, parts.engine_kind, parts.namespace)
    groups = {
        "config": [_config(config, parts, text)],
        "access": _access(parts),
        "gateway": [_gateway(config, parts), _service(config, parts), _budget(parts, "gateway")],
        **{
            _group(pool): [
                _engine(config, parts, pool),
                _budget(parts, "engine", pool.name),
                _policy(parts, pool),
            ]
            for pool in engine_pools(config)
        },
    }
    if parts.namespace is not None:
        for it in (it for group in groups.values() for it in group):
            it["metadata"]["namespace"] = parts.namespace
    return groups


def _group(pool: PoolConfig) -> str:
    return f"engine-{pool.name}" if pool.name else "engine"


def notes(config: GatewayConfig, parts: ManifestValues) -> str:
    lines = ["Made by `headgate export kubernetes`: change the config, not this file."]
    if not config.has_keys:
        lines.append("No tenant has a key, so whoever reaches the Service is served (--insecure).")
    if not parts.scaled_here and not parts.keda:
        lines += [
            f"With {parts.gateways} gateways none of them scales the engines: apply `headgate export keda` too, or say",
            "how many with `kubectl scale`.",
        ]
    if parts.gateways != 1:
        lines.append("Without a shared Redis each gateway keeps the tenants' limits for itself.")
    return "".join(f"# {line}\n" for line in lines)


def dump(manifest: Manifest) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def checked(parts: ManifestValues) -> ManifestValues:
    """Returns the same values. Raises StartupError for a name that Kubernetes refuses, or an unknown engine."""
    if parts.engine_kind not in DIALECTS:
        hint = did_you_mean(parts.engine_kind, sorted(DIALECTS))
        raise UsageError(f"--engine: no engine is called {parts.engine_kind!r}; {hint}")
    if parts.engine_kind != "headgate" and parts.engine_image is None:
        raise UsageError(f"--engine {parts.engine_kind}: say which image it is in, with --engine-image")
    for flag, name in (("--name", parts.engine_name), ("--namespace", parts.namespace)):
        if name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
            given = name.removesuffix("-engine")
            raise UsageError(f"{flag}: expected lowercase letters, digits and '-', at most 56, got {given!r}")
    return parts


# -- config and access ------------------------------------------------------------------------------------


def cluster_text(config: GatewayConfig, parts: ManifestValues, text: str = "") -> str:
    """The gateway's config file as it is mounted."""
    pools = [
        EngineEntry(parts.workload(pool.name), pool.kubernetes.port, served_as(pool)) for pool in engine_pools(config)
    ]
    return in_cluster(text, pools, config.listen.port, parts.scaled_here)


def _config(config: GatewayConfig, parts: ManifestValues, text: str) -> Manifest:
    """A Secret, because the config holds hashes of keys and headers for collectors."""
    data = parts.config if parts.config is not None else cluster_text(config, parts, text)
    return {
        **_head("v1", "Secret", parts.name, parts, "gateway"),
        "type": "Opaque",
        "stringData": {"headgate.yaml": data},
    }


def _access(parts: ManifestValues) -> list[Manifest]:
    """Allows what fleet/kubernetes_fleet.py does with the API, and nothing else."""
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    if parts.scaled_here:
        scales = ["deployments/scale", "statefulsets/scale"]
        rules += [
            {"apiGroups": ["apps"], "resources": scales, "verbs": ["get", "patch"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch", "delete"]},
        ]
    subject = {"kind": "ServiceAccount", "name": parts.name}
    if parts.namespace is not None:
        subject["namespace"] = parts.namespace
    return [
        _head("v1", "ServiceAccount", parts.name, parts, "gateway"),
        {**_head(f"{group}/v1", "Role", parts.name, parts, "gateway"), "rules": rules},
        {
            **_head(f"{group}/v1", "RoleBinding", parts.name, parts, "gateway"),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": parts.name},
            "subjects": [subject],
        },
    ]


# -- the gateway ------------------------------------------------------------------------------------------


def _gateway(config: GatewayConfig, parts: ManifestValues) -> Manifest:
    args = ["serve", "--config", f"{MOUNT}/headgate.yaml", *([] if config.has_keys else ["--insecure"])]
    container = {
        "name": "gateway",
        "image": parts.image,
        "args": args,
        "ports": [{"name": "http", "containerPort": _port(config)}],
        "resources": parts.gateway_resources,
        **_probes(config.listen.tls is not None, 1),
        "lifecycle": _linger(NOTICE_S),
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "config", "mountPath": MOUNT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    pod = {
        "serviceAccountName": parts.name,
        "terminationGracePeriodSeconds": math.ceil(config.listen.drain_s) + NOTICE_S + 10,
        "securityContext": _nobody(),
        "containers": [container],
        "volumes": [{"name": "config", "secret": {"secretName": parts.name}}, {"name": "tmp", "emptyDir": {}}],
    }
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(_port(config)),
        "prometheus.io/path": "/metrics",
    }
    return _deployment(parts, "gateway", parts.name, parts.gateways, pod, scraped)


def _service(config: GatewayConfig, parts: ManifestValues) -> Manifest:
    port = 443 if config.listen.tls is not None else 80
    return {
        **_head("v1", "Service", parts.name, parts, "gateway"),
        "spec": {
            "type": "ClusterIP",
            "selector": _labels(parts, "gateway"),
            "ports": [{"name": "http", "port": port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


# -- engines ----------------------------------------------------------------------------------------------


def _engine(config: GatewayConfig, parts: ManifestValues, pool: PoolConfig) -> Manifest:
    linger_s, own = max(NOTICE_S, math.ceil(pool.drain_s)), parts.engine_kind == "headgate"
    health = DIALECTS[parts.engine_kind].health[0]
    args = engine_args(config, parts, pool)
    container = {
        "name": "engine",
        "image": parts.engine_image or parts.image,
        **({"args": args} if args else {}),
        "ports": [{"name": "http", "containerPort": pool.kubernetes.port}],
        "resources": parts.engine_resources or _engine_resources(parts.gpus),
        **_probes(False, math.ceil(pool.start_limit_s / 5), "/health/live" if own else health, health),
        # The gateway sends no more requests once the pod is to go; those in flight have this long before SIGTERM.
        "lifecycle": _linger(linger_s),
        **({"securityContext": _confined()} if own else {}),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": linger_s + 15,
        **({"securityContext": _nobody()} if own else {}),
        **({"nodeSelector": dict(pool.kubernetes.nodes)} if pool.kubernetes.nodes else {}),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    # Where KEDA or the gateway scales the engines, applying the manifests again must not undo their scaling.
    fixed = None if parts.keda or parts.scaled_here else engine_count(parts, pool)
    return _deployment(parts, "engine", parts.workload(pool.name), fixed, pod, {}, pool.name)


def engine_count(parts: ManifestValues, pool: PoolConfig) -> Any:
    return parts.engines if parts.engines is not None else pool.scale.least + pool.scale.warm


def engine_args(config: GatewayConfig, parts: ManifestValues, pool: PoolConfig) -> list[str]:
    return engine_words(config, pool, parts.engine_kind) if parts.engine_args is None else list(parts.engine_args)


def _engine_resources(gpus: int) -> Manifest:
    resources: dict[str, dict[str, str]] = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
    if gpus:
        resources["limits"]["nvidia.com/gpu"] = str(gpus)
    return resources


def _policy(parts: ManifestValues, pool: PoolConfig) -> Manifest:
    """Allows only gateways to reach the engines, which ask for no key."""
    gateways = {"podSelector": {"matchLabels": _labels(parts, "gateway")}}
    return {
        **_head("networking.k8s.io/v1", "NetworkPolicy", parts.workload(pool.name), parts, "engine", pool.name),
        "spec": {
            "podSelector": {"matchLabels": _labels(parts, "engine", pool.name)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [gateways], "ports": [{"port": pool.kubernetes.port, "protocol": "TCP"}]}],
        },
    }


# -- what both have ---------------------------------------------------------------------------------------


def _deployment(
    parts: ManifestValues,
    component: str,
    name: str,
    replicas: Any,
    pod: Manifest,
    annotations: Manifest,
    pool: str = "",
) -> Manifest:
    labels = _labels(parts, component, pool)
    meta: Manifest = {"labels": labels} | ({"annotations": annotations} if annotations else {})
    # One more before one less: capacity never drops during a rollout.
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {
        **({} if replicas is None else {"replicas": replicas}),
        "selector": {"matchLabels": labels},
        "strategy": strategy,
        "template": {"metadata": meta, "spec": pod},
    }
    return {**_head("apps/v1", "Deployment", name, parts, component, pool), "spec": spec}


def _budget(parts: ManifestValues, component: str, pool: str = "") -> Manifest:
    name = parts.name if component == "gateway" else parts.workload(pool)
    return {
        **_head("policy/v1", "PodDisruptionBudget", name, parts, component, pool),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(parts, component, pool)}},
    }


def _probes(tls: bool, starts: int, live: str = "/health/live", ready: str = "/health/ready") -> Manifest:
    """`starts`: attempts, five seconds apart and at least 12, before a start is given up."""

    def get(path: str, **more: int) -> Manifest:
        request = {"path": path, "port": "http"} | ({"scheme": "HTTPS"} if tls else {})
        return {"httpGet": request, "timeoutSeconds": 2, **more}

    return {
        "startupProbe": get(live, periodSeconds=5, failureThreshold=max(12, starts)),
        "readinessProbe": get(ready, periodSeconds=2, failureThreshold=2),
        # Late rather than early: a busy engine answers slowly, and killing it makes that worse.
        "livenessProbe": get(live, periodSeconds=10, failureThreshold=6),
    }


def _linger(seconds: int) -> Manifest:
    return {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}


def _confined() -> Manifest:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _nobody() -> Manifest:
    return {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}


def _head(api: str, kind: str, name: str, parts: ManifestValues, component: str, pool: str = "") -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": _labels(parts, component, pool)}}


def _labels(parts: ManifestValues, component: str, pool: str = "") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "headgate",
        "app.kubernetes.io/instance": parts.name,
        "app.kubernetes.io/component": component,
        **({"headgate/pool": pool} if pool else {}),
    }


def _port(config: GatewayConfig) -> int:
    if config.listen.uds is not None:
        raise UsageError("listen.uds: in a cluster the gateway needs a port; give listen.port instead")
    if config.listen.port == 0:
        raise UsageError("listen.port is 0: give the gateway a port of its own, such as 8000")
    return config.listen.port
