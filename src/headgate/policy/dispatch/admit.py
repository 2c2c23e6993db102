"""Take it, or refuse it now, and when to come back?

The wait is predicted from how fast a queue has been draining while it had a backlog. Nothing is known of a queue that
never had one: then the request is let in, and its waiting bound is what protects it. Of one that nobody has left yet,
only that it takes as long as this has gone on: so the first of a burst wait for their bound, and the rest are told.
"""

import random
from dataclasses import dataclass
from math import exp

MEMORY_S = 5.0
"""How far back the drain rate looks, in seconds of backlog."""
SOONEST_S = 0.05
LATEST_S = 60.0
"""Most that a client is told to wait: official clients heed no more, and nothing is known of what will be then."""
SPREAD = 0.25
"""Part of the time between two turns by which clients are spread out."""


@dataclass(slots=True)
class DrainRate:
    """How fast one queue drains while somebody waits in it."""

    served: float = 0.0
    busy_s: float = 0.0
    _since: float | None = None
    _seen: float = 0.0
    """When it last had a backlog."""

    def backlog(self, waiting: bool, now: float) -> None:
        """Say whether anybody waits, whenever that may have changed."""
        if waiting and self._since is None:
            self._since = now
            if now - self._seen > 2.0 * MEMORY_S:  # too long ago to say anything about now
                self.served = self.busy_s = 0.0
        elif not waiting and self._since is not None:
            self._advance(now)
            self._since = None

    def left(self, now: float) -> None:
        """Somebody who had to wait has gone to a replica."""
        self._advance(now)
        self.served += 1.0

    def per_second(self, now: float) -> float | None:
        """None: not known."""
        self._advance(now)
        return self.served / self.busy_s if self.served > 0 and self.busy_s > 0 else None

    def wait_s(self, ahead: int, now: float) -> float:
        """Predicted wait behind so many; where nobody has left yet, the least it can be."""
        rate = self.per_second(now)
        return ahead / rate if rate else self.busy_s

    def _advance(self, now: float) -> None:
        if self._since is not None and now > self._since:
            elapsed, self._since, self._seen = now - self._since, now, now
            keep = exp(-elapsed / MEMORY_S)
            self.served *= keep
            self.busy_s = self.busy_s * keep + elapsed


def come_back_at(wait_s: float, every_s: float, promised: float, now: float, rng: random.Random) -> float:
    """When a refused request is worth sending again: when it would have had its turn, and after those of its tenant
    that were told a moment before it (`promised`: the last such moment), at the pace at which the queue drains. Clients
    that all came back at once would be refused again, and most give up after two retries."""
    due = max(now + max(wait_s, SOONEST_S), promised + every_s) + rng.uniform(0.0, SPREAD) * every_s
    return due if due <= now + LATEST_S else now + LATEST_S * rng.uniform(0.5, 1.0)
