"""Says which pools of engines the manifests have, how each one's engines are started, and what can't be expressed.

A config without a fleet gets one pool of engines. What manifests can't express is refused in words.
"""

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from headgate.config.cluster import KubernetesConfig
from headgate.config.engine import BATCHING, EngineConfig
from headgate.config.fleet import FleetConfig, PoolConfig
from headgate.config.forms.flags import words_of
from headgate.config.gateway import GatewayConfig
from headgate.model.errors import UsageError

HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def engine_pools(config: GatewayConfig) -> tuple[PoolConfig, ...]:
    """The pools of engines; one without a name where the config has no `fleet.pools`."""
    fleet: FleetConfig = config.fleet
    return fleet.pools or replace(fleet, kind=fleet.kind if fleet.every else "kubernetes").every


def engine_words(config: GatewayConfig, pool: PoolConfig, kind: str) -> list[str]:
    """The command line of a pool's engine of this kind; empty: as its image starts it."""
    if pool.vllm is not None:
        served = (
            ["--served-model-name", pool.model] if pool.model and "--served-model-name" not in pool.vllm.flags else []
        )
        return ["--model", pool.vllm.model, "--port", str(pool.kubernetes.port), *served, *pool.vllm.flags]
    if kind != "headgate":
        return []
    own = ["engine", "--host", "0.0.0.0", "--port", str(pool.kubernetes.port)]
    engine = pool.engine or config.embedded or EngineConfig()
    if pool.emulate is not None:
        return [*own, *pool.emulate.words, *words_of(engine, BATCHING["group"])]
    if pool.model is not None and pool.served_as is None:
        engine = replace(engine, model_name=pool.model)
    return [*own, *words_of(engine)]


def served_as(pool: PoolConfig) -> str | None:
    """The engines' own name for the pool's model, where it is another; None: it is the same, or the config says it."""
    own = None if pool.emulate is None else pool.own_name(None)
    return own if pool.model is not None and pool.served_as is None and own != pool.model else None


def refuse_unexpressed(config: GatewayConfig, kind: str, namespace: str | None) -> None:
    """Raises UsageError for what the manifests can't express. `kind`: the engine in the pods."""
    found = [f"{path}: {why}" for path, why in (*_replicas(config), *_pools(config, kind, namespace))]
    if found:
        raise UsageError("\n".join(found))


def _replicas(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    for index, replica in enumerate(config.replicas):
        at, host = f"replicas[{index}]", urlsplit(replica.url).hostname
        if replica.url.startswith("unix:") or host in HERE:
            yield (
                f"{at}.url",
                f"a pod of the gateway does not reach {replica.url}: leave the replica out, or give its host",
            )
        if replica.api_key_file is not None or replica.ca is not None:
            yield at, "its api_key_file and ca are not in the gateway's pod: give a key in headers, or leave it out"


def _pools(config: GatewayConfig, kind: str, namespace: str | None) -> Iterator[tuple[str, str]]:
    several = bool(config.fleet.pools)
    for index, pool in enumerate(engine_pools(config)):
        at = f"fleet.pools[{index}]" if several else "fleet"
        place, usual = pool.kubernetes, KubernetesConfig()
        if pool.vllm is not None and kind != "vllm":
            yield f"{at}.vllm", "say which image has vLLM: --engine vllm --engine-image vllm/vllm-openai:TAG"
        if pool.vllm is not None and (pool.vllm.scheduler or pool.vllm.devices):
            yield (
                f"{at}.vllm",
                "its image has no Headgate in it, and Kubernetes gives devices: scheduler: false, no devices",
            )
        if kind != "headgate" and (pool.engine is not None or pool.emulate is not None):
            yield (
                at,
                f"engine and emulate are for Headgate's own engine, not for {kind}: leave them out",
            )
        if place.workload != usual.workload:
            yield (
                f"{at}.kubernetes.workload",
                "manifests have Deployments; leave it out, or write the StatefulSet by hand",
            )
        if place.selector is not None:
            yield f"{at}.kubernetes.selector", "manifests have labels of their own; leave it out"
        if place.scheme != usual.scheme:
            yield f"{at}.kubernetes.scheme", "engines in manifests speak http; leave it out"
        if (place.api, place.token_file, place.ca_file) != (None, None, None):
            yield (
                f"{at}.kubernetes",
                "in a pod the gateway uses its service account; leave out api, token_file and ca_file",
            )
        if place.namespace is not None and place.namespace != namespace:
            yield (
                f"{at}.kubernetes.namespace",
                f"the engines are in the gateway's namespace: --namespace {place.namespace}",
            )
        if pool.access.api_key_file is not None or pool.access.ca is not None:
            yield f"{at}.access", "api_key_file and ca are not in the gateway's pod: give a key in headers"
        if pool.kind == "ray":
            yield (
                f"{at}.kind",
                "a Ray cluster starts these replicas itself; leave the pool out, or give it kind kubernetes",
            )
        if several and place.name not in (usual.name, f"headgate-engine-{pool.name}"):
            yield f"{at}.kubernetes.name", "manifests name the workload after --name and the pool; leave it out"
