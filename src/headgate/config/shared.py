"""Configures the store that several gateways in front of the same replicas share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConfig:
    redis: str = "redis://127.0.0.1:6379/0"
    """Redis server with the tenants' buckets, where gateways also announce themselves."""
    prefix: str = "headgate"
    """Prefix of all keys there. Gateways with another prefix share nothing with these."""
