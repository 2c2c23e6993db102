"""How much of what is shared does this gateway take? Of a tenant's bucket, and of the replicas' room."""

from dataclasses import dataclass
from typing import Final

AHEAD_S: Final = 0.3
"""An allowance is for so long at the rate it goes: fewer questions, and little that others miss."""
MOST_OF_BUCKET: Final = 1 / 16
"""That one allowance may be."""
SMOOTH_S: Final = 0.5
"""Over which a rate is told."""
EVEN: Final = 0.25
"""Share of the replicas' room that is divided evenly, whoever has how much to do: so much is there for the first burst
at a gateway that was idle."""
MOST_DEMAND: Final = 1e9
"""Requests that one gateway may say it has. More, or less than none, is of no gateway."""


@dataclass(frozen=True, slots=True)
class AllowanceClaim:
    """Of one tenant's bucket, in seconds."""

    tenant: str
    burst_s: float
    charge: tuple[float, float] = (0.0, 0.0)
    """Requests and tokens that are owed; below zero: given back. Whatever else comes of it."""
    least: tuple[float, float] = (0.0, 0.0)
    """Of no use if there is not as much."""
    most: tuple[float, float] = (0.0, 0.0)
    floor: tuple[float, float] = (0.0, 0.0)
    """How long the bucket takes until it is full, at least: known by one who counted while it could not be reached."""


class Appetite:
    """How fast one tenant spends here."""

    __slots__ = ("_at", "_requests_s", "_tokens_s", "requests", "spent_at", "tokens")

    def __init__(self, now: float) -> None:
        self.requests = 0.0
        """Seconds of the limit per second: at 1, just what the limit allows."""
        self.tokens = 0.0
        self.spent_at = now
        """When it was last seen to spend."""
        self._at = now
        self._requests_s = 0.0
        self._tokens_s = 0.0

    def seen(self, spent_requests_s: float, spent_tokens_s: float, now: float) -> None:
        """What it had spent ever."""
        passed_s = now - self._at
        if passed_s <= 0:
            return
        # Of a purse that began anew, all it has spent is news.
        requests_s = spent_requests_s - (self._requests_s if spent_requests_s >= self._requests_s else 0.0)
        tokens_s = spent_tokens_s - (self._tokens_s if spent_requests_s >= self._requests_s else 0.0)
        if requests_s or tokens_s:
            self.spent_at = now
        part = passed_s / (passed_s + SMOOTH_S)
        self.requests += part * (max(0.0, requests_s) / passed_s - self.requests)
        self.tokens += part * (max(0.0, tokens_s) / passed_s - self.tokens)
        self._at, self._requests_s, self._tokens_s = now, spent_requests_s, spent_tokens_s

    def wants(self, burst_s: float) -> tuple[float, float]:
        """An allowance for a while."""
        most_s = MOST_OF_BUCKET * burst_s
        return min(most_s, AHEAD_S * self.requests), min(most_s, AHEAD_S * self.tokens)


def part_of(demands: dict[str, float], gateway: str) -> tuple[float, float]:
    """Which stretch of every replica's room, from 0 to 1, is this gateway's? All that see the same demands agree, and
    their stretches meet without a gap."""
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
    """Requests of a replica's limit that fall into one's stretch. At least one: with none, nobody would be served."""
    rounding = 1e-9
    return max(1, int(limit * high + rounding) - int(limit * low + rounding))
