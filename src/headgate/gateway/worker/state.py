"""Defines what a brain tells its workers of config, replicas and models: one frozen value, told whole whenever it has
changed."""

import pickle
from dataclasses import dataclass, fields, is_dataclass
from io import BytesIO
from typing import Any

from headgate.config.gateway import GatewayConfig
from headgate.gateway.catalog import NamesTold
from headgate.model.lane import Lane
from headgate.model.replica import Replica
from headgate.model.tier import Tier
from headgate.policy.compose import tenant_limits, tiers


@dataclass(frozen=True, slots=True)
class KnownReplica:
    replica: Replica
    default_model: str
    """The model name to send where any model will do; empty: `default` is sent."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    version: int
    """Number of the config: it grows whenever one is taken."""
    config: GatewayConfig
    replicas: tuple[KnownReplica, ...]
    names: NamesTold

    @property
    def lanes(self) -> dict[str, Lane]:
        return {lane.name: lane for lane in self.config.lanes}

    @property
    def tiers(self) -> dict[str, Tier]:
        return tiers(self.config)

    @property
    def limited(self) -> frozenset[str]:
        """Tenants with limits per minute."""
        return frozenset(tenant_limits(self.config))


class _Freezer(pickle.Pickler):
    """Pickles dataclasses by their fields: those of the compiled copy can't be pickled otherwise."""

    def reducer_override(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return _made, (type(value), {field.name: getattr(value, field.name) for field in fields(value)})
        return NotImplemented


def _made(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**values)


def frozen(value: object) -> bytes:
    out = BytesIO()
    _Freezer(out).dump(value)
    return out.getvalue()


def thawed(data: bytes) -> Any:
    return pickle.loads(data)  # written by this program's own brain, through a socket that only this user can reach
