"""Composes the gateway's choices: events in, commands out, and one `wake_at`.

The backlog is held here, so that replicas' own queues stay near empty: each replica has a limited number of slots, and
a request that finds none free waits in its lane. Gateway and simulator drive this same object; single tokens pass it
by.

An arrival is charged to its tenant's limits. It is sent at once, without being queued, if no request for its model
waits, `Turns.may_go` agrees and a replica has a free slot. Otherwise it is queued in its lane: if the lane is full, or
it is predicted to wait past its bound, a request is refused at once; one that reaches its bound is refused then. Every
request that arrives ends in exactly one Refuse or is reported by exactly one Ended.

The parts: `queues` where requests wait, `turns` whose turn it is, `sending` what is at replicas, `admit` who is
refused, `retry` and `races` who goes to another replica, `versions` which model answers.
"""

import random
from dataclasses import dataclass
from math import inf
from typing import Final

from headgate.config.gateway import RoutingConfig, TimeoutsConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Ended,
    Event,
    FirstToken,
    HedgeWon,
    Leased,
    Probed,
    QuoteAsked,
    Refuse,
    ReplicaAsleep,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaParked,
    Reported,
    Resumed,
    Shared,
)
from headgate.model.lane import Lane
from headgate.model.outcome import MISSED, Outcome
from headgate.model.record import LEFT, Ahead
from headgate.model.replica import Load
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.dispatch.admit import Refusals
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.passage import LaneQueue, Passage
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.quoting import Quoting
from headgate.policy.dispatch.races import Races
from headgate.policy.dispatch.reads import DispatcherReads
from headgate.policy.dispatch.retry import Failover, RetryBudget
from headgate.policy.dispatch.sending import Sending
from headgate.policy.dispatch.turns import Turns
from headgate.policy.dispatch.versions import Versions
from headgate.policy.promises.quotes import OpenQuote
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.prefix_index import PrefixIndex
from headgate.policy.replicas.route import ALGORITHMS
from headgate.policy.tenants.fair import FairQueue
from headgate.policy.tenants.limits import Grant, OverLimit, TenantLimits, over_message
from headgate.policy.tenants.shared_limits import TenantGate
from headgate.policy.tenants.standing_room import NO_TENANTS, NamedTenants

TIMEOUTS: Final = TimeoutsConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """The part of a dispatcher that a new config changes while it runs."""

    lanes: dict[str, Lane]
    tenants: dict[str, TenantLimits]
    """Tenants that have limits per minute."""
    routing: RoutingConfig
    tiers: dict[str, Tier]
    expected: NamedTenants = NO_TENANTS


