"""Configures the replicas that the gateway starts and stops itself, and where they run.

A fleet is either one pool, whose settings stand directly under `fleet`, or several, listed under `fleet.pools`. With
kind `fixed` and no pools there is none: replicas are listed under `replicas`, or the embedded engine serves.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from headgate.config.cluster import KubernetesConfig, RayConfig
from headgate.config.engine import EngineConfig
from headgate.config.engine import contradictions as engine_contradictions
from headgate.config.hints import (
    GIGA,
    Count,
    HeaderValue,
    Name,
    PoolName,
    Seconds,
    SecondsOrZero,
    Text,
    WeightOrZero,
    above_zero,
    between,
    matching,
)
from headgate.config.scale import ScaleConfig
from headgate.config.scale import contradictions as scale_contradictions
from headgate.model.lane import Lane
from headgate.model.replica import Replica

LauncherKind = Literal["processes", "ray", "kubernetes"]
FleetKind = Literal["fixed", "processes", "ray", "kubernetes"]
Word = Annotated[str, matching(r"[^\x00\ud800-\udfff]{1,4096}", "of 1 to 4096 characters")]
OURS = {
    "--uds": "Headgate chooses the socket",
    "--host": "vLLM listens on a socket that Headgate chooses",
    "--port": "vLLM listens on a socket that Headgate chooses; --port before -- is the gateway's",
    "--api-key": "only this user reaches vLLM's socket; clients' keys are the gateway's",
}
"""Flags of vLLM that `fleet.vllm` must not have, and why."""
INTERACTIVE_S = 60.0
"""Seconds. A lane that promises its first token sooner than this is interactive: a user waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateConfig:
    """Engines that take a GPU's time and compute nothing, for trying out fleets on a small machine."""

    profile: Text
    """Machine profile: h100-llama3-8b, h100x4-llama3-70b or another that comes with Headgate, or a file made by
    `headgate fit`."""
    dilate: Annotated[float, above_zero(10_000)] = 1.0
    """Seconds that pass for one second of the emulated GPU."""
    cold_start_s: SecondsOrZero = 0.0
    """Seconds that loading the emulated weights takes."""
    wake_s: SecondsOrZero = 0.0
    """Seconds that an emulated engine takes to wake up."""
    slots: Annotated[int, between(1, 1024)] | None = None
    """Sequences in the emulated KV memory at once; None: the profile's number."""
    context: Annotated[int, between(16, GIGA)] | None = None
    """Tokens that a slot holds; None: the profile's number."""

    @property
    def words(self) -> list[str]:
        """The options with which `headgate engine` emulates."""
        made = ["--emulate", self.profile, "--dilate", f"{self.dilate:g}", "--cold-start", f"{self.cold_start_s:g}"]
        made += [] if not self.wake_s else ["--wake", f"{self.wake_s:g}"]
        made += [] if self.slots is None else ["--slots", str(self.slots)]
        return made + ([] if self.context is None else ["--context", str(self.context)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """What replicas that Kubernetes runs require; the same for all of them."""

    api_key_file: Path | None = None
    """File with the engines' API key, sent as `Authorization: Bearer …`; None: they need no key."""
    headers: dict[Name, HeaderValue] = field(default_factory=dict, repr=False)
    """Further headers of every request to them."""
    ca: Path | None = None
    """PEM file with the authority that signed their certificates; None: the system's authorities."""

    def replica(self, replica_id: str, url: str) -> Replica:
        """A replica at this address that requires it."""
        return Replica(id=replica_id, url=url, api_key_file=self.api_key_file, headers=self.headers, ca=self.ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """vLLM as the replicas, from an environment of its own."""

    model: Text
    """Name or folder of the model, as `vllm serve` takes it."""
    bin: Text = "vllm"
    """vLLM's command: a path, or a name on the PATH."""
    flags: tuple[Word, ...] = ()
    """vLLM's own flags, each word by itself."""
    devices: tuple[Text, ...] = ()
    """Devices of each replica, such as "0" or "0,1"; empty: the machine's NVIDIA GPUs in turn, as many for each replica
    as its parallel sizes need."""
    scheduler: bool = True
    """Headgate's scheduler in vLLM; false: vLLM's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    """What a pool and a fleet that is one pool have in common: how many replicas, how they start and where."""

    scale: ScaleConfig = field(default_factory=ScaleConfig)
    """How many replicas run, and when that changes."""
    drain_s: SecondsOrZero = 30.0
    """Maximum time for a leaving replica to finish its requests; then they are cut off."""
    start_s: Seconds = 20.0
    """Assumed duration of a start, until one has been measured."""
    start_limit_s: Seconds = 900.0
    """Maximum duration of a start. A replica that takes longer is stopped and another is started."""
    wake_s: Seconds = 5.0
    """Assumed duration of a wake-up from sleep, until one has been measured."""
    wake_limit_s: Seconds = 60.0
    """Maximum duration of a wake-up. A replica that takes longer is stopped and another is started."""
    history: Path | None = None
    """File in which the forecast survives a restart; None: the forecast begins anew."""
    emulate: EmulateConfig | None = None
    """Only with processes: emulated engines instead of real ones; None: real ones."""
    vllm: VllmConfig | None = None
    """Only with processes: vLLM as replicas; None: Headgate's own engine."""
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    """The Kubernetes workload of the replicas."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """Keys, headers and certificate authority of the replicas that Kubernetes runs."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The Ray cluster, and what a replica reserves there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(LauncherConfig):
    """Equal replicas that are scaled together. `scale.warm` is 1 by default for the cheapest pool of each model and GPU
    type that serves an interactive lane, otherwise 0."""

    name: PoolName
    """The pool's name in commands and figures; the ids of its replicas begin with it."""
    kind: LauncherKind = "processes"
    """Where its replicas are started: processes on this machine, a Ray cluster or Kubernetes."""
    model: Text | None = None
    """The model that its replicas serve, as clients or `models` name it; None: whatever the engines list."""
    served_as: Text | None = None
    """The engines' own name for that model; None: for engines that are started here their own, otherwise `model`."""
    version: Name | None = None
    """Label `version` of its replicas; None: none."""
    lanes: frozenset[Name] = frozenset()
    """Lanes that its replicas serve; empty: all. Replicas of one lane alone go before others there."""
    tags: dict[Name, Text] = field(default_factory=dict)
    """Labels of its replicas: gpu_type, quantization, …"""
    slots: Count | None = None
    """Maximum requests at a replica at once; None: as its engine is started, or found by watching its latency."""
    token_limit: Count | None = None
    """Maximum outstanding tokens at a replica; None: only requests are limited."""
    price: WeightOrZero | None = None
    """Price of a replica per hour, in observe.currency. Among pools that serve the same, the cheapest is filled first
    and grows first; None: observe.price_per_replica_hour."""
    engine: EngineConfig | None = None
    """Settings of its engines, where they are started here; None: those of `embedded`."""

    @property
    def labels(self) -> dict[str, str]:
        """Tags of its replicas."""
        return self.tags if self.version is None else {"version": self.version, **self.tags}

    @property
    def gpu_type(self) -> str:
        """Its hardware, where that is told; empty: it is not."""
        return self.tags.get("gpu_type", "")

    def serves(self, lane: str) -> bool:
        return not self.lanes or lane in self.lanes

    def own_name(self, engine: EngineConfig | None) -> str | None:
        """The name by which engines that are started here list their model. `engine`: the settings of engines that have
        none of their own. None: that is not known here."""
        if self.kind == "kubernetes":
            return None
        if self.emulate is not None:
            profile = self.emulate.profile
            return None if profile.endswith(".json") else f"emulated-{profile}"
        if self.vllm is not None:
            adapters = flag_value(self.vllm.flags, "--lora-modules") is not None
            return None if adapters else flag_value(self.vllm.flags, "--served-model-name") or self.vllm.model
        return (self.engine or engine or EngineConfig()).served_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig(LauncherConfig):
    pools: tuple[PoolConfig, ...] = ()
    """Several pools, each with settings of its own; empty: one pool, as the other settings say, or none."""
    kind: FleetKind = "fixed"
    """Where replicas are started: processes on this machine, a Ray cluster or Kubernetes; fixed: the gateway starts
    none."""

    @property
    def every(self) -> tuple[PoolConfig, ...]:
        """All pools; empty: the gateway starts no replicas. A fleet that is one pool has one without a name."""
        if self.pools or self.kind == "fixed":
            return self.pools
        shared = {one.name: getattr(self, one.name) for one in fields(LauncherConfig)}
        return (PoolConfig(name="", kind=self.kind, **shared),)

    @property
    def named(self) -> list[tuple[str, PoolConfig]]:
        """All pools, each with the path at which the file gives its settings."""
        return [(f"fleet.pools[{index}]" if self.pools else "fleet", pool) for index, pool in enumerate(self.every)]

    @property
    def runs_engines(self) -> bool:
        """Whether any pool runs Headgate's own engine on this machine."""
        return any(pool.kind == "processes" and pool.vllm is None for pool in self.every)

    @property
    def runs_vllm(self) -> bool:
        return any(pool.vllm is not None for pool in self.every)

    def served(self, embedded: EngineConfig | None) -> frozenset[str] | None:
        """The models that its replicas serve; None: not known before they have been asked."""
        names: set[str] = set()
        for pool in self.every:
            own = pool.own_name(embedded)
            name = own if pool.model is None else pool.model
            if name is None:
                return None
            names.add(name)
            loras = (pool.engine or embedded or EngineConfig()).loras if own is not None else ()
            names.update(path.stem for path in loras)
        return frozenset(names)


def with_defaults(
    pools: tuple[PoolConfig, ...], lanes: Collection[Lane], price: float | None, said: Collection[str]
) -> tuple[PoolConfig, ...]:
    """Returns the pools with the defaults that depend on the rest of the config. `said`: the paths for which the file
    gives a value."""
    made = []
    for index, pool in enumerate(pools):
        if f"fleet.pools[{index}].kubernetes.name" not in said and pool.kind == "kubernetes":
            pool = replace(pool, kubernetes=replace(pool.kubernetes, name=f"headgate-engine-{pool.name}"))
        made.append(pool if pool.price is not None else replace(pool, price=price))
    interactive = [lane.name for lane in lanes if lane.ttft_target_s < INTERACTIVE_S]
    for index in sorted(range(len(made)), key=lambda one: (made[one].price or 0.0, one)):
        pool, scale = made[index], made[index].scale
        lacks = any(pool.serves(lane) and not _warm_for(lane, pool, made) for lane in interactive)
        room = scale.least < scale.max and not scale.to_zero
        if lacks and room and f"fleet.pools[{index}].scale.warm" not in said:
            made[index] = replace(pool, scale=replace(scale, warm=1))
    return tuple(made)


def _warm_for(lane: str, pool: PoolConfig, pools: Collection[PoolConfig]) -> bool:
    """Whether a pool keeps a replica warm for this lane and this pool's model and GPU type."""
    return any(
        one.scale.warm and one.serves(lane) and (one.model, one.gpu_type) == (pool.model, pool.gpu_type)
        for one in pools
    )


def contradictions(config: FleetConfig) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for values that are valid alone."""
    if config.pools:
        if config != FleetConfig(pools=config.pools):
            yield "fleet", "expected either pools or the settings of a single pool, not both"
        yield from _pools(config.pools)
        return
    if config.kind == "fixed":
        if config != FleetConfig():
            yield "fleet.kind", "expected processes, ray or kubernetes: with fixed the other settings have no effect"
        return
    yield from _pool(config.every[0], "fleet")


def _pools(pools: tuple[PoolConfig, ...]) -> Iterator[tuple[str, str]]:
    named: dict[str, int] = {}
    workloads: dict[tuple[str | None, str], int] = {}
    histories: dict[Path, int] = {}
    for index, pool in enumerate(pools):
        at = f"fleet.pools[{index}]"
        first = named.setdefault(pool.name, index)
        if first != index:
            yield f"{at}.name", f"{pool.name} is already the name of fleet.pools[{first}]"
        yield from _pool(pool, at)
        if pool.served_as is not None and pool.model is None:
            yield f"{at}.served_as", "expected a model with it: it is the engines' name for that model"
        if pool.engine is not None:
            other = {"kubernetes": pool.kind == "kubernetes", "emulate": pool.emulate, "vllm": pool.vllm}
            for what in [name for name, given in other.items() if given][:1]:
                yield f"{at}.engine", f"expected nothing with {what}: no such engine is started here"
            for name, problem in engine_contradictions(pool.engine):
                yield f"{at}.engine.{name}", problem
        if pool.history is not None:
            first = histories.setdefault(pool.history, index)
            if first != index:
                yield f"{at}.history", f"fleet.pools[{first}] writes that file already; give each its own"
        if pool.version is not None and "version" in pool.tags:
            yield f"{at}.tags", "version is given as version already"
        if pool.kind == "kubernetes":
            workload = (pool.kubernetes.namespace, pool.kubernetes.name)
            first = workloads.setdefault(workload, index)
            if first != index:
                yield f"{at}.kubernetes.name", f"{workload[1]} is already the workload of fleet.pools[{first}]"


def _pool(pool: PoolConfig, path: str) -> Iterator[tuple[str, str]]:
    yield from scale_contradictions(pool.scale, f"{path}.scale")
    if pool.emulate is not None and pool.kind != "processes":
        yield f"{path}.emulate", f"expected nothing with kind {pool.kind}: only processes can be emulated"
    if pool.vllm is not None:
        yield from _vllm_contradictions(pool.vllm, pool, f"{path}.vllm")
    if pool.kubernetes.inference_pool is not None and pool.kubernetes.scaled_here:
        yield f"{path}.kubernetes.inference_pool", "expected scaled_here: false with it: an InferencePool has no scale"
    if pool.kubernetes != KubernetesConfig() and pool.kind != "kubernetes":
        yield f"{path}.kubernetes", f"expected nothing with kind {pool.kind}"
    if pool.access != AccessConfig() and pool.kind != "kubernetes":
        yield f"{path}.access", f"expected nothing with kind {pool.kind}: engines that it starts itself need no key"
    if pool.ray != RayConfig() and pool.kind != "ray":
        yield f"{path}.ray", f"expected nothing with kind {pool.kind}"
    if pool.history is not None and not pool.scale.forecast:
        yield f"{path}.history", "expected nothing while scale.forecast is false: there is nothing to keep"


def _vllm_contradictions(vllm: VllmConfig, config: PoolConfig, path: str) -> Iterator[tuple[str, str]]:
    if config.kind != "processes":
        yield path, f"expected nothing with kind {config.kind}: vLLM is started as processes"
    if config.emulate is not None:
        yield path, "expected nothing beside emulate: a replica is one or the other"
    for name, why in OURS.items():
        if flag_value(vllm.flags, name) is not None:
            yield f"{path}.flags", f"leave {name} out: {why}"
    if vllm.scheduler and flag_value(vllm.flags, "--pipeline-parallel-size", "-pp") not in (None, "1"):
        yield (
            f"{path}.flags",
            "Headgate's scheduler does not support pipeline parallelism: use --tensor-parallel-size, or say"
            f" {path}.scheduler: false",
        )
    if vllm.devices and len(vllm.devices) < config.scale.max:
        yield (
            f"{path}.devices",
            f"expected devices for each of {config.scale.max} replicas (scale.max), got {len(vllm.devices)}",
        )


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    """Returns the value of a flag of vLLM by one of its names; the last one counts. None: it is not there."""
    found = None
    for place, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else "".join(flags[place + 1 : place + 2])
    return found
