"""Computes how much this gateway takes of what gateways share: of a tenant's bucket, and of the replicas' slots."""

from dataclasses import dataclass
from typing import Final

AHEAD_S: Final = 0.3
"""Seconds of spending, at the current rate, that one allowance covers: few calls to the store, and little that other
gateways miss."""
MOST_OF_BUCKET: Final = 1 / 16
"""Maximum share of a bucket that one allowance may be."""
SMOOTH_S: Final = 0.5
"""Seconds over which a rate is averaged."""
EVEN: Final = 0.25
"""Share of the replicas' slots that is divided evenly, whatever the demand: that much is there for the first burst at a
gateway that was idle."""
MOST_DEMAND: Final = 1e9
"""Maximum requests that one gateway may report. A larger or a negative number is no gateway's."""


@dataclass(frozen=True, slots=True)
class AllowanceClaim:
    """What a gateway asks of one tenant's bucket, in seconds; pairs are requests and tokens."""

    tenant: str
    burst_s: float
    charge: tuple[float, float] = (0.0, 0.0)
    """What the gateway owes; below zero: what it gives back. Booked even if nothing is granted."""
    least: tuple[float, float] = (0.0, 0.0)
    """Minimum to grant: with less in the bucket, nothing is granted."""
    most: tuple[float, float] = (0.0, 0.0)
    floor: tuple[float, float] = (0.0, 0.0)
    """Minimum seconds until the bucket is full, known to a gateway that counted while the store could not be
    reached."""


class Appetite:
    """How fast one tenant spends at this gateway."""

    __slots__ = ("_at", "_requests_s", "_tokens_s", "requests", "spent_at", "tokens")

    def __init__(self, now: float) -> None:
        self.requests = 0.0
        """Seconds of the limit spent per second: 1 is just what the limit allows."""
        self.tokens = 0.0
        self.spent_at = now
        """When the tenant was last seen to spend."""
        self._at = now
        self._requests_s = 0.0
        self._tokens_s = 0.0

    def seen(self, spent_requests_s: float, spent_tokens_s: float, now: float) -> None:
        """Updates the rates from the totals that the purse has spent."""
        passed_s = now - self._at
        if passed_s <= 0:
            return
        # All that a new purse has spent is news.
        requests_s = spent_requests_s - (self._requests_s if spent_requests_s >= self._requests_s else 0.0)
        tokens_s = spent_tokens_s - (self._tokens_s if spent_requests_s >= self._requests_s else 0.0)
        if requests_s or tokens_s:
            self.spent_at = now
        part = passed_s / (passed_s + SMOOTH_S)
        self.requests += part * (max(0.0, requests_s) / passed_s - self.requests)
        self.tokens += part * (max(0.0, tokens_s) / passed_s - self.tokens)
        self._at, self._requests_s, self._tokens_s = now, spent_requests_s, spent_tokens_s

    def wants(self, burst_s: float) -> tuple[float, float]:
        """The allowance for the next AHEAD_S, in seconds of each limit."""
        most_s = MOST_OF_BUCKET * burst_s
        return min(most_s, AHEAD_S * self.requests), min(most_s, AHEAD_S * self.tokens)


def part_of(demands: dict[str, float], gateway: str) -> tuple[float, float]:
    """The range of every replica's slots, from 0 to 1, that is this gateway's. All gateways that see the same demands
    agree, and their ranges meet without a gap."""
    known = {name: demand for name, demand in demands.items() if 0.0 <= demand <= MOST_DEMAND}  # no NaN either
    known.setdefault(gateway, 0.0)
    total = sum(known.values())
    low, even = 0.0, 1.0 / len(known)
    for name in sorted(known):
        by_demand = even if total <= 0 else known[name] / total
        high = low + EVEN * even + (1.0 - EVEN) * by_demand
        if name == gateway:
            return low, 1.0 if name == max(known) else high
        low = high
    raise AssertionError("it is among them")


def room_of(limit: float, low: float, high: float) -> int:
    """Requests of a replica's limit that fall into the range. At least one: with none, this gateway would serve no
    request."""
    rounding = 1e-9
    return max(1, int(limit * high + rounding) - int(limit * low + rounding))
