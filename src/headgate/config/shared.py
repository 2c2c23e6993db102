"""What do several gateways in front of the same replicas share, and where is it kept?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConfig:
    redis: str = "redis://127.0.0.1:6379/0"
    """Where tenants' buckets are kept, and gateways tell each other of themselves."""
    prefix: str = "headgate"
    """Of all names there. Gateways with another prefix share nothing with these."""
