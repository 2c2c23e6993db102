"""Predicts how long a request would wait in a queue, and when a refused client should come back.

The wait is predicted from how fast a queue has drained while it had a backlog. Of a queue that never had a backlog
nothing is known: the request is admitted, and its wait bound protects it. Of a queue that no request has left yet, the
wait is at least as long as the backlog has lasted: so the first requests of a burst wait for their bound, and the rest
are refused at once.
"""

import random
from dataclasses import dataclass
from math import exp

MEMORY_S = 5.0
"""How far back the drain rate looks, in seconds of backlog."""
SOONEST_S = 0.05
LATEST_S = 60.0
"""Maximum seconds that a client is told to wait: official clients heed no more, and nothing is known of the load by
then."""
SPREAD = 0.25
"""Share of the time between two turns by which clients' return times are spread out."""


@dataclass(slots=True)
class DrainRate:
    """How fast one queue drains while requests wait in it."""

    served: float = 0.0
    busy_s: float = 0.0
    _since: float | None = None
    _seen: float = 0.0
    """When the queue last had a backlog."""

    def backlog(self, waiting: bool, now: float) -> None:
        """Records whether requests wait. The caller reports every possible change."""
        if waiting and self._since is None:
            self._since = now
            if now - self._seen > 2.0 * MEMORY_S:  # too long ago to say anything about now
                self.served = self.busy_s = 0.0
        elif not waiting and self._since is not None:
            self._advance(now)
            self._since = None

    def left(self, now: float) -> None:
        """Counts a request that had to wait and has gone to a replica."""
        self._advance(now)
        self.served += 1.0

    def per_second(self, now: float) -> float | None:
        """Requests that leave the queue per second of backlog. None: unknown."""
        self._advance(now)
        return self.served / self.busy_s if self.served > 0 and self.busy_s > 0 else None

    def wait_s(self, ahead: int, now: float) -> float:
        """Predicted seconds until `ahead` requests have left the queue. Before the first has left: the seconds of
        backlog so far, the least the wait can be."""
        rate = self.per_second(now)
        return ahead / rate if rate else self.busy_s

    def _advance(self, now: float) -> None:
        if self._since is not None and now > self._since:
            elapsed, self._since, self._seen = now - self._since, now, now
            keep = exp(-elapsed / MEMORY_S)
            self.served *= keep
            self.busy_s = self.busy_s * keep + elapsed


def come_back_at(wait_s: float, every_s: float, promised: float, now: float, rng: random.Random) -> float:
    """When a refused request is worth sending again: when it would have had its turn, and `every_s` after the last
    refused request of its tenant was told to return (`promised`), the pace at which the queue drains. Clients that all
    came back at once would be refused again, and most give up after two retries."""
    due = max(now + max(wait_s, SOONEST_S), promised + every_s) + rng.uniform(0.0, SPREAD) * every_s
    return due if due <= now + LATEST_S else now + LATEST_S * rng.uniform(0.5, 1.0)
