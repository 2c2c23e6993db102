"""What is a tenant's tier worth? It is no class of service: in each lane its requests wait beside the others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    name: str
    weight: float = 1.0
    """Share within a lane while another tier's requests wait there too."""
    reserve: float = 0.0
    """Share of the room that others leave free for this tier, as far as it does not use it itself."""
    longest_neighbour: int | None = None
    """Longest sequence, in tokens, that its requests accept in their batch; None: any. Our own engine keeps to it."""
    max_tokens: int | None = None
    """Most output tokens of one request; None: only the tenant's own ceiling."""


TIERS: dict[str, Tier] = {tier.name: tier for tier in (Tier(name="premium", weight=4.0), Tier(name="free"))}
"""The defaults: without a reserve, which would be idle where nobody is premium."""
