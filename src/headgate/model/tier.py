"""Defines a tenant's tier. A tier is no class of service: in each lane its requests wait beside those of other
tiers."""

from dataclasses import dataclass
from typing import Final

DEFAULT_TIER: Final = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    name: str
    weight: float = 1.0
    """Relative share of a lane while another tier's requests wait there too."""
    reserve: float = 0.0
    """Share of the replicas' room (0 to 1) that other tiers leave free for this tier, minus what this tier already
    uses."""
    longest_neighbour: int | None = None
    """Longest sequence, in tokens, that its requests accept in their batch; None: any. Only our own engine obeys it."""
    max_tokens: int | None = None
    """Maximum output tokens of one request; None: only the tenant's own ceiling."""


TIERS: dict[str, Tier] = {tier.name: tier for tier in (Tier(name="premium", weight=4.0), Tier(name="free"))}
"""The default tiers. Neither has a reserve: a reserve stays idle where no tenant is premium."""
