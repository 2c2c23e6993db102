"""Configures the replicas that the gateway starts and stops itself, and where they run.

`fixed`: none; replicas are listed under `replicas`, or the embedded engine serves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from headgate.config.cluster import KubernetesConfig, RayConfig
from headgate.config.hints import GIGA, HeaderValue, Name, Seconds, SecondsOrZero, Text, above_zero, between, matching
from headgate.config.scale import ScaleConfig
from headgate.config.scale import contradictions as scale_contradictions
from headgate.model.replica import Replica

FleetKind = Literal["fixed", "processes", "ray", "kubernetes"]
Word = Annotated[str, matching(r"[^\x00\ud800-\udfff]{1,4096}", "of 1 to 4096 characters")]
OURS = {
    "--uds": "Headgate chooses the socket",
    "--host": "vLLM listens on a socket that Headgate chooses",
    "--port": "vLLM listens on a socket that Headgate chooses; --port before -- is the gateway's",
    "--api-key": "only this user reaches vLLM's socket; clients' keys are the gateway's",
}
"""Flags of vLLM that `fleet.vllm` must not have, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateConfig:
    """Engines that take a GPU's time and compute nothing, for trying out fleets on a small machine."""

    profile: Text
    """Machine profile: a100-llama3-8b, h100-llama3-8b, h200-llama3-8b, or a file made by `headgate fit`."""
    dilate: Annotated[float, above_zero(10_000)] = 1.0
    """Seconds that pass for one second of the emulated GPU."""
    cold_start_s: SecondsOrZero = 0.0
    """Seconds that loading the emulated weights takes."""
    slots: Annotated[int, between(1, 1024)] | None = None
    """Sequences in the emulated KV memory at once; None: the profile's number."""
    context: Annotated[int, between(16, GIGA)] | None = None
    """Tokens that a slot holds; None: the profile's number."""


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
class FleetConfig:
    kind: FleetKind = "fixed"
    """Where replicas are started: processes on this machine, a Ray cluster or Kubernetes; fixed: the gateway starts
    none."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    """How many replicas run, and when that changes."""
    drain_s: SecondsOrZero = 30.0
    """Maximum time for a leaving replica to finish its requests; then they are cut off."""
    start_s: Seconds = 20.0
    """Assumed duration of a start, until one has been measured."""
    start_limit_s: Seconds = 900.0
    """Maximum duration of a start. A replica that takes longer is stopped and another is started."""
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


def contradictions(config: FleetConfig) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for values that are valid alone."""
    if config.kind == "fixed":
        if config != FleetConfig():
            yield "fleet.kind", "expected processes, ray or kubernetes: with fixed the other settings have no effect"
        return
    yield from scale_contradictions(config.scale, "fleet.scale")
    if config.emulate is not None and config.kind != "processes":
        yield "fleet.emulate", f"expected nothing with kind {config.kind}: only processes can be emulated"
    if config.vllm is not None:
        yield from _vllm_contradictions(config.vllm, config)
    if config.kubernetes != KubernetesConfig() and config.kind != "kubernetes":
        yield "fleet.kubernetes", f"expected nothing with kind {config.kind}"
    if config.access != AccessConfig() and config.kind != "kubernetes":
        yield "fleet.access", f"expected nothing with kind {config.kind}: engines that it starts itself need no key"
    if config.ray != RayConfig() and config.kind != "ray":
        yield "fleet.ray", f"expected nothing with kind {config.kind}"
    if config.history is not None and not config.scale.forecast:
        yield "fleet.history", "expected nothing while scale.forecast is false: there is nothing to keep"


def _vllm_contradictions(vllm: VllmConfig, config: FleetConfig) -> Iterator[tuple[str, str]]:
    if config.kind != "processes":
        yield "fleet.vllm", f"expected nothing with kind {config.kind}: vLLM is started as processes"
    if config.emulate is not None:
        yield "fleet.vllm", "expected nothing beside emulate: a replica is one or the other"
    for name, why in OURS.items():
        if flag_value(vllm.flags, name) is not None:
            yield "fleet.vllm.flags", f"leave {name} out: {why}"
    if vllm.scheduler and flag_value(vllm.flags, "--pipeline-parallel-size", "-pp") not in (None, "1"):
        yield (
            "fleet.vllm.flags",
            "Headgate's scheduler does not support pipeline parallelism: use --tensor-parallel-size, or say"
            " fleet.vllm.scheduler: false",
        )
    if vllm.devices and len(vllm.devices) < config.scale.max:
        yield (
            "fleet.vllm.devices",
            f"expected devices for each of {config.scale.max} replicas (fleet.scale.max), got {len(vllm.devices)}",
        )


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    """Returns the value of a flag of vLLM by one of its names; the last one counts. None: it is not there."""
    found = None
    for place, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else "".join(flags[place + 1 : place + 2])
    return found
