"""Decides whether a request waits or is refused, and when a refused client should come back.

The wait is predicted from how fast a queue has drained while it had a backlog (`DrainRate`). Of a queue that never had
a backlog nothing is known: the request is admitted, and its wait bound protects it. Of a queue that no request has left
yet, the wait is at least as long as the backlog has lasted: so the first requests of a burst wait for their bound, and
the rest are refused at once.
"""

import random
from math import inf
from typing import Final

from headgate.model.event import Command, Refuse
from headgate.model.labels import plain
from headgate.model.outcome import Outcome
from headgate.model.request import Request
from headgate.policy.dispatch.queues import LaneQueue, Passage, Queues
from headgate.policy.dispatch.shared_limits import TenantGate
from headgate.policy.dispatch.turns import Turns
from headgate.policy.dispatch.versions import Versions
from headgate.policy.replicas.book import ReplicaBook

SOONEST_S = 0.05
LATEST_S = 60.0
"""Maximum seconds that a client is told to wait: official clients heed no more, and nothing is known of the load by
then."""
SPREAD = 0.25
"""Share of the time between two turns by which clients' return times are spread out."""
TOKEN_S: Final = 0.025
"""Seconds per output token for which a slot is assumed to be held, before any request has ended."""
PINNED: Final = (
    "no replica of the version that was named is usable any more: come back, or ask without x-headgate-version"
)


class Refusals:
    def __init__(
        self,
        queues: Queues,
        book: ReplicaBook,
        turns: Turns,
        gate: TenantGate,
        versions: Versions,
        rng: random.Random,
        no_replica_wait_s: float,
    ) -> None:
        self.no_replica_wait_s: Final = no_replica_wait_s
        """Maximum seconds that a request waits for a usable replica."""
        self._queues: Final = queues
        self._fleet: Final = book.index
        self._full: Final = book.full
        self._turns: Final = turns
        self._gate: Final = gate
        self._versions: Final = versions
        self._rng: Final = rng

    def wait_or_refuse(self, passage: Passage, state: LaneQueue, now: float, commands: list[Command]) -> None:
        """Decides about a request that has just been queued: it is refused at once if it is predicted to wait past its
        bound."""
        request, lane, queue = passage.request, state.lane, state.queue
        if not self._fleet.usable(request.model, request.lane):
            # No replica is usable: waiting for one to start has another bound than waiting for a turn.
            if request.pinned:
                self.refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
                return
            self._queues.wait_until(passage, request.arrived + self.no_replica_wait_s, now)
        else:
            ahead, _ = queue.ahead_of(request.tenant, request.weight, pushed=request)
            wait_s = state.drain.wait_s(ahead + 1, now)
            # With no request ahead, this one waits in any case: one must, or a rate once learned would never be
            # unlearned. So does a tenant below its share: the next slot is its own, whatever the rate of those at their
            # share.
            if ahead and now + wait_s > request.wait_until and not self._turns.light(state, request):
                message = f"it would wait {wait_s:.2f} s, and lane {lane.name!r} allows {plain(lane.wait_bound_s, 6)} s"
                self.refuse(passage, Outcome.WOULD_WAIT_TOO_LONG, message, now, commands)

    def time_out(self, passage: Passage, state: LaneQueue, now: float, commands: list[Command]) -> None:
        """Refuses a request whose wait bound has passed, unless it may wait longer for a replica to start."""
        waited = now - passage.request.arrived
        patience = passage.request.arrived + passage.lost_s + self.no_replica_wait_s
        usable = self._fleet.usable(passage.request.model, passage.request.lane)
        if not usable and now < patience and not passage.request.pinned:
            self._queues.wait_until(passage, patience, now)  # its replicas left while it waited for a turn
        elif (most := self._turns.capped_at(state, passage.request)) is not None:
            who = f"tenant {passage.request.tenant!r}"
            message = f"{who} has {most} requests at work, as many as it may; this one waited {waited:.2f} s"
            self.refuse(passage, Outcome.OVER_LIMIT, message, now, commands)
        elif usable:
            full = "; every replica says that it is full" if self._opens_in(passage.request, now) else ""
            message = f"it waited {waited:.2f} s, all that lane {state.lane.name!r} allows{full}"
            self.refuse(passage, Outcome.WAITED_TOO_LONG, message, now, commands)
        else:
            self.refuse(passage, Outcome.NO_REPLICA, f"no replica came up within {waited:.1f} s", now, commands)

    def move_over(self, now: float, commands: list[Command]) -> None:
        """Moves requests that wait for a version without usable replicas: a fallback model answers, or, where the
        version was pinned, the request is refused."""
        for passage in self._versions.stranded():
            state = passage.state
            if passage.request.pinned:
                self.refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
            elif self._versions.stand_in(passage, False):
                self._queues.remove(passage.request.id, state, now)
                self._queues.push(passage, passage.state, now)

    def refuse(self, passage: Passage, outcome: Outcome, message: str, now: float, commands: list[Command]) -> None:
        """Ends a request that is at no replica, and appends the Refuse, with the seconds after which a retry is
        worthwhile: by the queue's forecast, and not before a full replica is tried again. No retry helps a request for
        a model that is not known."""
        request, state = passage.request, passage.state
        del self._queues.passages[request.id]
        self._versions.forget(passage)
        self._queues.remove(request.id, state, now)
        if request.choices > 1:
            self._queues.take_back(passage)
        if passage.grant is not None:
            self._gate.limits.give_back(passage.grant, now)
        if outcome is Outcome.UNKNOWN_MODEL:
            commands.append(Refuse(request.id, outcome, message, None, passage.ahead))
            return
        after = self._opens_in(request, now)
        if not after or state.pool.sent:  # otherwise all are full, and with no request of this queue
            after = max(after, self._come_back_in(request, state, now))
        commands.append(Refuse(request.id, outcome, message, after, passage.ahead))

    def _come_back_in(self, request: Request, state: LaneQueue, now: float) -> float:
        """Seconds after which a refused request is worth sending again, by the forecast that refused it."""
        pool, queue = state.pool, state.queue
        ahead, _ = queue.ahead_of(request.tenant, request.weight)
        held_s = pool.turnover.held_s(TOKEN_S * request.output_each, now)
        every_s = held_s / max(1, len(pool.sent))
        wait_s = max(state.drain.wait_s(ahead + 1, now), pool.free_in_s(ahead, held_s, now))
        promised = queue.promised(request.tenant)
        due = come_back_at(wait_s, every_s * max(1, queue.tenants), promised, now, self._rng)
        queue.promise(request.tenant, request.weight, due)
        return due - now

    def _opens_in(self, request: Request, now: float) -> float:
        """Seconds until the first full replica is tried again; 0: some replica of the request is not full."""
        if self._full.wake_at == inf:
            return 0.0
        pools = self._fleet.pools(request.model, request.lane, request.unfit)
        return self._full.opens_in(pools, request.unfit, now)


def come_back_at(wait_s: float, every_s: float, promised: float, now: float, rng: random.Random) -> float:
    """When a refused request is worth sending again: when it would have had its turn, and `every_s` after the last
    refused request of its tenant was told to return (`promised`), the pace at which the queue drains. Clients that all
    came back at once would be refused again, and most give up after two retries."""
    due = max(now + max(wait_s, SOONEST_S), promised + every_s) + rng.uniform(0.0, SPREAD) * every_s
    return due if due <= now + LATEST_S else now + LATEST_S * rng.uniform(0.5, 1.0)
