"""Configures replicas on a Kubernetes or a Ray cluster: the workload they belong to, and what each reserves.

These are sections of `fleet`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from headgate.config.engine import ENGINE_PORT
from headgate.config.hints import DnsName, HttpUrl, Seconds, Text, Weight, between

Workload = Literal["Deployment", "StatefulSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """The Kubernetes workload whose pods are replicas. `headgate export kubernetes` prints a manifest for these
    defaults."""

    name: DnsName = "headgate-engine"
    """The workload whose pods are replicas."""
    workload: Workload = "Deployment"
    """A StatefulSet always removes its last pod, even where another has less to lose."""
    namespace: DnsName | None = None
    """The workload's namespace; None: that of this gateway's own pod."""
    selector: Text | None = None
    """Labels of the pods, such as app=engine; None: the workload's own selector."""
    nodes: dict[Text, Text] = field(default_factory=dict)
    """Labels of the nodes on which the pods may run, for `headgate export`; empty: any node."""
    port: Annotated[int, between(1, 65_535)] = ENGINE_PORT
    """Port on which the engine listens in its pod."""
    scheme: Literal["http", "https"] = "http"
    """How the engine in a pod is spoken to."""
    place_s: Seconds = 600.0
    """Maximum time until a pod has an address; the cluster may have to add a machine for it."""
    inference_pool: DnsName | None = None
    """InferencePool whose selector and port find the pods, instead of a workload's; needs scaled_here: false."""
    scaled_here: bool = True
    """False: another controller, such as KEDA, sets the number of replicas; the gateway only finds and uses them."""
    api: HttpUrl | None = None
    """Address of the API server, such as `kubectl proxy`'s http://127.0.0.1:8001; None: the one that pods use."""
    token_file: Path | None = None
    """File with the API server's token; None: the pod's own service account, where `api` is not given."""
    ca_file: Path | None = None
    """File with the API server's certificate authority; None: the pod's own, or the machine's trusted authorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    address: Text = "auto"
    """host:6379 of the head node, or ray://host:10001 from outside the cluster; auto: the cluster of this machine."""
    namespace: Text = "headgate"
    """Ray namespace of the replicas. All gateways with the same namespace find them."""
    cpus: Annotated[float, between(0, 10_000)] = 1.0
    """CPUs that Ray reserves for a replica on its node."""
    gpus: Annotated[float, between(0, 10_000)] = 0.0
    """GPUs that Ray reserves for a replica on its node."""
    resources: dict[Text, Weight] = field(default_factory=dict)
    """Custom Ray resources that a replica reserves, such as those that tell nodes apart."""
    place_s: Seconds = 120.0
    """Maximum time until Ray places a replica; the cluster may have to add a machine for it."""
