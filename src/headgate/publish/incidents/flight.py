"""Defines a Flight: a gateway's last minute, frozen. The trace and the digest of an incident are made of it."""

from typing import NamedTuple

import msgspec

from headgate.explain.blame import GatewayPause
from headgate.measure.evidence import Told
from headgate.model.record import Record


class LaneMoment(NamedTuple):
    at: float
    counts: tuple[tuple[str, int, int], ...]
    """Each lane, its requests that wait, and the slots that it uses."""


class ReplicaMoment(NamedTuple):
    """One replica as it was at a moment."""

    id: str
    kind: str
    condition: str
    """up, starting, waking, parked, asleep or down."""
    state: str
    why: str
    requests: int
    limit: float
    tokens: int
    kv_ratio: float | None
    batch_size: float | None
    waiting: float | None
    """Requests in the engine's own queue. None: the engine does not tell; so for the two before it."""


class FleetMoment(NamedTuple):
    at: float
    conditions: tuple[tuple[str, int], ...]
    """Number of replicas by condition, of all replicas."""
    replicas: tuple[ReplicaMoment, ...]
    """The replicas that are sampled one by one: those that are not up, then the busiest."""


class EngineStep(NamedTuple):
    """One step of an engine, its time on the gateway's clock."""

    at: float
    took_s: float
    prefill: int
    """Prompt tokens."""
    prompts: int
    """Prompts that these tokens belong to."""
    decodes: int
    """Sequences that got a token."""
    context: int
    """KV tokens that these sequences read."""
    moves: int
    """Moves of KV before computing."""


class IncidentAlert(msgspec.Struct, frozen=True, omit_defaults=True):
    """An alert that turned critical."""

    alert: str
    lane: str
    message: str
    ago_s: float
    """How long before the incident's end the alert turned critical."""


class Flight(msgspec.Struct, frozen=True):
    """All that an incident is made of. Times are on the gateway's clock, in seconds."""

    id: str
    reason: str
    """Why it was recorded, in words."""
    began: float
    ended: float
    wall: float
    """The end in seconds since 1970."""
    alerts: tuple[IncidentAlert, ...]
    lanes: tuple[LaneMoment, ...]
    fleet: tuple[FleetMoment, ...]
    slowest: tuple[Told, ...]
    """The slowest requests that have ended, with their explanations, worst first."""
    records: tuple[Record, ...]
    """Requests that have ended, in the order of their end; of some, the end may be before `began`."""
    running: tuple[Record, ...]
    """Requests that still run, as if they ended now, the oldest first."""
    pauses: tuple[GatewayPause, ...]
    """Pauses of the gateway itself."""
    steps: tuple[tuple[str, tuple[EngineStep, ...]], ...]
    """Steps of the engines that tell them, by replica."""