class Dispatcher(DispatcherReads):
    def __init__(
        self,
        settings: DispatchSettings,
        health: Health,
        rng: random.Random,
        *,
        retries: RetryBudget | None = None,
        hedger: Hedger | None = None,
        no_replica_wait_s: float = TIMEOUTS.no_replica_wait_s,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        """`hedger` None: no request is hedged. `no_replica_wait_s`: maximum seconds that a request waits for a usable
        replica. `prefixes`: what is known of the replicas' caches; None: nothing yet."""
        gate = TenantGate(settings.tenants)
        book = ReplicaBook(
            health, PrefixIndex() if prefixes is None else prefixes, ALGORITHMS[settings.routing.algorithm].order
        )
        queues = Queues(book.index, settings.lanes, settings.tiers)
        super().__init__(queues, book, health, gate, hedger)
        self.retries: Final = retries or RetryBudget()
        self._full: Final = book.full
        self._set_aside: Final = queues.set_aside
        self._turns: Final = Turns(book.index, queues.model_queues, settings.lanes, settings.tiers, settings.expected)
        self._sending: Final = Sending(queues, book, self._turns, hedger, settings.routing, rng)
        self._versions: Final = Versions(queues, book.index)
        self._refusals: Final = Refusals(queues, book, self._turns, gate, self._versions, rng, no_replica_wait_s)
        self._quoting: Final = Quoting(queues, book, self._turns, self._sending, self._refusals, gate)
        self._failover: Final = Failover(queues, book, self._sending, self._refusals, self._versions, self.retries)
        self._races: Races | None = None
        if hedger is not None:
            self._races = Races(queues, book, self._sending, self._failover, self._turns, hedger)

    def on(self, event: Event, now: float) -> list[Command]:
        """Handles one event and returns the commands that follow. If it raises, the commands decided until then are in
        `unfinished`: slots have been taken for them."""
        commands: list[Command] = []
        self.unfinished = commands
        self._seen = None
        sending = self._sending
        if (sending.unheard.wake_at <= now or sending.prefills.wake_at <= now) and sending.pass_time(now):
            self._pump_all(now, commands)
        # Not a match statement: where this is compiled, its patterns look every field up by name.
        if isinstance(event, Arrived):
            self._arrive(event.request, now, commands)
        elif isinstance(event, FirstToken):
            self._first_token(event.request_id, now, commands)
        elif isinstance(event, Ended):
            self._end(event, now, commands)
        elif isinstance(event, AttemptFailed):
            self._attempt_failed(event, now, commands)
        elif isinstance(event, Probed):
            if self.book.probed(event.replica_id, event.ok, event.deep, now):
                self._pump_all(now, commands)
        elif isinstance(event, Reported):
            if self.book.reported(event):
                self._pump_all(now, commands)
        elif isinstance(event, ReplicaJoined):
            self.book.join(event.replica, now)
            self._pump_all(now, commands)
        elif isinstance(event, HedgeWon):
            self._hedge_won(event, now, commands)
        elif isinstance(event, Resumed):
            self._resume(event, now)
        elif isinstance(event, ReplicaLeft):
            self.book.leave(event.replica_id)
            if self._versions.asked:
                self._pump_all(now, commands)
        elif isinstance(event, ReplicaParked):
            self.book.park(event.replica_id, event.parked, event.ramp, now)
            self._pump_all(now, commands)
        elif isinstance(event, ReplicaAsleep):
            self.book.sleepers.add(event.replica_id, event.wake_s, event.waking, now)
        elif isinstance(event, QuoteAsked):
            commands.append(self._quoting.quote(event.request, now))
        elif isinstance(event, Leased):
            self.gate.leased(event, now)
        elif isinstance(event, Shared):
            self.gate.share(event)
            self.book.share(event.low, event.high)
            self._pump_all(now, commands)
        else:
            self._tick(now, commands)
        self._set_alarm()
        return commands

    def reconfigure(self, settings: DispatchSettings) -> None:
        """Applies a new config from now on. A lane that is no longer named stays for the requests in it; tiers are
        always the same two."""
        routing, tiers = settings.routing, settings.tiers
        if ALGORITHMS[routing.algorithm].order != self.index.order:
            known = self._sending.routing.algorithm
            raise ValueError(f"{routing.algorithm} needs another index than {known}: start again")
        self._seen = None
        self.gate.tenants, self.tiers, self._sending.routing = settings.tenants, tiers, routing
        self.queues.reconfigure(settings.lanes, tiers)
        self._turns.reconfigure(self.lanes, tiers, settings.expected)

    def cached_tokens(
        self, prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, model: str, lane: str | None = None
    ) -> int:
        """Tokens of this prompt that the best replica of the lane is expected to have in its cache. `lane` None: the
        best of all."""
        return self.book.cached_tokens(prefix, link_tokens, prompt_tokens, model, lane)

    # -- requests -----------------------------------------------------------------------------------------------

    def _arrive(self, request: Request, now: float, commands: list[Command]) -> None:
        granted = self._charge(request, now)
        if isinstance(granted, OverLimit):
            message = over_message(request.tenant, granted)
            commands.append(Refuse(request.id, Outcome.OVER_LIMIT, message, granted.retry_after_s))
            return
        if self.retries.debt or self.retries.gentle_debt:
            self.retries.earn(now)
        self.arrived_tokens += request.tokens
        lane_queue = self.queues.of(request)
        passage = self.passages[request.id] = Passage(request, granted, lane_queue)
        if (request.fallback or request.pinned) and self._versions.add(passage):
            request, lane_queue = passage.request, passage.lane_queue
        lane_queue.arrived_tokens += request.tokens
        model_queue = lane_queue.model_queue
        model_queue.arrived(request, self._turns.expected, now)
        if not len(lane_queue.queue):
            lane_queue.tally.served = max(
                lane_queue.tally.served, model_queue.turn
            )  # what a lane has not used is not saved up
        at_once = not model_queue.waiting and self._turns.may_go(lane_queue, request, now)
        if not at_once or not self._sending.place(passage, lane_queue, now, commands):
            self._queue(passage, lane_queue, now, commands)

    def _resume(self, event: Resumed, now: float) -> None:
        """Counts a request where it is. It was admitted and charged by the dispatcher before this one."""
        request, seat = event.request, self.index.seat(event.replica_id)
        if seat is None or request.lane not in self.lanes:
            return  # it runs to its end uncounted
        lane_queue = self.queues.of(request)
        passage = self.passages[request.id] = Passage(request, None, lane_queue)
        lane_queue.model_queue.arrived(request, self._turns.expected, now)
        self._sending.resume(passage, lane_queue, seat, event.begun, now)

    def _charge(self, request: Request, now: float) -> Grant | OverLimit | None:
        gate = self.gate
        limits = gate.tenants.get(request.tenant)
        if limits is None:
            return None
        tokens = request.tokens if limits.uncached else request.whole_tokens
        return gate.limits.take(request.tenant, limits, tokens, now)

    def _queue(self, passage: Passage, lane_queue: LaneQueue, now: float, commands: list[Command]) -> None:
        """Lets an arrival wait that was not sent at once, if its model is known and its lane has room."""
        request = passage.request
        if self.index.any() and not self.index.any_for(request.model, request.lane):
            known = ", ".join(self.index.models()[:16])
            message = f"no model {request.model!r} for lane {request.lane!r} here; there is {known or 'none for it'}"
            self._refusals.refuse(passage, Outcome.UNKNOWN_MODEL, message, now, commands)
            return
        passage.ahead = _ahead(lane_queue.queue)
        if len(lane_queue.queue) >= lane_queue.lane.queue_limit:
            # Before any other work on the request: in a flood this is what happens to most.
            message = f"lane {lane_queue.lane.name!r} has {lane_queue.lane.queue_limit} waiting"
            displaced = lane_queue.queue.displaced_by(request.tenant)
            if displaced is None:
                self._refusals.refuse(passage, Outcome.LANE_FULL, message, now, commands)
                return
            self._refusals.refuse(self.passages[displaced.id], Outcome.LANE_FULL, message, now, commands)
        self.queues.push(passage, lane_queue, now)
        self._sending.pump(lane_queue.model_queue, now, commands)
        if passage.load is None:
            self._refusals.wait_or_refuse(passage, lane_queue, now, commands)
            if passage.request.relegated:  # the lower lane may have replicas of its own
                self._sending.pump(lane_queue.model_queue, now, commands)
            self._refusals.tell(passage, now)

    def _first_token(self, request_id: str, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(request_id)
        if passage is None or passage.load is None or passage.quote is None or passage.first_token_at is not None:
            return
        self.queues.quotes.judge(passage.quote, now - passage.request.arrived, now)
        if self._sending.first_token(passage, passage.load, now):
            self._pump_all(now, commands)

    def _end(self, event: Ended, now: float, commands: list[Command]) -> None:
        usage = event.usage
        passage = self.passages.pop(event.request_id, None)
        if passage is None:
            return
        lane_queue, request, load = passage.lane_queue, passage.request, passage.load
        if passage.quote is not None and passage.quote.open:
            self._judge_quote(passage, passage.quote, event, now)
        if request.fallback or request.pinned:
            self._versions.forget(passage)
        if load is None:
            self.queues.remove(event.request_id, lane_queue, now)
        else:
            if self._races is not None:
                self._races.end(passage, event.outcome, now)
            try:
                if not passage.resumed:
                    self._sending.judge_end(passage, load, event, now)
            finally:  # whatever the verdict on its replica, the request's slots are free
                self._let_go(passage, load, event, now)
        if load is None and passage.grant is not None:
            self._settle(passage, passage.grant, event, now)
        if usage is not None:
            computed = passage.computed(usage, event.cached) + usage[1]
            lane_queue.queue.charge(request.tenant, request.weight, computed - (passage.charged or passage.uncached))
        elif request.choices > 1:
            self.queues.take_back(passage)
        if load is not None:
            self._pump_all(now, commands)  # all: replicas that serve any model are shared between models

    def _judge_quote(self, passage: Passage, quote: OpenQuote, event: Ended, now: float) -> None:
        """Judges what a request was told whose first token was not heard: by the time that its engine reports, or by
        how it ended. An answer in one piece tells nothing by itself."""
        quotes, arrived, outcome = self.queues.quotes, passage.request.arrived, event.outcome
        if event.first_s is not None:
            quotes.judge(quote, passage.sent_at - arrived + event.first_s, now)
        elif outcome in MISSED:
            quotes.judge(quote, inf, now)
        elif outcome in LEFT and now - arrived > quote.p99_s:
            quotes.judge(quote, now - arrived, now)

    def _let_go(self, passage: Passage, load: Load, event: Ended, now: float) -> None:
        """Releases the request's slots at its replica, and settles its tenant's limits."""
        self._sending.release(passage, load, passage.lane_queue)
        passage.lane_queue.model_queue.ended(passage.request.tenant, now - passage.sent_at, now)
        if passage.grant is not None:
            self._settle(passage, passage.grant, event, now)

    def _settle(self, passage: Passage, grant: Grant, event: Ended, now: float) -> None:
        usage, uncached = event.usage, grant.limits.uncached
        if usage is not None:
            used = usage[1] + (passage.computed(usage, event.cached) if uncached else usage[0])
        elif passage.first_token_at:
            used = passage.uncached if uncached else passage.request.prompt_tokens
        else:
            used = 0
        self.gate.limits.settle(grant, used, now)

    def _attempt_failed(self, failed: AttemptFailed, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(failed.request_id)
        if passage is None or passage.load is None:
            return
        race = passage.race
        if race is not None and self._races is not None:
            if self._races.one_failed(passage, race, passage.load, failed, now):
                self._pump_all(now, commands)
        elif passage.load.id == failed.replica_id:
            self._failover.failed(passage, passage.load, failed, now, commands)
            self._pump_all(now, commands)

    def _hedge_won(self, event: HedgeWon, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(event.request_id)
        race = None if passage is None else passage.race
        if passage is None or race is None or passage.load is None or self._races is None:
            return
        self._races.won(passage, race, passage.load, event.replica_id)
        self._pump_all(now, commands)

    # -- what goes next -----------------------------------------------------------------------------------------

    def _pump_all(self, now: float, commands: list[Command]) -> None:
        """Sends whatever may go now."""
        if self._set_aside.wake_at < inf:
            self._sending.place_set_aside(now, commands)
        if self._versions.asked:
            self._refusals.move_over(now, commands)
        for model_queue in self.model_queues.values():
            if model_queue.waiting:
                self._sending.pump(model_queue, now, commands)

    def _tick(self, now: float, commands: list[Command]) -> None:
        # A copy: what is relegated may be the first for a model that replicas have come to name.
        for model_queue in tuple(self.model_queues.values()):
            for lane_queue in model_queue.lanes.values() if model_queue.waiting else ():
                for request in lane_queue.queue.expired(now):
                    model_queue.waiting -= 1
                    model_queue.wide -= request.choices > 1
                    self._refusals.time_out(self.passages[request.id], lane_queue, now, commands)
        self.book.tick(now)
        if self._full.wake_at <= now:
            self._full.tick(now)
            for model_queue in self.model_queues.values():
                # One request is tried, of those that were not refused if there are any.
                self._sending.pump(model_queue, now, commands)
        if self._set_aside.wake_at <= now:
            for passage in self._set_aside.expire(now):
                self._refusals.time_out(passage, passage.lane_queue, now, commands)
        if self._races is not None:
            self._races.start(now, commands)
        self._pump_all(now, commands)

    def _set_alarm(self) -> None:
        # `min` of two at a time: compiled, `min` of three is a call, for every event.
        wake_at = min(min(self._full.wake_at, self._set_aside.wake_at), self.health.wake_at())
        for model_queue in self.model_queues.values():
            if model_queue.waiting:
                wake_at = min(wake_at, self._sending.prefills.wake_at)
                for lane_queue in model_queue.lanes.values():
                    wake_at = min(wake_at, lane_queue.queue.next_expiry)
        if self.hedger is not None:
            wake_at = min(wake_at, self.hedger.wake_at)
        self.wake_at = wake_at


def _ahead(queue: FairQueue) -> Ahead | None:
    """What waits in a lane before a new request joins it, and which tenant has most of it. None: nothing waits."""
    if not len(queue):
        return None
    tenant, requests, tokens = queue.heaviest()
    return Ahead(len(queue), queue.tokens, tenant, requests, tokens)
