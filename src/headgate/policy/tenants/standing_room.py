"""Keeps a slot or two of a model's replicas free for the next request of another tenant or lane.

A queue bounds who waits, not who runs: thirty generations of a minute fill a model's slots, and the next request of
another tenant, or of a lane with a reserve, finds none free within its wait bound however fair its turn. So one slot,
or two of many, stays free while other tenants or lanes are expected: tenants that the config names or that were seen
within an hour, lanes whose reserve the operator set or that were used within a day. The slot is open to tenants below
their fair share of the slots and to lanes below their reserve; a lone tenant in a lone lane loses nothing. A tenant
whose own requests release their slots quickly, compared with the wait bound, may use the slot too.
"""

from math import inf
from typing import Final

from headgate.model.lane import LANES, Lane

TENANT_MEMORY_S: Final = 3600.0
"""A tenant seen within this many seconds is expected again."""
LANE_MEMORY_S: Final = 86_400.0
"""A lane used within this many seconds is expected to be used again."""
MOST_TENANTS: Final = 1024
"""Maximum tenants remembered for one lane of one model; the tenant not seen for longest is forgotten."""
REFRESH_S: Final = 60.0
"""Minimum seconds between two updates of a tenant's last-seen time: the memory is much longer, and each update moves an
entry."""
LEAST_ROOM: Final = 4
"""A model with fewer slots keeps none free: one would be a third of it or more."""
LARGE_ROOM: Final = 32
"""A model with this many slots keeps two free for tenants."""
MOST_KEPT: Final = 2
SHARE: Final = 8
"""At most one slot in this many stays free, and at most MOST_KEPT in all."""
QUICK: Final = 0.05
"""Share of the wait bound: a tenant whose slots come back at least this often need not leave a slot free."""
ENOUGH: Final = 8
"""Requests of a tenant that must have ended before it counts as one whose slots come back quickly."""
LEARN: Final = 0.05


class NamedTenants:
    """Weights, concurrency limits and lanes of the tenants that the config names."""

    __slots__ = ("concurrency", "lanes", "weight", "weights")

    def __init__(
        self, weights: dict[str, float], concurrency: dict[str, int], lanes: dict[str, frozenset[str]] | None = None
    ) -> None:
        self.weights: Final = weights
        """Weight of each tenant named in the config."""
        self.weight: Final = sum(weights.values())
        self.concurrency: Final = concurrency
        """Maximum requests at replicas at once, for tenants with such a limit; each choice of a request counts as
        one."""
        self.lanes: Final = lanes or {}
        """The lanes that are open to a tenant, for tenants that may not use all."""


NO_TENANTS: Final = NamedTenants({}, {})


class Comers:
    """Tenants expected in one lane of one model."""

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
            oldest = next(iter(self._seen))  # at the latest the tenant that has just come

    def others(self, tenant: str, expected: NamedTenants) -> bool:
        """Whether any tenant other than this one is expected."""
        known = len(expected.weights) + len(self._seen)
        return known > (tenant in expected.weights or tenant in self._seen)

    def share(self, tenant: str, weight: float, expected: NamedTenants) -> float:
        """This tenant's fair share of the slots, 0 to 1."""
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
        """When the last request ended."""
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
        """Seconds between two releases of a slot while `running` requests run, as an arrival finds them: long
        generations weigh by their length, and the gap is at least the time since the last release. inf: too few
        requests have ended to say."""
        if self._ended < ENOUGH or self._mean_s <= 0.0:
            return inf
        return max(self._square_s / self._mean_s / max(1, running), now - self._last)

    def held_s(self, guess_s: float, now: float) -> float:
        """Mean seconds for which a slot is held. Before any request has ended: `guess_s`, or twice the time since the
        first was sent if that is longer."""
        if self._ended:
            return self._mean_s
        return guess_s if self._began is None else max(guess_s, 2.0 * (now - self._began))


def asked_for(lane: Lane) -> bool:
    """Whether the operator changed this lane's reserve from its default: then its requests are expected before the
    first is seen."""
    shipped = LANES.get(lane.name)
    return lane.reserve > 0 and (shipped is None or shipped.reserve != lane.reserve)


def for_tenants(room: int) -> int:
    """Slots of a model that tenants at their fair share leave free for others: a second where it costs little, since
    requests that come at random come in pairs."""
    return 1 if room < LARGE_ROOM else 2


def most_kept(room: int) -> int:
    """Maximum slots of a model that may stay free in all, for tenants and for lanes."""
    return 0 if room < LEAST_ROOM else min(MOST_KEPT, max(1, room // SHARE))


def count(counts: dict[str, int], name: str, change: int) -> None:
    """Changes the count of a name. Names with a count of zero are removed, so that the dict does not grow with every
    name ever seen."""
    number = counts.get(name, 0) + change
    if number:
        counts[name] = number
    else:
        del counts[name]
