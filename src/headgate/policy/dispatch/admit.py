"""Decides whether a request waits or is refused, and when a refused client should come back.

The wait is predicted from how fast a queue has drained while it had a backlog (`DrainRate`). Of a queue that never had
a backlog nothing is known: the request is admitted, and its wait bound protects it. Of a queue that no request has left
yet, the wait is at least as long as the backlog has lasted: so the first requests of a burst wait for their bound, and
the rest are refused at once.

Where replicas sleep that could serve a request, it is held for one to wake up: it may wait longer, by as much as that
is expected to take, and no forecast made without that replica refuses it (policy/replicas/sleepers.py).
"""

import random
from math import inf
from typing import Final

from headgate.model.event import Command, Refuse
from headgate.model.labels import plain
from headgate.model.lane import Lane
from headgate.model.outcome import MISSED, Outcome
from headgate.model.request import Request
from headgate.policy.dispatch.passage import LaneQueue, Passage
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.turns import Turns
from headgate.policy.dispatch.versions import Versions
from headgate.policy.promises.quotes import OpenQuote, told
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.sleepers import WakeUp
from headgate.policy.tenants.shared_limits import TenantGate

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
        self._index: Final = book.index
        self._full: Final = book.full
        self._sleepers: Final = book.sleepers
        self._turns: Final = turns
        self._gate: Final = gate
        self._versions: Final = versions
        self._rng: Final = rng

    def wait_or_refuse(self, passage: Passage, lane_queue: LaneQueue, now: float, commands: list[Command]) -> None:
        """Decides about a request that has just been queued: it is refused at once if it is predicted to wait past its
        bound."""
        request, lane, queue = passage.request, lane_queue.lane, lane_queue.queue
        if not self._index.usable(request.model, request.lane):
            # No replica is usable: waiting for one to start has another bound than waiting for a turn.
            held = self._hold(passage, lane_queue, 0, now)
            if held:
                self._sleepers.hold(now)
            elif request.pinned:
                self.refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
                return
            self._queues.wait_until(passage, request.arrived + self.no_replica_wait_s, now)
        else:
            ahead, _ = queue.ahead_of(request.tenant, request.weight, pushed=request)
            wait_s = lane_queue.drain.wait_s(ahead + 1, now)
            # With no request ahead, this one waits in any case: one must, or a rate once learned would never be
            # unlearned. So does a tenant below its share: the next slot is its own, whatever the rate of those at their
            # share.
            held = self._hold(passage, lane_queue, ahead, now)
            if self.too_late(request, lane_queue, ahead, wait_s, now):
                if held:
                    self._sleepers.hold(now)
                elif not self._relegate(passage, now, commands):
                    message = would_wait(request, lane, wait_s)
                    self.refuse(passage, Outcome.WOULD_WAIT_TOO_LONG, message, now, commands)
                return
            if not held:
                passage.forecast = (ahead, wait_s)

    def _hold(self, passage: Passage, lane_queue: LaneQueue, ahead: int, now: float) -> bool:
        """Lets a queued request wait longer, once, if replicas that serve it sleep and have room for it and those ahead
        of it. Returns whether it is held for one of them to wake up."""
        request = passage.request
        wake_up = self.wake_up_for(request, lane_queue, ahead, now)
        if wake_up is None:
            return False
        if wake_up.wake_s and not passage.held_s:
            passage.held_s = wake_up.wake_s
            self._queues.wait_until(passage, request.wait_until + wake_up.wake_s, now)
        return True

    def wake_up_for(self, request: Request, lane_queue: LaneQueue, ahead: int, now: float) -> WakeUp | None:
        """What replicas that sleep can do for a request with `ahead` requests before it. None: nothing."""
        wake_up = self._sleepers.of(request.model, request.lane, now)
        if wake_up is None or ahead >= wake_up.room or self._turns.capped_at(lane_queue, request) is not None:
            return None
        return wake_up

    def too_late(self, request: Request, lane_queue: LaneQueue, ahead: int, wait_s: float, now: float) -> bool:
        """Whether a request is predicted to wait past its bound, and is not let wait nevertheless."""
        return ahead > 0 and now + wait_s > request.wait_until and not self._turns.light(lane_queue, request)

    def tell(self, passage: Passage, now: float) -> None:
        """Tells a request that has begun to wait, once, when its first token is expected. Not one that waits for a
        replica to become usable, or for its tenant's own requests to end: of its wait nothing is known."""
        if passage.quote is not None or passage.forecast is None:
            return
        if self._turns.capped_at(passage.lane_queue, passage.request) is None:
            passage.quote = self.quote(passage.request, passage.lane_queue, *passage.forecast, now)

    def quote(self, request: Request, lane_queue: LaneQueue, ahead: int, wait_s: float, now: float) -> OpenQuote:
        """When the first token of a request is expected that begins to wait."""
        model_queue, lane = lane_queue.model_queue, lane_queue.lane
        held_s = model_queue.turnover.held_s(TOKEN_S * request.output_each, now)
        wait_s = max(wait_s, model_queue.free_in_s(ahead, held_s, now))
        passed_s, left_s, uncached = now - request.arrived, request.wait_until - now, request.uncached_tokens
        return self._queues.quotes.waits(lane.name, passed_s, wait_s, lane.wait_bound_s, left_s, uncached, now)

    def time_out(self, passage: Passage, lane_queue: LaneQueue, now: float, commands: list[Command]) -> None:
        """Refuses a request whose wait bound has passed, unless it may wait longer for a replica to start."""
        waited = now - passage.request.arrived
        patience = passage.request.arrived + passage.lost_s + self.no_replica_wait_s
        usable = self._index.usable(passage.request.model, passage.request.lane)
        if not usable and now < patience and not passage.request.pinned:
            self._queues.wait_until(passage, patience, now)  # its replicas left while it waited for a turn
        elif (most := self._turns.capped_at(lane_queue, passage.request)) is not None:
            who = f"tenant {passage.request.tenant!r}"
            message = f"{who} has {most} requests at work, as many as it may; this one waited {waited:.2f} s"
            self.refuse(passage, Outcome.OVER_LIMIT, message, now, commands)
        elif usable and self._relegate(passage, now, commands):
            return
        elif usable:
            request = passage.request
            told = request.relegated and passage.refusals > 0  # then it waits no longer than its own lane allows
            allowed = "" if told else f", all that {_allows(request, lane_queue.lane)}"
            full = "; every replica says that it is full" if told or self._opens_in(request, now) else ""
            message = f"it waited {waited:.2f} s{allowed}{full}"
            self.refuse(passage, Outcome.WAITED_TOO_LONG, message, now, commands)
        else:
            self.refuse(passage, Outcome.NO_REPLICA, f"no replica came up within {waited:.1f} s", now, commands)

    def _relegate(self, passage: Passage, now: float, commands: list[Command]) -> bool:
        """Lets a request that can't be in time in its lane wait in the next lane by priority that replicas serve and
        that has room, if its client wants that, or its lane does and the request promises nothing itself. Returns
        whether it does; the request may then be refused there. It keeps its arrival, so that in its tenant's turn it
        goes before what comes later."""
        request = passage.request
        lower = None if passage.refusals else self.lowered(request, passage.lane_queue.lane, passage.lost_s, now)
        if lower is None:
            return False
        lane_queue = self._queues.of(lower)
        if passage.quote is not None:
            self._queues.quotes.judge(passage.quote, inf, now)
        self._queues.remove(request.id, passage.lane_queue, now)
        if passage.charged:  # by an attempt that failed: what is over is settled where the request is
            passage.lane_queue.queue.charge(request.tenant, request.weight, -passage.charged)
            lane_queue.queue.charge(request.tenant, request.weight, passage.charged)
        passage.own_bound_s = passage.own_bound_s or passage.lane_queue.lane.wait_bound_of(request.ttft_s)
        passage.request, passage.lane_queue = lower, lane_queue
        self._queues.push(passage, lane_queue, now)
        self.wait_or_refuse(passage, lane_queue, now, commands)
        return True

    def lowered(self, request: Request, own: Lane, lost_s: float, now: float) -> Request | None:
        """The request as it would wait in a lower lane than its own. None: it may not, or that lane is full."""
        # A client that says when it needs the first token has no use for one long after that.
        usual = own.when_late if request.ttft_s is None else "refuse"
        wanted = (request.when_late or usual) == "relegate"
        # Where replicas have said that they are full, the client should know soon, and when to come back.
        lane = self._below(request) if wanted and not self._opens_in(request, now) else None
        if lane is None:
            return None
        lower = request.but(
            lane=lane.name,
            priority=max(request.priority, lane.priority),
            wait_until=request.arrived + lost_s + lane.wait_bound_s,
            first_token_by=request.arrived + lane.ttft_target_s,
            relegated=True,
            ttft_s=None,
        )
        full = len(self._queues.of(lower).queue) >= lane.queue_limit
        return None if full or lower.wait_until <= now else lower

    def _below(self, request: Request) -> Lane | None:
        """The next lane by priority below the request's, with a longer wait bound, that is open to its tenant and that
        usable replicas serve. None: there is none."""
        own, open_to = self._queues.lanes[request.lane], self._turns.expected.lanes.get(request.tenant)
        bound_s = own.wait_bound_of(request.ttft_s)
        lower = [
            lane
            for lane in self._queues.lanes.values()
            if lane.priority > own.priority
            and (open_to is None or lane.name in open_to)
            and lane.wait_bound_s > bound_s
            and self._index.usable(request.model, lane.name)
        ]
        return min(lower, key=lambda lane: lane.priority, default=None)

    def move_over(self, now: float, commands: list[Command]) -> None:
        """Moves requests that wait for a version without usable replicas: a fallback model answers, or, where the
        version was pinned, the request is refused."""
        for passage in self._versions.stranded():
            lane_queue = passage.lane_queue
            if passage.request.pinned:
                if not passage.held_s:
                    self.refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
            elif self._versions.stand_in(passage, False):
                self._queues.remove(passage.request.id, lane_queue, now)
                self._queues.push(passage, passage.lane_queue, now)

    def refuse(self, passage: Passage, outcome: Outcome, message: str, now: float, commands: list[Command]) -> None:
        """Ends a request that is at no replica, and appends the Refuse, with the seconds after which a retry is
        worthwhile: by the queue's forecast, and not before a full replica is tried again. No retry helps a request for
        a model that is not known."""
        request, lane_queue = passage.request, passage.lane_queue
        del self._queues.passages[request.id]
        self._versions.forget(passage)
        self._queues.remove(request.id, lane_queue, now)
        if request.choices > 1:
            self._queues.take_back(passage)
        if passage.grant is not None:
            self._gate.limits.give_back(passage.grant, now)
        if passage.quote is not None and outcome in MISSED:
            self._queues.quotes.judge(passage.quote, inf, now)
        if outcome is Outcome.UNKNOWN_MODEL:
            commands.append(Refuse(request.id, outcome, message, None, passage.ahead))
            return
        after, due = self.retry_after(request, lane_queue, now, self._rng)
        if due is not None:
            lane_queue.queue.note_return(request.tenant, request.weight, due)
        commands.append(
            Refuse(
                request.id,
                outcome,
                message,
                after,
                passage.ahead,
                None if passage.quote is None else told(passage.quote),
            )
        )

    def retry_after(
        self, request: Request, lane_queue: LaneQueue, now: float, rng: random.Random
    ) -> tuple[float, float | None]:
        """Seconds after which a refused request is worth sending again, and when it would have its turn then. None:
        all replicas are full, and with no request of this queue, so that no turn is known."""
        after = self._opens_in(request, now)
        if after and not lane_queue.model_queue.sent:
            return after, None
        due = self._come_back_at(request, lane_queue, now, rng)
        return max(after, due - now), due

    def _come_back_at(self, request: Request, lane_queue: LaneQueue, now: float, rng: random.Random) -> float:
        """When a refused request is worth sending again, by the forecast that refused it."""
        model_queue, queue = lane_queue.model_queue, lane_queue.queue
        ahead, _ = queue.ahead_of(request.tenant, request.weight)
        held_s = model_queue.turnover.held_s(TOKEN_S * request.output_each, now)
        every_s = held_s / max(1, len(model_queue.sent))
        wait_s = max(lane_queue.drain.wait_s(ahead + 1, now), model_queue.free_in_s(ahead, held_s, now))
        last_return = queue.last_return(request.tenant)
        return come_back_at(wait_s, every_s * max(1, queue.tenants), last_return, now, rng)

    def _opens_in(self, request: Request, now: float) -> float:
        """Seconds until the first full replica is tried again; 0: some replica of the request is not full."""
        if self._full.wake_at == inf:
            return 0.0
        groups = self._index.groups(request.model, request.lane, request.unfit)
        return self._full.opens_in(groups, request.unfit, now)


def would_wait(request: Request, lane: Lane, wait_s: float) -> str:
    """Why a request is refused that would wait past its bound."""
    bound_s = plain(lane.wait_bound_of(request.ttft_s), 6)
    return f"it would wait {wait_s:.2f} s, and {_allows(request, lane)} {bound_s} s"


def _allows(request: Request, lane: Lane) -> str:
    """What bounds the request's wait: its lane, or its own promise."""
    return f"lane {lane.name!r} allows" if request.ttft_s is None else "the first token that it promises allows"


def come_back_at(wait_s: float, every_s: float, last_return: float, now: float, rng: random.Random) -> float:
    """When a refused request is worth sending again: when it would have had its turn, and `every_s` after the last
    refused request of its tenant was told to return (`last_return`), the pace at which the queue drains. Clients that
    all came back at once would be refused again, and most give up after two retries."""
    due = max(now + max(wait_s, SOONEST_S), last_return + every_s) + rng.uniform(0.0, SPREAD) * every_s
    return due if due <= now + LATEST_S else now + LATEST_S * rng.uniform(0.5, 1.0)
