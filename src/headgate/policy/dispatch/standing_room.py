"""Which room stays free for the next request of others?

A queue bounds who waits, not who runs: thirty generations of a minute fill a pool, and the next request of another
tenant, or of a lane with a reserve, finds no room within its wait bound however fair its turn. So one slot of a pool,
or two of a large one, stays free while others are known to come: tenants that the config names or that were seen within
an hour, lanes whose reserve the operator set or that were used within a day. It is free for tenants below their fair
share of the room and for lanes below their reserve; a lone tenant in a lone lane loses nothing. A tenant whose own
requests give their slots back quickly beside the wait bound may use that slot, too.
"""

from math import inf
from typing import Final

from headgate.model.lane import LANES, Lane

TENANT_MEMORY_S: Final = 3600.0
"""A tenant seen within this many seconds is known to come."""
LANE_MEMORY_S: Final = 86_400.0
"""A lane used within this many seconds is known to be used again."""
MOST_TENANTS: Final = 1024
"""Tenants remembered for one lane of one pool; the one not seen for longest is forgotten."""
REFRESH_S: Final = 60.0
"""When a tenant was last seen is noted at most this often: the memory is much longer, and each note moves an entry."""
LEAST_ROOM: Final = 4
"""A pool with fewer slots keeps none free: one would be a third of it or more."""
LARGE_ROOM: Final = 32
"""A pool with this many slots keeps two free for tenants."""
MOST_KEPT: Final = 2
SHARE: Final = 8
"""At most one slot in this many stays free, and at most MOST_KEPT in all."""
QUICK: Final = 0.05
"""Part of the wait bound within which slots come back so quickly that none has to stay free."""
ENOUGH: Final = 8
"""Requests of a tenant that must have ended before it counts as one whose slots come back quickly."""
LEARN: Final = 0.05


class NamedTenants:
    """What the config says of tenants beside their limits per minute."""

    __slots__ = ("concurrency", "weight", "weights")

    def __init__(self, weights: dict[str, float], concurrency: dict[str, int]) -> None:
        self.weights: Final = weights
        """Tenants named in the config, each with its weight."""
        self.weight: Final = sum(weights.values())
        self.concurrency: Final = concurrency
        """Most requests at replicas at once, of tenants that have such a limit."""


NO_TENANTS: Final = NamedTenants({}, {})


class Comers:
    """Tenants known to come to one lane of one pool."""

    __slots__ = ("_seen", "_seen_weight")

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        """When each tenant that the config does not name was last seen, and its weight; the oldest first."""
        self._seen_weight = 0.0

    def come(self, tenant: str, weight: float, expected: NamedTenants, now: float) -> None:
        if tenant in expected.weights:
            return
        known = self._seen.get(tenant)
        if known is not None and now - known[0] < REFRESH_S:
            return
        if known is not None:
            self._forget(tenant)
        self._seen[tenant] = (now, weight)
        self._seen_weight += weight
        oldest = next(iter(self._seen))
        while now - self._seen[oldest][0] > TENANT_MEMORY_S or len(self._seen) > MOST_TENANTS:
            self._forget(oldest)
            oldest = next(iter(self._seen))  # at the latest the one that has just come

    def others(self, tenant: str, expected: NamedTenants) -> bool:
        """Whether anybody but this tenant is known to come."""
        known = len(expected.weights) + len(self._seen)
        return known > (tenant in expected.weights or tenant in self._seen)

    def share(self, tenant: str, weight: float, expected: NamedTenants) -> float:
        """This tenant's fair share of the room, 0 to 1."""
        total = expected.weight + self._seen_weight
        if tenant not in expected.weights and tenant not in self._seen:
            total += weight
        return weight / total

    def _forget(self, tenant: str) -> None:
        self._seen_weight -= self._seen.pop(tenant)[1]


class Turnover:
    """How long slots are held, learned from requests that ended."""

    __slots__ = ("_began", "_ended", "_last", "_mean_s", "_square_s")

    def __init__(self) -> None:
        self._began: float | None = None
        """When the first request was sent."""
        self._ended = 0
        self._last = 0.0
        """When the last one ended."""
        self._mean_s = 0.0
        self._square_s = 0.0

    def sent(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def ended(self, held_s: float, now: float) -> None:
        self._last = now
        self._ended += 1
        if self._ended == 1:
            self._mean_s, self._square_s = held_s, held_s * held_s
        else:
            self._mean_s += LEARN * (held_s - self._mean_s)
            self._square_s += LEARN * (held_s * held_s - self._square_s)

    def found_every_s(self, running: int, now: float) -> float:
        """Seconds from one release to the next while this many run, as an arrival finds them: long generations weigh
        by their length, and it takes no less than the time since the last. inf: too few have ended to say."""
        if self._ended < ENOUGH or self._mean_s <= 0.0:
            return inf
        return max(self._square_s / self._mean_s / max(1, running), now - self._last)

    def held_s(self, guess_s: float, now: float) -> float:
        """Seconds for which a slot is held, on average. Where nothing has ended yet: `guess_s`, or twice as long as the
        first has been."""
        if self._ended:
            return self._mean_s
        return guess_s if self._began is None else max(guess_s, 2.0 * (now - self._began))


def asked_for(lane: Lane) -> bool:
    """Whether the operator set this lane's reserve: then its requests are known to come before the first is seen."""
    shipped = LANES.get(lane.name)
    return lane.reserve > 0 and (shipped is None or shipped.reserve != lane.reserve)


def for_tenants(room: int) -> int:
    """Slots of a pool that tenants with their fair share leave free for others: a second where it costs little, since
    requests that come at random come in pairs."""
    return 1 if room < LARGE_ROOM else 2


def most_kept(room: int) -> int:
    """Slots of a pool that may stay free in all, for tenants and for lanes."""
    return 0 if room < LEAST_ROOM else min(MOST_KEPT, max(1, room // SHARE))


def count(counts: dict[str, int], name: str, change: int) -> None:
    """Names that come to nothing are taken out, so that the dict does not grow with every name ever seen."""
    number = counts.get(name, 0) + change
    if number:
        counts[name] = number
    else:
        del counts[name]
