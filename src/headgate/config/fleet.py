"""Which replicas does the gateway start and stop itself, and on what?

`fixed`: none; they are listed under `replicas`, or there is the embedded engine. Bounds are in gateway_config.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headgate.config.cluster import KubernetesConfig, RayConfig
from headgate.config.scale import ScaleConfig
from headgate.config.scale import contradictions as scale_contradictions

FleetKind = Literal["fixed", "processes", "ray", "kubernetes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateConfig:
    """Engines that take a GPU's time and compute nothing: for trying out fleets on a small machine."""

    profile: str
    """a100-llama3-8b, h100-llama3-8b, h200-llama3-8b, or a file made by `headgate fit`."""
    dilate: float = 1.0
    """Seconds that pass for one of the emulated GPU's."""
    cold_start_s: float = 0.0
    """What loading its weights is to take."""
    slots: int | None = None
    """Sequences in its KV memory at once; None: the profile's."""
    context: int | None = None
    """Tokens a slot holds; None: the profile's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    kind: FleetKind = "fixed"
    """On what replicas are started: processes on this machine, a Ray cluster, Kubernetes; fixed: they are not."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    """How many, and when."""
    drain_s: float = 30.0
    """How long one that goes may finish what it has; then that is cut off."""
    start_s: float = 20.0
    """What a start is thought to take until one has been measured."""
    start_limit_s: float = 900.0
    """One that is not ready by then is stopped, and another is started."""
    history: Path | None = None
    """File for what the forecast has learned, kept over restarts; None: it begins anew."""
    emulate: EmulateConfig | None = None
    """With processes: no model runs, only its time passes."""
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    """Which workload the replicas are."""
    ray: RayConfig = field(default_factory=RayConfig)
    """Which cluster, and what a replica takes of it."""


def contradictions(config: FleetConfig) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) for values that are fine alone."""
    if config.kind == "fixed":
        if config != FleetConfig():
            yield "fleet.kind", "expected processes, ray or kubernetes: with fixed the other settings have no effect"
        return
    yield from scale_contradictions(config.scale, "fleet.scale")
    if config.emulate is not None and config.kind != "processes":
        yield "fleet.emulate", f"expected nothing with kind {config.kind}: only processes can be emulated"
    if config.kubernetes != KubernetesConfig() and config.kind != "kubernetes":
        yield "fleet.kubernetes", f"expected nothing with kind {config.kind}"
    if config.ray != RayConfig() and config.kind != "ray":
        yield "fleet.ray", f"expected nothing with kind {config.kind}"
    if config.history is not None and not config.scale.forecast:
        yield "fleet.history", "expected nothing while scale.forecast is false: there is nothing to keep"
