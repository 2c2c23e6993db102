"""Answers what a request would meet now, as Dispatcher decides about one that arrives, and changes nothing.

It is counted among its tenant's requests per minute, so that questions are no way around the limits. It takes no
tokens, no place in a queue and no slot, draws from random numbers of its own, and notes no arrival. What is asked may
still differ from what is met: a request for several choices may find slots kept for it, and between question and
request others come.
"""

import random
from typing import Final

from headgate.model.event import Quote
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold
from headgate.model.request import Request
from headgate.policy.dispatch.admit import PINNED, Refusals, would_wait
from headgate.policy.dispatch.passage import LaneQueue
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.sending import Sending, uncached_at
from headgate.policy.dispatch.turns import Turns
from headgate.policy.promises.quotes import OpenQuote, told
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.route import RouteChoice, route
from headgate.policy.replicas.sleepers import WakeUp
from headgate.policy.tenants.limits import Grant, OverLimit, TenantLimits, over_message
from headgate.policy.tenants.shared_limits import TenantGate

SEED: Final = 7
"""The same in every process: replayed questions get the same answers."""


class Quoting:
    def __init__(
        self, queues: Queues, book: ReplicaBook, turns: Turns, sending: Sending, refusals: Refusals, gate: TenantGate
    ) -> None:
        self._queues: Final = queues
        self._book: Final = book
        self._index: Final = book.index
        self._turns: Final = turns
        self._sending: Final = sending
        self._refusals: Final = refusals
        self._gate: Final = gate
        self._rng: Final = random.Random(SEED)

    def quote(self, request: Request, now: float) -> Quote:
        over = self._over(request, now)
        if over is not None:
            return over
        if not self._index.usable(request.model, request.lane):
            for model in request.fallback:
                if self._index.usable(model, request.lane):
                    request = request.but(model=model, fallback=())
                    break
        return self._meets(request, self._queues.of(request), now)

    def _over(self, request: Request, now: float) -> Quote | None:
        """Counts the question. Returns the refusal of the question, or of the request; None: limits admit both."""
        gate, tenant = self._gate, request.tenant
        limits = gate.tenants.get(tenant)
        if limits is None:
            return None
        granted: Grant | OverLimit | None = None
        if limits.requests_per_min is not None:
            granted = gate.limits.take(tenant, _requests_only(limits), 0, now)
            if isinstance(granted, Grant):
                gate.limits.settle(granted, 0, now)
        if not isinstance(granted, OverLimit):
            counted, tokens = True, request.tokens if limits.uncached else request.whole_tokens
            over = gate.limits.look(tenant, limits, tokens, now)
        else:
            counted, over = False, granted
        if over is None:
            return None
        message = over_message(tenant, over)
        outcome, after_s = Outcome.OVER_LIMIT, over.retry_after_s
        return Quote(request.id, False, request.lane, None, None, outcome, message, after_s, counted)

    def _meets(self, request: Request, lane_queue: LaneQueue, now: float) -> Quote:
        """What a request meets that limits admit: a replica, a queue or a refusal, perhaps in a lower lane."""
        lane, queue, index = lane_queue.lane, lane_queue.queue, self._index
        ahead, _ = queue.ahead_of(request.tenant, request.weight)
        # What waits may not go now, in whatever queue, or it would have gone.
        if self._turns.may_go(lane_queue, request, now):
            routing, prefixes = self._sending.routing, self._book.prefixes
            choice = route(request, index, prefixes, routing, now, self._rng, request.unfit)
            if isinstance(choice, RouteChoice):
                return Quote(request.id, True, lane.name, self._sent(request, choice, now), choice.replica_id)
        if index.any() and not index.any_for(request.model, request.lane):
            known = ", ".join(index.models()[:16])
            message = f"no model {request.model!r} for lane {lane.name!r} here; there is {known or 'none for it'}"
            return Quote(request.id, False, lane.name, None, None, Outcome.UNKNOWN_MODEL, message)
        if len(queue) >= lane.queue_limit and queue.displaced_by(request.tenant) is None:
            message = f"lane {lane.name!r} has {lane.queue_limit} waiting"
            return self._refused(request, lane_queue, Outcome.LANE_FULL, message, now)
        wake_up = self._refusals.wake_up_for(request, lane_queue, ahead, now)
        if not index.usable(request.model, request.lane):
            if wake_up is not None:
                return Quote(request.id, True, lane.name, message=_held(wake_up))
            if request.pinned:
                return self._refused(request, lane_queue, Outcome.NO_REPLICA, PINNED, now)
            wait_s = self._refusals.no_replica_wait_s
            message = f"no replica is usable; it would wait up to {wait_s:g} s for one"
            return Quote(request.id, True, lane.name, message=message)
        wait_s = lane_queue.drain.wait_s(ahead + 1, now)
        if self._refusals.too_late(request, lane_queue, ahead, wait_s, now):
            if wake_up is not None:
                return Quote(request.id, True, lane.name, message=_held(wake_up))
            lower = self._refusals.lowered(request, lane, 0.0, now)
            if lower is not None:
                return self._meets(lower, self._queues.of(lower), now)
            message = would_wait(request, lane, wait_s)
            return self._refused(request, lane_queue, Outcome.WOULD_WAIT_TOO_LONG, message, now)
        if (most := self._turns.capped_at(lane_queue, request)) is not None:
            message = f"its tenant has {most} requests at work, as many as it may; it would wait for one of them to end"
            return Quote(request.id, True, lane.name, message=message)
        quote = self._refusals.quote(request, lane_queue, ahead, wait_s, now)
        return Quote(request.id, True, lane.name, told(quote))

    def _sent(self, request: Request, choice: RouteChoice, now: float) -> QuoteTold:
        load = self._index.get(choice.replica_id)
        assert load is not None
        quotes, target_s = self._queues.quotes, self._queues.lanes[request.lane].ttft_target_s
        uncached, passed_s = uncached_at(request, choice), now - request.arrived
        found: OpenQuote = quotes.sent(request.lane, passed_s, uncached, load.prefill_tokens, load, target_s)
        return told(found)

    def _refused(self, request: Request, lane_queue: LaneQueue, outcome: Outcome, message: str, now: float) -> Quote:
        after_s, _ = self._refusals.retry_after(request, lane_queue, now, self._rng)
        return Quote(request.id, False, lane_queue.lane.name, None, None, outcome, message, after_s)


def _held(wake_up: WakeUp) -> str:
    if not wake_up.wake_s:
        return "it would wait for a replica that has just woken up"
    return f"it would wait for a sleeping replica to wake up, which takes about {wake_up.wake_s:.1f} s"


def _requests_only(limits: TenantLimits) -> TenantLimits:
    return TenantLimits(requests_per_min=limits.requests_per_min, burst=limits.burst)
