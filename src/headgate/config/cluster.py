"""Which workload of a Kubernetes cluster are the replicas, and what of a Ray cluster does one take?

Sections of `fleet`. Bounds are in gateway_config.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Workload = Literal["Deployment", "StatefulSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """`headgate export kubernetes` prints what fits these defaults."""

    name: str = "headgate-engine"
    """The workload whose pods are replicas."""
    workload: Workload = "Deployment"
    """A StatefulSet always loses its last pod, whichever has least to lose."""
    namespace: str | None = None
    """None: the one this gateway's own pod is in."""
    selector: str | None = None
    """Labels of the pods, such as app=engine; None: the workload's own selector."""
    port: int = 8001
    """Where an engine listens in its pod."""
    scheme: Literal["http", "https"] = "http"
    place_s: float = 600.0
    """How long a pod may take until it has an address; a machine may have to be added for it."""
    scaled_here: bool = True
    """False: something else, such as KEDA, says how many there are; here they are only found and used."""
    api: str | None = None
    """Address of the API server; None: from within a pod. `kubectl proxy` gives one: http://127.0.0.1:8001."""
    token_file: Path | None = None
    """None: the pod's own service account, where api is not given."""
    ca_file: Path | None = None
    """None: the pod's own, or those this machine trusts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    address: str = "auto"
    """host:6379 of the head node, ray://host:10001 from outside; auto: the cluster this machine is part of."""
    namespace: str = "headgate"
    """Replicas are found here by every gateway that uses the same."""
    cpus: float = 1.0
    """What Ray sets aside for a replica on its node."""
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources, such as those by which nodes are told apart."""
    place_s: float = 120.0
    """How long a replica may take until it has a place; a machine may have to be added for it."""
