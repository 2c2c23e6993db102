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


@dataclass(slots=True)
class Drain:
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


def come_back_in(drain: Drain, waiting: int, bound_s: float, now: float, rng: random.Random) -> float:
    """When a refused request is worth sending again: when those who wait now are gone, or at the latest when their
    bound has passed. Spread out, so that the refused do not all return at once."""
    rate = drain.per_second(now)
    expected = min(waiting / rate if rate else bound_s, max(bound_s, 1.0))
    return max(0.05, expected) * rng.uniform(0.8, 1.2)
