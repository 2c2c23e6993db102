"""Tracks which replicas say that they are full, and when each is tried again.

A refusal means that there is no room beyond the requests that the replica has: their number is its ceiling, so that one
more goes there only when one of its requests ends. When the time that the replica named has passed (or, where it named
none, a back-off that grows with each try that is refused too), one more request is tried; if it is accepted the ceiling
grows, by one with each accepted request, until the ceiling is lifted.

A replica that could not even be reached is closed in the same way, and does not count as usable meanwhile: a request
that has no other replica waits for this one to come up. The next probe that it answers opens it.
"""

from math import inf
from typing import Final

from headgate.model.replica import ReplicaId
from headgate.policy.replicas.entry import Closed, IndexEntry, ReplicaEntry, ReplicaGroup
from headgate.policy.replicas.index import RouteIndex

LEAST_S: Final = 0.1
LONGEST_S: Final = 30.0
"""Bounds on the seconds that a replica names."""
BACK_OFF_S: Final = 0.25
LONGEST_BACK_OFF_S: Final = 2.0
"""First and maximum back-off in seconds, where the replica names none. It doubles with each try that is refused."""
STEP_S: Final = 0.25
"""Seconds after which a ceiling that is reached grows by one while nothing is refused: an unstreamed answer says
nothing until all of it is there."""
FORGET_S: Final = 10.0
"""Seconds after the last refusal when a ceiling that is not reached is forgotten."""


class Full:
    """Keeps the ceilings of full replicas, in the `closed` of their entries. The book reports which replicas refused,
    and which accepted a request after all."""

    def __init__(self, index: RouteIndex) -> None:
        self._index = index
        self._closed: list[Closed] = []
        """In the order in which they were closed."""
        self.wake_at = inf
        """When to call `tick`."""

    def refused(
        self,
        entry: ReplicaEntry,
        seat: IndexEntry,
        sent_at: float,
        after_s: float | None,
        now: float,
        *,
        again: bool,
        unreached: bool,
    ) -> None:
        """Closes a replica that refused a request. The request was sent at `sent_at` and is no longer counted there.
        `again`: the request has been refused before, so that this says less of the replica."""
        load, one = seat.load, entry.closed
        if one is None:
            one = entry.closed = Closed(entry, seat)
            self._closed.append(one)
        if not one.refusals or (sent_at >= one.refused_at and not again):
            one.refusals += 1  # otherwise it is of the same burst as the refusal before, or of the same request
        wait_s = min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(one.refusals - 1, 16))
        if after_s is not None:
            wait_s = min(LONGEST_S, max(LEAST_S, after_s))
        one.refused_at, one.opened, one.try_at = now, False, now + wait_s
        load.unreached = unreached
        load.ceiling = 0.0 if unreached else float(load.requests)
        self._index.changed(load)
        self.wake_at = min(self.wake_at, one.try_at)

    def took(self, entry: ReplicaEntry, sent_at: float) -> None:
        """Notes that a request sent at `sent_at` has been answered: it was not refused."""
        one = entry.closed
        if one is None or sent_at < one.refused_at:
            return
        one.refusals = 0
        if one.opened:
            load = one.seat.load
            load.ceiling += 1.0
            if load.ceiling >= load.limit:
                self._lift(one)
            self._index.changed(load)

    def answered(self, entry: ReplicaEntry) -> bool:
        """Notes that a probe reached the replica. Returns whether that opens it."""
        one = entry.closed
        if one is None or not one.seat.load.unreached:
            return False
        self._lift(one)
        self._index.changed(one.seat.load)
        return True

    def forget(self, entry: ReplicaEntry) -> None:
        """Forgets the refusals of a replica that is out or has left: they do not count when it is back. The caller
        tells the index."""
        if entry.closed is not None:
            self._lift(entry.closed)

    def tick(self, now: float) -> None:
        """Opens replicas whose time has passed, and raises or lifts ceilings."""
        wake_at = inf
        for one in list(self._closed):
            if one.try_at <= now:
                self._look(one, now)
            wake_at = min(wake_at, one.try_at)
        self.wake_at = wake_at

    def opens_in(self, groups: tuple[ReplicaGroup, ...], unfit: frozenset[ReplicaId], now: float) -> float:
        """Seconds until the first of these replicas is tried again, where all that are usable and fit are closed. 0:
        some are not."""
        open_at, closed, usable = inf, 0, self._index.left(groups, unfit)
        if not usable or len(self._closed) < usable:
            return 0.0
        for one in self._closed:
            seat = one.seat
            if seat.usable and not one.opened and seat.group in groups and seat.id not in unfit:
                closed += 1
                open_at = min(open_at, one.try_at)
        return max(0.0, open_at - now) if closed >= usable else 0.0

    def _look(self, one: Closed, now: float) -> None:
        load = one.seat.load
        if load.unreached or load.requests >= load.ceiling:
            load.unreached = False
            load.ceiling = load.requests + 1.0
        elif now >= one.refused_at + FORGET_S:
            self._lift(one)
        one.opened = True
        if load.ceiling < inf:
            one.try_at = now + STEP_S
        self._index.changed(load)

    def _lift(self, one: Closed) -> None:
        load = one.seat.load
        load.ceiling, load.unreached, one.try_at = inf, False, inf
        one.entry.closed = None
        self._closed.remove(one)
